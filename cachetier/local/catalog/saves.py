"""Rows of saves: reads, which save of a step readers see, deletion, and what may be forgotten.

Each function takes a connection, so that decisions inside a transaction and reads outside of it see
rows through the same eyes. Those that write run inside a transaction (``Store.write``). Shards that
a function removes are returned, so that the caller can remove their files.

The row of a save is forgotten when nothing can ask for it any more: the save ended, none of its
bytes are here, no remote is owed anything of it or holds what only this row names, its step is not
pinned, and no other save of the step is open. What is published is found in the bucket again.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

import apsw
from cachetier_client.bucket_format.publication import Claimant, is_whole
from cachetier_client.identity.names import GENERATION_MARK, SaveIds

from cachetier.errors import NotFoundError
from cachetier.local.catalog import notes, rows, shards
from cachetier.local.catalog.notes import Pin
from cachetier.local.catalog.rows import (
    IS_CLEAN,
    IS_DIRTY,
    LOG_LOST,
    LOST_WITH_LOG,
    NOT_DELETED,
    NOT_EVICTED,
    Backlog,
    IncidentRecord,
    Summary,
)
from cachetier.local.catalog.states import move, move_all
from cachetier.model.checkpoint import (
    RankPart,
    Save,
    claimant_of,
    sealed_here,
    sealed_ranks,
    visible_save,
)
from cachetier.model.lifecycle import (
    CANDIDATE_SAVES,
    CLOSED_SAVES,
    CONFIRMED_SAVES,
    DRAINED_SAVES,
    DURABLE_SAVES,
    KEPT_SAVES,
    OPEN_SAVES,
    REPLACED_SAVES,
    CopyState,
    PartState,
    SaveEvent,
    SaveState,
)
from cachetier.model.names import DURABLE, PEERS_NAME
from cachetier.model.objects import is_mount
from cachetier.model.policy import Policy
from cachetier.model.shard import Shard


@dataclass(frozen=True, slots=True)
class VisibleShard:
    """A shard, None if the save has none of its name; the save; whether the step has others."""

    save: Save | None = None
    shard: Shard | None = None
    has_rivals: bool = False


_PUBLISHED_BESIDE = (
    "EXISTS (SELECT 1 FROM saves AS other WHERE other.run = saves.run AND other.step = saves.step "
    f"AND other.number <> saves.number AND {DURABLE_SAVES.sql('other.state')})"
)
ALONE_THERE = (
    "NOT EXISTS (SELECT 1 FROM saves_at AS other WHERE other.run = saves.run "
    "AND other.step = saves.step AND other.number <> saves.number "
    "AND other.remote = saves.remote AND other.location = saves.location)"
)
_FORGETTABLE = (
    f"{CLOSED_SAVES.sql()} "
    "AND max(started_at, coalesce(published_at, 0)) < ?1 "
    f"AND (location IS NULL OR {DURABLE_SAVES.sql()}) "
    f"AND {notes.NOT_PINNED} "
    "AND NOT EXISTS (SELECT 1 FROM copies WHERE save = number AND copies.due) "
    "AND NOT EXISTS (SELECT 1 FROM saves_at AS other WHERE other.run = saves.run "
    "AND other.step = saves.step AND other.remote = saves.remote "
    f"AND ({OPEN_SAVES.sql('other.state')} "
    f"OR ({REPLACED_SAVES.sql('other.state')} AND other.location IS NOT NULL))) "
    "AND NOT EXISTS (SELECT 1 FROM shards WHERE save = number "
    f"AND ({NOT_EVICTED} OR here))"
)


def saves_where(sql: apsw.Connection, condition: str, *values: object) -> list[Save]:
    """Return the saves whose rows meet ``condition``, which may go on with their order."""
    query = f"SELECT {rows.SAVE_COLUMNS} {rows.FROM_SAVES} {condition}"
    return [rows.save_of(row) for row in sql.execute(query, values)]


def saves_of(sql: apsw.Connection, run: str, step: int) -> list[Save]:
    return saves_where(sql, "run = ? AND step = ? ORDER BY number", run, step)


def sealed_and_whole(sql: apsw.Connection, saves: Sequence[Save]) -> tuple[set[int], set[int]]:
    """Return the numbers of the open ones of ``saves`` that are sealed here, and by all ranks."""
    sealed, whole = set[int](), set[int]()
    for save in saves:
        parts = parts_of(sql, save.number) if save.state in OPEN_SAVES else []
        if sealed_here(parts):
            sealed.add(save.number)
            if is_whole(save.world_size, sealed_ranks(parts)):
                whole.add(save.number)
    return sealed, whole


def shown_save(sql: apsw.Connection, run: str, step: int) -> Save | None:
    """Return the save of a step that readers see."""
    return shown_of(sql, saves_of(sql, run, step))


def shown_of(
    sql: apsw.Connection, saves: Sequence[Save], passed_over: Collection[int] = ()
) -> Save | None:
    """Return which of a step's saves readers see; ``passed_over`` do not count as whole."""
    if len(saves) < 2 or not any(save.state in OPEN_SAVES for save in saves):
        return visible_save(saves)
    sealed, whole = sealed_and_whole(sql, saves)
    return visible_save(saves, sealed, whole.difference(passed_over))


