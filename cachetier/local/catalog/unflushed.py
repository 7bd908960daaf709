"""The saves that are sealed here and not durable, and which notes in the bucket say so.

The row of a run is there before its note, and goes after it, so that no note is ever forgotten.

Source: docs/design/0037-unflushed-steps.md.
"""

from __future__ import annotations

from typing import NamedTuple

import apsw
from cachetier_client.bucket_format.documents import UnflushedSave


class Unflushed(NamedTuple):
    """A save that is not durable, by its number, and the ranks that sealed it here."""

    number: int
    run: str
    save: UnflushedSave


def unflushed_saves(sql: apsw.Connection) -> list[Unflushed]:
    """Return these saves, the newest step first; those that a policy keeps here are left out."""
    query = (
        "SELECT number, run, step, save_id, world_size, group_concat(rank) "
        "FROM saves JOIN parts ON parts.save = number AND parts.state = 'sealed' "
        "WHERE saves.state IN ('open', 'local_only') AND saves.state = 'open' "
        "GROUP BY number ORDER BY step DESC, number DESC"
    )
    found = []
    for number, run, step, save_id, world_size, listed in sql.execute(query):
        ranks = tuple(sorted(map(int, listed.split(","))))
        save = UnflushedSave(step=step, save_id=save_id, world_size=world_size, ranks=ranks)
        found.append(Unflushed(number, run, save))
    return found


def noted_runs(sql: apsw.Connection) -> list[str]:
    """Return the runs of which a note of ours may be in the bucket."""
    return [run for (run,) in sql.execute("SELECT run FROM unflushed_notes")]


def remember_note(sql: apsw.Connection, run: str) -> None:
    sql.execute("INSERT OR IGNORE INTO unflushed_notes VALUES (?)", (run,))


def forget_note(sql: apsw.Connection, run: str) -> None:
    sql.execute("DELETE FROM unflushed_notes WHERE run = ?", (run,))
