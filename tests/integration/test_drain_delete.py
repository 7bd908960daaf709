"""The drain takes a deleted save off the bucket, leaves what is not its own, and says so."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
from cachetier_client.bucket_format.uploads import ObjectInfo
from cachetier_client.identity.names import SaveIds
from cachetier_client.io.digests import digest_of

from cachetier.errors import RemoteRefusedError
from tests.fakes.faulty_store import FaultyObjectStore, fail
from tests.fakes.memory_store import MemoryObjectStore
from tests.integration.drain_node import Node, keys_of_saves, patterned

IDS = SaveIds("run", 7, "save-1")
LARGE = 17 << 20
TOMBSTONE = "ckpt/run/7/.cachetier/manifest.json"
README, IN_PLACE = "ckpt/run/7/README.txt", "ckpt/run/7/small"


class Closed(MemoryObjectStore):
    """One that refuses to show what lies under README, and may refuse every delete."""

    keeps_all = False

    def head(self, key: str) -> ObjectInfo | None:
        if key == README:
            raise RemoteRefusedError("HEAD is refused", key=key)
        return super().head(key)

    def delete(self, key: str, etag: str | None = None) -> None:
        if self.keeps_all:
            raise RemoteRefusedError("DELETE is refused", key=key)
        super().delete(key, etag)


@pytest.fixture
def closed() -> Closed:
    return Closed()


@pytest.fixture
def objects(closed: Closed) -> FaultyObjectStore:
    return FaultyObjectStore(closed)


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
    assert set(keys_of_saves(objects)) == {TOMBSTONE, README}
    expected = {"run": "run", "step": 7, "save_id": "save-1", "remote": "durable"}
    assert told(caplog) == [{**expected, "count": 1, "key": README}]


def test_an_object_that_the_drain_would_not_write_over_outlives_the_save(
    node: Node, objects: FaultyObjectStore, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "cachetier")
    foreign(objects, IN_PLACE)
    node.put(IDS, "small", b"ours")
    node.put(IDS, "other", patterned(100_000))
    node.hurry("run", 7)
    with node.draining():
        node.wait_until(lambda: bool(node.state()["conflicts"]))
        node.wait_clean(IDS, "other")
        delete(node)

    assert set(keys_of_saves(objects)) == {TOMBSTONE, IN_PLACE}
    assert [each["key"] for each in told(caplog)] == [IN_PLACE]


def test_a_save_that_was_alone_is_deleted_without_a_word_of_others(
    node: Node, objects: FaultyObjectStore, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "cachetier")
    node.put(IDS, "small", b"ours")
    node.put(IDS, "unsealed", patterned(LARGE))
    node.hurry("run", 7)
    with node.draining():
        node.wait_clean(IDS, "unsealed")
        delete(node)

    assert keys_of_saves(objects) == (TOMBSTONE,)
    assert told(caplog) == []


def test_an_object_that_nobody_may_look_at_stays_and_holds_up_nothing(
    node: Node, objects: FaultyObjectStore, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "cachetier")
    node.put(IDS, "small", b"ours")
    node.seal(IDS)
    states = seen_states(node)
    with node.draining():
        node.wait_durable(IDS)
        foreign(objects, README)
        delete(node)

    assert set(keys_of_saves(objects)) == {TOMBSTONE, README}
    assert [each["key"] for each in told(caplog)] == [README]
    assert states == {"ok"}


def test_a_remote_that_refuses_to_delete_is_well_enough_to_drain_to(
    node: Node, objects: FaultyObjectStore, closed: Closed
) -> None:
    newer = SaveIds("run", 8, "save-2")
    node.put(IDS, "small", b"ours")
    node.seal(IDS)
    states = seen_states(node)
    with node.draining():
        node.wait_durable(IDS)
        closed.keeps_all = True
        node.checkpoints.delete_step("run", 7)
        node.wait_until(lambda: objects.calls["delete"] > 0)
        node.put(newer, "small", b"ours")
        node.seal(newer)
        node.wait_durable(newer)
        closed.keeps_all = False
        node.queue.forgive_all()
        node.wait_until(lambda: node.save(IDS).location is None)

    assert states == {"ok"}


def seen_states(node: Node) -> set[str]:
    """Return what the drain says of the remote from now on."""
    states: set[str] = set()
    tell = node.stats.remote_health

    def told(state: str, reason: str) -> None:
        states.add(state)
        tell(state, reason)

    node.stats.remote_health = told  # type: ignore[method-assign]
    return states
