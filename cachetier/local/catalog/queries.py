"""Reads of the catalog.

Each function takes a connection, so that decisions inside a transaction and reads outside of it see
rows through the same eyes.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

import apsw
from cachetier_client.bucket_format.publication import Claimant
from cachetier_client.bucket_format.stored import Codec, Stored
from cachetier_client.identity.names import GENERATION_MARK, SaveIds

from cachetier.local.catalog import rows
from cachetier.local.catalog.records import (
    Backlog,
    IncidentRecord,
    LocalOnly,
    Summary,
    Totals,
    UploadRecord,
)
from cachetier.model.checkpoint import (
    OPEN_STATES,
    PartState,
    RankPart,
    Save,
    claimant_of,
    sealed_here,
    visible_save,
)
from cachetier.model.objects import is_mount
from cachetier.model.packs import PACKED_UP_TO_BYTES
from cachetier.model.shard import Shard

# A condition on rows of ``saves``.
NOT_PINNED = "NOT EXISTS (SELECT 1 FROM pins WHERE pins.run = saves.run AND pins.step = saves.step)"
_STORED = ", ".join(f"drains.{column}" for column in rows.STORED_COLUMNS.split(", "))


@dataclass(frozen=True, slots=True)
class ShardFilter:
    """A condition on rows of the index of dirty shards, and the values it takes."""

    clause: str = "TRUE"
    values: tuple[object, ...] = ()


ALL = ShardFilter()


@dataclass(frozen=True, slots=True)
class VisibleShard:
    """A shard, None if the save has none of its name; the save; whether the step has others."""

    save: Save | None = None
    shard: Shard | None = None
    has_rivals: bool = False


# What was lost as an object of its own comes back as one: documents may say so.
_SMALL = (
    f"shards.size_bytes <= {PACKED_UP_TO_BYTES} AND shards.version NOT IN (SELECT version "
    "FROM drains WHERE stored_bytes IS NOT NULL AND verified_at IS NULL AND pack IS NULL)"
)


def small_of(rank: int) -> ShardFilter:
    """Return the condition of shards of ``rank`` that may be packed."""
    return ShardFilter(f"shards.rank = ? AND {_SMALL}", (rank,))


def beside_small_of(ranks: Collection[int]) -> ShardFilter:
    """Return the condition of all other shards than those that ``ranks`` may pack."""
    clause = f"NOT (shards.rank IN (SELECT value FROM json_each(?)) AND {_SMALL})"
    return ShardFilter(clause, (json.dumps(sorted(ranks)),))


def saves_where(sql: apsw.Connection, condition: str, *values: object) -> list[Save]:
    """Return the saves whose rows meet ``condition``, which may go on with their order."""
    query = f"SELECT {rows.SAVE_COLUMNS} FROM saves WHERE {condition}"
    return [rows.save_of(row) for row in sql.execute(query, values)]


def shards_where(sql: apsw.Connection, condition: str, *values: object) -> list[Shard]:
    """Return the shards whose rows, joined with those of their saves, meet ``condition``."""
    query = f"SELECT {rows.SHARD_COLUMNS} FROM shards JOIN saves ON number = save WHERE {condition}"
    return [rows.shard_of(row) for row in sql.execute(query, values)]


def saves_of(sql: apsw.Connection, run: str, step: int) -> list[Save]:
    return saves_where(sql, "run = ? AND step = ? ORDER BY number", run, step)


def sealed_of(sql: apsw.Connection, saves: Sequence[Save]) -> set[int]:
    """Return the numbers of the open ones of ``saves`` that are sealed here."""
    return _sealed_and_whole(sql, saves)[0]


def _sealed_and_whole(sql: apsw.Connection, saves: Sequence[Save]) -> tuple[set[int], set[int]]:
    sealed, whole = set[int](), set[int]()
    for save in saves:
        parts = parts_of(sql, save.number) if save.state in OPEN_STATES else []
        if sealed_here(parts):
            sealed.add(save.number)
            if sum(part.state is PartState.SEALED for part in parts) == save.world_size:
                whole.add(save.number)
    return sealed, whole


def shown_save(sql: apsw.Connection, run: str, step: int) -> Save | None:
    """Return the save of a step that readers see."""
    return shown_of(sql, saves_of(sql, run, step))


def shown_of(
    sql: apsw.Connection, saves: Sequence[Save], passed_over: Collection[int] = ()
) -> Save | None:
    """Return which of a step's saves readers see; ``passed_over`` do not count as whole."""
    if len(saves) < 2 or not any(save.state in OPEN_STATES for save in saves):
        return visible_save(saves)
    sealed, whole = _sealed_and_whole(sql, saves)
    return visible_save(saves, sealed, whole.difference(passed_over))


