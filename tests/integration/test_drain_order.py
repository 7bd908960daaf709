"""In which order the drain sends what, and what a policy keeps from it, over a store in memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from cachetier_client.bucket_format.uploads import ObjectInfo
from cachetier_client.identity.names import SaveIds

from cachetier.drain.messages import Size
from cachetier.drain.schedule.queue_state import EQUAL, Weights
from cachetier.drain.serve.eta import TELLING_UPLOADS, etas
from cachetier.errors import LocalOnlyError
from cachetier.local.catalog import figures, saves
from cachetier.model.lifecycle import SaveState
from cachetier.model.policy import DRAIN_ALL, Policy
from cachetier.remote.base import Body
from tests.fakes.memory_store import MemoryObjectStore
from tests.integration.drain_node import Node, patterned
from tests.integration.serving import serving

SMALL, SHARD_BYTES = Size(uploads=1, parts=1), 100_000


class SeenObjects(MemoryObjectStore):
    """Remembers in which order shards came."""

    def __init__(self) -> None:
        super().__init__()
        self.came: list[str] = []

    def put(self, key: str, body: Body, **options: Any) -> ObjectInfo:
        if ".cachetier" not in key:
            self.came.append(key.removeprefix("ckpt/").rpartition("/")[0])
        return super().put(key, body, **options)


@pytest.fixture
def objects() -> SeenObjects:
    return SeenObjects()


@pytest.fixture
def make(tmp_path: Path, objects: SeenObjects) -> Iterator[Callable[..., Node]]:
    with ExitStack() as closing:

        def make(policy: Policy = DRAIN_ALL, weights: Weights = EQUAL) -> Node:
            node = Node(tmp_path / "cache", objects, policy=policy, weights=weights)
            closing.callback(node.close)
            return node

        yield make


def save(node: Node, run: str, step: int, shards: int = 3, *, seal: bool = True) -> SaveIds:
    ids = SaveIds(run, step, f"save-{step}")
    for number in range(shards):
        node.put(ids, f"shard-{number}", patterned(SHARD_BYTES, step * 100 + number))
    if seal:
        node.seal(ids)
    return ids


def test_a_run_sends_whole_checkpoints_and_shares_with_another_by_weight(
    make: Callable[..., Node], objects: SeenObjects
) -> None:
    node = make(weights=Weights((("big", 2.0),)))
    last = [save(node, run, step) for run in ("big", "small") for step in (1, 2, 3, 4)]

    with node.draining(SMALL):
        for ids in last:
            node.wait_until(lambda ids=ids: node.save(ids).state is SaveState.PUBLISHED)  # type: ignore[misc]

    for run in ("big", "small"):
        of_run = [place for place in objects.came if place.startswith(run)]
        assert of_run == [f"{run}/{step}" for step in (1, 2, 3, 4) for _ in range(3)]
    first = [place.partition("/")[0] for place in objects.came[:12]]
    assert first.count("big") == pytest.approx(8, abs=2)


def test_a_local_only_step_is_not_sent_until_it_is_flushed(
    make: Callable[..., Node], objects: SeenObjects
) -> None:
    node = make(Policy(durable_every=10))
    kept, sent = save(node, "run", 5), save(node, "run", 10)

    with node.draining(SMALL):
        node.wait_durable(sent)
        assert objects.came == ["run/10"] * 3
        with pytest.raises(LocalOnlyError):
            node.wait_durable(kept)
        assert not node.checkpoints.flush("run", 5, 30.0)

    assert node.save(kept).state is SaveState.PUBLISHED
    assert objects.came[3:] == ["run/5"] * 3


def test_a_published_step_supersedes_and_who_waits_hears_of_it_at_once(
    make: Callable[..., Node], objects: SeenObjects
) -> None:
    node = make(Policy(supersede=True))
    old = save(node, "run", 1, seal=False)
    newer = save(node, "run", 2)

    with node.draining(SMALL):
        node.wait_durable(newer)
        node.seal(old)
        with pytest.raises(LocalOnlyError):
            node.wait_durable(old)

    assert node.save(old).state is SaveState.LOCAL_ONLY
    assert node.store.read(figures.kept_by_policy).now == 1
    assert set(objects.came) == {"run/2"}


def test_what_is_flushed_overtakes_and_the_rest_follows(
    make: Callable[..., Node], objects: SeenObjects
) -> None:
    node = make()
    steps = [save(node, "run", step) for step in (1, 2, 3, 4)]
    node.hurry("run", 4)

    with node.draining(SMALL):
        for ids in steps:
            node.wait_until(lambda ids=ids: node.save(ids).state is SaveState.PUBLISHED)  # type: ignore[misc]

    assert set(objects.came[:3]) <= {"run/4", "run/1"}
    assert [place for place in objects.came if place != "run/4"] == [
        f"run/{step}" for step in (1, 2, 3) for _ in range(3)
    ]
    assert objects.came.index("run/2") > max(
        at for at, place in enumerate(objects.came) if place == "run/4"
    )


def test_the_settings_reach_the_schedule_and_the_policy(tmp_path: Path) -> None:
    with serving(durable_every=3, run_weights='{"big-*": 4}') as served:
        assert served.service.operations.status()["local_only"]["durable_every"] == 3
        drain = served.service._supervisor(
            served.service.store,
            served.service._changes,
            served.service._incidents,
            served.service.metrics,
        )
        assert drain.queue.weights.of("big-run") == 4.0


def test_a_waiting_step_has_an_eta_once_enough_was_uploaded_to_tell(
    make: Callable[..., Node],
) -> None:
    node = make()
    node.stats.process_started(1, again=False)
    save(node, "run", 1, shards=TELLING_UPLOADS)
    with node.draining(SMALL):
        node.wait_durable(SaveIds("run", 1, "save-1"))
    waiting = save(node, "run", 2)
    backlog = node.store.read(saves.backlog)
    found = etas(backlog, node.stats.rate([]), node.queue.hurried, EQUAL)

    assert list(found) == [node.save(waiting).number]
    assert all(seconds > 0 for seconds in found.values())
