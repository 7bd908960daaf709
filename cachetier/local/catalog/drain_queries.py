"""Reads of the catalog for the drain: objects with a shard's bytes, packs, parts to complete."""

from __future__ import annotations

from collections.abc import Iterable

import apsw
from cachetier_client.bucket_format.stored import Stored
from cachetier_client.io import digests

from cachetier.local.catalog import queries, rows
from cachetier.local.catalog.records import Replaced
from cachetier.model.checkpoint import Save
from cachetier.model.composing import Twins
from cachetier.model.packs import PACKED_UP_TO_BYTES, PackedExtent
from cachetier.model.shard import Shard

_GROWING = "(parts.state = 'open' OR (parts.state = 'sealed' AND parts.follows))"
_VERIFIED = (
    f"SELECT {rows.SHARD_COLUMNS} FROM shards JOIN saves ON saves.number = shards.save "
    "JOIN drains ON drains.version = shards.version AND drains.remote = ? "
    "AND drains.verified_at IS NOT NULL AND drains.pack IS NULL"
)


def donor_of(sql: apsw.Connection, shard: Shard, remote: str) -> tuple[Shard, Stored] | None:
    """Return the nearest kin with bytes of ``shard`` at ``remote``, and how it is stored there."""
    donor = twin_of(sql, shard, remote) or previous_of(sql, shard, remote)
    stored = queries.stored_of(sql, donor.version, remote) if donor is not None else None
    return (donor, stored) if donor is not None and stored is not None else None


def twin_of(sql: apsw.Connection, shard: Shard, remote: str) -> Shard | None:
    """Return a shard of the same save with the same bytes that ``remote`` has, if there is one."""
    content = shard.content
    found = sql.execute(
        f"{_VERIFIED} WHERE shards.save = ? AND shards.version != ? AND size_bytes = ? "
        "AND digest = ? AND block_digests = ? LIMIT 1",
        (
            *(remote, shard.save, shard.version, content.size_bytes),
            *(rows.packed(content.digest), digests.pack(content.block_digests)),
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
    found = sql.execute(
        f"{_VERIFIED} WHERE saves.run = ? AND saves.number < ? AND shards.name = ? "
        "AND saves.state IN ('open', 'published') ORDER BY saves.number DESC LIMIT 1",
        (remote, shard.run, shard.save, shard.name),
    ).fetchone()
    return rows.shard_of(found) if found else None


def replaced_by(sql: apsw.Connection, number: int, name: str, remote: str) -> Replaced:
    """Return what the shard called ``name`` of a save replaced here, and left at ``remote``."""
    of_name = number, name
    uploads = "SELECT upload_id FROM replaced_uploads WHERE save = ? AND name = ? AND remote = ?"
    shards = "SELECT version, digest FROM leftovers WHERE save = ? AND name = ?"
    return Replaced(
        tuple(upload_id for (upload_id,) in sql.execute(uploads, (*of_name, remote))),
        tuple((version, rows.unpacked(digest)) for version, digest in sql.execute(shards, of_name)),
    )


def evicted_in_pack(
    sql: apsw.Connection, version: int, remote: str, pack: str
) -> list[PackedExtent]:
    """Return where the small shards of one save lie in a pack that holds ``version``.

    Only those without bytes here.
    """
    query = (
        "SELECT shards.version, drains.pack_start, shards.size_bytes "
        "FROM drains JOIN shards ON shards.version = drains.version "
        "WHERE drains.pack = ? AND drains.remote = ? AND shards.state = 'evicted' "
        "AND shards.save = (SELECT save FROM shards WHERE version = ?) "
        "AND shards.size_bytes <= ? ORDER BY drains.pack_start, shards.version"
    )
    values = (pack, remote, version, PACKED_UP_TO_BYTES)
    return [PackedExtent(*row) for row in sql.execute(query, values)]


def shards_at(
    sql: apsw.Connection, extents: Iterable[PackedExtent]
) -> list[tuple[Shard, PackedExtent]]:
    """Return the shard of each extent, but of those that went meanwhile."""
    found = [(queries.shard_by_version(sql, extent.version), extent) for extent in extents]
    return [(shard, extent) for shard, extent in found if shard is not None]


def unsealed_parts(sql: apsw.Connection) -> list[tuple[Save, int]]:
    """Return (save, rank) of each part that may still grow here, by arrival."""
    return _parts(sql, _GROWING)


def sealed_parts(sql: apsw.Connection) -> list[tuple[Save, int]]:
    """Return (save, rank) of each sealed part of a save that is not published, by arrival."""
    return _parts(sql, "parts.state = 'sealed' AND NOT parts.follows")


def _parts(sql: apsw.Connection, which: str) -> list[tuple[Save, int]]:
    query = (
        "SELECT parts.save, parts.rank FROM parts JOIN saves ON saves.number = parts.save "
        f"WHERE saves.state IN ('open', 'local_only') AND {which} ORDER BY parts.save, parts.rank"
    )
    found = []
    ranks: list[tuple[int, int]] = list(sql.execute(query))
    for number, rank in ranks:
        save = queries.save_by_number(sql, number)
        if save is not None:
            found.append((save, rank))
    return found