def whole_of(sql: apsw.Connection, saves: Sequence[Save]) -> set[int]:
    """Return the numbers of the open ones of ``saves`` whose every rank has sealed here."""
    return _sealed_and_whole(sql, saves)[1]


def save_named(sql: apsw.Connection, run: str, step: int, save_id: str) -> Save | None:
    return next((save for save in saves_of(sql, run, step) if save.save_id == save_id), None)


def save_by_number(sql: apsw.Connection, number: int) -> Save | None:
    return next(iter(saves_where(sql, "number = ?", number)), None)


def saves_of_run(sql: apsw.Connection, run: str) -> list[Save]:
    return saves_where(sql, "run = ? ORDER BY step, number", run)


def unfinished_saves(sql: apsw.Connection) -> list[Save]:
    """Return saves that the drain still owes something: open, or deleted with objects left."""
    return saves_where(
        sql, "state = 'open' OR (state = 'deleted' AND location IS NOT NULL) ORDER BY number"
    )


def open_saves_of(sql: apsw.Connection, run: str) -> list[Save]:
    """Return the saves of a run that the drain still has to bring to the remote."""
    return saves_where(sql, "run = ? AND state = 'open'", run)


def saves_with_bytes(sql: apsw.Connection) -> list[Save]:
    """Return the saves that readers may see and that have bytes on this node, by arrival."""
    return saves_where(
        sql,
        "number IN (SELECT save FROM shards WHERE state = 'dirty' UNION SELECT save FROM shards "
        "WHERE state = 'clean' AND (file_id IS NOT NULL OR inline)) "
        "AND state IN ('open', 'local_only', 'published') ORDER BY number",
    )


def clean_local_shards_of(sql: apsw.Connection, number: int) -> list[Shard]:
    """Return the shards of a save whose local bytes may go."""
    condition = "save = ? AND shards.state = 'clean' AND (file_id IS NOT NULL OR inline)"
    return shards_where(sql, condition, number)


def never_durable_runs(sql: apsw.Connection, every: int, least: int) -> list[str]:
    """Return runs of which ``least`` steps and more were kept from S3, and none was let go."""
    query = (
        "SELECT run FROM saves GROUP BY run "
        "HAVING sum(local_only_at IS NOT NULL) >= ? AND sum(step % ? = 0 OR wanted) = 0 "
        "ORDER BY run"
    )
    return [row[0] for row in sql.execute(query, (least, every))]


def backlog(sql: apsw.Connection) -> list[Backlog]:
    """Return what is owed to each unfinished save, by arrival.

    One that is published is among them while a required replica does not have it all.
    """
    found = []
    for save in [*unfinished_saves(sql), *_published_dirty_saves(sql)]:
        summary, parts = summary_of(sql, save.number), parts_of(sql, save.number)
        ranks = {part.rank for part in parts if part.state is PartState.SEALED}
        found.append(
            Backlog(
                save=save,
                shards=summary.shards,
                size_bytes=summary.size_bytes,
                dirty_shards=summary.dirty_shards,
                dirty_bytes=summary.dirty_bytes,
                sealed=sealed_here(parts),
                whole=ranks == set(range(save.world_size)),
            )
        )
    return found


def _published_dirty_saves(sql: apsw.Connection) -> list[Save]:
    dirty = "SELECT save FROM shards WHERE state = 'dirty'"
    return saves_where(sql, f"state = 'published' AND number IN ({dirty}) ORDER BY number")


def unswept_saves(sql: apsw.Connection) -> list[Save]:
    """Return saves that ended, and may have left unfinished uploads at the remote."""
    return saves_where(
        sql,
        "NOT swept AND location IS NOT NULL "
        "AND state IN ('published', 'superseded', 'refused') ORDER BY number",
    )


