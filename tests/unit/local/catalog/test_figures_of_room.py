"""What is said to go for room is what goes when a put asks for all of it."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest

from cachetier import callers
from cachetier.access.principals import Caller, Principal
from cachetier.access.roles import Role
from cachetier.local.catalog import figures
from cachetier.local.catalog.figures import NodeTotals, node_totals
from cachetier.local.catalog.notes import PinTotals
from cachetier.model.policy import Policy
from tests.stateful.node import Node
from tests.unit.steps.test_operations import LARGE, ids, save_step

STEP_BYTES = len(LARGE) + len(b"save of 1")


def looked(node: Node) -> NodeTotals:
    lent = node.store.open_files.lent().shards
    return node.store.look(lambda sql: node_totals(sql, ["durable"], 0.0, lent))


def freed(node: Node) -> int:
    """Have a put ask for the whole cache; return the bytes that went for it."""
    space = node.store.space
    before = space.used_bytes
    assert not space.reserve(space.capacity_bytes, 0.0, node._make_room)
    return before - space.used_bytes


def kept(node: Node, *steps: int) -> None:
    """Save steps that a policy keeps here."""
    node.store.policy = Policy(durable_every=10)
    for step in steps:
        save_step(node, step)


def dirty(node: Node) -> None:
    save_step(node, 1)


def clean_and_dirty(node: Node) -> None:
    save_step(node, 1)
    node.drain.drain_all()
    save_step(node, 2)


def clean_and_pinned(node: Node) -> None:
    save_step(node, 1)
    save_step(node, 2)
    node.drain.drain_all()
    node.checkpoints.pin("run", 1)


def unwanted(node: Node) -> None:
    save_step(node, 1, "first")
    save_step(node, 1, "second")


def kept_by_a_policy(node: Node) -> None:
    kept(node, 1, 2, 3)


def kept_and_pinned(node: Node) -> None:
    kept(node, 1, 2, 3)
    node.checkpoints.pin("run", 1)


def kept_and_never_sealed(node: Node) -> None:
    kept(node, 1)
    node.put(ids(2), "x", b"never sealed")


def kept_before_one_that_is_durable(node: Node) -> None:
    kept(node, 1, 2)
    node.put(ids(3), "x", b"never sealed")
    save_step(node, 10)
    node.drain.drain_all()


def kept_before_one_that_is_durable_and_left_the_node(node: Node) -> None:
    kept(node, 1, 2, 10)
    node.drain.drain_all()
    assert all(node.evict(row) for row in node.rows() if row.step == 10)


def kept_of_two_runs(node: Node) -> None:
    kept(node, 1, 2)
    for step in (1, 2):
        of = ids(step)
        for rank in (0, 1):
            other = type(of)("other", step, of.save_id, rank, 2)
            node.put(other, f"rank-{rank}", b"x" * 1000)
            node.checkpoints.seal(other, 2)


@pytest.mark.parametrize(
    ("lies_here", "evictable_bytes"),
    [
        (dirty, 0),
        (clean_and_dirty, STEP_BYTES),
        (clean_and_pinned, STEP_BYTES),
        (unwanted, 0),
        (kept_by_a_policy, 2 * STEP_BYTES),
        (kept_and_pinned, STEP_BYTES),
        (kept_and_never_sealed, 0),
        (kept_before_one_that_is_durable, 2 * STEP_BYTES + len(b"0")),
        (kept_before_one_that_is_durable_and_left_the_node, STEP_BYTES),
        (kept_of_two_runs, STEP_BYTES + 2000),
    ],
)
def test_what_is_said_to_go_for_room_goes_and_nothing_else(
    node: Node, lies_here: Callable[[Node], None], evictable_bytes: int
) -> None:
    lies_here(node)

    said = looked(node).evictable_bytes

    assert said == evictable_bytes
    assert freed(node) == said


@pytest.mark.parametrize(
    ("lies_here", "evictable_bytes"),
    [
        (clean_and_dirty, len(b"save of 1")),
        (clean_and_pinned, len(b"save of 1")),
        (kept_by_a_policy, STEP_BYTES + len(b"save of 1")),
        (dirty, 0),
    ],
)
def test_what_somebody_reads_is_not_said_to_go(
    node: Node, lies_here: Callable[[Node], None], evictable_bytes: int
) -> None:
    lies_here(node)
    oldest = min(row.step for row in node.rows() if row.file_id is not None)
    step = 2 if lies_here is clean_and_pinned else oldest
    (name,) = {row.name for row in node.rows() if row.step == step and row.file_id is not None}
    with callers.working_for(None, Caller(Principal("p", Role.READ), uid=7)):
        descriptor = node.restore.open("run", step, name, 0.0).descriptor
    assert descriptor is not None

    said = looked(node).evictable_bytes

    os.close(descriptor)
    assert said == evictable_bytes


def test_the_damaged_newest_step_of_a_policy_leaves_the_one_before_it(node: Node) -> None:
    kept(node, 1, 2)
    node.store._committer.run(
        lambda sql: sql.execute(
            "UPDATE shards SET state = 'quarantined' "
            "WHERE version = (SELECT max(version) FROM shards)"
        )
    )

    assert (looked(node).evictable_bytes, freed(node)) == (0, 0)


def test_a_node_with_nothing_on_it_has_nothing_dirty(node: Node) -> None:
    found = node.store.look(lambda sql: node_totals(sql, [], 0.0))
    assert found == NodeTotals(pins=PinTotals())
    assert node.store.read(figures.local_bytes) == 0
