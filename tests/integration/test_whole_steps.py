"""A whole step is brought back to a node: one that was replaced, or that had let it go."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from cachetier_client.clock import SystemClock
from cachetier_client.identity.names import SaveIds
from cachetier_client.io.digests import digest_of

from cachetier.errors import InvalidRequestError, NotFoundError
from cachetier.local.catalog import saves, shards
from cachetier.restore.fill import Room
from cachetier.restore.restore import Restore
from cachetier.steps.whole_steps import RemainingShards, WholeSteps
from tests.fakes.memory_store import MemoryObjectStore
from tests.integration.drain_node import BLOCK, REMOTE, Node, patterned

IDS = SaveIds("run", 7, "save-1", rank=0, world_size=2)
LARGE, SMALL = 2 * BLOCK + 9, 10_000
SIZE_BYTES = LARGE + SMALL


class Replaced:
    """A node that comes after another one, and keeps nothing of what its ranks read."""

    def __init__(self, cache_dir: Path, objects: MemoryObjectStore, capacity_bytes: int) -> None:
        self.node = Node(cache_dir, objects, capacity_bytes=capacity_bytes)
        store, clock = self.node.store, SystemClock()
        room = Room(lambda: None, keeps=lambda: False)
        self.restore = Restore(store, self.node.bucket, clock, remote=REMOTE, room=room)
        self.steps = WholeSteps(store, self.restore, clock)

    def names_here(self) -> set[str]:
        save = self.node.store.read(saves.shown_save, "run", 7)
        found = self.node.store.read(shards.shards_of, save.number) if save is not None else ()
        return {shard.name for shard in found if not shard.lacks_bytes}

    def wait_for(self, event: str, caplog: pytest.LogCaptureFixture) -> logging.LogRecord:
        self.node.wait_until(lambda: any(_name(each) == event for each in caplog.records))
        return next(each for each in caplog.records if _name(each) == event)

    def close(self) -> None:
        self.steps.close()
        self.restore.close()
        self.node.close()


def _name(record: logging.LogRecord) -> str:
    return str(getattr(record, "event", ("",))[0])


def saved_by_two_ranks(cache_dir: Path) -> MemoryObjectStore:
    """Return a bucket with step 7: of each rank a large shard, and two small ones in a pack."""
    objects = MemoryObjectStore()
    node = Node(cache_dir, objects, packing=True)
    for rank in range(2):
        ids = replace(IDS, rank=rank)
        node.put(ids, f"large-{rank}", patterned(LARGE, rank))
        node.put(ids, f"small-{rank}", patterned(SMALL, rank))
        node.put(ids, f"smaller-{rank}", b"x")
        node.seal(ids)
    with node.draining():
        node.wait_durable(IDS)
    node.close()
    return objects


@pytest.fixture(scope="module")
def objects(tmp_path_factory: pytest.TempPathFactory) -> MemoryObjectStore:
    return saved_by_two_ranks(tmp_path_factory.mktemp("first") / "cache")


@pytest.fixture
def replaced(
    request: pytest.FixtureRequest, tmp_path: Path, objects: MemoryObjectStore
) -> Iterator[Replaced]:
    capacity_bytes = getattr(request, "param", 1 << 30)
    replaced = Replaced(tmp_path / "cache", objects, capacity_bytes)
    yield replaced
    replaced.close()


@pytest.fixture(autouse=True)
def info(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "cachetier")


def test_a_node_that_never_saw_a_step_has_all_of_it(
    replaced: Replaced, caplog: pytest.LogCaptureFixture
) -> None:
    assert replaced.steps.begin("run", 7) == RemainingShards(6, 2 * (SIZE_BYTES + 1))
    told = replaced.wait_for("step.restored", caplog)
    assert told.getMessage().startswith("run/7 was restored to this node: 6 shards, 16.8 MB in ")
    assert len(replaced.names_here()) == 6
    opened = replaced.restore.open("run", 7, "large-1", 5.0)
    assert opened.source == "local"
    assert opened.descriptor is not None
    with open(opened.descriptor, "rb") as file:
        assert file.read() == patterned(LARGE, 1)
    assert replaced.steps.begin("run", 7) == RemainingShards(0, 0)


def test_of_a_step_only_the_ranks_come_that_are_named(
    replaced: Replaced, caplog: pytest.LogCaptureFixture
) -> None:
    assert replaced.steps.begin("run", 7, (1, 5)).shards == 3
    replaced.wait_for("step.restored", caplog)
    assert replaced.names_here() == {"large-1", "small-1", "smaller-1"}
    assert replaced.steps.begin("run", 7).shards == 3


def test_what_two_people_ask_for_comes_once(
    replaced: Replaced, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(2):
        replaced.steps.begin("run", 7, (0,))
    replaced.steps.begin("run", 7, (1,))
    replaced.node.wait_until(lambda: len(replaced.names_here()) == 6)
    replaced.node.wait_until(lambda: sum(_name(e) == "step.restored" for e in caplog.records) == 2)


def test_a_step_is_coming_until_it_is_here(replaced: Replaced) -> None:
    others = threading.Event()
    replaced.steps._turn.submit(others.wait)  # another step is first
    replaced.steps.begin("run", 7)
    assert replaced.steps.is_coming("run", 7)
    assert not replaced.steps.is_coming("run", 8)
    others.set()
    replaced.node.wait_until(lambda: not replaced.steps.is_coming("run", 7))
    assert len(replaced.names_here()) == 6


@pytest.mark.parametrize("replaced", [SIZE_BYTES + 2], indirect=True)
def test_more_than_the_cache_holds_is_refused_with_what_to_do(
    replaced: Replaced, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(
        InvalidRequestError, match=r"16\.8 MB are to be restored, .* 8\.4 MB"
    ) as refused:
        replaced.steps.begin("run", 7)
    assert "Name the ranks" in (refused.value.hint or "")
    replaced.steps.begin("run", 7, (0,))
    replaced.wait_for("step.restored", caplog)


def test_what_cannot_be_restored_is_said_at_once(replaced: Replaced) -> None:
    with pytest.raises(NotFoundError, match="no remote has run/8"):
        replaced.steps.begin("run", 8)
    with pytest.raises(InvalidRequestError, match="these ranks put nothing") as refused:
        replaced.steps.begin("run", 7, (2,))
    assert refused.value.hint == "The step has ranks 0 to 1."


def test_what_is_damaged_in_the_bucket_is_told_and_not_kept(
    tmp_path: Path, objects: MemoryObjectStore, caplog: pytest.LogCaptureFixture
) -> None:
    damaged = MemoryObjectStore()
    for key in objects.list("").keys:
        found = objects.head(key)
        assert found is not None
        body = objects.get(key)
        if key.endswith("/large-1"):
            body = body[:-1] + bytes([body[-1] ^ 1])
        damaged.put(key, body, digest=digest_of(body), metadata=found.metadata)
    replaced = Replaced(tmp_path / "cache", damaged, 1 << 30)
    try:
        replaced.steps.begin("run", 7)
        told = replaced.wait_for("step.not_restored", caplog)
        assert "run/7 was not restored to this node, or only in part" in told.getMessage()
        assert "large-1" not in replaced.names_here()
    finally:
        replaced.close()


def test_what_nobody_expected_is_told_as_well(
    replaced: Replaced, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(replaced.restore, "bring_back", broken)
    replaced.steps.begin("run", 7)
    told = replaced.wait_for("step.not_restored", caplog)
    assert told.exc_info is not None
    assert told.exc_info[0] is ZeroDivisionError


def test_a_service_that_stops_begins_no_more_of_it(
    replaced: Replaced, caplog: pytest.LogCaptureFixture
) -> None:
    replaced.steps.begin("run", 7)
    replaced.steps.close()
    replaced.steps._turn.shutdown(wait=True)
    assert all(_name(each) != "step.not_restored" for each in caplog.records)
