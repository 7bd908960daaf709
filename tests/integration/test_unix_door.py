"""The socket door, spoken to by hand: what a rank may do wrong, and what is left afterwards."""

from __future__ import annotations

import contextlib
import mmap
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cachetier_client.clock import SystemClock
from cachetier_client.io.digests import digest_of, pack, to_hex
from cachetier_client.transport.wire import (
    MAGIC,
    PREFIX,
    ConnectionClosedError,
    Frame,
    receive_frame,
    send_frame,
)

from cachetier.doors.operations import Operations
from cachetier.doors.unix import door as door_module
from cachetier.doors.unix.door import UnixDoor
from cachetier.doors.unix.session import STAGED_LIMIT
from cachetier.errors import StoppingError
from cachetier.model.names import DURABLE
from cachetier.reclaim.gc import Garbage
from cachetier.remote.bucket import Remote
from cachetier.steps.waits import Waits
from cachetier.steps.whole_steps import WholeSteps
from cachetier.training_hints import Phases
from tests.fakes.access import owners_access
from tests.fakes.memory_store import MemoryObjectStore
from tests.stateful.node import Node

IDS: dict[str, Any] = {"run": "r", "step": 7, "rank": 0, "world_size": 1, "save_id": "s"}
DATA = bytes(range(256)) * 1024  # beyond what lies inside the catalog


class Rank:
    """One connection, without the client library's good manners."""

    def __init__(self, path: Path, *, hello: bool = True) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.socket.settimeout(20)
        self.socket.connect(str(path))
        if hello:
            assert self.ask("hello", protocol=1)["ok"]

    def ask(self, op: str, body: bytes = b"", **fields: Any) -> dict[str, Any]:
        return self.frame(op, body, **fields).header

    def frame(self, op: str, body: bytes = b"", **fields: Any) -> Frame:
        send_frame(self.socket, {"op": op, **fields}, body)
        return receive_frame(self.socket)

    def refusal(self, op: str, body: bytes = b"", **fields: Any) -> str:
        """Return the code of the error that the answer must be; it must say what to do next."""
        answer = self.ask(op, body, **fields)
        assert not answer["ok"], answer
        assert answer["error"]["message"]
        assert answer["error"]["hint"]
        return str(answer["error"]["code"])

    def begin(self, name: str = "big", size_bytes: int | None = len(DATA)) -> tuple[int, int]:
        """Return the staging and the descriptor of a put."""
        frame = self.frame("begin", **IDS, name=name, size_bytes=size_bytes)
        assert frame.header["ok"], frame.header
        assert frame.descriptor is not None
        return int(frame.header["staging"]), frame.descriptor

    def commit(self, staging: int, data: bytes = DATA, **changed: Any) -> dict[str, Any]:
        digest = digest_of(data)
        fields = {"size_bytes": len(data), "digest": to_hex(digest), **changed}
        return self.ask("commit", pack([digest]), staging=staging, **fields)

    def close(self) -> None:
        self.socket.close()


