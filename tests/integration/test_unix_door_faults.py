"""The socket door when something fails behind it, or a peer asks for the absurd."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cachetier_client.io.digests import digest_of, to_hex
from cachetier_client.transport.wire import MAGIC, PREFIX, receive_frame, send_frame

from cachetier.ingest.ingest import NodeIngest
from cachetier.local.store import Staged
from tests.integration.test_unix_door import DATA, IDS, Door


@pytest.fixture
def door(tmp_path: Path) -> Iterator[Door]:
    opened = Door(tmp_path)
    yield opened
    opened.close()


@pytest.mark.parametrize("size_bytes", [1 << 52, 1 << 62, 10**300])
def test_an_absurd_size_is_refused_before_memory_is_taken(door: Door, size_bytes: int) -> None:
    rank = door.rank()
    staging, descriptor = rank.begin()
    os.close(descriptor)

    answer = rank.commit(staging, size_bytes=size_bytes)

    assert answer["error"]["code"] in ("size_mismatch", "invalid_request")
    assert door.is_empty()


def test_more_bytes_than_were_reserved_are_not_kept(door: Door) -> None:
    rank = door.rank()
    staging, descriptor = rank.begin(size_bytes=10)
    os.pwrite(descriptor, DATA, 0)
    os.ftruncate(descriptor, len(DATA))
    os.close(descriptor)

    assert rank.commit(staging)["error"]["code"] == "size_mismatch"
    assert door.is_empty()


@pytest.mark.parametrize("staging", [None, [1], {"a": 1}, "1", 1.5, 99])
def test_a_block_for_no_put_is_passed_over(door: Door, staging: object) -> None:
    rank = door.rank()

    send_frame(rank.socket, {"op": "block", "staging": staging}, b"x")

    assert rank.ask("status")["ok"]


@pytest.mark.parametrize(
    "fields",
    [
        {"op": "x" * 900_000},
        {"op": "latest", "run": "r", "level": "y" * 900_000},
        {"op": "commit", "staging": "z" * 900_000, "size_bytes": 1},
        {"op": "begin", **IDS, "name": "n" * 900_000},
        {"op": "begin", **IDS, "name": "n", "size_bytes": 1, "timeout_seconds": "t" * 900_000},
    ],
    ids=["operation", "level", "staging", "name", "timeout"],
)
def test_an_error_does_not_repeat_a_megabyte(door: Door, fields: dict[str, Any]) -> None:
    asked = {name: value for name, value in fields.items() if name != "op"}

    answer = door.rank().ask(str(fields["op"]), **asked)

    assert not answer["ok"]
    assert len(str(answer)) < 10_000


def test_numbers_too_large_for_a_float_are_bounded(door: Door) -> None:
    rank = door.rank(hello=False)

    assert rank.ask("hello", protocol=1, client_id="c", since=10**400)["ok"]
    assert rank.ask("flush", timeout_seconds=10**400)["ok"]


def test_a_disk_that_fails_is_told_and_the_connection_stays(
    door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An OSError of the disk is not one of the socket: the peer waits for an answer."""
    rank = door.rank()
    rank.ask("put", b"x", **IDS, name="x", size_bytes=1, digest=to_hex(digest_of(b"x")))

    def broken(*_args: object) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(door.node.store, "local_copy", broken)
    assert rank.refusal("open", run="r", step=7, name="x") == "staged_io"
    monkeypatch.undo()
    assert rank.ask("open", run="r", step=7, name="x")["ok"]


def test_a_put_that_cannot_be_dropped_keeps_no_other_from_going(
    door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    rank = door.rank()
    for number in range(3):
        os.close(rank.begin(f"shard-{number}")[1])
    abort, calls = NodeIngest.abort, [0]

    def first_fails(self: NodeIngest, staged: Staged) -> None:
        abort(self, staged)
        calls[0] += 1
        if calls[0] == 1:
            raise OSError(5, "Input/output error")

    monkeypatch.setattr(NodeIngest, "abort", first_fails)
    rank.close()

    assert door.becomes_empty()
    assert calls == [3]


def test_a_peer_that_is_gone_before_it_is_refused_is_no_alarm(
    door: Door, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.ERROR):
        for _ in range(20):
            rank = door.rank()
            rank.socket.sendall(PREFIX.pack(b"HTTP", 1, 1))
            rank.close()
            door.becomes_empty()

    assert caplog.records == []
    assert MAGIC != b"HTTP"


def test_stopping_the_door_is_no_alarm(door: Door, caplog: pytest.LogCaptureFixture) -> None:
    door.rank()
    with caplog.at_level(logging.ERROR):
        door.door.stop(5)

    assert caplog.records == []
    assert door.door.connections == 0


def test_accepting_goes_on_when_no_thread_was_left_for_one_connection(
    door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    start, refused = threading.Thread.start, [0]

    def exhausted(self: threading.Thread) -> None:
        if self.name == "unix-session" and not refused[0]:
            refused[0] += 1
            raise RuntimeError("can't start new thread")
        start(self)

    monkeypatch.setattr(threading.Thread, "start", exhausted)

    turned_away = receive_frame(door.rank(hello=False).socket)

    assert turned_away.header["error"]["code"] == "busy"
    assert refused == [1]
    assert door.rank().ask("status")["ok"]


def test_connections_leave_no_descriptor_behind(door: Door) -> None:
    door.rank().close()
    door.becomes_empty()
    before = len(os.listdir("/proc/self/fd"))
    for number in range(30):
        rank = door.rank()
        os.close(rank.begin(f"shard-{number}")[1])
        rank.refusal("open", run="r", step=7, name="absent")
        rank.close()

    assert door.becomes_empty()
    assert len(os.listdir("/proc/self/fd")) == before
