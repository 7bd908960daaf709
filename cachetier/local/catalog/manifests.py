"""Write what was read at a remote into the catalog.

A manifest that was read some time ago may be older than what the catalog has learned since. So
``learn`` changes nothing if the saves of the step are not as they were when the reading began.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import apsw
from cachetier_client.bucket_format.documents import Manifest, ManifestState
from cachetier_client.io.digests import to_hex

from cachetier.errors import SaveSupersededError
from cachetier.local.catalog import notes, saves, shards
from cachetier.local.catalog.rows import IncidentRecord, NewShard, RemoteSave
from cachetier.local.catalog.states import move_all
from cachetier.model.checkpoint import Save, learned_state
from cachetier.model.lifecycle import (
    CONFIRMED_SAVES,
    DURABLE_SAVES,
    OPEN_SAVES,
    CopyState,
    SaveEvent,
    SaveState,
)
from cachetier.model.policy import Policy
from cachetier.model.shard import Shard

Settled = tuple[int, SaveState]


@dataclass(frozen=True, slots=True)
class Learned:
    """Saves that turned out to be published, or to have ended, and the shards that were removed.

    ``published`` has only what this node took part in.
    """

    published: tuple[Save, ...]
    ended: tuple[Save, ...]
    removed: tuple[Shard, ...]


def settled(sql: apsw.Connection, run: str, step: int) -> list[Settled]:
    """Return the saves of a step that are not open any more, with their states."""
    found = saves.saves_of(sql, run, step)
    return [(save.number, save.state) for save in found if save.state not in OPEN_SAVES]


def changes(sql: apsw.Connection, seen: Manifest) -> list[Save]:
    """Return the saves of a step whose state is another by its manifest, as they will be.

    A published save that is not known yet has number 0; it is of interest only if others are here.
    A pin stands against the deletion of its step.
    """
    known = saves.saves_of(sql, seen.run, seen.step)
    found = []
    for save in known:
        state = learned_state(save, seen)
        pinned = state is SaveState.DELETED and notes.is_pinned(sql, seen.run, seen.step)
        if state is not save.state and not pinned:
            found.append(replace(save, state=state))
    others = [save for save in known if save.state is not SaveState.DELETED]
    unknown = all(save.save_id != seen.save_id for save in known)
    if others and unknown and seen.state is ManifestState.PUBLISHED:
        found.append(save_of(seen))
    return found


def learn(
    sql: apsw.Connection, policy: Policy, seen: Manifest, before: Sequence[Settled], now: float
) -> Learned | None:
    """Record what the manifest of a step says; None if the catalog may know something newer.

    The bytes of saves that have ended go, but for those of a pinned step.
    """
    if settled(sql, seen.run, seen.step) != before:
        return None
    published, ended, removed = list[Save](), list[Save](), list[Shard]()
    for save in changes(sql, seen):
        if save.state is SaveState.PUBLISHED:
            number = save.number or saves.insert_save(sql, save).number
            at, came_here = seen.published_at or now, bool(saves.parts_of(sql, number))
            saves.publish(sql, number, at, seen.location, came_here=came_here)
            saves.skip_older(sql, policy, number, now)
            published += [save] if came_here else []
            removed += _given_up(sql, number, seen)
            continue
        if save.state is SaveState.DELETED:
            removed += saves.delete_save(sql, save.number)
        else:
            if save.save_id not in seen.replaces:
                notes.insert_incident(sql, _replaced(save), now)
            # The save that is published may have superseded it just now.
            move_all(sql, "number = ?", SaveEvent.SUPERSEDE, values=(save.number,))
            if not notes.is_pinned(sql, seen.run, seen.step):
                removed += saves.delete_superfluous_shards(sql, save.number)
        ended.append(save)
    return Learned(tuple(published), tuple(ended), tuple(removed))


def _given_up(sql: apsw.Connection, number: int, seen: Manifest) -> list[Shard]:
    """Remove shards of a try that their ranks gave up: they sealed other bytes past us.

    The manifest has the shards of each part that is sealed here.
    """
    sealed = {part.rank for part in saves.parts_of(sql, number) if part.final}
    named = {(shard.name, shard.digest) for shard in seen.shards}
    found = [
        shard
        for shard in shards.shards_of(sql, number)
        if shard.rank not in sealed and (shard.name, to_hex(shard.content.digest)) not in named
    ]
    for shard in found:
        shards.delete_shard(sql, shard.version)
    return found


def _replaced(save: Save) -> IncidentRecord:
    message = f"save {save.save_id} of step {save.step} was replaced by another save"
    kind = SaveSupersededError
    return IncidentRecord(kind.code, message, kind.hint, save.run, save.step)


def save_of(seen: Manifest) -> Save:
    """Return the save of a step that is published at the durable remote."""
    return Save(
        number=0,
        run=seen.run,
        step=seen.step,
        save_id=seen.save_id,
        state=SaveState.PUBLISHED,
        world_size=seen.world_size,
        overwrite=False,
        started_at=seen.started_at,
        location=seen.location,
        published_at=seen.published_at,
    )


def adopt(
    sql: apsw.Connection,
    policy: Policy,
    save: Save,
    shards: Sequence[NewShard],
    now: float,
    replicas: Sequence[RemoteSave] = (),
) -> None:
    """Remember a published step and, as evicted here, its ``shards``.

    Where it is known from replicas alone, ``save`` is ``replicated``; that turns to published
    once it is adopted so. Changes nothing if the save was deleted here.
    """
    number = _adopted_save(sql, policy, save, now)
    if number is None:
        return
    for replica in replicas:  # what this node does there itself stays
        sql.execute(
            "INSERT OR IGNORE INTO copies (save, remote, state, location, published_at, due) "
            "VALUES (?, ?, ?, ?, ?, 0)",
            (
                *(number, replica.remote, CopyState.PUBLISHED),
                *(replica.location, replica.published_at),
            ),
        )
    adopted = saves.require_save(sql, number)
    for shard in shards:
        _adopt_shard(sql, adopted, shard, now)


def _adopted_save(sql: apsw.Connection, policy: Policy, save: Save, now: float) -> int | None:
    """Return the number of a save seen at a remote; None if this node must not learn it."""
    known = saves.save_named(sql, save.run, save.step, save.save_id)
    published = save.state in DURABLE_SAVES
    if known is None:
        number = saves.insert_save(sql, save).number
    elif known.state in CONFIRMED_SAVES or known.state in OPEN_SAVES:
        number = known.number
    else:
        return None  # deleted here, and soon remotely too
    if published and (known is None or known.state not in DURABLE_SAVES):
        at = save.published_at or now
        saves.publish(sql, number, at, save.location, came_here=known is not None)
        saves.skip_older(sql, policy, number, now)
    return number


def _adopt_shard(sql: apsw.Connection, save: Save, shard: NewShard, now: float) -> None:
    existing = shards.shard_named(sql, save.number, shard.name)
    if existing is None:
        shards.insert_shard(sql, save, shard, now)
        return
    verified = shards.verified_remotes(sql, existing.version)
    for copy in shard.copies:
        if existing.content == shard.content and copy.remote not in verified:
            shards.insert_stored(sql, existing.version, copy.remote, copy.stored, now)
