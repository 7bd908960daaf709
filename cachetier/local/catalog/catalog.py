"""The catalog: the only truth about what is committed. Here, what doors and readers change in it.

Every method that changes something is one operation of a group commit: when it returns, it is
synced. Decisions are taken inside the transaction, by the pure rules of ``model``. What the drain,
policies, pins, ``gc`` and ``fsck`` change is in the modules called ``*_log``, in the same way.
Reads go through ``queries`` and its kin.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import apsw

from cachetier.errors import BackpressureError, NotFoundError, SealedError
from cachetier.local.catalog import (
    admission,
    pin_queries,
    queries,
    rank_parts,
    replica_queries,
    statements,
)
from cachetier.local.catalog import adopt as adoptions
from cachetier.local.catalog.committer import Committer, Operation
from cachetier.local.catalog.records import IncidentRecord, NewShard, RemoteCopy, RemoteSave
from cachetier.model import lifecycle
from cachetier.model.checkpoint import OPEN_STATES, PartState, Save, SaveState
from cachetier.model.lifecycle import ShardEvent, ShardState
from cachetier.model.names import DURABLE
from cachetier.model.policy import DRAIN_ALL, Policy
from cachetier.model.shard import Content, SaveIds, Shard
from cachetier.model.stored import Stored

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Committed:
    """The outcome of a commit: the shard, and the shards it made superfluous.

    ``repeated`` is True when the same bytes were committed before, so that the new file is not
    needed.
    """

    shard: Shard
    replaced: tuple[Shard, ...] = ()
    repeated: bool = False


class Catalog:
    """Writes to the catalog. Thread-safe; every method may raise FencedError."""

    def __init__(self, committer: Committer, policy: Policy = DRAIN_ALL) -> None:
        self._committer = committer
        self._policy = policy

    def _run(self, operation: Operation[Result]) -> Result:
        return self._committer.run(operation)

    # --- puts, seals, aborts ---------------------------------------------------------------------

    def commit_shard(
        self,
        ids: SaveIds,
        name: str,
        content: Content,
        now: float,
        *,
        file_id: str | None = None,
        body: bytes | None = None,
    ) -> Committed:
        """Commit one shard, in a data file or (``body``) inside the catalog.

        Raises:
            SealedError: The rank sealed with other bytes, or another rank uses the name for other
            bytes. SaveSupersededError, StepPublishedError, AbortedError: See ``model.checkpoint``.
        """

        def operation(sql: apsw.Connection) -> Committed:
            save = admission.admit(sql, ids, self._policy, now)
            existing = queries.shard_named(sql, save.number, name)
            if existing is not None and admission.repeats(existing, content):
                return Committed(existing, repeated=True)
            admission.check_replaceable(sql, save, ids, name, existing)
            if existing is not None:
                sql.execute("DELETE FROM shards WHERE version = ?", (existing.version,))
            new = NewShard(name, ids.rank, content, file_id, body)
            shard = statements.insert_shard(sql, save, new, now)
            return Committed(shard, (existing,) if existing is not None else ())

        return self._run(operation)

    def seal(
        self, ids: SaveIds, ranks_on_node: int | None, now: float, *, follows: bool = False
    ) -> list[int]:
        """Seal one rank's part and return the ranks sealed here; sealing twice changes nothing.

        One that ``follows`` is sealed as soon as rank 0 is, see ``rank_parts``.
        """

        def operation(sql: apsw.Connection) -> list[int]:
            number = admission.admit(sql, ids, self._policy, now).number
            return rank_parts.seal(sql, number, ids, ranks_on_node, now, follows=follows)

        return self._run(operation)

    def abort_rank(self, ids: SaveIds) -> list[Shard]:
        """Take back what one rank put in an unsealed part; return the shards removed.

        Raises:
            SealedError: The rank sealed already.
        """

        def operation(sql: apsw.Connection) -> list[Shard]:
            save = queries.save_named(sql, ids.run, ids.step, ids.save_id)
            if save is None:
                return []  # it never put anything here
            if rank_parts.is_final(sql, save.number, ids.rank):
                raise SealedError(
                    f"rank {ids.rank} has sealed its part of step {ids.step}; it cannot be aborted",
                    hint="Delete the step instead.",
                    run=ids.run,
                    step=ids.step,
                    rank=ids.rank,
                )
            shards = [s for s in queries.shards_of(sql, save.number) if s.rank == ids.rank]
            sql.execute("DELETE FROM shards WHERE save = ? AND rank = ?", (save.number, ids.rank))
            rank_parts.reopen(sql, save.number, ids.rank, PartState.ABORTED)
            return shards

        return self._run(operation)

    def take_back(self, ids: SaveIds, names: Sequence[str]) -> list[Shard]:
        """Remove shards of a rank's unsealed part; return those there were."""

        def operation(sql: apsw.Connection) -> list[Shard]:
            save = queries.save_named(sql, ids.run, ids.step, ids.save_id)
            if save is None or rank_parts.is_final(sql, save.number, ids.rank):
                return []
            shards = [queries.shard_named(sql, save.number, name) for name in names]
            found = [shard for shard in shards if shard is not None and shard.rank == ids.rank]
            for shard in found:
                sql.execute("DELETE FROM shards WHERE version = ?", (shard.version,))
            return found

        return self._run(operation)

    def delete_shard(self, run: str, step: int, name: str) -> Shard:
        """Remove one shard of an unsealed part.

        Raises:
            NotFoundError: There is none.
            SealedError: Its rank sealed.
        """

        def operation(sql: apsw.Connection) -> Shard:
            shard = queries.visible_shard(sql, run, step, name)
            if shard is None:
                raise NotFoundError(
                    f"no shard {name} in step {step}", run=run, step=step, name=name
                )
            save = queries.save_named(sql, run, step, shard.save_id)
            assert save is not None
            sealed = rank_parts.is_final(sql, save.number, shard.rank)
            if sealed or save.state not in OPEN_STATES:
                raise SealedError(
                    f"shard {name} belongs to a sealed part",
                    hint="Delete the whole step instead.",
                    run=run,
                    step=step,
                    name=name,
                )
            sql.execute("DELETE FROM shards WHERE version = ?", (shard.version,))
            return shard

        return self._run(operation)

    def delete_step(self, run: str, step: int) -> list[Shard]:
        """Delete every save of a step here.

        The drain then deletes it remotely. Returns its shards.

        Raises:
            PinnedError: The step is pinned.
        """

        def operation(sql: apsw.Connection) -> list[Shard]:
            pin_queries.refuse_pinned(sql, run, step)
            removed: list[Shard] = []
            for save in queries.saves_of(sql, run, step):
                removed += queries.shards_of(sql, save.number)
                sql.execute("DELETE FROM shards WHERE save = ?", (save.number,))
                sql.execute("DELETE FROM parts WHERE save = ?", (save.number,))
                statements.set_state(sql, save.number, SaveState.DELETED)
                statements.delete_replications(sql, save.number)
            return removed

        return self._run(operation)

    def collect(self, number: int) -> list[Shard]:
        """Drop the shards of a save that was superseded or refused; return them."""

        def operation(sql: apsw.Connection) -> list[Shard]:
            save = statements.require_save(sql, number)
            if save.state not in (SaveState.SUPERSEDED, SaveState.REFUSED):
                return []
            shards = queries.shards_of(sql, number)
            sql.execute("DELETE FROM shards WHERE save = ?", (number,))
            return shards

        return self._run(operation)

    # --- straight to the remote ------------------------------------------------------------------

    def admit(self, ids: SaveIds, now: float) -> Save:
        """Return the save of ``ids``, beginning it without a shard if it is new.

        Raises:
            SaveSupersededError, StepPublishedError, AbortedError: See ``model.checkpoint``.
        """
        return self._run(lambda sql: admission.admit(sql, ids, self._policy, now))

    def reserve_version(self) -> int:
        """Return a version that no shard had, nor will have."""

        def operation(sql: apsw.Connection) -> int:
            sql.execute("UPDATE sqlite_sequence SET seq = seq + 1 WHERE name = 'shards'")
            if not sql.changes():
                sql.execute("INSERT INTO sqlite_sequence (name, seq) VALUES ('shards', 1)")
            return int(sql.execute("SELECT seq FROM sqlite_sequence WHERE name = 'shards'").get)

        return self._run(operation)

    def commit_remote(
        self, ids: SaveIds, name: str, content: Content, remote: str, now: float
    ) -> Committed:
        """Commit a shard whose bytes are verified at ``remote`` and not here: evicted from birth.

        It never replaces a shard, as the remote may hold bytes of that one: a replacement waits
        for room.

        Raises:
            BackpressureError: Other bytes are committed under this name.
            SealedError, SaveSupersededError, StepPublishedError, AbortedError: As ``commit_shard``.
        """

        def operation(sql: apsw.Connection) -> Committed:
            save = admission.admit(sql, ids, self._policy, now)
            existing = queries.shard_named(sql, save.number, name)
            if existing is not None and admission.repeats(existing, content):
                return Committed(existing, repeated=True)
            admission.check_replaceable(sql, save, ids, name, existing)
            if existing is not None:
                raise BackpressureError(
                    f"shard {name} can only be replaced once there is room",
                    run=ids.run,
                    step=ids.step,
                    rank=ids.rank,
                    name=name,
                )
            copy = RemoteCopy(remote, Stored.raw(content))
            new = NewShard(name, ids.rank, content, state=ShardState.EVICTED, copies=(copy,))
            shard = statements.insert_shard(sql, save, new, now)
            statements.want(sql, save.number)  # begun remotely, so the rest of it follows
            return Committed(shard)

        return self._run(operation)

    # --- local copies ----------------------------------------------------------------------------

    def move(
        self, version: int, event: ShardEvent, incident: IncidentRecord | None, now: float
    ) -> Shard:
        """Move a shard between states; return it as it was before (with the file that is now free).

        ``incident`` is recorded if the shard becomes quarantined.

        Raises:
            NotFoundError: It was replaced or deleted meanwhile.
            PinnedError: It is to be evicted, and its step is pinned.
        """

        def operation(sql: apsw.Connection) -> Shard:
            shard = statements.require(sql, version)
            if event is ShardEvent.EVICT:
                pin_queries.refuse_pinned(sql, shard.run, shard.step)
            state = lifecycle.after(shard.state, event)
            if state is ShardState.EVICTED:
                sql.execute("DELETE FROM bodies WHERE version = ?", (version,))
                sql.execute(
                    "UPDATE shards SET state = ?, file_id = NULL, inline = 0 WHERE version = ?",
                    (state, version),
                )
            else:
                sql.execute("UPDATE shards SET state = ? WHERE version = ?", (state, version))
            became_quarantined = state is ShardState.QUARANTINED and state is not shard.state
            if incident is not None and became_quarantined:
                statements.insert_incident(sql, incident, now)
            return shard

        return self._run(operation)

    def attach(self, version: int, file_id: str, durable: str = DURABLE) -> Shard:
        """Give a shard its restored local file; return it as it was before.

        An evicted one is clean again; a quarantined one dirty, if a remote still waits for it.
        """

        def operation(sql: apsw.Connection) -> Shard:
            shard = statements.require(sql, version)
            state = lifecycle.after(shard.state, ShardEvent.RESTORED)
            if replica_queries.is_everywhere(sql, version, durable):
                state = lifecycle.after(state, ShardEvent.VERIFIED_REMOTELY)
            sql.execute("DELETE FROM bodies WHERE version = ?", (version,))
            sql.execute(
                "UPDATE shards SET state = ?, file_id = ?, inline = 0 WHERE version = ?",
                (state, file_id, version),
            )
            return shard

        return self._run(operation)

    def adopt(
        self,
        save: Save,
        shards: Sequence[NewShard],
        now: float,
        replicas: Sequence[RemoteSave] = (),
    ) -> None:
        """Remember a published step and, as evicted here, its ``shards``.

        Where it is known from replicas alone, ``save`` is ``replicated``; that turns to published
        once it is adopted so. Changes nothing if the save was deleted here.
        """

        def operation(sql: apsw.Connection) -> None:
            number = adoptions.adopted_save(sql, save, self._policy, now)
            if number is None:
                return
            for replica in replicas:
                at = replica.published_at
                statements.insert_replication(sql, number, replica.remote, replica.location, at)
            adopted = statements.require_save(sql, number)
            for shard in shards:
                adoptions.adopt_shard(sql, adopted, shard, now)

        self._run(operation)