class Door:
    """A node behind a door, and what a test wants to know of both."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / "s"
        self.node = Node(directory / "cache", MemoryObjectStore(), SystemClock())
        self.stopping = False
        self.phases = Phases(SystemClock())
        self.waits = Waits(self.node.changes, SystemClock())
        self.waits.start()
        self.operations = Operations(
            store_id=self.node.store.store_id,
            access=owners_access(),
            ingest=self.node.ingest,
            restore=self.node.restore,
            whole_steps=WholeSteps(self.node.store, self.node.restore, SystemClock()),
            checkpoints=self.node.checkpoints,
            waits=self.waits,
            incidents=self.node.incidents,
            phases=self.phases,
            garbage=Garbage(
                self.node.store,
                directory / "cache",
                [Remote(DURABLE, self.node.bucket)],
                SystemClock(),
            ),
            status=lambda: {"state": "ready"},
            refuse_when_stopping=self._refuse,
            refuse_when_leaving=self._refuse,
            putting=contextlib.nullcontext,
            leave=lambda _stay: self.node.checkpoints.drained(None, None),
        )
        self.node.store.open_files.start()
        self.door = UnixDoor(self.path, self.operations)
        self.door.start()
        self.ranks: list[Rank] = []

    def _refuse(self) -> None:
        if self.stopping:
            raise StoppingError("the service is stopping")

    def rank(self, *, hello: bool = True) -> Rank:
        self.ranks.append(Rank(self.path, hello=hello))
        return self.ranks[-1]

    def close(self) -> None:
        for rank in self.ranks:
            rank.close()
        self.door.stop(5)
        self.waits.stop()
        self.node.close()

    def is_empty(self) -> bool:
        """Return whether no file and no reserved byte is left, at the next look."""
        self.node.store.open_files.look()
        files = list(self.node.store.files.all())
        return not files and self.node.store.space.used_bytes == 0

    def becomes_empty(self) -> bool:
        """Wait until what a dead connection staged is gone."""
        while self.door.connections:
            threads = [visitor.thread for visitor in self.door._visitors]
            for thread in threads:
                thread.join(60)
                assert not thread.is_alive()
        return self.is_empty()


@pytest.fixture
def door(tmp_path: Path) -> Iterator[Door]:
    opened = Door(tmp_path)
    yield opened
    opened.close()


def test_a_put_through_a_descriptor_is_committed_and_read_back(door: Door) -> None:
    rank = door.rank()
    staging, descriptor = rank.begin()
    os.write(descriptor, DATA)
    os.close(descriptor)
    assert rank.commit(staging)["level"] == "local"
    frame = rank.frame("open", run="r", step=7, name="big")
    assert frame.descriptor is not None
    assert os.read(frame.descriptor, len(DATA) + 1) == DATA
    os.close(frame.descriptor)
    assert frame.header["source"] == "local"


def test_the_socket_is_for_its_owner_alone(door: Door) -> None:
    assert door.path.stat().st_mode & 0o777 == 0o600


def test_a_peer_of_another_uid_is_turned_away(door: Door, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def peer(connection: socket.socket) -> tuple[int, set[int], int]:
        asked.append(connection)
        return 4242, {4242}, 1

    monkeypatch.setattr(door_module, "peer_of", peer)
    stranger = door.rank(hello=False)
    answer = receive_frame(stranger.socket).header
    assert asked
    assert answer["error"]["code"] == "forbidden"


def test_another_protocol_is_refused_and_says_which_is_spoken(door: Door) -> None:
    answer = door.rank(hello=False).ask("hello", protocol=99)
    assert answer["error"]["code"] == "protocol_mismatch"
    assert "speaks 1" in answer["error"]["message"]


def test_nothing_is_done_before_hello(door: Door) -> None:
    assert door.rank(hello=False).refusal("status") == "protocol_mismatch"


def test_a_frame_of_another_magic_ends_the_connection_with_a_reason(door: Door) -> None:
    rank = door.rank(hello=False)
    rank.socket.sendall(PREFIX.pack(b"HTTP", 2, 0) + b"{}")
    assert receive_frame(rank.socket).header["error"]["code"] == "protocol_mismatch"
    with pytest.raises((ConnectionClosedError, ConnectionResetError)):
        receive_frame(rank.socket)


@pytest.mark.parametrize(
    ("header_bytes", "body_bytes"), [(1 << 31, 0), (2, 1 << 40), (0xFFFFFFFF, 0xFFFFFFFFFFFF)]
)
def test_a_frame_beyond_the_limits_is_refused_before_memory_is_taken(
    door: Door, header_bytes: int, body_bytes: int
) -> None:
    rank = door.rank(hello=False)
    rank.socket.sendall(PREFIX.pack(MAGIC, header_bytes, body_bytes))
    assert receive_frame(rank.socket).header["error"]["code"] == "protocol_mismatch"


@pytest.mark.parametrize("header", [b"[]", b"nonsense", b"\xff\xfe", b'"text"', b"1e999", b""])
def test_a_header_that_is_no_object_ends_the_connection_with_a_reason(
    door: Door, header: bytes
) -> None:
    rank = door.rank(hello=False)
    rank.socket.sendall(PREFIX.pack(MAGIC, len(header), 0) + header)
    assert receive_frame(rank.socket).header["error"]["code"] == "protocol_mismatch"


@pytest.mark.parametrize("op", ["unknown", "", None, 7, ["put"], "__init__", "_put"])
def test_an_unknown_operation_is_refused(door: Door, op: object) -> None:
    rank = door.rank()
    send_frame(rank.socket, {"op": op})
    assert receive_frame(rank.socket).header["error"]["code"] == "invalid_request"


HOSTILE: list[object] = [
    "..",
    ".",
    "",
    "a/../b",
    "/etc/passwd",
    "a\0b",
    "a\r\nb",
    "a b",
    "é",
    "x" * 300,
    "a//b",
    "a/",
    ".cachetier",
    "a/.cachetier/b",
    "a~b",
    "\udcff",
    None,
    7,
    ["a"],
    {"a": 1},
]


@pytest.mark.parametrize("name", HOSTILE, ids=repr)
def test_a_hostile_shard_name_is_refused_up_front(door: Door, name: object) -> None:
    assert door.rank().refusal("begin", **IDS, name=name, size_bytes=1) == "invalid_name"
    assert door.is_empty()


@pytest.mark.parametrize(
    "run", [*(each for each in HOSTILE if each != "a~b"), "a/b", "a~", "-rf"], ids=repr
)
def test_a_hostile_run_is_refused_up_front(door: Door, run: object) -> None:
    fields = {**IDS, "run": run}
    assert door.rank().refusal("begin", **fields, name="x", size_bytes=1) == "invalid_name"


@pytest.mark.parametrize("step", [-1, 2**53, "7", 1.5, None, True, "07", [7]], ids=repr)
def test_a_step_that_is_none_is_refused_up_front(door: Door, step: object) -> None:
    fields = {**IDS, "step": step}
    assert door.rank().refusal("begin", **fields, name="x", size_bytes=1) == "invalid_name"


@pytest.mark.parametrize(
    "wrong",
    [
        {"rank": 1},
        {"rank": -1},
        {"world_size": 0},
        {"rank": "0"},
        {"size_bytes": -1},
        {"size_bytes": "many"},
        {"size_bytes": 1 << 60},
        {"timeout_seconds": "soon"},
        {"timeout_seconds": -1},
        {"element_size": 1},
        {"element_size": "4"},
        {"element_size": 4.0},
        {"element_size": True},
        {"element_size": [4]},
        {"element_size": 2},
    ],
    ids=repr,
)
def test_a_wrong_number_is_refused_up_front(door: Door, wrong: dict[str, object]) -> None:
    fields: dict[str, Any] = {**IDS, "name": "x", "size_bytes": 1, **wrong}
    assert door.rank().refusal("begin", **fields) == "invalid_request"
    assert door.is_empty()


@pytest.mark.parametrize(("declared", "written"), [(10, len(DATA)), (1 << 20, len(DATA))])
def test_a_declared_size_that_is_not_the_files_is_refused(
    door: Door, declared: int, written: int
) -> None:
    rank = door.rank()
    staging, descriptor = rank.begin(size_bytes=declared)
    os.ftruncate(descriptor, 0)
    os.write(descriptor, DATA[:written])
    os.close(descriptor)
    answer = rank.commit(staging, size_bytes=declared)
    assert answer["error"]["code"] in {"size_mismatch", "digest_mismatch"}
    assert door.is_empty()


def test_block_digests_that_do_not_combine_are_refused(door: Door) -> None:
    rank = door.rank()
    staging, descriptor = rank.begin()
    os.write(descriptor, DATA)
    os.close(descriptor)
    assert rank.commit(staging, digest="0" * 16)["error"]["code"] == "digest_mismatch"
    assert door.is_empty()


@pytest.mark.parametrize("digest", ["", "XYZ", None, 5, "F" * 16, "0" * 15])
def test_a_digest_that_is_none_is_refused(door: Door, digest: object) -> None:
    rank = door.rank()
    fields = {**IDS, "name": "x", "size_bytes": 1, "digest": digest}
    assert rank.refusal("put", b"x", **fields) == "digest_mismatch"
    assert door.is_empty()


def test_an_inline_put_whose_bytes_changed_on_the_way_is_refused(door: Door) -> None:
    fields = {**IDS, "name": "x", "size_bytes": 3, "digest": to_hex(digest_of(b"abc"))}
    assert door.rank().refusal("put", b"abd", **fields) == "digest_mismatch"
    assert door.is_empty()


def test_an_inline_put_whose_size_is_wrong_is_refused(door: Door) -> None:
    fields = {**IDS, "name": "x", "size_bytes": 4, "digest": to_hex(digest_of(b"abc"))}
    assert door.rank().refusal("put", b"abc", **fields) == "invalid_request"


def test_a_commit_while_the_file_is_open_for_writing_is_refused(door: Door) -> None:
    rank = door.rank()
    staging, descriptor = rank.begin()
    os.write(descriptor, DATA)
    assert rank.commit(staging)["error"]["code"] == "open_for_writing"
    os.close(descriptor)
    assert door.is_empty()


def test_a_commit_while_only_a_mapping_can_write_is_refused(door: Door) -> None:
    rank = door.rank()
    staging, descriptor = rank.begin()
    os.write(descriptor, DATA)
    with contextlib.closing(mmap.mmap(descriptor, len(DATA))):
        os.close(descriptor)
        assert rank.commit(staging)["error"]["code"] == "open_for_writing"
    assert door.is_empty()


def test_a_commit_without_a_begin_is_refused(door: Door) -> None:
    assert door.rank().commit(1)["error"]["code"] == "invalid_request"


def test_a_second_commit_of_one_staging_is_refused_and_the_first_stays(door: Door) -> None:
    rank = door.rank()
    staging, descriptor = rank.begin()
    os.write(descriptor, DATA)
    os.close(descriptor)
    assert rank.commit(staging)["ok"]
    assert rank.commit(staging)["error"]["code"] == "invalid_request"
    assert rank.ask("open", run="r", step=7, name="big")["ok"]


def test_a_staging_belongs_to_its_connection(door: Door) -> None:
    staging, descriptor = door.rank().begin()
    os.write(descriptor, DATA)
    os.close(descriptor)
    assert door.rank().commit(staging)["error"]["code"] == "invalid_request"


def test_an_aborted_put_leaves_nothing(door: Door) -> None:
    rank = door.rank()
    staging, descriptor = rank.begin()
    os.close(descriptor)
    assert rank.ask("abort", staging=staging)["ok"]
    assert door.is_empty()


def test_a_rank_that_dies_in_the_middle_of_a_put_leaves_nothing(door: Door) -> None:
    rank = door.rank()
    _, descriptor = rank.begin()
    os.write(descriptor, DATA[:1000])
    assert not door.is_empty()
    os.close(descriptor)
    rank.close()
    assert door.becomes_empty()


def test_a_rank_that_dies_in_the_middle_of_a_frame_leaves_nothing(door: Door) -> None:
    rank = door.rank()
    _, descriptor = rank.begin()
    os.close(descriptor)
    rank.socket.sendall(PREFIX.pack(MAGIC, 500, 0) + b'{"op":')
    rank.close()
    assert door.becomes_empty()


def test_a_shard_of_unknown_length_grows_and_keeps_only_its_size(door: Door) -> None:
    rank = door.rank()
    staging, descriptor = rank.begin(size_bytes=None)
    assert rank.ask("extend", staging=staging, reserved_bytes=128 << 20)["ok"]
    os.ftruncate(descriptor, 0)
    os.write(descriptor, DATA)
    os.close(descriptor)
    assert rank.commit(staging)["ok"]
    assert door.node.store.space.used_bytes == len(DATA)


def test_a_reservation_never_shrinks(door: Door) -> None:
    rank = door.rank()
    staging, descriptor = rank.begin(size_bytes=None)
    os.close(descriptor)
    assert rank.refusal("extend", staging=staging, reserved_bytes=1) == "invalid_request"


def test_a_shard_larger_than_the_capacity_is_turned_away(door: Door) -> None:
    fields = {**IDS, "name": "x", "size_bytes": 1 << 36, "timeout_seconds": 0}
    assert door.rank().refusal("begin", **fields) == "backpressure"
    assert door.is_empty()


def test_puts_staged_on_one_connection_are_bounded(door: Door) -> None:
    rank = door.rank()
    for number in range(STAGED_LIMIT):
        os.close(rank.begin(f"shard-{number}", 1)[1])
    fields = {**IDS, "name": "one-more", "size_bytes": 1}
    assert rank.refusal("begin", **fields) == "invalid_request"


def test_blocks_sent_to_a_put_that_has_a_descriptor_fail_at_its_commit(door: Door) -> None:
    rank = door.rank()
    staging, descriptor = rank.begin()
    os.close(descriptor)
    send_frame(rank.socket, {"op": "block", "staging": staging}, b"x")
    assert rank.commit(staging)["error"]["code"] == "invalid_request"
    assert door.is_empty()


def test_a_stopping_service_takes_no_puts_and_still_answers(door: Door) -> None:
    rank = door.rank()
    door.stopping = True
    assert rank.refusal("begin", **IDS, name="x", size_bytes=1) == "stopping"
    assert rank.ask("status")["ok"]


def test_a_stopped_door_takes_its_socket_away(door: Door) -> None:
    rank = door.rank()
    door.door.stop(5)
    assert not door.path.exists()
    with pytest.raises((ConnectionClosedError, OSError)):
        rank.ask("status")


def test_a_dead_socket_left_behind_is_replaced(door: Door, tmp_path: Path) -> None:
    dead = tmp_path / "dead"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(dead))
    again = UnixDoor(dead, door.operations)
    again.start()
    Rank(dead).close()
    again.stop(5)
