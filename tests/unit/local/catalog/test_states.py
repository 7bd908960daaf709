"""A state changes by an event of the tables, in the statements of one module."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import apsw
import pytest

import cachetier
from cachetier.local.catalog.schema import SCHEMA as TABLES
from cachetier.local.catalog.states import move, move_all, move_part
from cachetier.model import lifecycle
from cachetier.model.lifecycle import (
    CopyEvent,
    CopyState,
    ForbiddenTransitionError,
    ObjectState,
    PartEvent,
    PartState,
    RowState,
    SaveEvent,
    SaveState,
    ShardEvent,
    ShardState,
    after,
    moves,
)

PACKAGE = Path(cachetier.__file__).parent
SCHEMA, STATES = (PACKAGE / "local" / "catalog" / name for name in ("schema.py", "states.py"))


@pytest.fixture
def sql() -> apsw.Connection:
    connection = apsw.Connection(":memory:")
    connection.execute(TABLES)
    return connection


def begin(sql: apsw.Connection, *states: SaveState) -> list[int]:
    """Insert a save in each state, of a step each, and return their numbers."""
    for step, state in enumerate(states):
        sql.execute(
            "INSERT INTO saves (run, step, save_id, state, world_size, overwrite, started_at) "
            "VALUES ('run', ?, 'save', ?, 1, 0, 0.0)",
            (step, state),
        )
    return [row[0] for row in sql.execute("SELECT number FROM saves ORDER BY number")]


def states_of(sql: apsw.Connection, table: str = "saves") -> list[str]:
    return [row[0] for row in sql.execute(f"SELECT state FROM {table} ORDER BY rowid")]


@pytest.mark.parametrize("event", SaveEvent)
@pytest.mark.parametrize("state", SaveState)
def test_a_row_moves_where_the_table_says_or_is_refused(
    sql: apsw.Connection, state: SaveState, event: SaveEvent
) -> None:
    (number,) = begin(sql, state)

    try:
        reached: RowState = after(state, event)
    except ForbiddenTransitionError:
        with pytest.raises(ForbiddenTransitionError, match=f"saves {number} is {state}"):
            move(sql, number, event)
        reached = state
    else:
        move(sql, number, event)

    assert states_of(sql) == [reached]


@pytest.mark.parametrize("event", SaveEvent)
def test_of_many_rows_those_move_whose_state_allows_it(
    sql: apsw.Connection, event: SaveEvent
) -> None:
    begin(sql, *SaveState)

    move_all(sql, "step >= ? OR run = 'run'", event, values=(0,))

    allowed = moves(event)
    assert states_of(sql) == [allowed.get(state, state) for state in SaveState]


def test_a_row_that_is_gone_is_refused(sql: apsw.Connection) -> None:
    with pytest.raises(ForbiddenTransitionError, match="missing"):
        move(sql, 7, ShardEvent.EVICT)


def test_other_columns_are_written_by_the_same_statement(sql: apsw.Connection) -> None:
    first, second = begin(sql, SaveState.OPEN, SaveState.OPEN)

    move(sql, first, SaveEvent.KEEP_LOCAL, also="local_only_at = ?", values=(5.0,))
    move_all(sql, "number = ?", SaveEvent.WANT, also="wanted = ?", values=(1, second))

    rows = sql.execute("SELECT state, local_only_at, wanted FROM saves ORDER BY number")
    assert list(rows) == [("local_only", 5.0, 0), ("open", None, 1)]


def test_a_part_begins_in_the_state_that_it_would_move_to(sql: apsw.Connection) -> None:
    (number,) = begin(sql, SaveState.OPEN)

    move_part(sql, number, 0, PartEvent.PUT, "true", {"follows": 0})
    move_part(sql, number, 1, PartEvent.SEAL, "true", {"sealed_at": 3.0})
    move_part(sql, number, 0, PartEvent.SEAL, "false", {"sealed_at": 4.0})
    move_part(sql, number, 1, PartEvent.ABORT, PartState.SEALED.sql(), {"follows": 1})

    rows = sql.execute("SELECT rank, state, sealed_at, follows FROM parts ORDER BY rank")
    assert list(rows) == [(0, "open", None, 0), (1, "aborted", 3.0, 1)]


# --- what follows from the state of a save -------------------------------------------------------


@pytest.mark.parametrize("event", [e for e in SaveEvent if SaveState.OPEN in moves(e)])
@pytest.mark.parametrize("there", CopyState)
def test_a_copy_ends_with_its_save(
    sql: apsw.Connection, event: SaveEvent, there: CopyState
) -> None:
    sql.execute("INSERT INTO replicas VALUES ('near', 0), ('far', 0)")
    (number,) = begin(sql, SaveState.OPEN)
    query = "UPDATE copies SET state = ?, due = 0, location = 'x' WHERE remote = 'near'"
    sql.execute(query, (there,))
    sql.execute("DELETE FROM copies WHERE remote = 'far'")

    move(sql, number, event)

    expected: RowState = there
    ends = {SaveEvent.SUPERSEDE: CopyEvent.SUPERSEDE, SaveEvent.REFUSE: CopyEvent.REFUSE}
    if event in ends and there is CopyState.OPEN:
        expected = after(there, ends[event])
    if event is SaveEvent.DELETE:
        expected = after(there, CopyEvent.DELETE)
    rows = dict(sql.execute("SELECT remote, state FROM copies"))
    assert rows["near"] == expected
    assert rows.get("far") == ("deleted" if event is SaveEvent.DELETE else None)


# --- nobody else ---------------------------------------------------------------------------------


def texts(file: Path) -> Iterator[str]:
    """Yield the string literals of a module on one line each, ``{}`` for what is put into them."""
    waiting: list[ast.AST] = [ast.parse(file.read_text(encoding="utf-8"))]
    while waiting:
        match node := waiting.pop():
            case ast.JoinedStr(values=parts):
                known = (part.value if isinstance(part, ast.Constant) else "{}" for part in parts)
                yield " ".join("".join(map(str, known)).split())
            case ast.Constant(value=str(text)):
                yield " ".join(text.split())
            case _:
                waiting += ast.iter_child_nodes(node)


ASSIGNED = re.compile(r"\bSET\b(?:(?!\bWHERE\b).)*?(?<![.\w])state = ")


def test_no_other_statement_changes_a_state() -> None:
    found = {
        str(file.relative_to(PACKAGE)): changed
        for file in sorted(PACKAGE.rglob("*.py"))
        if file not in (SCHEMA, STATES)
        and (changed := [text for text in texts(file) if ASSIGNED.search(text)])
    }

    assert found == {}


def test_of_the_schema_four_triggers_change_a_state(sql: apsw.Connection) -> None:
    query = "SELECT name, sql FROM sqlite_master WHERE type = 'trigger' ORDER BY name"
    changing = [
        name for name, text in sql.execute(query) if ASSIGNED.search(" ".join(text.split()))
    ]

    assert changing == ["save_ends", "save_is_deleted", "save_is_published", "save_is_reopened"]


LITERAL = re.compile(r"\bstate (=|<>|IN|NOT IN) \(?'")


def test_no_query_names_a_state_itself() -> None:
    found = {
        str(file.relative_to(PACKAGE)): named
        for file in sorted(PACKAGE.rglob("*.py"))
        if file != SCHEMA and (named := [text for text in texts(file) if LITERAL.search(text)])
    }

    assert found == {}


# The condition on a state of each index, view and trigger that has one, and what it stands for.
CONDITIONS = {
    "dirty_shards": [ShardState.DIRTY.sql()],
    "quarantined_shards": [ShardState.QUARANTINED.sql()],
    "evictable_shards": [ShardState.CLEAN.sql()],
    "saves_of_run": [SaveState.DELETED.sql_not()],
    "published_saves": [lifecycle.DURABLE_SAVES.sql()],
    "open_saves": [lifecycle.OPEN_SAVES.sql()],
    "ended_copies": [lifecycle.LOST_COPIES.sql()],
    "mount_saves": [lifecycle.MOUNT_SAVES.sql()],
    "unshown_objects": [ObjectState.CLEAN.sql_not()],
    "unshown_keys": [ObjectState.CLEAN.sql_not()],
    "object_conflicts": [ObjectState.CONFLICT.sql()],
    "owed_shards": [
        CopyState.OPEN.sql("copies.state"),
        lifecycle.COPIED_SAVES.sql("saves.state"),
        lifecycle.SOUND_SHARDS.sql("shards.state"),
    ],
    "save_begins": [
        SaveState.PUBLISHED.sql("NEW.state"),
        *[lifecycle.OPEN_SAVES.sql("NEW.state")] * 2,
    ],
    "save_ends": [lifecycle.REPLACED_SAVES.sql("NEW.state"), CopyState.OPEN.sql()],
    "save_is_deleted": [SaveState.DELETED.sql("NEW.state"), *[CopyState.DELETED.sql()] * 2],
    "save_is_published": [SaveState.PUBLISHED.sql("NEW.state"), CopyState.PUBLISHED.sql()],
    "save_is_reopened": [
        SaveState.OPEN.sql("NEW.state"),
        SaveState.PUBLISHED.sql("OLD.state"),
        CopyState.OPEN.sql(),
    ],
    "step_leaves": [SaveState.DELETED.sql("NEW.state"), lifecycle.ENDED_SAVES.sql_not()],
    "upload_is_replaced": [lifecycle.OPEN_SAVES.sql()],
}


def test_the_schema_agrees_with_the_named_sets(sql: apsw.Connection) -> None:
    """An index serves only those queries that spell its condition as it does."""
    condition = re.compile(r"(?:\w+\.)?state (?:=|<>|IN|NOT IN) (?:'\w+'|\([^)]*\))")
    query = "SELECT name, sql FROM sqlite_master WHERE sql IS NOT NULL ORDER BY name"
    found = {name: condition.findall(" ".join(text.split())) for name, text in sql.execute(query)}

    assert {name: named for name, named in found.items() if named} == CONDITIONS
