"""Hostile frames made by chance: the socket door refuses them, and nothing breaks behind it."""

from __future__ import annotations

import contextlib
import json
import os
import random
import socket
from pathlib import Path

import pytest
from cachetier_client.transport.wire import (
    MAGIC,
    PREFIX,
    ConnectionClosedError,
    Frame,
    receive_frame,
)

from cachetier.doors.unix.session import _OPERATIONS
from tests.faults.counting import count
from tests.faults.slices import share_of
from tests.integration.hostile import NAMES, VALUES, listing
from tests.integration.test_unix_door import IDS, Door

SEEDS = range(20)
FIELDS = (
    *("run", "step", "rank", "world_size", "save_id", "overwrite", "name", "size_bytes", "digest"),
    *(
        "element_size",
        "staging",
        "level",
        "block",
        "blocks",
        "ranks_on_node",
        "follows",
        "protocol",
    ),
    *("client_id", "since", "clear", "older_than_seconds", "dry_run", "busy", "shards", "restore"),
)
# No frame may make this test wait.
TIMEOUTS: tuple[object, ...] = (0, 0.01, -1, "x", None, [], float("nan"), float("-inf"))


def hostile_frame(operation: str, chance: random.Random) -> bytes:
    header = {"op": operation, **IDS, "name": "x", "size_bytes": 3, "protocol": 1}
    for field in chance.choices(FIELDS, k=chance.randrange(5)):
        header[field] = chance.choice((*VALUES, *NAMES))
    header["timeout_seconds"] = chance.choice(TIMEOUTS)
    encoded = json.dumps(header).encode()
    if chance.random() < 0.1:
        at = chance.randrange(len(encoded))
        encoded = encoded[:at] + chance.randbytes(1) + encoded[at + 1 :]
    body = chance.choice((b"", b"abc", chance.randbytes(64)))
    sizes = [len(encoded), len(body)]
    if chance.random() < 0.1:
        sizes[chance.randrange(2)] = chance.choice((0, 1, 2**20 + 1, 2**31))
    frame = PREFIX.pack(MAGIC, *sizes) + encoded + body
    return frame if chance.random() < 0.9 else frame[: chance.randrange(len(frame))]


def answer_to(door: Door, frame: bytes) -> Frame | None:
    """Return what the door says to ``frame`` and the end after it, if it says anything."""
    rank = door.rank()
    try:
        rank.socket.sendall(frame)
        rank.socket.shutdown(socket.SHUT_WR)
        with contextlib.suppress(ConnectionClosedError, ConnectionError):
            return receive_frame(rank.socket)
        return None
    finally:
        rank.close()


@pytest.mark.parametrize("seed", share_of(SEEDS))
def test_no_hostile_frame_harms_the_node_or_leaves_its_root(
    tmp_path: Path, seed: int, request: pytest.FixtureRequest
) -> None:
    (tmp_path / "beside").write_text("of somebody else")
    chance, door, cache_dir = random.Random(seed), Door(tmp_path), tmp_path / "cache"
    before = list(listing(tmp_path, cache_dir))
    operations = (*_OPERATIONS, "block", "no_such_operation")
    try:
        for operation in operations:
            frame = hostile_frame(operation, chance)
            answer = answer_to(door, frame)
            if answer is not None:
                assert answer.header["ok"] or answer.header["error"]["code"] != "internal", frame
                if answer.descriptor is not None:
                    os.close(answer.descriptor)
        assert list(listing(tmp_path, cache_dir)) == before
        assert door.rank().ask("status")["ok"]
    finally:
        door.close()
    count(request, "hostile frames of the socket", len(operations), seed)
