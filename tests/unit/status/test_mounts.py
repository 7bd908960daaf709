"""What status says of mounts: what their buckets do not show yet, and which need a person."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from cachetier.local.catalog import objects, saves
from cachetier.local.catalog.figures import SUPERSEDED_SHOWN, node_totals
from cachetier.local.catalog.objects import SUPERSEDED_KEPT
from cachetier.local.catalog.rows import IncidentRecord
from cachetier.model.names import DURABLE
from cachetier.status.snapshot import NodeSnapshot, ServiceSnapshot, snapshot_of
from tests.fakes.fake_clock import FakeClock
from tests.stateful.node import Node
from tests.unit.objects.mounted_node import MOUNT, MountedNode
from tests.unit.steps.test_operations import save_step


@pytest.fixture
def world(node: Node, clock: FakeClock) -> Iterator[MountedNode]:
    world = MountedNode(node.store, clock)
    yield world
    world.restore.close()


def seen(world: MountedNode) -> NodeSnapshot:
    return snapshot_of(world.store, world.clock, ServiceSnapshot())


def test_what_waits_is_counted_by_mount_and_its_oldest_says_how_exposed_it_is(
    world: MountedNode,
) -> None:
    world.shown("in/shown", b"shown")
    first = world.put("in/a", b"12345")
    world.clock.advance(60)
    world.put("in/b", b"123", b"4567")
    world.delete("in/shown")
    world.clock.advance(5)

    (mount,) = seen(world).mounts

    assert (mount.mount, mount.objects, mount.dirty_bytes) == (MOUNT.name, 3, 12)
    assert (mount.exposure_seconds, mount.conflicts) == (65.0, 0)
    assert seen(world).totals.dirty.size_bytes == 12
    assert seen(world).oldest_dirty_seconds == 65.0
    incident = IncidentRecord("conflict", "somebody else changed it", "decide", MOUNT.run, 0)
    world.store.write(objects.record_conflict, first.version, incident, 1.0)
    assert seen(world).mounts[0].conflicts == 1


def test_the_last_objects_that_a_bucket_never_shows_are_named(world: MountedNode) -> None:
    for number in range(SUPERSEDED_KEPT + SUPERSEDED_SHOWN):
        version = world.put(f"in/{number}", b"old").version
        at = world.clock.now() + number
        assert world.store.write(objects.record_superseded, version, "it is old", at)

    (mount,) = seen(world).mounts

    last = SUPERSEDED_KEPT + SUPERSEDED_SHOWN - 1
    assert [each.key for each in mount.superseded] == [
        f"in/{last - number}" for number in range(SUPERSEDED_SHOWN)
    ]
    assert mount.superseded[0].reason == "it is old"
    kept = world.store.look(lambda sql: sql.execute("SELECT count(*) FROM superseded_objects").get)
    assert kept == SUPERSEDED_KEPT


def test_the_durable_remote_is_owed_what_waits_in_mounts_too(world: MountedNode) -> None:
    world.put("in/a", b"12345")

    owed = world.store.look(node_totals, [DURABLE], 0.0).owed[DURABLE]

    assert (owed.shards, owed.size_bytes) == (1, 5)
    assert owed.since == world.clock.now()


def test_a_mount_is_no_run(world: MountedNode, node: Node) -> None:
    save_step(node, 1)
    world.put("in/a", b"12345")

    assert node.checkpoints.runs() == ["run"]
    assert node.store.read(saves.runs) == ["run"]
    assert [run.run for run in seen(world).runs] == ["run"]
    assert [each.save.run for each in node.store.read(saves.backlog)] == ["run"]
