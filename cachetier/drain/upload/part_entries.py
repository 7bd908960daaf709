"""The entries of a rank's part document, page by page, as they cross the channel."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from cachetier_client.io import digests

from cachetier.drain.channel import AskingEnd, Reply
from cachetier.drain.upload.reports import report_of_stored, stored_of_report
from cachetier.local.catalog import queries
from cachetier.local.store import Store
from cachetier.model.documents import ShardEntry
from cachetier.model.shard import Content, Shard
from cachetier.model.stored import Stored

PAGE_SHARDS = 500
PAGE_BYTES = 8 << 20


def page(store: Store, remote: str, number: int, rank: int, after: int) -> Reply:
    """Answer with the next shards of a rank; a version goes with each, to ask for the next."""
    found = store.read(
        lambda sql: queries.stored_shards_of_rank(sql, number, rank, remote, after, PAGE_SHARDS)
    )
    entries: list[bytes] = []
    size_bytes = 0
    for shard, stored in found:
        entries.append(json.dumps(_entry(shard, stored)).encode())
        size_bytes += len(entries[-1])
        if size_bytes > PAGE_BYTES:
            break
    more = len(entries) < len(found) or len(found) == PAGE_SHARDS
    return Reply({"more": more}, b"[" + b",".join(entries) + b"]")


def read(channel: AskingEnd, save: int, rank: int) -> Iterator[tuple[int, ShardEntry]]:
    """Yield (version, entry) of each shard of a rank's part."""
    after, more = 0, True
    while more:
        reply = channel.ask("entries", save=save, rank=rank, after=after)
        for version, name, size_bytes, digest, blocks, stored in json.loads(reply.body):
            content = Content(size_bytes, digest, digests.unpack(bytes.fromhex(blocks)))
            kept = stored_of_report(stored) if stored is not None else None
            yield version, ShardEntry.of(name, rank, content, kept)
            after = version
        more = reply.fields["more"]


def _entry(shard: Shard, stored: Stored | None) -> list[Any]:
    content = shard.content
    blocks = digests.pack(content.block_digests).hex()
    kept = report_of_stored(stored) if stored is not None else None
    return [shard.version, shard.name, content.size_bytes, content.digest, blocks, kept]
