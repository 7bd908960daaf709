"""Fill a catalog as a year of training would: bench only, past every rule of the service.

Of the shards, most are evicted: known, their bytes only remote. Some are clean and still here, in
a data file or inside the catalog. Each step is published, in one save of one rank.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import apsw
from cachetier_client.bucket_format.stored import Content
from cachetier_client.io import digests
from cachetier_client.io.digests import digest_of

from cachetier.local.catalog import rows

SHARDS_IN_A_STEP = 40
STEPS_IN_A_RUN = 2500
FILE_EVERY, INLINE_EVERY = 500, 100  # one shard of so many is here in a file, or in the catalog
FILE_BYTES = 70_000
_BODY = b"\x07" * 1000


def fill(cache_dir: Path, shards: int) -> None:
    """Add about ``shards`` shards to the catalog of a service that is not running."""
    steps = max(1, shards // SHARDS_IN_A_STEP)
    sql = apsw.Connection(str(cache_dir / "catalog.db"))
    sql.execute("PRAGMA synchronous = OFF")
    sql.execute("PRAGMA cache_size = -200000")
    sql.execute("BEGIN IMMEDIATE")
    first = _next(sql, "saves", "number")
    sql.executemany(
        "INSERT INTO saves (number, run, step, save_id, state, world_size, overwrite, started_at) "
        "VALUES (?, ?, ?, 'filled', 'published', 1, 0, ?)",
        (_save(first, number) for number in range(steps)),
    )
    filled = (first, first + steps)
    sql.execute(
        "UPDATE copies SET published_at = started_at, location = step FROM saves "
        "WHERE save = number AND save >= ? AND save < ?",
        filled,
    )
    sql.execute(
        "INSERT INTO parts (save, rank, state, ranks_on_node, sealed_at) "
        "SELECT number, 0, 'sealed', 1, 1.0 FROM saves WHERE number >= ? AND number < ?",
        filled,
    )
    sql.execute(
        "INSERT INTO copied_parts SELECT number, 'durable', 0 FROM saves "
        "WHERE number >= ? AND number < ?",
        filled,
    )
    sql.executemany(
        "INSERT INTO shards (version, save, name, rank, size_bytes, digest, block_digests, "
        "element_size, file_id, inline, state, committed_at, row_digest) "
        "VALUES (?,?,?,0,?,?,?,0,?,?,?,1.0,?)",
        _shards(cache_dir, first, _next(sql, "shards", "version"), steps * SHARDS_IN_A_STEP),
    )
    sql.execute(
        "INSERT INTO bodies SELECT version, ? FROM shards WHERE inline AND state = 'clean'",
        (_BODY,),
    )
    sql.execute("COMMIT")
    sql.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    sql.close()


def _next(sql: apsw.Connection, table: str, column: str) -> int:
    return int(sql.execute(f"SELECT coalesce(max({column}), 0) + 1 FROM {table}").get)


def _save(first: int, number: int) -> tuple[Any, ...]:
    run, step = f"filled-{number // STEPS_IN_A_RUN}", number % STEPS_IN_A_RUN
    return first + number, run, step, float(number)


def _shards(
    cache_dir: Path, first_save: int, first_version: int, count: int
) -> Iterator[tuple[Any, ...]]:
    body_digest, file_digest = digest_of(_BODY), digest_of(bytes(FILE_BYTES))
    inline = Content(len(_BODY), body_digest, (body_digest,))
    in_file = Content(FILE_BYTES, file_digest, (file_digest,))
    large = Content(64 << 20, 7, tuple(range(16)))
    for number in range(count):
        save, name = first_save + number // SHARDS_IN_A_STEP, f"layer-{number % SHARDS_IN_A_STEP}"
        file_id, content, state = None, large, "evicted"
        if number % FILE_EVERY == 0:
            file_id, content, state = _data_file(cache_dir), in_file, "clean"
        elif number % INLINE_EVERY == 0:
            content, state = inline, "clean"
        yield (
            first_version + number,
            save,
            name,
            content.size_bytes,
            rows.packed(content.digest),
            digests.pack(content.block_digests),
            file_id,
            int(content is inline),
            state,
            rows.row_digest("filled", name, 0, content),
        )


def _data_file(cache_dir: Path) -> str:
    """Make a data file of zeros that takes no room on the disk."""
    file_id = f"0{secrets.token_hex(16)[1:]}"  # in one of the folders that are there
    path = cache_dir / "data" / file_id[:2] / file_id
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        os.ftruncate(descriptor, FILE_BYTES)
    finally:
        os.close(descriptor)
    return file_id
