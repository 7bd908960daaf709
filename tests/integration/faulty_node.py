"""Fixtures: a node without doors, over a store in memory that can be told to fail."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fakes.faulty_store import FaultyObjectStore
from tests.fakes.memory_store import MemoryObjectStore
from tests.integration.drain_node import Node


@pytest.fixture
def objects() -> FaultyObjectStore:
    return FaultyObjectStore(MemoryObjectStore())


@pytest.fixture
def node(tmp_path: Path, objects: FaultyObjectStore) -> Iterator[Node]:
    node = Node(tmp_path / "cache", objects)
    yield node
    node.close()
