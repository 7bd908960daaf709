"""Many connections, silent, stalled or greedy: none takes the memory or the place of others."""

from __future__ import annotations

import os
import socket
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from cachetier_client import Client
from cachetier_client.io.digests import digest_of, to_hex
from cachetier_client.transport.wire import MAGIC, PREFIX, FrameError, receive_frame, send_frame

from cachetier.access.access import Access
from cachetier.access.principals import Caller, Principal
from cachetier.access.roles import Role
from cachetier.doors.unix import door as door_module
from cachetier.doors.unix import frames as frames_module
from tests.integration.test_unix_door import IDS, Door, Rank

PLACES = 20


@pytest.fixture
def door(tmp_path: Path) -> Iterator[Door]:
    opened = Door(tmp_path)
    yield opened
    opened.close()


@pytest.fixture
def few_places(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(door_module, "CONNECTION_LIMIT", PLACES)


@pytest.fixture
def strangers(door: Door, monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """All who connect are of another user, until what this returns is called."""
    own = os.getuid()
    uids = [own + 1]
    everybody = Principal("everybody", Role.ADMIN)
    monkeypatch.setattr(Access, "peer", lambda *_peer: Caller(everybody, uid=uids[0]))

    def leave() -> None:
        uids[0] = own

    return leave


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frames_module, "STALL_SECONDS", 1)


def until(reached: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not reached():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def hung_up(connection: socket.socket) -> bool:
    """Return whether the service hung up, after whatever it said."""
    try:
        while connection.recv(1 << 16):
            pass
    except ConnectionResetError:
        pass
    except TimeoutError:
        return False
    return True


def answers(rank: Rank) -> bool:
    try:
        return bool(rank.ask("status")["ok"])
    except (FrameError, ConnectionError):
        return False


def test_500_frames_that_only_begin_take_no_memory(door: Door) -> None:
    before = psutil.Process().memory_info().rss
    for number in range(500):
        rank = door.rank(hello=False)
        rank.socket.sendall(PREFIX.pack(MAGIC, 30, 16 << 20) + bytes(number % 30))

    assert door.rank().ask("status")["ok"]
    assert psutil.Process().memory_info().rss - before < 100 << 20


@pytest.mark.usefixtures("impatient")
def test_before_hello_a_peer_has_little_time(door: Door) -> None:
    assert hung_up(door.rank(hello=False).socket)


@pytest.mark.usefixtures("impatient")
def test_a_rank_may_be_silent_between_requests_for_as_long_as_it_likes(door: Door) -> None:
    rank = door.rank()
    time.sleep(2.5)

    assert rank.ask("status")["ok"]


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("drip", [b"", b"x"], ids=["stalls", "drips"])
def test_a_frame_that_does_not_end_ends_the_connection(door: Door, drip: bytes) -> None:
    rank = door.rank()
    rank.socket.settimeout(0.3)
    rank.socket.sendall(PREFIX.pack(MAGIC, 100, 4 << 20))

    ends_at = time.monotonic() + 60
    while not hung_up(rank.socket):
        assert time.monotonic() < ends_at
        if drip:
            try:
                rank.socket.sendall(drip)
            except BrokenPipeError:
                break


@pytest.mark.usefixtures("impatient")
def test_a_peer_that_reads_no_answers_is_hung_up_on(door: Door) -> None:
    rank = door.rank()
    rank.socket.settimeout(5)
    with pytest.raises(OSError):
        while True:
            send_frame(rank.socket, {"op": "status", "of": "x" * 60_000})

    until(lambda: door.door.connections == 0)


@pytest.mark.usefixtures("impatient")
def test_large_frames_wait_for_memory_together(door: Door, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frames_module, "OWN_BYTES", 0)
    monkeypatch.setattr(door.door, "_room", frames_module.FrameRoom(5 << 20))
    held, late = door.rank(), door.rank()
    for rank in (held, late):
        rank.socket.sendall(PREFIX.pack(MAGIC, 100, 4 << 20))

    answers = [receive_frame(rank.socket).header["error"]["message"] for rank in (held, late)]

    assert any("rest of a frame" in answer for answer in answers)
    assert door.door._room._free_bytes in (5 << 20, (5 << 20) - ((4 << 20) + 100))


@pytest.mark.usefixtures("few_places")
def test_silent_connections_make_place_for_one_that_comes(door: Door) -> None:
    silent = [door.rank() for _ in range(PLACES)]

    assert door.rank().ask("status")["ok"]
    assert sum(answers(rank) for rank in silent) == PLACES - 1
    assert door.door.connections == PLACES


@pytest.mark.usefixtures("few_places")
def test_a_client_whose_silent_connection_made_place_goes_on(door: Door) -> None:
    with Client(f"unix://{door.path}", fallback="fail") as client:
        client.put_shard(b"one", run="r", step=1, name="a", save_id="s", rank=0, world_size=1)
        for _ in range(2 * PLACES):
            door.rank()
        client.put_shard(b"two", run="r", step=1, name="b", save_id="s", rank=0, world_size=1)


@pytest.mark.usefixtures("few_places")
def test_a_rank_that_writes_goes_only_where_no_other_rests(door: Door) -> None:
    writing = door.rank()
    os.close(writing.begin()[1])
    idle = [door.rank() for _ in range(PLACES - 1)]
    assert door.rank().ask("status")["ok"]
    assert writing.ask("status")["ok"]
    assert sum(answers(rank) for rank in idle) == len(idle) - 1


def test_what_takes_no_body_is_refused_with_one(door: Door) -> None:
    step = {"run": IDS["run"], "step": IDS["step"]}
    assert door.rank().refusal("wait", bytes(1 << 20), **step) == "invalid_request"


def test_hello_is_said_once(door: Door) -> None:
    assert door.rank().refusal("hello", protocol=1) == "invalid_request"


@pytest.mark.usefixtures("few_places")
def test_the_user_who_holds_most_makes_place(door: Door, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(door_module, "OWN_CONNECTIONS", 0)
    uids = iter([1] * 3 + [2] * (PLACES - 3) + [1, 1])
    everybody = Principal("everybody", Role.ADMIN)
    monkeypatch.setattr(Access, "peer", lambda *_peer: Caller(everybody, uid=next(uids)))
    modest = [door.rank() for _ in range(3)]
    greedy = [door.rank() for _ in range(PLACES - 3)]

    more = [door.rank(), door.rank()]

    assert all(rank.ask("status")["ok"] for rank in (*modest, *more))
    assert sum(answers(rank) for rank in greedy) == len(greedy) - 2
    assert Counter(each.caller.uid for each in door.door._visitors) == {1: 5, 2: PLACES - 5}


@pytest.mark.usefixtures("few_places")
def test_where_everybody_is_busy_a_newcomer_hears_so(door: Door) -> None:
    step = {"run": IDS["run"], "step": IDS["step"]}
    whole = {"size_bytes": 1, "digest": to_hex(digest_of(b"x"))}
    assert door.rank().ask("put", b"x", **IDS, name="a", **whole)["ok"]
    waiting = [door.rank() for _ in range(PLACES - 1)]
    for rank in waiting:
        send_frame(rank.socket, {"op": "wait", **step, "timeout_seconds": 600})
    until(lambda: door.waits.callers == PLACES - 1)
    last = door.rank()
    send_frame(last.socket, {"op": "wait", **step, "timeout_seconds": 600})
    until(lambda: door.waits.callers == PLACES)

    newcomer = door.rank(hello=False)

    assert receive_frame(newcomer.socket).header["error"]["code"] == "busy"


@pytest.mark.usefixtures("few_places")
def test_the_services_own_user_gets_in_while_another_keeps_every_place_busy(
    door: Door, strangers: Callable[[], None]
) -> None:
    step = {"run": IDS["run"], "step": IDS["step"]}
    whole = {"size_bytes": 1, "digest": to_hex(digest_of(b"x"))}
    first = door.rank()
    assert first.ask("put", b"x", **IDS, name="a", **whole)["ok"]
    others = PLACES - door_module.OWN_CONNECTIONS
    busy = [first, *(door.rank() for _ in range(others - 1))]
    for rank in busy:
        send_frame(rank.socket, {"op": "wait", **step, "timeout_seconds": 600})
    until(lambda: door.waits.callers == others)
    assert receive_frame(door.rank(hello=False).socket).header["error"]["code"] == "busy"

    strangers()

    assert all(door.rank().ask("status")["ok"] for _ in range(door_module.OWN_CONNECTIONS))


@pytest.mark.usefixtures("impatient")
def test_frames_of_others_leave_memory_to_the_services_own_user(
    door: Door, strangers: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    room = frames_module.FrameRoom(frames_module.OWN_BYTES + (5 << 20))
    monkeypatch.setattr(door.door, "_room", room)
    greedy = [door.rank() for _ in range(2)]
    for rank in greedy:
        rank.socket.sendall(PREFIX.pack(MAGIC, 100, 4 << 20))
    until(lambda: room._free_bytes < frames_module.OWN_BYTES + (4 << 20))

    strangers()

    assert door.rank().refusal("status", bytes(4 << 20)) == "invalid_request"
