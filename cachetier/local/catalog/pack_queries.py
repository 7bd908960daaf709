"""Reads of the catalog that concern packs at a remote."""

from __future__ import annotations

from collections.abc import Iterable

import apsw

from cachetier.local.catalog import queries
from cachetier.model.packs import PACKED_UP_TO_BYTES, PackedExtent
from cachetier.model.shard import Shard


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