def whole_of(sql: apsw.Connection, saves: Sequence[Save]) -> set[int]:
    """Return the numbers of the open ones of ``saves`` whose every rank has sealed here."""
    return sealed_and_whole(sql, saves)[1]


def save_named(sql: apsw.Connection, run: str, step: int, save_id: str) -> Save | None:
    return next((save for save in saves_of(sql, run, step) if save.save_id == save_id), None)


def save_by_number(sql: apsw.Connection, number: int) -> Save | None:
    return next(iter(saves_where(sql, "number = ?", number)), None)


def saves_of_run(sql: apsw.Connection, run: str) -> list[Save]:
    return saves_where(sql, "run = ? ORDER BY step, number", run)


def unfinished_saves(sql: apsw.Connection) -> list[Save]:
    """Return saves that the drain still owes something: open, or deleted with objects left."""
    deleted = f"{SaveState.DELETED.sql()} AND location IS NOT NULL"
    return saves_where(sql, f"({DRAINED_SAVES.sql()} OR ({deleted})) ORDER BY number")


def saves_with_bytes(sql: apsw.Connection) -> list[Save]:
    """Return the saves that readers may see and that have bytes on this node, by arrival."""
    return saves_where(
        sql,
        f"number IN (SELECT save FROM shards WHERE {IS_DIRTY} UNION SELECT save FROM shards "
        f"WHERE {IS_CLEAN} AND here) "
        f"AND {CANDIDATE_SAVES.sql()} ORDER BY number",
    )


def never_durable_runs(sql: apsw.Connection, every: int, least: int) -> list[str]:
    """Return runs of which ``least`` steps and more were kept from S3, and none was let go."""
    return rows.column(
        sql,
        "SELECT run FROM saves GROUP BY run "
        "HAVING sum(local_only_at IS NOT NULL) >= ? AND sum(step % ? = 0 OR wanted) = 0 "
        "ORDER BY run",
        least,
        every,
    )


def backlog(sql: apsw.Connection) -> list[Backlog]:
    """Return the backlog of each unfinished save, by arrival.

    One that is published is among them while a required replica does not have it all.
    """
    dirty = f"{DURABLE_SAVES.sql()} AND number IN (SELECT save FROM shards WHERE {IS_DIRTY})"
    found = []
    for save in [*unfinished_saves(sql), *saves_where(sql, f"{dirty} ORDER BY number")]:
        summary, parts = shards.summary_of(sql, save.number), parts_of(sql, save.number)
        found.append(
            Backlog(
                save=save,
                shards=summary.shards,
                size_bytes=summary.size_bytes,
                dirty_shards=summary.dirty_shards,
                dirty_bytes=summary.dirty_bytes,
                sealed=sealed_here(parts),
                whole=is_whole(save.world_size, sealed_ranks(parts)),
            )
        )
    return found


def superfluous_saves(sql: apsw.Connection, before: float) -> list[Save]:
    """Return superseded and refused saves with shards here that may be collected.

    They may once their step is published, or when they began before ``before``. Pins are kept.
    """
    return saves_where(
        sql,
        f"{REPLACED_SAVES.sql()} AND EXISTS (SELECT 1 FROM shards WHERE save = number) "
        f"AND {notes.NOT_PINNED} AND (started_at < ? OR EXISTS (SELECT 1 FROM saves AS new "
        "WHERE new.run = saves.run AND new.step = saves.step "
        f"AND {DURABLE_SAVES.sql('new.state')}))",
        before,
    )


def runs(sql: apsw.Connection) -> list[str]:
    """Return every run there ever was a save of; mounts of the S3 door are none."""
    found = rows.column(sql, "SELECT DISTINCT run FROM saves ORDER BY run")
    return [run for run in found if not is_mount(run)]