def names_of_save(sql: apsw.Connection, number: int, names: Sequence[str]) -> list[str]:
    """Return those of ``names`` that are, or were, shards of a save on this node."""
    query = (
        "SELECT ?2 WHERE EXISTS (SELECT 1 FROM shards WHERE save = ?1 AND name = ?2) "
        "OR EXISTS (SELECT 1 FROM leftovers WHERE save = ?1 AND name = ?2)"
    )
    return [name for name in names if sql.execute(query, (number, name)).fetchone()]


def superfluous_saves(sql: apsw.Connection, before: float) -> list[Save]:
    """Return superseded and refused saves with shards here that may be collected.

    They may once their step is published, or when they began before ``before``. Pins are kept.
    """
    return saves_where(
        sql,
        "state IN ('superseded', 'refused') AND EXISTS (SELECT 1 FROM shards WHERE save = number) "
        f"AND {NOT_PINNED} AND (started_at < ? OR EXISTS (SELECT 1 FROM saves AS new "
        "WHERE new.run = saves.run AND new.step = saves.step AND new.state = 'published'))",
        before,
    )


def runs(sql: apsw.Connection) -> list[str]:
    """Return every run there ever was a save of; mounts of the S3 door are none."""
    found = sql.execute("SELECT DISTINCT run FROM saves ORDER BY run")
    return [row[0] for row in found if not is_mount(row[0])]


def runs_with_steps(sql: apsw.Connection) -> list[str]:
    """Return the runs with a save that is not deleted."""
    query = "SELECT DISTINCT run FROM saves WHERE state <> 'deleted' ORDER BY run"
    return [row[0] for row in sql.execute(query) if not is_mount(row[0])]


def branches_with_steps(sql: apsw.Connection, run: str) -> list[str]:
    """Return the branches of a run with a save that is not deleted."""
    query = (
        "SELECT DISTINCT run FROM saves WHERE state <> 'deleted' AND run >= ? AND run < ? "
        "ORDER BY run"
    )
    first = f"{run}{GENERATION_MARK}"
    after = f"{run}{chr(ord(GENERATION_MARK) + 1)}"
    return [row[0] for row in sql.execute(query, (first, after))]


def parts_of(sql: apsw.Connection, number: int) -> list[RankPart]:
    query = f"SELECT {rows.PART_COLUMNS} FROM parts WHERE save = ? ORDER BY rank"
    return [rows.part_of(row) for row in sql.execute(query, (number,))]


def shards_of(sql: apsw.Connection, number: int) -> list[Shard]:
    return shards_where(sql, "save = ? ORDER BY version", number)


def summary_of(sql: apsw.Connection, number: int) -> Summary:
    query = (
        "SELECT count(*), coalesce(sum(size_bytes), 0), coalesce(sum(state = 'dirty'), 0), "
        "coalesce(sum(iif(state = 'dirty', size_bytes, 0)), 0), "
        "coalesce(sum(state = 'quarantined'), 0), coalesce(sum(state = 'evicted'), 0) "
        "FROM shards WHERE save = ?"
    )
    row = sql.execute(query, (number,)).fetchone()
    assert row is not None
    return Summary(*row)


def whole_ranks(sql: apsw.Connection, number: int) -> list[int]:
    """Return the ranks of which this node knows shards, and has every one."""
    query = (
        "SELECT rank FROM shards WHERE save = ? GROUP BY rank "
        "HAVING sum(state IN ('evicted', 'quarantined')) = 0 ORDER BY rank"
    )
    return [rank for (rank,) in sql.execute(query, (number,))]


def summary_named(sql: apsw.Connection, ids: SaveIds) -> Summary:
    """Return the summary of the save that ``ids`` name; of one that is gone nothing is here."""
    save = save_named(sql, ids.run, ids.step, ids.save_id)
    return Summary(0, 0, 0, 0, 0, 0) if save is None else summary_of(sql, save.number)


