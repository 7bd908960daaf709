"""Take what was seen at a remote into the catalog."""

from __future__ import annotations

from collections.abc import Sequence

import apsw

from cachetier.local.catalog import queries, statements
from cachetier.local.catalog.records import NewShard, RemoteSave
from cachetier.model.checkpoint import OPEN_STATES, Save, SaveState
from cachetier.model.policy import Policy

_CONFIRMED = (SaveState.PUBLISHED, SaveState.REPLICATED)


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
            "INSERT OR IGNORE INTO replications (save, remote, state, location, published_at, due) "
            "VALUES (?, ?, 'published', ?, ?, 0)",
            (number, replica.remote, replica.location, replica.published_at),
        )
    adopted = statements.require_save(sql, number)
    for shard in shards:
        _adopt_shard(sql, adopted, shard, now)


def _adopted_save(sql: apsw.Connection, policy: Policy, save: Save, now: float) -> int | None:
    """Return the number of a save seen at a remote; None if what is known here stands against."""
    known = queries.save_named(sql, save.run, save.step, save.save_id)
    published = save.state is SaveState.PUBLISHED
    if known is None:
        number = statements.insert_save(sql, save).number
    elif known.state in _CONFIRMED or (known.state in OPEN_STATES and published):
        number = known.number
    else:
        return None  # deleted here, and soon remotely too; or open, and none of its business
    if published and (known is None or known.state is not SaveState.PUBLISHED):
        statements.publish(sql, number, save.published_at or now, save.location)
        statements.skip_older(sql, policy, number, now)
    return number


def _adopt_shard(sql: apsw.Connection, save: Save, shard: NewShard, now: float) -> None:
    existing = queries.shard_named(sql, save.number, shard.name)
    if existing is None:
        statements.insert_shard(sql, save, shard, now)
        return
    verified = queries.verified_remotes(sql, existing.version)
    for copy in shard.copies:
        if existing.content == shard.content and copy.remote not in verified:
            statements.insert_stored(sql, existing.version, copy.remote, copy.stored, now)
