"""The statements that change a state: no other module has one.

Each moves rows by events of ``model.lifecycle``, whose tables say where they lead. A row whose
state does not allow the event stays as it is: ``move`` refuses then, ``move_all`` passes it over.
Each function runs inside a transaction (``Store.write``).

What follows for others from the state of a save, triggers of the schema do: the copy at the durable
remote follows it, open copies end with it (``save_ends``), all with a deletion
(``save_is_deleted``), and so does the pin of a step (``step_leaves``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache

import apsw

from cachetier.model.lifecycle import (
    CopyEvent,
    ForbiddenTransitionError,
    ObjectEvent,
    PartEvent,
    RowEvent,
    SaveEvent,
    ShardEvent,
    StateSet,
    moves,
)

_TABLES: dict[type[RowEvent], tuple[str, str]] = {  # and the columns that name a row
    SaveEvent: ("saves", "number = ?"),
    CopyEvent: ("copies", "save = ? AND remote = ?"),
    PartEvent: ("parts", "save = ? AND rank = ?"),
    ShardEvent: ("shards", "version = ?"),
    ObjectEvent: ("objects", "version = ?"),
}


def move(
    sql: apsw.Connection,
    row: int | tuple[int, str],
    *events: RowEvent,
    also: str = "",
    values: Sequence[object] = (),
) -> None:
    """Move one row by events that happen one after the other.

    Args:
        sql: A connection in a transaction.
        row: The number of a save, (save, remote) of its copy, the version of a shard or an object.
        events: Of one kind.
        also: What the same statement assigns to other columns.
        values: Those that ``also`` takes.

    Raises:
        ForbiddenTransitionError: The state of the row does not allow it, or there is no such row.
    """
    table, which = _TABLES[type(events[0])]
    key = row if isinstance(row, tuple) else (row,)
    sql.execute(_update(events, which, also), (*values, *key))
    if not sql.changes():
        found = sql.execute(f"SELECT state FROM {table} WHERE {which}", key).fetchone()
        state, named = found[0] if found else "missing", "' and '".join(events)
        raise ForbiddenTransitionError(f"{table} {row} is {state}, and may not see '{named}'")


def move_all(
    sql: apsw.Connection,
    where: str,
    *events: RowEvent,
    also: str = "",
    values: Sequence[object] = (),
) -> None:
    """Move every row that meets ``where`` and whose state allows the events; see ``move``.

    ``values`` are those that ``also`` takes, then those that ``where`` takes.
    """
    sql.execute(_update(events, where, also), tuple(values))


def move_part(
    sql: apsw.Connection,
    save: int,
    rank: int,
    event: PartEvent,
    where: str,
    columns: Mapping[str, int | float | None],
) -> None:
    """Move the part of a rank, if it meets ``where``, or begin it in the state of ``event``.

    ``columns`` are written in either case.
    """
    (reached,) = set(moves(event).values())  # whatever it was before
    names = ", ".join(columns)
    news = ", ".join(f"{name} = excluded.{name}" for name in ("state", *columns))
    sql.execute(
        f"INSERT INTO parts (save, rank, state, {names}) VALUES (?, ?, ?{', ?' * len(columns)}) "
        f"ON CONFLICT (save, rank) DO UPDATE SET {news} WHERE {where}",
        (save, rank, reached, *columns.values()),
    )


@cache
def _update(events: tuple[RowEvent, ...], where: str, also: str) -> str:
    """Return the statement that moves the rows of ``where`` whose state allows ``events``."""
    table, _ = _TABLES[type(events[0])]
    found = moves(*events)
    targets = set(found.values())
    if len(targets) == 1:
        state = f"'{targets.pop()}'"
    else:
        changed = {before: reached for before, reached in found.items() if reached is not before}
        cases = " ".join(f"WHEN '{before}' THEN '{reached}'" for before, reached in changed.items())
        state = f"CASE state {cases} ELSE state END"
    assignments = f"state = {state}, {also}" if also else f"state = {state}"
    allowed = StateSet(found).sql(f"{table}.state")
    return f"UPDATE {table} SET {assignments} WHERE {allowed} AND ({where})"
