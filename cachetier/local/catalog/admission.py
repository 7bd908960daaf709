"""Whether a put or a seal is admitted; each runs inside its caller's transaction."""

from __future__ import annotations

import apsw

from cachetier.errors import SealedError
from cachetier.local.catalog import queries, rank_parts, statements
from cachetier.model.checkpoint import OPEN_STATES, PartState, Save, SaveState, admitted_save
from cachetier.model.lifecycle import ShardState
from cachetier.model.policy import Policy
from cachetier.model.shard import Content, SaveIds, Shard


def admit(sql: apsw.Connection, ids: SaveIds, policy: Policy, now: float) -> Save:
    """Return the save of ``ids``, beginning it (and superseding older ones) if it is new."""
    saves = queries.saves_of(sql, ids.run, ids.step)
    save = admitted_save(saves, ids)
    if save is not None:
        return save
    for older in saves:
        if older.state in (*OPEN_STATES, SaveState.REPLICATED):
            statements.set_state(sql, older.number, SaveState.SUPERSEDED)
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
    return statements.require_save(sql, statements.insert_save(sql, begun))


def repeats(existing: Shard, content: Content) -> bool:
    """Return whether a put brings what is committed already, and sound."""
    return existing.content == content and existing.state is not ShardState.QUARANTINED


def check_replaceable(
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
            run=ids.run,
            step=ids.step,
            rank=ids.rank,
            name=name,
        )
    if rank_parts.is_final(sql, save.number, ids.rank):
        raise SealedError(
            f"rank {ids.rank} has sealed step {ids.step}",
            run=ids.run,
            step=ids.step,
            rank=ids.rank,
            name=name,
        )
    if save.state not in OPEN_STATES:
        raise SealedError(
            f"step {ids.step} is {save.state} already",
            run=ids.run,
            step=ids.step,
            rank=ids.rank,
            name=name,
        )
    rank_parts.reopen(sql, save.number, ids.rank, PartState.OPEN)
