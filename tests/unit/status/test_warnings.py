"""What status warns of: a policy that drains nothing, pins that leave no room."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from cachetier_client.identity.names import SaveIds

from cachetier.errors import SaveSupersededError, StepPublishedError
from cachetier.local.catalog import copies, notes, saves
from cachetier.local.catalog.figures import NodeTotals
from cachetier.local.catalog.notes import PinTotals
from cachetier.local.catalog.rows import IncidentRecord
from cachetier.local.lost_and_found import KEPT_SECONDS
from cachetier.model.levels import Level
from cachetier.model.names import DURABLE
from cachetier.model.policy import Policy
from cachetier.status.snapshot import NodeSnapshot, ServiceSnapshot
from cachetier.status.warnings import NOTICED_SECONDS, Machine, warnings_of
from tests.fakes.fake_clock import FakeClock
from tests.fakes.memory_store import MemoryObjectStore
from tests.stateful.node import Node

EVERY_TENTH = Policy(durable_every=10)
NOTHING = NodeSnapshot()


@pytest.fixture
def elsewhere(
    tmp_path: Path, remote: MemoryObjectStore, clock: FakeClock, vfs: str
) -> Iterator[Node]:
    """Another node of the same bucket."""
    elsewhere = Node(tmp_path / "elsewhere", remote, clock, vfs=vfs)
    yield elsewhere
    elsewhere.close()


def warnings(node: Node, now: NodeSnapshot = NOTHING, at: float = 100.0) -> list[str]:
    machine = Machine(
        cache_dir=str(node.cache_dir),
        filesystem="ext4",
        disk={"direct_io": True, "attributes": True},
        sqlite_version="3",
        remotes=(),
        when_full="wait",
        policy=EVERY_TENTH,
        started_at=0.0,
        exposure_objective_seconds=1800.0,
    )
    return warnings_of(node.store, machine, now, at)


def test_a_run_of_which_no_step_is_ever_drained_is_named_and_a_trial_is_not(node: Node) -> None:
    node.store.policy = EVERY_TENTH
    for run in ("run", ".bench"):
        for step in (1, 2, 3):
            node.put(SaveIds(run, step, "s", 0, 1), "x", b"x")

    assert warnings(node) == ["durable_every 10 divides no step of run: none is drained"]


def test_pins_that_take_more_than_half_the_cache_are_told(node: Node) -> None:
    service = ServiceSnapshot(capacity_bytes=100 * 10**9)
    half = NodeSnapshot(service, NodeTotals(pins=PinTotals(1, 50 * 10**9)))
    more = NodeSnapshot(service, NodeTotals(pins=PinTotals(1, 51 * 10**9)))

    assert warnings(node, half) == []
    assert warnings(node, more) == [
        "pinned steps take 51.0 GB of 100 GB: `cachetier pin --list`, then `pin --remove` some"
    ]


def test_a_step_of_which_objects_went_missing_is_named_until_they_are_back(node: Node) -> None:
    node.put(SaveIds("run", 5, "s", 0, 1), "x", b"x")
    (row,) = node.rows()
    number = node.store.read(saves.saves_of, "run", 5)[0].number
    node.store.write(copies.record_verified, row.version, DURABLE, [DURABLE], 1.0)
    node.store.write(saves.publish, number, 1.0, "5")
    assert warnings(node) == []

    node.store.write(copies.record_lost, row.version, DURABLE)

    (warning,) = warnings(node)
    assert warning.startswith("objects of run/5 went missing in the bucket")
    node.store.write(copies.record_verified, row.version, DURABLE, [DURABLE], 2.0)
    assert warnings(node) == []


def test_a_step_that_another_node_replaced_is_named_for_a_week(node: Node) -> None:
    message = "save s of step 5 is refused: save other is published"
    told = IncidentRecord(StepPublishedError.code, message, "look", "run", 5)
    node.put(SaveIds("run", 5, "s", 0, 1), "x", b"x")
    node.checkpoints.seal(SaveIds("run", 5, "s", 0, 1), 1)
    node.store.write(notes.insert_incident, told, 100.0)

    (warning,) = warnings(node)
    assert warning == f"steps of this node were replaced by another node's save: run/5: {message}"
    assert warnings(node, at=101.0 + NOTICED_SECONDS) == []


def test_a_step_that_another_node_replaced_knowing_it_is_named_too(
    node: Node, elsewhere: Node
) -> None:
    node.put(SaveIds("run", 5, "s", 0, 1), "x", b"x")
    node.checkpoints.seal(SaveIds("run", 5, "s", 0, 1), 1)
    node.drain.drain_all()
    elsewhere.checkpoints.latest("run", Level.DURABLE)
    again = SaveIds("run", 5, "again", 0, 1, overwrite=True)
    elsewhere.put(again, "x", b"y")
    elsewhere.checkpoints.seal(again, 1)
    elsewhere.drain.drain_all()
    assert warnings(node, at=node.clock.now()) == []
    node.checkpoints.latest("run", Level.DURABLE)  # and so it knows

    (warning,) = warnings(node, at=node.clock.now())
    assert warning.endswith("replaced by another node's save: run/5: save s, by again")
    assert warnings(elsewhere, at=node.clock.now()) == []
    assert warnings(node, at=node.clock.now() + NOTICED_SECONDS + 1) == []


def test_a_step_that_was_saved_again_here_was_not_replaced_elsewhere(node: Node) -> None:
    message = "save old of step 5 is superseded: the newer save s is published"
    told = IncidentRecord(SaveSupersededError.code, message, "look", "run", 5)
    node.store.write(notes.insert_incident, told, 100.0)
    node.put(SaveIds("run", 5, "s", 0, 1), "x", b"x")
    node.checkpoints.seal(SaveIds("run", 5, "s", 0, 1), 1)
    node.drain.drain_all()

    assert warnings(node) == []


def test_what_lies_in_lost_and_found_is_counted(node: Node) -> None:
    lost = node.cache_dir / "lost+found"
    (lost / ("1" * 32)).write_bytes(bytes(2_000_000))
    (lost / "notes.txt").write_text("not ours")

    (warning,) = warnings(node)
    assert warning.startswith("lost+found holds 1 file, 2.0 MB, that no row names")
    (lost / ("1" * 32)).unlink()
    assert warnings(node) == []


def test_a_lost_log_is_told_for_a_month(node: Node) -> None:
    node.store.write(saves.report_lost_log, 100.0)

    (warning,) = warnings(node, at=100.0 + 86_400.0)
    assert warning.startswith("the node lost its catalog's log, 1.0 d ago: shards of up to 64 KiB")
    assert warnings(node, at=100.0 + KEPT_SECONDS) == []
