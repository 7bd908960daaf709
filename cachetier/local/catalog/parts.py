"""The changes that ranks make: puts, seals and aborts, and whether they are admitted.

Each function that writes runs inside a transaction (``Store.write``). Decisions are taken inside
it, by the pure rules of ``model``.

A part that *follows* is sealed as soon as rank 0 of its save is: here that is settled in the very
transaction that seals rank 0, elsewhere when the drain finds rank 0's part in the bucket. Until
then its rank may still add to it, and take it back (docs/design/0010-parts-that-follow.md).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import apsw
from cachetier_client.bucket_format.stored import Content
from cachetier_client.identity.names import SaveIds

from cachetier.errors import BackpressureError, InvalidRequestError, NotFoundError, SealedError
from cachetier.local.catalog import rows, saves, shards
from cachetier.local.catalog.rows import IS_SEALED, NewShard
from cachetier.local.catalog.states import move, move_part
from cachetier.model.checkpoint import Save, admitted_save, sealed_here
from cachetier.model.lifecycle import (
    OPEN_SAVES,
    REPLACEABLE_SAVES,
    PartEvent,
    PartState,
    SaveEvent,
    SaveState,
    ShardState,
)
from cachetier.model.names import DURABLE
from cachetier.model.policy import Policy
from cachetier.model.shard import Shard

LEADER = 0


@dataclass(frozen=True, slots=True)
class Committed:
    """The outcome of a commit: the shard, and the shards it made superfluous.

    ``repeated`` is True when the same bytes were committed before, so that the new file is not
    needed.
    """

    shard: Shard
    replaced: tuple[Shard, ...] = ()
    repeated: bool = False


_GROWING = f"({PartState.OPEN.sql('parts.state')} OR ({IS_SEALED} AND parts.follows))"


def delete_shard(sql: apsw.Connection, run: str, step: int, name: str) -> Shard:
    """Remove one shard of an unsealed part.

    Raises:
        NotFoundError: There is none.
        SealedError: Its rank sealed.
    """
    shard = saves.visible_shard(sql, run, step, name)
    if shard is None:
        raise NotFoundError(f"no shard {name} in step {step}", run=run, step=step, name=name)
    save = saves.require_save(sql, shard.save)
    if is_final(sql, save.number, shard.rank) or save.state not in OPEN_SAVES:
        raise SealedError(
            f"shard {name} belongs to a sealed part",
            hint="Delete the whole step instead.",
            run=run,
            step=step,
            name=name,
        )
    shards.delete_shard(sql, shard.version)
    return shard


def commit_shard(
    sql: apsw.Connection, policy: Policy, ids: SaveIds, new: NewShard, now: float
) -> Committed:
    """Commit one shard, in a data file or inside the catalog.

    Raises:
        SealedError: The rank sealed with other bytes, or another rank uses the name for other
        bytes. SaveSupersededError, StepPublishedError, AbortedError: See ``model.checkpoint``.
    """
    save = admit(sql, policy, ids, now)
    existing = shards.shard_named(sql, save.number, new.name)
    if existing is not None and _repeats(existing, new.content):
        return Committed(existing, repeated=True)
    _check_replaceable(sql, save, ids, new.name, existing)
    if existing is not None:
        shards.delete_shard(sql, existing.version)
    shard = shards.insert_shard(sql, save, new, now)
    return Committed(shard, (existing,) if existing is not None else ())


def commit_remote(
    sql: apsw.Connection,
    policy: Policy,
    ids: SaveIds,
    new: NewShard,
    now: float,
    *,
    replaces: bool = False,
) -> Committed:
    """Commit a shard whose bytes are verified at a remote and not here: evicted from birth.

    Other bytes under its name stay, as the remote may hold those: a replacement waits for
    room. Where it is known that the remote holds the new ones, it ``replaces`` what is here.

    Raises:
        BackpressureError: Other bytes are committed under this name.
        SealedError, SaveSupersededError, StepPublishedError, AbortedError: As ``commit_shard``.
    """
    save = admit(sql, policy, ids, now)
    existing = shards.shard_named(sql, save.number, new.name)
    if existing is not None and _repeats(existing, new.content):
        return Committed(existing, repeated=True)
    _check_replaceable(sql, save, ids, new.name, existing)
    if existing is not None and not replaces:
        raise BackpressureError(
            f"shard {new.name} can only be replaced once there is room",
            **ids.context,
            name=new.name,
        )
    if existing is not None:
        shards.delete_shard(sql, existing.version)
    shard = shards.insert_shard(sql, save, new, now)
    saves.want(sql, save.number)  # begun remotely, so the rest of it follows
    return Committed(shard, (existing,) if existing is not None else ())


def seal(
    sql: apsw.Connection,
    policy: Policy,
    ids: SaveIds,
    ranks_on_node: int | None,
    now: float,
    *,
    follows: bool = False,
) -> list[int]:
    """Seal one rank's part and return the ranks sealed here; sealing twice changes nothing.

    One that ``follows`` is sealed as soon as rank 0 is.

    Raises:
        InvalidRequestError: Rank 0 would follow itself.
    """
    number = admit(sql, policy, ids, now).number
    if follows and ids.rank == LEADER:
        raise InvalidRequestError(
            "rank 0 cannot follow rank 0",
            hint="Seal rank 0 without follows, once everything of the save is put.",
            **ids.context,
        )
    waits = follows and not is_final(sql, number, LEADER)
    sealed = {"ranks_on_node": ranks_on_node, "sealed_at": now, "follows": int(waits)}
    not_final = f"{PartState.SEALED.sql_not()} OR follows"
    move_part(sql, number, ids.rank, PartEvent.SEAL, not_final, sealed)
    if ids.rank == LEADER:
        release_followers(sql, number)
    parts = saves.parts_of(sql, number)
    if sealed_here(parts):
        saves.replace_local_only(sql, number)
    return [part.rank for part in parts if part.state is PartState.SEALED]


def abort_rank(sql: apsw.Connection, ids: SaveIds) -> list[Shard]:
    """Remove all shards of a rank's unsealed part, and return them.

    Raises:
        SealedError: The rank sealed already.
    """
    save = saves.save_named(sql, ids.run, ids.step, ids.save_id)
    if save is None:
        return []  # it never put anything here
    if is_final(sql, save.number, ids.rank):
        raise SealedError(
            f"rank {ids.rank} has sealed its part of step {ids.step}; it cannot be aborted",
            hint="Delete the step instead.",
            **ids.context,
        )
    found = [s for s in shards.shards_of(sql, save.number) if s.rank == ids.rank]
    sql.execute("DELETE FROM shards WHERE save = ? AND rank = ?", (save.number, ids.rank))
    _reopen(sql, save.number, ids.rank, PartEvent.ABORT)
    return found


def take_over(
    sql: apsw.Connection, policy: Policy, ids: SaveIds, replaces: Sequence[str], now: float
) -> list[Shard]:
    """Begin another node's part, of a save that it saw replace others: all of it is put here now.

    Return what was here of it, which goes: shards that were restored from a replica have rows
    already, and would never be sent on. What this node sealed, or knows the end of, stays.

    Raises:
        StepPublishedError: Another save is published that it is not known to replace.
    """
    save = saves.save_named(sql, ids.run, ids.step, ids.save_id)
    if save is None:
        save = admit(sql, policy, ids, now, replaces)
    elif save.state not in REPLACEABLE_SAVES or is_final(sql, save.number, ids.rank):
        return []
    if replaces:  # at another part of it nobody may be there who can say
        known = " ".join(replaces), save.number
        sql.execute("UPDATE saves SET replaces = ? WHERE number = ?", known)
    if save.state is SaveState.REPLICATED:
        move(sql, save.number, SaveEvent.REOPEN)
        sql.execute(
            "UPDATE copies SET due = 1 WHERE save = ? AND remote = ?", (save.number, DURABLE)
        )
    return abort_rank(sql, ids)


def take_back(sql: apsw.Connection, ids: SaveIds, names: Sequence[str]) -> list[Shard]:
    """Remove shards of a rank's unsealed part; return those there were."""
    save = saves.save_named(sql, ids.run, ids.step, ids.save_id)
    if save is None or is_final(sql, save.number, ids.rank):
        return []
    listed = [shards.shard_named(sql, save.number, name) for name in names]
    found = [shard for shard in listed if shard is not None and shard.rank == ids.rank]
    for shard in found:
        shards.delete_shard(sql, shard.version)
    return found