def runs_with_steps(sql: apsw.Connection) -> list[str]:
    """Return the runs with a save that is not deleted."""
    found = rows.column(sql, f"SELECT DISTINCT run FROM saves WHERE {NOT_DELETED} ORDER BY run")
    return [run for run in found if not is_mount(run)]


def branches_with_steps(sql: apsw.Connection, run: str) -> list[str]:
    """Return the branches of a run with a save that is not deleted."""
    query = (
        f"SELECT DISTINCT run FROM saves WHERE {NOT_DELETED} AND run >= ? AND run < ? ORDER BY run"
    )
    return rows.column(sql, query, *_branches_of(run))


def parts_of(sql: apsw.Connection, number: int, remote: str = DURABLE) -> list[RankPart]:
    """Return the parts of a save that this node has; ``uploaded`` tells of ``remote``."""
    query = f"SELECT {rows.PART_COLUMNS} FROM parts WHERE save = ? ORDER BY rank"
    return [rows.part_of(row) for row in sql.execute(query, (remote, number))]


def summary_named(sql: apsw.Connection, ids: SaveIds) -> Summary:
    """Return the summary of the save that ``ids`` name; of one that is gone nothing is here."""
    save = save_named(sql, ids.run, ids.step, ids.save_id)
    return Summary(0, 0, 0, 0, 0, 0) if save is None else shards.summary_of(sql, save.number)


def claimant(sql: apsw.Connection, save: Save) -> Claimant:
    """Return ``save`` as the bucket's arbitration knows it."""
    return claimant_of(save, saves_of(sql, save.run, save.step))


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
    return VisibleShard(save, shards.shard_named(sql, save.number, name), len(saves) > 1)


def insert_save(sql: apsw.Connection, save: Save) -> Save:
    """Insert a save and return it with its number; ``publish`` says where a published one is."""
    sql.execute(
        "INSERT INTO saves (run, step, save_id, state, world_size, overwrite, started_at, "
        "local_only_at) VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
        (
            *(save.run, save.step, save.save_id, save.state, save.world_size, int(save.overwrite)),
            *(save.started_at, save.local_only_at),
        ),
    )
    return replace(save, number=sql.last_insert_rowid())


def publish(
    sql: apsw.Connection, number: int, at: float, location: str | None, *, came_here: bool = True
) -> None:
    """Mark a save published; another that was published is superseded.

    So are those that were open before it, if it ``came_here``: the order of one that is only known
    from the bucket is not known.
    """
    others = (
        f"number <> ?1 AND ({CONFIRMED_SAVES.sql()} OR (?2 AND {OPEN_SAVES.sql()} AND number < ?1))"
        " AND (run, step) = (SELECT run, step FROM saves WHERE number = ?1)"
    )
    move_all(sql, others, SaveEvent.SUPERSEDE, values=(number, came_here))
    # A save that was published when its row began was learned of: this node left nothing there.
    sql.execute(
        "UPDATE copies SET published_at = ?1, location = coalesce(location, ?2), due = due OR "
        f"(location IS NULL AND ?2 IS NOT NULL AND {CopyState.PUBLISHED.sql_not()}) "
        "WHERE save = ?3 AND remote = ?4",
        (at, location, number, DURABLE),
    )
    move(sql, number, SaveEvent.PUBLISH)


def replace_local_only(sql: apsw.Connection, number: int) -> None:
    """Let a local-only save, which is sealed here, take the place of those before it."""
    older = (
        f"number < ?1 AND {KEPT_SAVES.sql()} AND "
        "(run, step, state) = (SELECT run, step, state FROM saves WHERE number = ?1)"
    )
    move_all(sql, older, SaveEvent.SUPERSEDE, values=(number,))


def skip_older(sql: apsw.Connection, policy: Policy, number: int, now: float) -> None:
    """Make saves local-only that the published save ``number`` makes superfluous remotely."""
    published = require_save(sql, number)
    drained = saves_where(sql, f"run = ? AND {DRAINED_SAVES.sql()}", published.run)
    for save in policy.skipped_by(published, drained):
        move(sql, save.number, SaveEvent.KEEP_LOCAL, also="local_only_at = ?", values=(now,))


def want(sql: apsw.Connection, number: int) -> None:
    """Let a save be drained, whatever the policies say."""
    move_all(sql, "number = ?", SaveEvent.WANT, also="wanted = 1", values=(number,))


def require_save(sql: apsw.Connection, number: int) -> Save:
    save = save_by_number(sql, number)
    assert save is not None
    return save


