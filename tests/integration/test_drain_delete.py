"""The drain takes a deleted save off the bucket, leaves what is not its own, and says so."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
from cachetier_client.digests import digest_of

from cachetier.model.shard import SaveIds
from cachetier.testing.faulty_store import FaultyObjectStore, fail
from cachetier.testing.memory_store import MemoryObjectStore
from tests.integration.drain_node import Node, patterned

IDS = SaveIds("run", 7, "save-1")
LARGE = 17 << 20
TOMBSTONE = "ckpt/run/7/.cachetier/manifest.json"
README, IN_PLACE = "ckpt/run/7/README.txt", "ckpt/run/7/small"


@pytest.fixture
def objects() -> FaultyObjectStore:
    return FaultyObjectStore(MemoryObjectStore())


@pytest.fixture(params=[False, True], ids=["alone", "packed"])
def node(
    tmp_path: Path, objects: FaultyObjectStore, request: pytest.FixtureRequest
) -> Iterator[Node]:
    node = Node(tmp_path / "cache", objects, fraction=lambda: 0.01, packing=request.param)
    yield node
    node.close()


def foreign(objects: FaultyObjectStore, key: str) -> None:
    objects.put(key, b"theirs", digest=digest_of(b"theirs"))


def told(caplog: pytest.LogCaptureFixture) -> list[dict[str, object]]:
    """Return what was said of objects that stay."""
    events = [vars(record) for record in caplog.records]
    return [dict(e["args"]) for e in events if e["event"].name == "objects.left"]


def delete(node: Node) -> None:
    node.checkpoints.delete_step("run", 7)
    node.wait_until(lambda: node.save(IDS).location is None)


def test_somebody_elses_objects_outlive_a_published_step_and_are_told_once(
    node: Node, objects: FaultyObjectStore, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "cachetier")
    names = ("one", "two", "three")
    for name in names:
        node.put(IDS, name, name.encode())
    node.put(IDS, "large", patterned(LARGE))
    node.seal(IDS)
    with node.draining():
        node.wait_durable(IDS)
        foreign(objects, README)
        objects.add(fail("delete", objects.calls["delete"] + 3))
        delete(node)

    assert not objects.pending, "it was cut short, and began again"
    assert set(objects.list("").keys) == {TOMBSTONE, README}
    expected = {"run": "run", "step": 7, "save_id": "save-1", "remote": "durable"}
    assert told(caplog) == [{**expected, "count": 1, "key": README}]


def test_an_object_that_the_drain_would_not_write_over_outlives_the_save(
    node: Node, objects: FaultyObjectStore, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "cachetier")
    foreign(objects, IN_PLACE)
    node.put(IDS, "small", b"ours")
    node.put(IDS, "other", patterned(100_000))
    node.agenda.hurry("run", 7)
    with node.draining():
        node.wait_until(lambda: bool(node.state()["conflicts"]))
        node.wait_clean(IDS, "other")
        delete(node)

    assert set(objects.list("").keys) == {TOMBSTONE, IN_PLACE}
    assert [each["key"] for each in told(caplog)] == [IN_PLACE]


def test_a_save_that_was_alone_is_deleted_without_a_word_of_others(
    node: Node, objects: FaultyObjectStore, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "cachetier")
    node.put(IDS, "small", b"ours")
    node.put(IDS, "unsealed", patterned(LARGE))
    node.agenda.hurry("run", 7)
    with node.draining():
        node.wait_clean(IDS, "unsealed")
        delete(node)

    assert objects.list("").keys == (TOMBSTONE,)
    assert told(caplog) == []
