"""A node on a disk that syncs nothing, with a remote in memory and a clock that stands still."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fakes.fake_clock import FakeClock
from tests.fakes.memory_store import MemoryObjectStore
from tests.stateful.node import Node
from tests.stateful.unsynced import unsynced


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def vfs() -> Iterator[str]:
    with unsynced() as name:
        yield name


@pytest.fixture
def remote() -> MemoryObjectStore:
    return MemoryObjectStore(minimum_part_bytes=1)


@pytest.fixture
def node(tmp_path: Path, remote: MemoryObjectStore, clock: FakeClock, vfs: str) -> Iterator[Node]:
    node = Node(tmp_path / "cache", remote, clock, capacity_bytes=1_000_000, vfs=vfs)
    yield node
    node.close()
