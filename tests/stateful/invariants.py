"""What holds of a node at any time, whatever was promised."""

from __future__ import annotations

import os
from collections.abc import Set as AbstractSet

from cachetier_client.io.digests import digest_of

from cachetier.local.catalog.figures import node_totals
from cachetier.local.lost_and_found import LostAndFound
from cachetier.model.lifecycle import ShardState
from tests.stateful.node import Node
from tests.stateful.reading import bytes_of

DATABASE_FILES = {"catalog.db", "catalog.db-wal", "catalog.db-shm"}
ROOT_FILES = DATABASE_FILES | {"store-id", "running", "reserve"}


class ViolationError(AssertionError):
    """A promise was broken; the message says which."""


def require(holds: object, broken: str) -> None:
    if not holds:
        raise ViolationError(broken)


def judge_bytes(node: Node, lost: AbstractSet[str] = frozenset()) -> None:
    """Accounted bytes are the bytes on disk, and no file is there without a reason.

    ``lost`` are data files that went behind the node's back; those it quarantines, and counts on.
    """
    node.look()
    on_disk = dict(node.store.files.all())
    rows = node.rows()
    named = {row.file_id: row.content.size_bytes for row in rows if row.file_id is not None}
    missing = {
        row.file_id: row.content.size_bytes
        for row in rows
        if row.file_id in lost and row.state is ShardState.QUARANTINED
    }
    require(on_disk | missing == named, f"data files {on_disk}, rows name {named}")
    inline = sum(row.content.size_bytes for row in rows if row.inline)
    used = node.store.space.used_bytes - sum(missing.values())
    here = sum(on_disk.values()) + inline + LostAndFound(node.cache_dir).size_bytes()
    require(used == here, f"{used} bytes accounted, {here} there")
    strays = {entry.name for entry in os.scandir(node.cache_dir) if entry.is_file()} - ROOT_FILES
    require(not strays, f"stray files {strays}")


def judge_figures(node: Node) -> None:
    """What a look says of the node adds up to what is there, and to what status lists by run."""
    found = node.store.look(lambda sql: node_totals(sql, [], 0.0))
    rows = [row for row in node.rows() if row.file_id is not None or row.inline]
    damaged = sum(row.content.size_bytes for row in rows if row.state is ShardState.QUARANTINED)
    owned = sum(each.size_bytes for each in (found.dirty, found.kept, found.unwanted))
    used = node.store.space.used_bytes
    used -= LostAndFound(node.cache_dir).size_bytes()
    require(owned + found.clean_bytes + damaged == used, f"{found} is not {used} bytes")
    require(sum(found.dirty_bytes_by_run.values()) == found.dirty.size_bytes, f"by run: {found}")
    most = found.clean_bytes + found.kept.size_bytes
    require(0 <= found.evictable_bytes <= most, f"more may go than is here: {found}")


def judge_rows(node: Node, damaged: AbstractSet[str] = frozenset()) -> None:
    """Dirty is here and sound; clean and evicted are at the remote, with the same digest.

    ``damaged`` are the data files whose bytes were changed behind the node's back.
    """
    for row in node.rows():
        body = bytes_of(node.store, row)
        if row.state is ShardState.QUARANTINED:
            continue
        if row.state is ShardState.EVICTED:
            require(body is None, f"evicted {row.name} still has bytes")
        else:
            require(body is not None, f"{row.state} {row.name} has no bytes")
            assert body is not None
            sound = row.file_id in damaged or digest_of(body) == row.content.digest
            require(sound, f"{row.name} has other bytes")
        if row.state is not ShardState.DIRTY:
            require(node._still_remote(row), f"{row.state} {row.name} is not at the remote")
