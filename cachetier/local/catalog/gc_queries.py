"""Reads of the catalog that find garbage: what nobody needs any more."""

from __future__ import annotations

import apsw

from cachetier.local.catalog import pins, queries
from cachetier.model.checkpoint import OPEN_STATES, PartState, Save, sealed_here

_PUBLISHED_BESIDE = (
    "EXISTS (SELECT 1 FROM saves AS other WHERE other.run = saves.run AND other.step = saves.step "
    "AND other.number <> saves.number AND other.state = 'published')"
)
_ALONE_THERE = (
    "NOT EXISTS (SELECT 1 FROM saves AS other WHERE other.run = saves.run "
    "AND other.step = saves.step AND other.number <> saves.number "
    "AND other.location = saves.location)"
)


def incomplete_saves(sql: apsw.Connection, before: float) -> list[Save]:
    """Return saves that began before ``before`` and were never completed, nor will be.

    A newer step of their run is published since.
    """
    saves = queries.saves_where(
        sql,
        "state IN ('open', 'local_only') AND started_at < ? "
        f"AND {queries.NOT_PINNED} AND EXISTS (SELECT 1 FROM saves AS newer "
        "WHERE newer.run = saves.run AND newer.number > saves.number "
        "AND newer.step > saves.step AND newer.state = 'published') ORDER BY number",
        before,
    )
    return [save for save in saves if lacks_ranks_here(sql, save) or lacks_others(sql, save)]


def is_unwanted(sql: apsw.Connection, number: int) -> bool:
    """Return whether a save may still go: a rank here never sealed it, and it is not pinned."""
    save = queries.save_by_number(sql, number)
    if save is None or pins.is_pinned(sql, save.run, save.step):
        return False
    return lacks_ranks_here(sql, save) and not was_taken_back(sql, save)


def was_taken_back(sql: apsw.Connection, save: Save) -> bool:
    """Return whether fsck took files of a save back: its ranks may have sealed before."""
    query = "SELECT 1 FROM taken_back WHERE run = ? AND step = ? AND save_id = ?"
    return sql.execute(query, (save.run, save.step, save.save_id)).fetchone() is not None


def lacks_ranks_here(sql: apsw.Connection, save: Save) -> bool:
    """Return whether a rank of this node never sealed an open save.

    One with a damaged shard is left to a person.
    """
    if save.state not in OPEN_STATES:
        return False
    damaged = queries.summary_of(sql, save.number).quarantined_shards
    return not damaged and not sealed_here(queries.parts_of(sql, save.number))


def lacks_others(sql: apsw.Connection, save: Save) -> bool:
    """Return whether all of an open save here is sealed and sent, and it has ranks elsewhere."""
    parts, summary = queries.parts_of(sql, save.number), queries.summary_of(sql, save.number)
    if summary.dirty_shards or summary.quarantined_shards or not sealed_here(parts):
        return False
    sealed = [part for part in parts if part.state is PartState.SEALED]
    return len(sealed) < save.world_size and all(part.uploaded for part in sealed)


def verified_names(sql: apsw.Connection, number: int, remote: str) -> list[str]:
    """Return the names of a save's shards here that ``remote`` holds as objects of their own."""
    query = (
        "SELECT name FROM shards JOIN drains USING (version) WHERE save = ? AND remote = ? "
        "AND verified_at IS NOT NULL AND pack IS NULL"
    )
    return [str(name) for (name,) in sql.execute(query, (number, remote))]


def replaced_saves(sql: apsw.Connection, before: float) -> list[Save]:
    """Return saves begun before ``before`` that left objects beside the published ones of a step.

    A newer save replaced them, or they came too late.
    """
    return queries.saves_where(
        sql,
        f"state IN ('superseded', 'refused') AND location IS NOT NULL AND {queries.NOT_PINNED} "
        f"AND started_at < ? AND {_PUBLISHED_BESIDE} AND {_ALONE_THERE} ORDER BY number",
        before,
    )


def ended_locations(sql: apsw.Connection, run: str, remote: str | None) -> dict[str, Save]:
    """Return the saves of a run that take no more uploads, by where they lie.

    At the durable remote, or with a name at that replica.
    """
    if remote is None:
        query = (
            "SELECT number, location FROM saves WHERE run = ? AND location IS NOT NULL "
            f"AND state IN ('published', 'superseded', 'refused') AND {_ALONE_THERE}"
        )
        found = sql.execute(query, (run,))
    else:
        query = (
            "SELECT save, replications.location FROM replications JOIN saves ON number = save "
            "WHERE run = ? AND remote = ? AND replications.location <> '' "
            "AND replications.state IN ('published', 'superseded', 'refused')"
        )
        found = sql.execute(query, (run, remote))
    numbers = {str(location): int(number) for number, location in found}
    saves = {at: queries.save_by_number(sql, number) for at, number in numbers.items()}
    return {at: save for at, save in saves.items() if save is not None}


def save_of_upload(
    sql: apsw.Connection, ended: dict[str, Save], key: str, run_prefix: str
) -> Save | None:
    """Return the save of ``ended`` that has, or had, a shard here under ``key``; None for others.

    What no save here names may be another node's, or somebody else's, and under way.
    """
    location, _, name = key.removeprefix(run_prefix).partition("/")
    save = ended.get(location)
    if save is None or not queries.names_of_save(sql, save.number, [name]):
        return None
    return save


def local_bytes_of(sql: apsw.Connection, number: int) -> tuple[int, int]:
    """Return (shards, bytes) of a save that lie on this node."""
    query = (
        "SELECT count(*), coalesce(sum(size_bytes), 0) FROM shards "
        "WHERE save = ? AND (file_id IS NOT NULL OR inline)"
    )
    shards, size_bytes = sql.execute(query, (number,)).get
    return int(shards), int(size_bytes)
