"""Repairs of the catalog that nothing but ``cachetier fsck`` makes."""

from __future__ import annotations

import apsw

from cachetier.local import queries, rows
from cachetier.local.committer import Committer
from cachetier.model.shard import Content


class MendLog:
    """Mends rows. Thread-safe; every method may raise FencedError."""

    def __init__(self, committer: Committer) -> None:
        self._run = committer.run

    def reindex(self) -> None:
        """Make every index anew from its table."""
        self._run(lambda sql: sql.execute("REINDEX").fetchall())

    def rewrite(self, version: int, save_id: str, name: str, rank: int, content: Content) -> None:
        """Write again what a shard's row says of the shard; where its bytes are stays."""
        self._run(
            lambda sql: sql.execute(
                "UPDATE shards SET name = ?, rank = ?, size_bytes = ?, digest = ?, "
                "block_digests = ?, element_size = 0, row_digest = ? WHERE version = ?",
                (
                    name,
                    rank,
                    content.size_bytes,
                    rows.packed(content.digest),
                    rows.packed_blocks(content),
                    rows.row_digest(save_id, name, rank, content),
                    version,
                ),
            ).fetchall()
        )

    def reopen(self, number: int) -> bool:
        """Let the drain publish a save once more; return False if this node has no part of it."""

        def operation(sql: apsw.Connection) -> bool:
            if not queries.parts_of(sql, number):
                return False
            sql.execute(
                "UPDATE saves SET state = 'open' WHERE number = ? AND state = 'published'",
                (number,),
            )
            return True

        return self._run(operation)

    def reopen_at(self, number: int, remote: str) -> bool:
        """Let the drain of a replica publish a save there once more, likewise."""

        def operation(sql: apsw.Connection) -> bool:
            if not queries.parts_of(sql, number):
                return False
            sql.execute(
                "UPDATE replications SET state = 'open', due = 1 WHERE save = ? AND remote = ?",
                (number, remote),
            )
            return True

        return self._run(operation)
