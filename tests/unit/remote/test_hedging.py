"""When a part is sent twice, and what becomes of the slower one."""

from __future__ import annotations

import threading
from contextvars import ContextVar

import pytest
from awscrt.checksums import crc64nvme
from cachetier_client.bucket_format.uploads import UploadedPart

from cachetier.errors import TransientError
from cachetier.remote.base import Body
from cachetier.remote.call_policy import (
    HEDGE_AFTER_SECONDS,
    USUAL_FROM,
    CallPolicy,
    Hedge,
    hedge_after_seconds,
)
from tests.fakes.memory_store import MemoryObjectStore

BODY = b"part"
DIGEST = crc64nvme(BODY)
CALLER = ContextVar("caller", default="")


def test_nothing_is_slow_before_there_is_something_to_compare_with() -> None:
    assert hedge_after_seconds([0.1] * (USUAL_FROM - 1)) is None


def test_a_part_is_slow_after_three_times_what_the_others_took_but_not_at_once() -> None:
    assert hedge_after_seconds([5.0] * USUAL_FROM) == 15.0
    assert hedge_after_seconds([0.01] * USUAL_FROM) == HEDGE_AFTER_SECONDS


class Sticking(MemoryObjectStore):
    """Holds up the calls it is told to, until they are cut."""

    def __init__(self) -> None:
        super().__init__()
        self.sticking = 0
        self.sent = 0
        self.cut_calls = 0
        self.sent_again = threading.Event()
        self.callers: list[str] = []
        self.senders: list[int] = []
        self._cuts: dict[int, threading.Event] = {}

    def upload_part(
        self, key: str, upload_id: str, number: int, body: Body, *, digest: int
    ) -> UploadedPart:
        self.sent += 1
        self.callers.append(CALLER.get())
        self.senders.append(threading.get_ident())
        if self.sent == USUAL_FROM + 2:
            self.sent_again.set()
        if self.sticking:
            self.sticking -= 1
            self._stick()
        return super().upload_part(key, upload_id, number, body, digest=digest)

    def _stick(self) -> None:
        cut = self._cuts.setdefault(threading.get_ident(), threading.Event())
        assert cut.wait(60)
        self.cut_calls += 1
        raise TransientError("cut off")

    def cut(self, thread: int) -> None:
        self._cuts.setdefault(thread, threading.Event()).set()

    def cut_everybody(self) -> None:
        for thread in list(threading.enumerate()):
            self.cut(thread.ident or 0)


class SecondSticking(Sticking):
    """Answers a slow part once its second send is under way, which sticks until it is cut."""

    def upload_part(
        self, key: str, upload_id: str, number: int, body: Body, *, digest: int
    ) -> UploadedPart:
        part = super().upload_part(key, upload_id, number, body, digest=digest)
        if self.sent == USUAL_FROM + 1:
            assert self.sent_again.wait(60)
        elif self.sent == USUAL_FROM + 2:
            self._stick()
        return part


class Room:
    """Says whether there is room for a second send, and remembers that it was asked."""

    def __init__(self) -> None:
        self.is_left = True
        self.asked = threading.Event()

    def __call__(self) -> bool:
        self.asked.set()
        return self.is_left


@pytest.fixture
def sticking() -> Sticking:
    return Sticking()


@pytest.fixture
def room() -> Room:
    return Room()


@pytest.fixture
def hedge(sticking: Sticking, room: Room, monkeypatch: pytest.MonkeyPatch) -> Hedge:
    monkeypatch.setattr("cachetier.remote.call_policy.HEDGE_AFTER_SECONDS", 0.02)
    return Hedge(sticking.cut, room)


@pytest.fixture
def store(sticking: Sticking, hedge: Hedge) -> CallPolicy:
    return CallPolicy(sticking, hedge=hedge)


def send(store: CallPolicy, upload: str, numbers: range) -> None:
    for number in numbers:
        store.upload_part("key", upload, number, BODY, digest=DIGEST)


def test_a_part_that_takes_too_long_is_sent_again_and_the_first_send_is_broken_off(
    store: CallPolicy, hedge: Hedge, sticking: Sticking
) -> None:
    upload = store.create_upload("key")
    send(store, upload, range(1, USUAL_FROM + 1))
    sticking.sticking = 1
    send(store, upload, range(9, 10))
    assert (hedge.hedged, sticking.sent, sticking.cut_calls) == (1, USUAL_FROM + 2, 1)