def delete_step(sql: apsw.Connection, run: str, step: int) -> list[Shard]:
    """Delete every save of a step here; the drain then deletes it remotely.

    Raises:
        PinnedError: The step is pinned.
    """
    notes.refuse_pinned(sql, run, step)
    saves = saves_of(sql, run, step)
    return [shard for save in saves for shard in delete_save(sql, save.number)]


def delete_incomplete(sql: apsw.Connection, number: int) -> list[Shard] | None:
    """Delete a save that was ended in the bucket.

    None if it is pinned, or was completed here meanwhile.
    """
    return delete_save(sql, number) if is_unwanted(sql, number) else None


def delete_replaced(sql: apsw.Connection, number: int) -> list[Shard] | None:
    """Delete a save that another one replaced, with its objects; None if it counts again."""
    save = save_by_number(sql, number)
    return delete_save(sql, number) if save is not None and save.state in REPLACED_SAVES else None


def delete_local_only(sql: apsw.Connection, number: int) -> list[Shard]:
    """Forget a local-only save; nothing happens to one that is wanted or pinned by now.

    Remotely nothing is deleted, as another node may have let the step go on; but at peers, which
    would keep a copy until the step is in the bucket.
    """
    save = require_save(sql, number)
    if save.state not in KEPT_SAVES or notes.is_pinned(sql, save.run, save.step):
        return []
    shards = delete_save(sql, number)
    sql.execute(
        "UPDATE copies SET location = NULL, due = 0 "
        "WHERE save = ? AND (remote <> ? OR location = '')",
        (number, PEERS_NAME),
    )
    return shards


def delete_save(sql: apsw.Connection, number: int) -> list[Shard]:
    """Delete a save, here and then, by the drains, from every remote."""
    shards = _delete_shards(sql, number)
    sql.execute("DELETE FROM parts WHERE save = ?", (number,))
    move(sql, number, SaveEvent.DELETE)
    return shards


def delete_superfluous_shards(sql: apsw.Connection, number: int) -> list[Shard]:
    """Drop the shards of a save that was superseded or refused; the save is remembered."""
    save = require_save(sql, number)
    return _delete_shards(sql, number) if save.state in REPLACED_SAVES else []


def _delete_shards(sql: apsw.Connection, number: int) -> list[Shard]:
    found = shards.shards_of(sql, number)
    sql.execute("DELETE FROM shards WHERE save = ?", (number,))
    return found


def incomplete_saves(sql: apsw.Connection, before: float) -> list[Save]:
    """Return saves that began before ``before`` and were never completed, nor will be.

    A newer step of their run is published since.
    """
    saves = saves_where(
        sql,
        f"{OPEN_SAVES.sql()} AND started_at < ? "
        f"AND {notes.NOT_PINNED} AND EXISTS (SELECT 1 FROM saves AS newer "
        "WHERE newer.run = saves.run AND newer.number > saves.number "
        f"AND newer.step > saves.step AND {DURABLE_SAVES.sql('newer.state')}) ORDER BY number",
        before,
    )
    return [save for save in saves if lacks_ranks_here(sql, save) or lacks_others(sql, save)]


def is_unwanted(sql: apsw.Connection, number: int) -> bool:
    """Return whether a save may still go: a rank here never sealed it, and it is not pinned."""
    save = save_by_number(sql, number)
    if save is None or notes.is_pinned(sql, save.run, save.step):
        return False
    return lacks_ranks_here(sql, save) and not notes.was_taken_back(sql, save)


def lacks_ranks_here(sql: apsw.Connection, save: Save) -> bool:
    """Return whether a rank of this node never sealed an open save.

    One with a damaged shard is left to a person.
    """
    if save.state not in OPEN_SAVES:
        return False
    damaged = shards.summary_of(sql, save.number).quarantined_shards
    return not damaged and not sealed_here(parts_of(sql, save.number))


def lacks_others(sql: apsw.Connection, save: Save) -> bool:
    """Return whether all of an open save here is sealed and sent, and it has ranks elsewhere."""
    parts, summary = parts_of(sql, save.number), shards.summary_of(sql, save.number)
    if summary.dirty_shards or summary.quarantined_shards or not sealed_here(parts):
        return False
    sealed = [part for part in parts if part.state is PartState.SEALED]
    whole = is_whole(save.world_size, sealed_ranks(parts))
    return not whole and all(part.uploaded for part in sealed)


def replaced_saves(sql: apsw.Connection, before: float) -> list[Save]:
    """Return saves begun before ``before`` that left objects beside the published ones of a step.

    A newer save replaced them, or they came too late.
    """
    return saves_where(
        sql,
        f"{REPLACED_SAVES.sql()} AND location IS NOT NULL AND {notes.NOT_PINNED} "
        f"AND started_at < ? AND {_PUBLISHED_BESIDE} AND {ALONE_THERE} ORDER BY number",
        before,
    )


