"""Which steps are pinned, as the catalog records it."""

from __future__ import annotations

import apsw

from cachetier.errors import NotFoundError
from cachetier.local.catalog import pin_queries, queries
from cachetier.local.catalog.committer import Committer
from cachetier.local.catalog.pin_queries import Pin
from cachetier.model.checkpoint import visible_save


class PinLog:
    """Pins and unpins steps. Thread-safe; every method may raise FencedError."""

    def __init__(self, committer: Committer) -> None:
        self._run = committer.run

    def pin(self, run: str, step: int, now: float) -> Pin:
        """Pin a step and return what is here of it; one that is pinned stays so, since it was.

        Raises:
            NotFoundError: This node has no such step that readers could see.
        """

        def operation(sql: apsw.Connection) -> Pin:
            if visible_save(queries.saves_of(sql, run, step)) is None:
                raise NotFoundError(
                    f"this node has no step {step} of {run}",
                    hint="Pin a step that `cachetier ls RUN` shows; read one shard of a step "
                    "that only the bucket has, and the node knows it.",
                    run=run,
                    step=step,
                )
            sql.execute("INSERT OR IGNORE INTO pins VALUES (?, ?, ?)", (run, step, now))
            return next(p for p in pin_queries.pins(sql) if (p.run, p.step) == (run, step))

        return self._run(operation)

    def unpin(self, run: str, step: int) -> bool:
        """Let a step go again; return whether it was pinned."""

        def operation(sql: apsw.Connection) -> bool:
            pinned = pin_queries.is_pinned(sql, run, step)
            sql.execute("DELETE FROM pins WHERE run = ? AND step = ?", (run, step))
            return pinned

        return self._run(operation)
