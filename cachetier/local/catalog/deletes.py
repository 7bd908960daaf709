"""What was collected, as the catalog records it: the drain then takes it off the remotes."""

from __future__ import annotations

from collections.abc import Callable

import apsw

from cachetier.local.catalog import gc_queries, queries, statements
from cachetier.local.catalog.committer import Committer
from cachetier.model.checkpoint import Save, SaveState
from cachetier.model.shard import Shard

_REPLACED = (SaveState.SUPERSEDED, SaveState.REFUSED)


class GarbageLog:
    """Deletes single saves. Thread-safe; every method may raise FencedError."""

    def __init__(self, committer: Committer) -> None:
        self._run = committer.run

    def discard_incomplete(self, number: int) -> list[Shard] | None:
        """Delete a save that was ended in the bucket; return its shards, for their files to go.

        None if it is pinned, or was completed here meanwhile.
        """
        unwanted = gc_queries.is_unwanted
        return self._run(lambda sql: _delete(sql, number, lambda _: unwanted(sql, number)))

    def discard_replaced(self, number: int) -> list[Shard] | None:
        """Delete a save that another one replaced, with its objects; None if it counts again."""
        return self._run(lambda sql: _delete(sql, number, lambda save: save.state in _REPLACED))


def _delete(
    sql: apsw.Connection, number: int, unwanted: Callable[[Save], bool]
) -> list[Shard] | None:
    save = queries.save_by_number(sql, number)
    if save is None or not unwanted(save):
        return None
    shards = queries.shards_of(sql, number)
    sql.execute("DELETE FROM shards WHERE save = ?", (number,))
    sql.execute("DELETE FROM parts WHERE save = ?", (number,))
    statements.set_state(sql, number, SaveState.DELETED)
    statements.delete_replications(sql, number)
    return shards
