"""A step is saved again on its node: what was whole is not lost to a save that only began."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from cachetier_client.identity.names import SaveIds

from cachetier.errors import SaveSupersededError
from cachetier.local.catalog import saves
from cachetier.model.levels import Level
from cachetier.model.lifecycle import SaveState
from cachetier.model.policy import Policy
from tests.fakes.memory_store import MemoryObjectStore
from tests.integration.drain_node import Node

SECONDS = 60.0
FIRST, SECOND = SaveIds("run", 5, "first"), SaveIds("run", 5, "second")


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    node = Node(tmp_path / "cache", MemoryObjectStore())
    node.put(FIRST, "a", b"of the first")
    node.seal(FIRST)
    yield node
    node.close()


def shown(node: Node) -> str | None:
    latest = node.checkpoints.latest("run", Level.LOCAL)
    return latest.save_id if latest is not None else None


def body(node: Node, ids: SaveIds) -> bytes:
    location = node.save(ids).location
    return node.bucket.objects.get(node.key(ids, "a", location))


def test_a_save_that_only_began_takes_nothing_from_one_that_is_whole(node: Node) -> None:
    node.put(SECOND, "a", b"of a job that dies now")

    assert shown(node) == "first"
    with node.draining():
        node.wait_durable(FIRST, SECONDS)
    assert node.save(FIRST).state is SaveState.PUBLISHED
    assert body(node, FIRST) == b"of the first"
    assert not node.told()


@pytest.mark.parametrize("published", [False, True], ids=["before", "after"])
def test_a_save_that_came_later_takes_the_step_once_it_is_whole(
    node: Node, published: bool
) -> None:
    node.put(SECOND, "a", b"of the second")
    if published:
        with node.draining():
            node.wait_durable(FIRST, SECONDS)
    node.seal(SECOND)
    assert shown(node) == "second"  # who saved it reads it, whatever is published
    with node.draining():
        node.wait_until(lambda: node.save(SECOND).state is SaveState.PUBLISHED, SECONDS)

    assert node.save(FIRST).state is SaveState.SUPERSEDED
    assert body(node, SECOND) == b"of the second"
    assert shown(node) == "second"


def test_a_save_that_was_not_sealed_ends_when_another_begins(node: Node) -> None:
    third = SaveIds("run", 5, "third")
    node.put(SECOND, "a", b"of a job that dies now")
    node.put(third, "a", b"of the third")

    assert node.save(SECOND).state is SaveState.SUPERSEDED
    assert shown(node) == "first"
    with pytest.raises(SaveSupersededError):
        node.seal(SECOND)


def test_a_step_that_is_kept_here_alone_is_its_newest_sealed_save(tmp_path: Path) -> None:
    node = Node(tmp_path / "kept", MemoryObjectStore(), policy=Policy(durable_every=2))
    try:
        node.put(FIRST, "a", b"of the first")
        node.seal(FIRST)
        node.put(SECOND, "a", b"of the second")
        assert shown(node) == "first"
        node.seal(SECOND)
        assert shown(node) == "second"
        superfluous = node.store.read(saves.superfluous_saves, node.clock.now() + 1)
        assert [save.save_id for save in superfluous] == ["first"]
    finally:
        node.close()
