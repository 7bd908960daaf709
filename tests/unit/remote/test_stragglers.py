"""Which calls are broken off as slow, and made again."""

from __future__ import annotations

import threading
import time

import pytest
from awscrt.checksums import crc64nvme
from cachetier_client.bucket_format.uploads import UploadedPart
from cachetier_client.io.digests import BLOCK_BYTES

from cachetier.errors import TransientError
from cachetier.remote.base import Body, Into
from cachetier.remote.call_policy import (
    SLOW_SECONDS,
    USUAL_FROM,
    CallPolicy,
    Stragglers,
    slow_after_seconds,
)
from tests.fakes.memory_store import MemoryObjectStore

BODY = b"part"
DIGEST = crc64nvme(BODY)
A_MOMENT = 0.02


def test_nothing_is_slow_before_there_is_something_to_compare_with() -> None:
    assert slow_after_seconds([0.1] * (USUAL_FROM - 1)) is None


def test_a_call_is_slow_after_three_times_what_the_others_took_but_not_at_once() -> None:
    assert slow_after_seconds([5.0] * USUAL_FROM) == 15.0
    assert slow_after_seconds([0.01] * USUAL_FROM) == SLOW_SECONDS


class Sticking(MemoryObjectStore):
    """Holds up the calls it is told to, until they are cut."""

    def __init__(self) -> None:
        super().__init__()
        self.sticking = 0
        self.sent = 0
        self.sticks = threading.Event()
        self.stuck_seconds: list[float] = []
        self._cuts: dict[int, threading.Event] = {}

    def upload_part(
        self, key: str, upload_id: str, number: int, body: Body, *, digest: int
    ) -> UploadedPart:
        self._called()
        return super().upload_part(key, upload_id, number, body, digest=digest)

    def read_into(self, key: str, start: int, into: Into, etag: str | None = None) -> None:
        self._called()
        super().read_into(key, start, into, etag)

    def _called(self) -> None:
        self.sent += 1
        if not self.sticking:
            return
        self.sticking -= 1
        began_at = time.monotonic()
        cut = self._cuts[threading.get_ident()] = threading.Event()
        self.sticks.set()
        assert cut.wait(60)
        self.stuck_seconds.append(time.monotonic() - began_at)
        raise TransientError("cut off")

    def cut(self, thread: int) -> None:
        if thread in self._cuts:
            self._cuts[thread].set()

    def cut_everybody(self) -> None:
        for thread in list(self._cuts):
            self.cut(thread)


class Room:
    """Says whether there is room for a second try, and remembers that it was asked."""

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
def stragglers(sticking: Sticking, room: Room, monkeypatch: pytest.MonkeyPatch) -> Stragglers:
    monkeypatch.setattr("cachetier.remote.call_policy.SLOW_SECONDS", A_MOMENT)
    return Stragglers([sticking.cut], room)


@pytest.fixture
def store(sticking: Sticking, stragglers: Stragglers) -> CallPolicy:
    return CallPolicy(sticking, stragglers=stragglers)


def send(store: CallPolicy, upload: str, numbers: range) -> None:
    for number in numbers:
        store.upload_part("key", upload, number, BODY, digest=DIGEST)


def begun_upload(store: CallPolicy) -> str:
    """Begin an upload, and send as many parts as tell what is usual."""
    upload = store.create_upload("key")
    send(store, upload, range(1, USUAL_FROM + 1))
    return upload


def test_a_part_that_takes_too_long_is_broken_off_and_sent_again(
    store: CallPolicy, stragglers: Stragglers, sticking: Sticking
) -> None:
    upload = begun_upload(store)
    sticking.sticking = 1
    send(store, upload, range(9, 10))
    assert (stragglers.broken_off, sticking.sent) == (1, USUAL_FROM + 2)
    assert len(sticking.stuck_seconds) == 1


def test_a_part_is_slow_beside_others_that_began_with_it(
    store: CallPolicy, stragglers: Stragglers, sticking: Sticking
) -> None:
    """Have it begin before any other has ended, as all parts of a small step do."""
    upload = store.create_upload("key")
    sticking.sticking = 1
    first = threading.Thread(target=send, args=(store, upload, range(1, 2)))
    first.start()
    assert sticking.sticks.wait(60)
    send(store, upload, range(2, USUAL_FROM + 2))
    first.join(60)
    assert (stragglers.broken_off, sticking.sent) == (1, USUAL_FROM + 2)


def test_each_try_may_take_twice_as_long_as_the_one_before(
    store: CallPolicy, stragglers: Stragglers, sticking: Sticking
) -> None:
    upload = begun_upload(store)
    sticking.sticking = 3
    send(store, upload, range(9, 10))
    assert (stragglers.broken_off, sticking.sent) == (3, USUAL_FROM + 4)
    assert sticking.stuck_seconds[1] > 2 * A_MOMENT
    assert sticking.stuck_seconds[2] > 4 * A_MOMENT


def test_parts_that_end_in_time_are_sent_once(
    store: CallPolicy,
    stragglers: Stragglers,
    sticking: Sticking,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("cachetier.remote.call_policy.SLOW_SECONDS", 60.0)
    send(store, store.create_upload("key"), range(1, 40))
    assert (stragglers.broken_off, sticking.sent) == (0, 39)


def test_where_there_is_no_room_nothing_is_broken_off_and_a_failure_is_the_callers(
    store: CallPolicy, stragglers: Stragglers, sticking: Sticking, room: Room
) -> None:
    upload = begun_upload(store)
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
    assert (stragglers.broken_off, sticking.sent) == (0, USUAL_FROM + 1)


def test_a_slow_part_goes_on_until_there_is_room_and_is_broken_off_then(
    store: CallPolicy, stragglers: Stragglers, sticking: Sticking, room: Room
) -> None:
    upload = begun_upload(store)
    room.is_left = False
    sticking.sticking = 1
    thread = threading.Thread(target=send, args=(store, upload, range(9, 10)))
    thread.start()
    assert room.asked.wait(60)
    assert stragglers.broken_off == 0
    room.is_left = True
    thread.join(60)
    assert (stragglers.broken_off, sticking.sent) == (1, USUAL_FROM + 2)


def test_a_slow_range_is_asked_for_again_and_a_small_one_is_not_watched(
    store: CallPolicy, stragglers: Stragglers, sticking: Sticking
) -> None:
    data = bytes(range(256)) * (BLOCK_BYTES // 256)
    store.put("key", data, digest=crc64nvme(data))
    into = bytearray(BLOCK_BYTES)
    for _ in range(USUAL_FROM):
        store.read_into("key", 0, memoryview(into))
    sticking.sticking, into = 1, bytearray(BLOCK_BYTES)
    store.read_into("key", 0, memoryview(into))
    assert into == data
    assert (stragglers.broken_off, sticking.sent) == (1, USUAL_FROM + 2)

    sticking.sticking = 1
    cutter = threading.Timer(10 * A_MOMENT, sticking.cut_everybody)
    cutter.start()
    with pytest.raises(TransientError):
        store.read_into("key", 0, memoryview(into)[1:])
    cutter.join()
    assert stragglers.broken_off == 1
