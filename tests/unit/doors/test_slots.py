"""Places for large bodies: nobody keeps others out, be they slow or many; time is the loop's."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from cachetier.doors.http.limits import RequestLimits
from cachetier.doors.http.slots import Slots
from cachetier.errors import BusyError
from tests.fakes.fake_time_loop import run

LIMITS = RequestLimits(crowded_seconds=2.0, crowded_bytes=1000)
FAST, SLOW = 5000.0, 10.0


class Sender:
    """Moves its body on at a rate, for so many seconds; then ends."""

    def __init__(
        self, slots: Slots, holder: str, rate: float, seconds: float = 1e6, *, excused: bool = False
    ) -> None:
        self._slots = slots
        self.holder = holder
        self._rate = rate
        self._seconds = seconds
        self._excused = excused
        self._began: float | None = None
        self.ended = ""
        self.waited_seconds = 0.0
        self.task = asyncio.ensure_future(self._run())

    @property
    def moved_bytes(self) -> int:
        now = asyncio.get_running_loop().time()
        return 0 if self._began is None else int((now - self._began) * self._rate)

    def waits_for_peer(self, since: float) -> bool:
        return not self._excused and since >= 0

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        asked_at = loop.time()
        try:
            async with self._slots.hold(self.holder, self, 60.0):
                self._began = loop.time()
                self.waited_seconds = self._began - asked_at
                await asyncio.sleep(self._seconds)
            self.ended = "whole"
        except BusyError:
            self.waited_seconds = loop.time() - asked_at
            self.ended = "cut off" if self._began is not None else "never begun"


def after(seconds: float, scene: Callable[[Slots], list[Sender]], number: int = 3) -> list[Sender]:
    """Return what became of the senders of a scene; those who are not done stay so."""

    async def go() -> list[Sender]:
        slots = Slots(number, "uploads", LIMITS)
        senders = scene(slots)
        await asyncio.sleep(seconds)
        for sender in senders:
            sender.task.cancel()
        await asyncio.gather(*(sender.task for sender in senders), return_exceptions=True)
        assert not slots._taken
        assert not slots._waiting
        return senders

    return run(go())


def test_the_slow_may_take_their_time_while_nobody_waits() -> None:
    assert [each.ended for each in after(1000, lambda s: [Sender(s, "a", 0)] * 3)] == [""] * 3


def test_slow_strangers_make_way_for_whoever_waits() -> None:
    *strangers, late = after(
        30, lambda s: [*(Sender(s, f"s{n}", SLOW + n) for n in range(3)), Sender(s, "me", FAST, 5)]
    )
    assert late.ended == "whole"
    assert late.waited_seconds <= 2 * LIMITS.crowded_seconds
    assert [each.ended for each in strangers] == ["cut off", "", ""]  # who moved least


def test_each_who_waits_costs_one_slow_stranger_its_place() -> None:
    *strangers, one, two = after(
        30,
        lambda s: [
            *(Sender(s, f"s{n}", SLOW) for n in range(3)),
            Sender(s, "me", FAST, 20),
            Sender(s, "you", FAST, 20),
        ],
    )
    assert one.waited_seconds == two.waited_seconds <= 2 * LIMITS.crowded_seconds
    assert sorted(each.ended for each in strangers) == ["", "cut off", "cut off"]


def test_who_moves_on_is_not_cut_off_for_others_who_hold_as_little() -> None:
    *busy, late = after(
        100, lambda s: [*(Sender(s, f"s{n}", FAST) for n in range(3)), Sender(s, "me", FAST)]
    )
    assert [each.ended for each in busy] == ["", "", ""]
    assert late.ended == "never begun"
    assert late.waited_seconds == 60.0


def test_who_stands_still_because_of_the_service_is_not_cut_off() -> None:
    *busy, _late = after(
        50,
        lambda s: [
            *(Sender(s, f"s{n}", 0, excused=True) for n in range(3)),
            Sender(s, "me", FAST),
        ],
    )
    assert [each.ended for each in busy] == ["", "", ""]


def test_nobody_holds_all_places_while_others_wait() -> None:
    *greedy, late = after(
        30, lambda s: [*(Sender(s, "greedy", FAST + n) for n in range(5)), Sender(s, "me", FAST)]
    )
    assert late.ended == ""
    assert late.waited_seconds <= 2 * LIMITS.crowded_seconds
    assert [each.ended for each in greedy] == ["cut off", "", "", "", ""]


def test_a_free_place_goes_to_who_holds_least_and_then_to_who_waited_longest() -> None:
    many = after(
        8,
        lambda s: [
            *(Sender(s, "greedy", FAST, 3) for _ in range(3)),
            *(Sender(s, "greedy", FAST, 3) for _ in range(3)),
            Sender(s, "me", FAST, 3),
            Sender(s, "you", FAST, 3),
        ],
    )
    assert [each.waited_seconds for each in many[-2:]] == pytest.approx([2.0, 2.0], abs=0.6)


def test_a_cut_off_body_that_takes_its_time_to_end_costs_no_second_one_its_place() -> None:
    async def go() -> list[str]:
        slots = Slots(2, "uploads", LIMITS)
        ended: list[str] = []

        async def stranger(name: str) -> None:
            body = Sender.__new__(Sender)
            body._began, body._rate, body._excused = None, 0, False
            try:
                async with slots.hold(name, body, 1.0):
                    try:
                        await asyncio.sleep(1000)
                    finally:
                        await asyncio.sleep(10)  # its last blocks are still being written
            except BusyError:
                ended.append(name)

        strangers = [asyncio.ensure_future(stranger(name)) for name in "ab"]
        await asyncio.sleep(0)
        late = Sender(slots, "me", FAST, 1)
        await asyncio.sleep(30)
        assert late.ended == "whole"
        for each in strangers:
            each.cancel()
        await asyncio.gather(*strangers, return_exceptions=True)
        return ended

    assert len(run(go())) == 1