def dirty_shards_of(
    sql: apsw.Connection,
    number: int,
    limit: int = -1,
    remote: str | None = None,
    shard_filter: ShardFilter = ALL,
) -> list[Shard]:
    """Return the dirty shards of a save, oldest first; up to ``limit`` unless it is negative.

    Of a ``remote`` those that are not verified there yet: the others wait for another one.
    """
    return shards_where(
        sql,
        "shards.save = ? AND shards.state = 'dirty' AND NOT EXISTS (SELECT 1 "
        "FROM drains WHERE version = shards.version AND remote = ? AND verified_at IS NOT NULL) "
        f"AND {shard_filter.clause} ORDER BY shards.version LIMIT ?",
        *(number, remote, *shard_filter.values, limit),
    )


def shards_of_rank(
    sql: apsw.Connection, number: int, rank: int, after: int, limit: int
) -> list[Shard]:
    """Return up to ``limit`` shards of a rank's part with versions above ``after``, ascending."""
    condition = "save = ? AND rank = ? AND version > ? ORDER BY version LIMIT ?"
    return shards_where(sql, condition, number, rank, after, limit)


def stored_shards_of_rank(
    sql: apsw.Connection, number: int, rank: int, remote: str, after: int, limit: int
) -> list[tuple[Shard, Stored | None]]:
    """Return what ``shards_of_rank`` does, each shard with how ``remote`` stores it."""
    shards = shards_of_rank(sql, number, rank, after, limit)
    return [(shard, stored_of(sql, shard.version, remote)) for shard in shards]


def quarantined_shards(sql: apsw.Connection) -> list[Shard]:
    """Return the shards whose local bytes are damaged."""
    # The plus keeps SQLite from walking all shards by version, to spare itself sorting these few.
    return shards_where(sql, "shards.state = 'quarantined' ORDER BY +version")


def unsound_ranks(sql: apsw.Connection, number: int) -> frozenset[int]:
    """Return the ranks of a save that have a quarantined shard."""
    query = "SELECT DISTINCT rank FROM shards WHERE save = ? AND state = 'quarantined'"
    return frozenset(row[0] for row in sql.execute(query, (number,)))


def claimant(sql: apsw.Connection, save: Save) -> Claimant:
    """Return ``save`` as the bucket's arbitration knows it."""
    return claimant_of(save, saves_of(sql, save.run, save.step))


def shard_named(sql: apsw.Connection, number: int, name: str) -> Shard | None:
    return next(iter(shards_where(sql, "save = ? AND name = ?", number, name)), None)


def shard_by_version(sql: apsw.Connection, version: int) -> Shard | None:
    return next(iter(shards_where(sql, "version = ?", version)), None)


def visible_shard(sql: apsw.Connection, run: str, step: int, name: str) -> Shard | None:
    """Return the shard that readers of the step see."""
    return visible(sql, run, step, name).shard


def visible(
    sql: apsw.Connection, run: str, step: int, name: str, passed_over: Collection[int] = ()
) -> VisibleShard:
    """Return the shard that readers of the step see, and the save that it is of."""
    saves = saves_of(sql, run, step)
    save = shown_of(sql, saves, passed_over)
    if save is None:
        return VisibleShard()
    return VisibleShard(save, shard_named(sql, save.number, name), len(saves) > 1)


def body_of(sql: apsw.Connection, version: int) -> bytes | None:
    row = sql.execute("SELECT body FROM bodies WHERE version = ?", (version,)).fetchone()
    return bytes(row[0]) if row else None


def clean_local_shards(sql: apsw.Connection) -> list[Shard]:
    """Return every shard whose local bytes may go, save by save, oldest first."""
    condition = "shards.state = 'clean' AND (file_id IS NOT NULL OR inline)"
    return shards_where(sql, f"{condition} AND {NOT_PINNED} ORDER BY save, version")


def files(sql: apsw.Connection) -> Iterator[tuple[str, int, int]]:
    """Yield (file_id, version, size_bytes) of every data file that must be there."""
    query = "SELECT file_id, version, size_bytes FROM shards WHERE file_id IS NOT NULL"
    yield from sql.execute(query)