def reserve_version(sql: apsw.Connection) -> int:
    """Return a version that no shard had, nor will have."""
    sql.execute("UPDATE sqlite_sequence SET seq = seq + 1 WHERE name = 'shards'")
    if not sql.changes():
        sql.execute("INSERT INTO sqlite_sequence (name, seq) VALUES ('shards', 1)")
    return int(sql.execute("SELECT seq FROM sqlite_sequence WHERE name = 'shards'").get)


def is_final(sql: apsw.Connection, number: int, rank: int) -> bool:
    """Return whether nothing is added to a rank's part any more."""
    return rows.exists(
        sql,
        f"SELECT 1 FROM parts WHERE save = ? AND rank = ? AND {IS_SEALED} AND NOT follows",
        number,
        rank,
    )


def knows(sql: apsw.Connection, run: str, step: int, save_id: str, rank: int) -> bool:
    """Return whether a rank's part is final here, or it is known how its save ended."""
    save = saves.save_named(sql, run, step, save_id)
    if save is None or save.state not in REPLACEABLE_SAVES:
        return save is not None
    return is_final(sql, save.number, rank)


def release_followers(sql: apsw.Connection, number: int) -> int:
    """Make the sealed parts of a save final, as rank 0 has sealed; return how many were not."""
    sql.execute(
        f"UPDATE parts SET follows = 0 WHERE save = ? AND {IS_SEALED} AND follows",
        (number,),
    )
    return sql.changes()