def test_parts_that_end_in_time_are_sent_once(
    store: CallPolicy, hedge: Hedge, sticking: Sticking, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cachetier.remote.call_policy.HEDGE_AFTER_SECONDS", 60.0)
    send(store, store.create_upload("key"), range(1, 40))
    assert (hedge.hedged, sticking.sent) == (0, 39)


def test_where_there_is_no_room_nothing_is_sent_twice(
    store: CallPolicy, hedge: Hedge, sticking: Sticking, room: Room
) -> None:
    upload = store.create_upload("key")
    send(store, upload, range(1, USUAL_FROM + 1))
    room.is_left = False
    sticking.sticking = 1
    failure: list[BaseException] = []

    def attempt() -> None:
        try:
            send(store, upload, range(9, 10))
        except TransientError as error:
            failure.append(error)

    thread = threading.Thread(target=attempt)
    thread.start()
    assert room.asked.wait(60)  # by then it has taken too long
    sticking.cut_everybody()
    thread.join(60)
    assert failure
    assert (hedge.hedged, sticking.sent) == (0, USUAL_FROM + 1)


def test_when_both_sends_fail_the_failure_is_raised(
    store: CallPolicy, hedge: Hedge, sticking: Sticking
) -> None:
    upload = store.create_upload("key")
    send(store, upload, range(1, USUAL_FROM + 1))
    sticking.sticking = 2

    def cut_both() -> None:
        sticking.sent_again.wait(60)
        sticking.cut_everybody()

    thread = threading.Thread(target=cut_both)
    thread.start()
    with pytest.raises(TransientError):
        send(store, upload, range(9, 10))
    thread.join()
    assert (hedge.hedged, sticking.cut_calls) == (1, 2)


def test_a_part_that_is_not_slow_is_sent_by_its_caller_alone(
    store: CallPolicy, sticking: Sticking, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cachetier.remote.call_policy.HEDGE_AFTER_SECONDS", 60.0)
    send(store, store.create_upload("key"), range(1, 40))
    assert set(sticking.senders) == {threading.get_ident()}


def test_a_first_send_that_succeeds_after_all_breaks_the_second_off_and_waits_for_it(
    room: Room, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cachetier.remote.call_policy.HEDGE_AFTER_SECONDS", 0.02)
    sticking = SecondSticking()
    hedge = Hedge(sticking.cut, room)
    store = CallPolicy(sticking, hedge=hedge)
    send(store, store.create_upload("key"), range(1, USUAL_FROM + 2))
    assert (hedge.hedged, sticking.sent, sticking.cut_calls) == (1, USUAL_FROM + 2, 1)


def test_both_sends_are_made_in_the_context_of_their_caller(
    store: CallPolicy, sticking: Sticking
) -> None:
    upload = store.create_upload("key")
    send(store, upload, range(1, USUAL_FROM + 1))
    sticking.sticking = 1
    token = CALLER.set("a drain")
    send(store, upload, range(9, 10))
    CALLER.reset(token)
    assert sticking.callers[-2:] == ["a drain", "a drain"]
    assert len(set(sticking.senders)) == 2


def test_a_part_whose_second_send_fails_is_still_sent_by_the_first(room: Room) -> None:
    """Have the second send end first, with an error, while the first is under way."""
    ended: list[bool] = []

    class SecondFails(MemoryObjectStore):
        sent = 0

        def upload_part(
            self, key: str, upload_id: str, number: int, body: Body, *, digest: int
        ) -> UploadedPart:
            self.sent += 1
            if self.sent == 2:
                second_failed.set()
                raise TransientError("reset")
            assert second_failed.wait(60)
            ended.append(True)
            return super().upload_part(key, upload_id, number, body, digest=digest)

    second_failed = threading.Event()
    hedge = Hedge(lambda _thread: None, room)
    hedge._usual.extend([0.0] * USUAL_FROM)
    store = CallPolicy(SecondFails(), hedge=hedge)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("cachetier.remote.call_policy.HEDGE_AFTER_SECONDS", 0.02)
        send(store, store.create_upload("key"), range(1, 2))
    assert (hedge.hedged, ended) == (1, [True])