def progress_of(sql: apsw.Connection, version: int, remote: str) -> UploadRecord:
    row = sql.execute(
        "SELECT upload_id, part_bytes, attempts, verified_at, codec, element_size FROM drains "
        "WHERE version = ? AND remote = ?",
        (version, remote),
    ).fetchone()
    if row is None:
        return UploadRecord(None, None, 0, None)
    parts = sql.execute(
        f"SELECT {rows.UPLOADED_PART_COLUMNS} FROM uploaded_parts "
        "WHERE version = ? AND remote = ? ORDER BY number",
        (version, remote),
    )
    finished = tuple(rows.upload_part_of(part) for part in parts)
    upload_id, part_bytes, attempts, verified_at, codec, element_size = row
    return UploadRecord(
        upload_id, part_bytes, attempts, verified_at, Codec(codec), element_size, finished
    )


def stored_of(sql: apsw.Connection, version: int, remote: str) -> Stored | None:
    """Return how ``remote`` stores a shard, or None where nobody verified that it does."""
    return stored_where(sql, version, remote, "drains.verified_at IS NOT NULL")


def stored_where(sql: apsw.Connection, version: int, remote: str, condition: str) -> Stored | None:
    """Return as what ``remote`` stores, or stored, a shard whose row there meets ``condition``."""
    query = (
        f"SELECT size_bytes, {_STORED} FROM drains JOIN shards USING (version) "
        f"WHERE version = ? AND remote = ? AND {condition}"
    )
    row = sql.execute(query, (version, remote)).fetchone()
    return rows.stored_of(row) if row else None


def verified_remotes(sql: apsw.Connection, version: int) -> set[str]:
    query = "SELECT remote FROM drains WHERE version = ? AND verified_at IS NOT NULL"
    return {row[0] for row in sql.execute(query, (version,))}


def totals(sql: apsw.Connection) -> Totals:
    """Return what lies here, state by state: a walk over every shard would take too long."""
    counts = sql.execute(
        "SELECT CASE WHEN saves.state IN ('superseded', 'refused', 'deleted') THEN 'unwanted' "
        "WHEN saves.state = 'local_only' THEN 'kept' ELSE 'dirty' END, "
        "sum(size_bytes), count(*), min(committed_at) "
        "FROM shards JOIN saves ON saves.number = shards.save "
        "WHERE shards.state = 'dirty' GROUP BY 1"
    )
    by_fate = {row[0]: row[1:] for row in counts}
    dirty_bytes, dirty_shards, oldest_dirty_at = by_fate.get("dirty", (0, 0, None))
    kept_bytes, kept_shards, _ = by_fate.get("kept", (0, 0, None))
    unwanted_bytes, _, _ = by_fate.get("unwanted", (0, 0, None))
    kept_steps, declared_steps = sql.execute(
        "SELECT coalesce(sum(state = 'local_only'), 0), count(*) FROM saves "
        "WHERE local_only_at IS NOT NULL"
    ).get
    clean_bytes = sql.execute(
        "SELECT coalesce(sum(size_bytes), 0) FROM shards "
        "WHERE state = 'clean' AND (file_id IS NOT NULL OR inline)"
    ).get
    quarantined_bytes, quarantined_shards = sql.execute(
        "SELECT coalesce(sum(size_bytes), 0), count(*) FROM shards WHERE state = 'quarantined'"
    ).get
    return Totals(
        local_bytes=clean_bytes + dirty_bytes + kept_bytes + unwanted_bytes + quarantined_bytes,
        dirty_bytes=dirty_bytes,
        dirty_shards=dirty_shards,
        oldest_dirty_at=oldest_dirty_at,
        quarantined_shards=quarantined_shards,
        local_only=LocalOnly(kept_steps, kept_shards, kept_bytes, declared_steps),
    )


def incidents_after(sql: apsw.Connection, number: int, limit: int = 100) -> list[IncidentRecord]:
    query = (
        "SELECT code, message, hint, run, step, name, rank, number, at FROM incidents "
        "WHERE number > ? ORDER BY number LIMIT ?"
    )
    return [IncidentRecord(*row) for row in sql.execute(query, (number, limit))]


def newest_incident_at(sql: apsw.Connection, code: str) -> float | None:
    """Return when the last incident with a code happened; None if none did."""
    at = sql.execute("SELECT max(at) FROM incidents WHERE code = ?", (code,)).get
    return float(at) if at is not None else None


def newest_incident(sql: apsw.Connection) -> int:
    return int(sql.execute("SELECT coalesce(max(number), 0) FROM incidents").get)
