"""A look at the node reads through indices: what is durable and gone costs it nothing."""

from __future__ import annotations

from typing import Any

import apsw
import pytest

from cachetier.local.catalog import figures
from cachetier.local.catalog.figures import node_totals
from cachetier.model.policy import Policy
from tests.stateful.node import Node
from tests.unit.steps.test_operations import save_step

RUNS = 1000
GROWING = ("saves", "shards", "drains", "parts", "copies", "copied_parts", "objects")
BIG_SCANS = tuple(f"SCAN {table}" for table in GROWING)
OF_A_PART = {  # indices that hold few rows, or only those of what lies here
    *("dirty_shards", "quarantined_shards", "evictable_shards"),
    *("mount_saves", "unshown_objects", "object_conflicts"),
    *("open_saves", "local_only_saves", "due_copies", "ended_copies"),
}


def statements_of_a_look(sql: apsw.Connection) -> list[tuple[str, Any]]:
    """Return every statement that a look runs, with its values."""
    seen: list[tuple[str, Any]] = []

    def trace(_cursor: apsw.Cursor, statement: str, values: Any) -> bool:
        seen.append((statement, values))
        return True

    sql.exec_trace = trace
    try:
        node_totals(sql, ["durable", "near"], 0.0)
    finally:
        sql.exec_trace = None
    return seen


def plan_of(sql: apsw.Connection, statement: str, values: Any) -> list[str]:
    return [row[3] for row in sql.execute(f"EXPLAIN QUERY PLAN {statement}", values)]


def test_no_query_walks_a_table_that_only_grows(node: Node) -> None:
    node.store.configure_replicas({"near": True})
    node.store.policy = Policy(durable_every=2)
    save_step(node, 2)
    node.drain.drain_all()
    save_step(node, 3)
    save_step(node, 4)

    def walks(sql: apsw.Connection) -> list[str]:
        asked = [each for each in statements_of_a_look(sql) if "SELECT" in each[0]]
        assert len(asked) > 18
        assert any("FROM copies" in statement for statement, _ in asked)
        lines = [line for each in asked for line in plan_of(sql, *each)]
        walked = [line for line in lines if line.startswith(BIG_SCANS)]
        return [line for line in walked if line.rsplit(" ", 1)[-1] not in OF_A_PART]

    assert node.store.look(walks) == []


def test_a_save_is_found_by_its_state_through_an_index(node: Node) -> None:
    def plan(sql: apsw.Connection) -> str:
        statement = next(each for each in statements_of_a_look(sql) if "LEFT JOIN parts" in each[0])
        return " ".join(plan_of(sql, *statement))

    assert "USING INDEX open_saves" in node.store.look(plan)


def test_what_a_replica_never_gets_is_counted_from_those_alone(node: Node) -> None:
    def plan(sql: apsw.Connection) -> str:
        (asked,) = (each for each in statements_of_a_look(sql) if "'given_up'" in each[0])
        return " ".join(plan_of(sql, *asked))

    assert "USING INDEX ended_copies" in node.store.look(plan)


def test_a_thousand_runs_are_found_without_a_walk_over_their_saves(node: Node) -> None:
    def insert(sql: apsw.Connection) -> None:
        sql.executemany(
            "INSERT INTO saves (run, step, save_id, state, world_size, overwrite, started_at) "
            "VALUES (?, ?, 's', 'published', 1, 0, ?)",
            [(f"run-{n % RUNS}", n, float(n)) for n in range(5 * RUNS)],
        )

    node.store._committer.run(insert)

    runs = node.store.look(figures.every_run)
    durable = node.store.look(lambda sql: figures.durable_step(sql, "run-7"))
    assert len(runs) == RUNS
    seventh = next(run for run in runs if run.name == "run-7")
    assert seventh.newest_at == 4007.0
    assert durable == figures.DurableStep(4008, 4007, 4007.0)


def test_a_look_takes_one_transaction_and_leaves_none_open(node: Node) -> None:
    def looked(sql: apsw.Connection) -> bool:
        node_totals(sql, ["durable"], 0.0)
        return sql.in_transaction

    assert node.store.look(looked) is False


def test_a_look_that_fails_leaves_no_transaction_open_for_the_next(node: Node) -> None:
    save_step(node, 1)

    def failed(sql: apsw.Connection) -> None:
        sql.exec_trace = lambda _cursor, statement, _values: "FROM pins" not in statement
        try:
            node_totals(sql, ["durable"], 0.0)
        finally:
            sql.exec_trace = None

    with pytest.raises(apsw.ExecTraceAbort):
        node.store.look(failed)

    assert node.store.look(lambda sql: node_totals(sql, ["durable"], 0.0)).dirty.shards == 2


def test_whoever_looks_holds_up_no_reader(node: Node) -> None:
    save_step(node, 1)

    def look_and_read(_sql: apsw.Connection) -> int:
        return len(node.rows())  # it reads through the other connection, and does not wait

    assert node.store.look(look_and_read) == 2