def _reopen(sql: apsw.Connection, number: int, rank: int, event: PartEvent) -> None:
    """Move a rank's part, which is not final, as it grows or was taken back."""
    move_part(sql, number, rank, event, "state <> excluded.state", {"follows": 0})


def admit(
    sql: apsw.Connection, policy: Policy, ids: SaveIds, now: float, replaces: Sequence[str] = ()
) -> Save:
    """Return the save of ``ids``, beginning it if it is new; it is known to replace ``replaces``.

    Older ones end, but for those that are sealed here: one that only began does not cost a step
    that is whole. Once the new one is whole too it takes their place, wherever they are.

    Raises:
        SaveSupersededError, StepPublishedError, AbortedError: See ``model.checkpoint``.
    """
    found = saves.saves_of(sql, ids.run, ids.step)
    save = admitted_save(found, ids, replaces)
    if save is not None:
        return save
    kept, _ = saves.sealed_and_whole(sql, found)
    for older in found:
        if older.state in REPLACEABLE_SAVES and older.number not in kept:
            move(sql, older.number, SaveEvent.SUPERSEDE)
    local_only = policy.keeps_local(ids.step)
    begun = Save(
        number=0,
        run=ids.run,
        step=ids.step,
        save_id=ids.save_id,
        state=SaveState.LOCAL_ONLY if local_only else SaveState.OPEN,
        world_size=ids.world_size,
        overwrite=ids.overwrite,
        started_at=now,
        local_only_at=now if local_only else None,
    )
    return saves.insert_save(sql, begun)


def _repeats(existing: Shard, content: Content) -> bool:
    """Return whether a put brings the bytes that are committed already, and sound."""
    return existing.content == content and existing.state is not ShardState.QUARANTINED


def _check_replaceable(
    sql: apsw.Connection, save: Save, ids: SaveIds, name: str, existing: Shard | None
) -> None:
    """Refuse a put into a part that takes no more shards, or over another rank's shard.

    Raises:
        SealedError: It is so.
    """
    if existing is not None and existing.rank != ids.rank:
        raise SealedError(
            f"shard {name} of step {ids.step} belongs to rank {existing.rank}, with other bytes",
            hint="Give each rank's shards names of their own.",
            **ids.context,
            name=name,
        )
    if is_final(sql, save.number, ids.rank):
        raise SealedError(f"rank {ids.rank} has sealed step {ids.step}", **ids.context, name=name)
    if save.state not in OPEN_SAVES:
        raise SealedError(f"step {ids.step} is {save.state} already", **ids.context, name=name)
    _reopen(sql, save.number, ids.rank, PartEvent.PUT)


def unsealed_parts(sql: apsw.Connection) -> list[tuple[Save, int]]:
    """Return (save, rank) of each part that may still grow here, by arrival."""
    return _parts_where(sql, _GROWING)


def sealed_parts(sql: apsw.Connection) -> list[tuple[Save, int]]:
    """Return (save, rank) of each sealed part of a save that is not published, by arrival."""
    return _parts_where(sql, f"{IS_SEALED} AND NOT parts.follows")


def _parts_where(sql: apsw.Connection, which: str) -> list[tuple[Save, int]]:
    query = (
        "SELECT parts.save, parts.rank FROM parts JOIN saves ON saves.number = parts.save "
        f"WHERE {OPEN_SAVES.sql('saves.state')} AND {which} ORDER BY parts.save, parts.rank"
    )
    found = []
    ranks: list[tuple[int, int]] = list(sql.execute(query))
    for number, rank in ranks:
        save = saves.save_by_number(sql, number)
        if save is not None:
            found.append((save, rank))
    return found
