"""What becomes of local-only steps, as the catalog records it: let go after all, or removed."""

from __future__ import annotations

import apsw

from cachetier.local.catalog import pin_queries, queries, statements
from cachetier.local.catalog.committer import Committer
from cachetier.model.checkpoint import SaveState
from cachetier.model.shard import Shard


class PolicyLog:
    """Writes down what was decided. Thread-safe; every method may raise FencedError."""

    def __init__(self, committer: Committer) -> None:
        self._run = committer.run

    def want(self, number: int) -> None:
        """Let a save be drained: an open one is not kept back any more, a local-only one opens."""
        self._run(lambda sql: statements.want(sql, number))

    def remove(self, number: int) -> list[Shard]:
        """Forget a local-only save; return its shards, for their files to go.

        Nothing happens to one that is wanted or pinned by now. Remotely nothing is deleted:
        another node may have let the step go on.
        """

        def operation(sql: apsw.Connection) -> list[Shard]:
            save = statements.require_save(sql, number)
            pinned = pin_queries.is_pinned(sql, save.run, save.step)
            if pinned or save.state is not SaveState.LOCAL_ONLY:
                return []
            shards = queries.shards_of(sql, number)
            sql.execute("DELETE FROM shards WHERE save = ?", (number,))
            sql.execute("DELETE FROM parts WHERE save = ?", (number,))
            sql.execute("DELETE FROM replications WHERE save = ?", (number,))
            sql.execute(
                "UPDATE saves SET state = 'deleted', location = NULL WHERE number = ?", (number,)
            )
            return shards

        return self._run(operation)
