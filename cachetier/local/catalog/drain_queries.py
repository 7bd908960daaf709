"""Reads of the catalog that look for objects with bytes of a shard that is to be sent."""

from __future__ import annotations

import apsw

from cachetier.local.catalog import queries, rows
from cachetier.model.composing import Twins
from cachetier.model.shard import Shard
from cachetier.model.stored import Stored

_VERIFIED = (
    f"SELECT {rows.SHARD_COLUMNS} FROM shards JOIN saves ON saves.number = shards.save "
    "JOIN drains ON drains.version = shards.version AND drains.remote = ? "
    "AND drains.verified_at IS NOT NULL AND drains.pack IS NULL"
)


def donor_of(sql: apsw.Connection, shard: Shard, remote: str) -> tuple[Shard, Stored] | None:
    """Return a shard with bytes of ``shard`` that ``remote`` has, and as what: the nearest kin."""
    donor = twin_of(sql, shard, remote) or previous_of(sql, shard, remote)
    stored = queries.stored_of(sql, donor.version, remote) if donor is not None else None
    return (donor, stored) if donor is not None and stored is not None else None


def twin_of(sql: apsw.Connection, shard: Shard, remote: str) -> Shard | None:
    """Return a shard of the same save with the same bytes that ``remote`` has, if there is one."""
    save = queries.save_named(sql, shard.run, shard.step, shard.save_id)
    if save is None:
        return None
    content = shard.content
    found = sql.execute(
        f"{_VERIFIED} WHERE shards.save = ? AND shards.version != ? AND size_bytes = ? "
        "AND digest = ? AND block_digests = ? LIMIT 1",
        (
            *(remote, save.number, shard.version, content.size_bytes),
            *(rows.packed(content.digest), rows.packed_blocks(content)),
        ),
    ).fetchone()
    return rows.shard_of(found) if found else None


def has_content(sql: apsw.Connection, number: int, twins: Twins, remote: str) -> bool:
    """Return whether ``remote`` has a shard of a save with this size and digest."""
    size_bytes, digest = twins
    query = f"{_VERIFIED} WHERE shards.save = ? AND size_bytes = ? AND digest = ? LIMIT 1"
    found = sql.execute(query, (remote, number, size_bytes, rows.packed(digest))).fetchone()
    return found is not None


def previous_of(sql: apsw.Connection, shard: Shard, remote: str) -> Shard | None:
    """Return the shard of that name in the run's newest earlier save of which ``remote`` has it."""
    save = queries.save_named(sql, shard.run, shard.step, shard.save_id)
    if save is None:
        return None
    found = sql.execute(
        f"{_VERIFIED} WHERE saves.run = ? AND saves.number < ? AND shards.name = ? "
        "AND saves.state IN ('open', 'published') ORDER BY saves.number DESC LIMIT 1",
        (remote, shard.run, save.number, shard.name),
    ).fetchone()
    return rows.shard_of(found) if found else None
