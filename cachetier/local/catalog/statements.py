"""Statements that several writes share; each runs inside its caller's transaction."""

from __future__ import annotations

from dataclasses import replace

import apsw
from cachetier_client.bucket_format.stored import Stored

from cachetier.errors import NotFoundError
from cachetier.local.catalog import queries, rows
from cachetier.local.catalog.records import IncidentRecord, NewShard
from cachetier.model.checkpoint import Save, SaveState
from cachetier.model.lifecycle import ShardState
from cachetier.model.policy import Policy
from cachetier.model.shard import Shard


def insert_save(sql: apsw.Connection, save: Save) -> Save:
    """Insert a save and return it with its number."""
    sql.execute(
        "INSERT INTO saves (run, step, save_id, state, world_size, overwrite, "
        "started_at, location, local_only_at, swept) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (
            *(save.run, save.step, save.save_id, save.state, save.world_size, int(save.overwrite)),
            *(save.started_at, save.location, save.local_only_at),
            int(save.location is not None),  # known from the bucket: this node left nothing there
        ),
    )
    return replace(save, number=sql.last_insert_rowid())


def insert_shard(sql: apsw.Connection, save: Save, new: NewShard, now: float) -> Shard:
    """Insert a shard and return it."""
    sql.execute(
        "INSERT INTO shards (save, name, rank, size_bytes, digest, block_digests, element_size, "
        "file_id, inline, state, committed_at, row_digest) "
        "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (
            *(save.number, new.name, new.rank, *rows.row_of_content(new.content)),
            *(new.file_id, int(new.body is not None), new.state, now),
            rows.row_digest(save.save_id, new.name, new.rank, new.content),
        ),
    )
    version = sql.last_insert_rowid()
    if new.body is not None:
        sql.execute("INSERT INTO bodies VALUES (?, ?)", (version, new.body))
    for copy in new.copies:
        insert_stored(sql, version, copy.remote, copy.stored, now)
    of_save = save.number, save.run, save.step, save.save_id
    place = new.state, new.file_id, new.body is not None, now
    return Shard(version, *of_save, new.name, new.rank, new.content, *place)


def insert_stored(
    sql: apsw.Connection, version: int, remote: str, stored: Stored, verified_at: float
) -> None:
    """Remember that ``remote`` holds a shard, and how it stores it."""
    columns = rows.STORED_COLUMNS.split(", ")
    news = ", ".join(f"{column} = excluded.{column}" for column in columns)
    sql.execute(
        f"INSERT INTO drains (version, remote, verified_at, {rows.STORED_COLUMNS}) "
        f"VALUES (?, ?, ?{', ?' * len(columns)}) ON CONFLICT (version, remote) DO UPDATE SET "
        f"verified_at = excluded.verified_at, {news}",
        (version, remote, verified_at, *rows.row_of_stored(stored)),
    )


def insert_incident(sql: apsw.Connection, incident: IncidentRecord, now: float) -> None:
    what = incident.code, incident.message, incident.hint
    where = incident.run, incident.step, incident.name, incident.rank
    sql.execute(
        "INSERT INTO incidents (at, code, message, hint, run, step, name, rank) "
        "VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
        (now, *what, *where),
    )


def publish(
    sql: apsw.Connection, number: int, at: float, location: str | None, *, came_here: bool = True
) -> None:
    """Mark a save published; another that was published is superseded.

    So are those that were open before it, if it ``came_here``: the order of one that is only known
    from the bucket is not known.
    """
    sql.execute(
        "UPDATE saves SET state = 'superseded' WHERE number <> ?1 AND "
        "(state IN ('published', 'replicated') OR "
        "(?2 AND state IN ('open', 'local_only') AND number < ?1)) AND "
        "(run, step) = (SELECT run, step FROM saves WHERE number = ?1)",
        (number, came_here),
    )
    sql.execute(
        "UPDATE saves SET state = 'published', published_at = ?, "
        "location = coalesce(location, ?) WHERE number = ?",
        (at, location, number),
    )


def replace_local_only(sql: apsw.Connection, number: int) -> None:
    """Let a local-only save, which is sealed here, take the place of those before it."""
    sql.execute(
        "UPDATE saves SET state = 'superseded' WHERE number < ?1 AND state = 'local_only' AND "
        "(run, step, state) = (SELECT run, step, state FROM saves WHERE number = ?1)",
        (number,),
    )


def skip_older(sql: apsw.Connection, policy: Policy, number: int, now: float) -> None:
    """Declare local-only what save ``number``, which is published, makes superfluous remotely."""
    published = require_save(sql, number)
    for save in policy.skipped_by(published, queries.open_saves_of(sql, published.run)):
        sql.execute(
            "UPDATE saves SET state = 'local_only', local_only_at = ? WHERE number = ?",
            (now, save.number),
        )


def want(sql: apsw.Connection, number: int) -> None:
    """Let a save be drained, whatever the policies say."""
    sql.execute(
        "UPDATE saves SET wanted = 1, state = iif(state = 'local_only', 'open', state) "
        "WHERE number = ?",
        (number,),
    )


def forget_leftovers(sql: apsw.Connection, number: int) -> None:
    """Forget what a save may have left unfinished, once no remote is to be swept any more."""
    for table in ("leftovers", "replaced_uploads"):
        sql.execute(
            f"DELETE FROM {table} WHERE save = ?1 AND NOT EXISTS (SELECT 1 FROM saves "
            "WHERE number = ?1 AND location IS NOT NULL AND NOT swept) AND NOT EXISTS "
            "(SELECT 1 FROM replications WHERE save = ?1 AND location IS NOT NULL AND due)",
            (number,),
        )


def set_save_state(sql: apsw.Connection, number: int, state: SaveState) -> None:
    sql.execute("UPDATE saves SET state = ? WHERE number = ?", (state, number))


def set_shard_state(sql: apsw.Connection, version: int, state: ShardState) -> None:
    sql.execute("UPDATE shards SET state = ? WHERE version = ?", (state, version))


def delete_shard(sql: apsw.Connection, version: int) -> None:
    sql.execute("DELETE FROM shards WHERE version = ?", (version,))


def require(sql: apsw.Connection, version: int) -> Shard:
    shard = queries.shard_by_version(sql, version)
    if shard is None:
        raise NotFoundError(f"shard version {version} was replaced or deleted")
    return shard


def require_save(sql: apsw.Connection, number: int) -> Save:
    save = queries.save_by_number(sql, number)
    assert save is not None
    return save