def newest_at(sql: apsw.Connection, run: str) -> float:
    """Return when a run began its newest save here, deleted ones among them."""
    return float(
        sql.execute("SELECT coalesce(max(started_at), 0) FROM saves WHERE run = ?", (run,)).get
    )


def forgettable_saves(
    sql: apsw.Connection, run: str, before: float, keep: int, limit: int
) -> list[int]:
    """Return the numbers of up to ``limit`` saves of a run to forget, oldest first.

    Those that ended, and began, ``before``. The ``keep`` newest stay, and the newest published one.
    """
    return rows.column(
        sql,
        f"SELECT number {rows.FROM_SAVES} run = ?2 AND {_FORGETTABLE} AND number <= (SELECT number "
        "FROM saves WHERE run = ?2 ORDER BY number DESC LIMIT 1 OFFSET ?3) AND number <> coalesce("
        f"(SELECT number FROM saves WHERE run = ?2 AND {DURABLE_SAVES.sql()} "
        "ORDER BY started_at DESC LIMIT 1), 0) ORDER BY number LIMIT ?4",
        before,
        run,
        keep,
        limit,
    )


def forget_some(sql: apsw.Connection, number: int, before: float, shards: int) -> bool:
    """Forget a save, or ``shards`` of its shards first; return whether nothing of it is left."""
    found = f"SELECT local_only_at IS NOT NULL {rows.FROM_SAVES} {_FORGETTABLE} AND number = ?2"
    row = sql.execute(found, (before, number)).fetchone()
    if row is None:
        return True  # somebody reads it, or pinned it, meanwhile: it stays
    sql.execute(
        "DELETE FROM shards WHERE version IN (SELECT version FROM shards WHERE save = ? LIMIT ?)",
        (number, shards),
    )
    if rows.exists(sql, "SELECT 1 FROM shards WHERE save = ?", number):
        return False
    notes.count_forgotten(sql, notes.LOCAL_ONLY_STEPS, row[0])
    sql.execute(
        "DELETE FROM taken_back WHERE (run, step, save_id) = "
        "(SELECT run, step, save_id FROM saves WHERE number = ?)",
        (number,),
    )
    sql.execute("DELETE FROM saves WHERE number = ?", (number,))
    return True


def report_lost_log(sql: apsw.Connection, now: float) -> None:
    """Record an incident for every run known here: shards and seals may have gone with the log."""
    query = f"SELECT run, max(step) FROM saves WHERE {NOT_DELETED} GROUP BY run"
    for run, step in sql.execute(query).fetchall() or [("", 0)]:
        incident = IncidentRecord(
            LOG_LOST,
            f"the node lost its catalog's log: {LOST_WITH_LOG}",
            "Compare `cachetier ls RUN STEP` with what was saved; save again what is missing, or "
            "seal what is whole.",
            str(run),
            int(str(step)),
        )
        notes.insert_incident(sql, incident, now)


def is_known(sql: apsw.Connection, run: str, step: int | None) -> bool:
    """Return whether there is a save of a run or its branches, or of that step of it."""
    query = (
        "SELECT 1 FROM saves WHERE (run = ?1 OR run >= ?2 AND run < ?3) "
        "AND (?4 IS NULL OR step = ?4) LIMIT 1"
    )
    return rows.exists(sql, query, run, *_branches_of(run), step)


def _branches_of(run: str) -> tuple[str, str]:
    """Return the first name that a branch of a run may have, and the first behind all of them."""
    return f"{run}{GENERATION_MARK}", f"{run}{chr(ord(GENERATION_MARK) + 1)}"


def pin(sql: apsw.Connection, run: str, step: int, now: float) -> Pin:
    """Pin a step and return the pin; a step that is pinned keeps the time of its first pin.

    Raises:
        NotFoundError: This node has no such step that readers could see.
    """
    if shown_save(sql, run, step) is None:
        raise NotFoundError(
            f"this node has no step {step} of {run}",
            hint="Pin a step that `cachetier ls RUN` shows; bring one that only S3 has here first: "
            "cachetier restore RUN STEP.",
            run=run,
            step=step,
        )
    sql.execute("INSERT OR IGNORE INTO pins VALUES (?, ?, ?)", (run, step, now))
    return next(p for p in notes.pins(sql) if (p.run, p.step) == (run, step))
