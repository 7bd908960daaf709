"""Unfinished multipart uploads of shards at remotes, and what replaced shards left there.

Functions that write run inside a transaction (``Store.write``). Those that name a shard's version
raise NotFoundError when it was replaced or deleted meanwhile.
"""

from __future__ import annotations

from collections.abc import Sequence

import apsw
from cachetier_client.bucket_format.stored import Codec
from cachetier_client.bucket_format.uploads import UploadedPart

from cachetier.local.catalog import rows, saves, shards
from cachetier.local.catalog.rows import NOTHING_BEGUN, Replaced, UploadRecord
from cachetier.model.checkpoint import Save
from cachetier.model.lifecycle import DECIDED_COPIES


def names_of_save(sql: apsw.Connection, number: int, names: Sequence[str]) -> list[str]:
    """Return those of ``names`` that are, or were, shards of a save on this node."""
    query = (
        "SELECT ?2 WHERE EXISTS (SELECT 1 FROM shards WHERE save = ?1 AND name = ?2) "
        "OR EXISTS (SELECT 1 FROM leftovers WHERE save = ?1 AND name = ?2)"
    )
    return [name for name in names if rows.exists(sql, query, number, name)]


def progress_of(sql: apsw.Connection, version: int, remote: str) -> UploadRecord:
    row = sql.execute(
        "SELECT upload_id, part_bytes, codec, element_size FROM drains "
        "WHERE version = ? AND remote = ?",
        (version, remote),
    ).fetchone()
    if row is None:
        return NOTHING_BEGUN
    parts = sql.execute(
        f"SELECT {rows.UPLOADED_PART_COLUMNS} FROM uploaded_parts "
        "WHERE version = ? AND remote = ? ORDER BY number",
        (version, remote),
    )
    finished = tuple(rows.upload_part_of(part) for part in parts)
    upload_id, part_bytes, codec, element_size = row
    return UploadRecord(upload_id, part_bytes, Codec(codec), element_size, finished)


def forget_leftovers(sql: apsw.Connection, number: int) -> None:
    """Forget the leftovers of a save, once no remote is to be swept for it any more."""
    for table in ("leftovers", "replaced_uploads"):
        sql.execute(
            f"DELETE FROM {table} WHERE save = ?1 AND NOT EXISTS "
            "(SELECT 1 FROM copies WHERE save = ?1 AND location IS NOT NULL AND due)",
            (number,),
        )


def ended_locations(sql: apsw.Connection, run: str, remote: str) -> dict[str, Save]:
    """Return the saves of a run that take no more uploads at a remote, by where they lie there."""
    query = (
        f"SELECT {rows.SAVE_COLUMNS} FROM saves_at AS saves WHERE run = ? AND remote = ? "
        f"AND location <> '' AND {DECIDED_COPIES.sql('copy_state')} AND {saves.ALONE_THERE}"
    )
    found = map(rows.save_of, sql.execute(query, (run, remote)))
    return {str(save.location): save for save in found}


def save_of_upload(
    sql: apsw.Connection, ended: dict[str, Save], key: str, run_prefix: str
) -> Save | None:
    """Return the save of ``ended`` that has, or had, a shard here under ``key``; None for others.

    What no save here names may be another node's, or somebody else's, and under way.
    """
    location, _, name = key.removeprefix(run_prefix).partition("/")
    save = ended.get(location)
    return save if save is not None and names_of_save(sql, save.number, [name]) else None


def replaced_by(sql: apsw.Connection, number: int, name: str, remote: str) -> Replaced:
    """Return the uploads and versions that a shard replaced here, and left at ``remote``."""
    uploads = "SELECT upload_id FROM replaced_uploads WHERE save = ? AND name = ? AND remote = ?"
    left = sql.execute(
        "SELECT version, digest FROM leftovers WHERE save = ? AND name = ?", (number, name)
    )
    return Replaced(
        tuple(rows.column(sql, uploads, number, name, remote)),
        tuple((version, rows.unpacked(digest)) for version, digest in left),
    )


def begin_upload(sql: apsw.Connection, version: int, remote: str, upload: UploadRecord) -> None:
    """Remember a multipart upload, so that it goes on after a crash."""
    shards.require(sql, version)
    sql.execute("DELETE FROM uploaded_parts WHERE version = ? AND remote = ?", (version, remote))
    sql.execute(
        "INSERT INTO drains (version, remote, upload_id, part_bytes, codec, element_size) "
        "VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT (version, remote) DO UPDATE SET "
        "upload_id = excluded.upload_id, part_bytes = excluded.part_bytes, "
        "codec = excluded.codec, element_size = excluded.element_size, "
        "stored_bytes = iif((codec, element_size) = (excluded.codec, excluded.element_size), "
        "stored_bytes, NULL)",
        (version, remote, upload.upload_id, upload.part_bytes, upload.codec, upload.element_size),
    )


def forget_upload(sql: apsw.Connection, version: int, remote: str) -> None:
    """Forget an upload that the store no longer knows."""
    sql.execute("DELETE FROM uploaded_parts WHERE version = ? AND remote = ?", (version, remote))
    sql.execute(
        "UPDATE drains SET upload_id = NULL, part_bytes = NULL WHERE version = ? AND remote = ?",
        (version, remote),
    )


def record_parts(
    sql: apsw.Connection, version: int, remote: str, parts: Sequence[UploadedPart]
) -> None:
    """Remember finished parts of an upload."""
    shards.require(sql, version)
    sql.executemany(
        "INSERT OR REPLACE INTO uploaded_parts VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
        [(version, remote, *rows.row_of_upload_part(part)) for part in parts],
    )


def count_attempt(sql: apsw.Connection, version: int, remote: str) -> int:
    """Count one more attempt at draining a shard and return which it is."""
    shards.require(sql, version)
    query = (
        "INSERT INTO drains (version, remote, attempts) VALUES (?, ?, 1) "
        "ON CONFLICT (version, remote) DO UPDATE SET attempts = attempts + 1 RETURNING attempts"
    )
    return int(sql.execute(query, (version, remote)).get)
