"""The contents of remotes: verified and lost shards, packs, parts, and the progress of saves.

Only ``serve`` writes it; the drain process reports over its channel and waits for the answer, so
what it was told is recorded is synced. Each function that writes runs inside a transaction
(``Store.write``). Those that name a shard's version raise NotFoundError when it was replaced or
deleted meanwhile: the drain then drops that work.

Nothing that happens at a replica changes what a save is at the durable remote; only shards that
waited for a required replica become clean when it has them, or is found never to get them.

A shard whose object is missing at a remote that has to have it is dirty again. The encoding that
the remote had stays known (a row of ``drains`` that is not verified any more), as documents in the
bucket may name it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import apsw
from cachetier_client.bucket_format.stored import InPack, Stored
from cachetier_client.io import digests

from cachetier.local.catalog import notes, rows, saves, shards, uploads
from cachetier.local.catalog.rows import IS_CLEAN, IS_DIRTY, IS_EVICTED, IS_SEALED, IncidentRecord
from cachetier.local.catalog.shards import ALL, NOT_VERIFIED_AT, ShardFilter
from cachetier.local.catalog.states import move, move_all
from cachetier.model.checkpoint import Save
from cachetier.model.composing import Twins
from cachetier.model.lifecycle import (
    COPIED_SAVES,
    DECIDED_SAVES,
    DRAINED_SAVES,
    DURABLE_SAVES,
    LOST_COPIES,
    OPEN_SAVES,
    SOUND_SHARDS,
    SWEPT_COPIES,
    UNDAMAGED_SHARDS,
    CopyEvent,
    CopyState,
    SaveEvent,
    SaveState,
    ShardEvent,
    ShardState,
    after,
    end_of,
    is_undecided,
    shown_state,
)
from cachetier.model.names import DURABLE
from cachetier.model.packs import PACKED_UP_TO_BYTES, PackedExtent
from cachetier.model.policy import Policy
from cachetier.model.shard import Shard


@dataclass(frozen=True, slots=True)
class SaveCopy:
    """The progress of a save at one remote."""

    remote: str
    state: CopyState
    location: str | None
    published_at: float | None


@dataclass(frozen=True, slots=True)
class SaveOutcome:
    """The result of a report that a save ended: whether it is news, and shards whose files go.

    ``wait``: it has not ended for all that, as the durable remote has not decided yet.
    """

    news: bool
    removed: tuple[Shard, ...] = ()
    wait: bool = False


@dataclass(frozen=True, slots=True)
class Lag:
    """The backlog of a remote; ``given_up`` counts the steps that it will never get whole.

    ``since``: when the first of it was sealed here; None where nothing waits.
    """

    steps: int = 0
    shards: int = 0
    size_bytes: int = 0
    given_up: int = 0
    since: float | None = None


_VERIFIED_THERE = (
    f"SELECT {rows.SHARD_COLUMNS} FROM shards JOIN saves ON saves.number = shards.save "
    "JOIN verified_copies AS copy ON copy.version = shards.version AND copy.remote = ? "
    "AND copy.pack IS NULL"
)
_COPY = "SELECT remote, copies.state, location, published_at FROM copies"
_COPY_IS_OPEN = CopyState.OPEN.sql("copies.state")


def verified_names(sql: apsw.Connection, number: int, remote: str) -> list[str]:
    """Return the names of a save's shards here that ``remote`` holds as objects of their own."""
    return rows.column(
        sql,
        "SELECT name FROM shards JOIN verified_copies USING (version) WHERE save = ? "
        "AND remote = ? AND pack IS NULL",
        number,
        remote,
    )


def remember(sql: apsw.Connection, version: int, remote: str, stored: Stored, now: float) -> None:
    """Write again how ``remote``, which was just asked, stores a shard.

    A dirty one that waited for nothing else is clean.
    """
    shard = shards.require(sql, version)
    shards.insert_stored(sql, version, remote, stored, now)
    everywhere = shards.is_everywhere(sql, version)
    if shard.state is ShardState.DIRTY and everywhere:
        move(sql, version, ShardEvent.VERIFIED_REMOTELY)


def reopen(sql: apsw.Connection, number: int, remote: str) -> bool:
    """Let the drain of ``remote`` publish a save once more; return False if no part is here."""
    if not saves.parts_of(sql, number):
        return False
    if remote == DURABLE:
        move_all(sql, "number = ?", SaveEvent.REOPEN, values=(number,))
    else:
        which = "save = ? AND remote = ?"
        move_all(sql, which, CopyEvent.REOPEN, also="due = 1", values=(number, remote))
    return True


def copy_of(sql: apsw.Connection, number: int, remote: str) -> SaveCopy | None:
    """Return what a save has reached at a remote; None if that is no business of its drain."""
    found = sql.execute(f"{_COPY} WHERE save = ? AND remote = ?", (number, remote))
    return next(map(_copy_of_row, found), None)


def copies_at_replicas(sql: apsw.Connection, number: int) -> list[SaveCopy]:
    """Return what a save has reached at each replica of the settings."""
    query = f"{_COPY} JOIN replicas ON name = remote WHERE save = ? ORDER BY remote"
    return [_copy_of_row(row) for row in sql.execute(query, (number,))]


def _copy_of_row(row: rows.Row) -> SaveCopy:
    remote, state, location, published_at = row
    return SaveCopy(remote, CopyState(state), location or None, published_at)


def due_saves(sql: apsw.Connection, remote: str) -> list[Save]:
    """Return the saves with work left at a remote, as its drain sees them, by arrival."""
    due = "number IN (SELECT save FROM copies WHERE remote = ? AND due) ORDER BY number"
    return _saves_at(sql, remote, due, remote)


def save_at(sql: apsw.Connection, number: int, remote: str) -> Save | None:
    """Return a save as the drain of a remote sees it; None once it is deleted and gone there."""
    there = f"number = ? AND ({CopyState.DELETED.sql_not('copy_state')} OR location IS NOT NULL)"
    return next(iter(_saves_at(sql, remote, there, number)), None)


def _saves_at(sql: apsw.Connection, remote: str, condition: str, *values: object) -> list[Save]:
    """Return saves with the state, the location and the time that they have at a remote."""
    query = f"SELECT copy_state, {rows.SAVE_COLUMNS} FROM saves_at AS saves "
    found = []
    where = f"WHERE remote = ? AND {condition}"
    for copy_state, *row in sql.execute(query + where, (remote, *values)):
        save = rows.save_of(row)
        # What is durable replaces any other at a replica.
        over = save.overwrite or (remote != DURABLE and save.state in DURABLE_SAVES)
        state = shown_state(save.state, CopyState(copy_state))
        found.append(replace(save, state=state, overwrite=over))
    return found


def shards_wanted_at(
    sql: apsw.Connection, number: int, remote: str, limit: int = -1, shard_filter: ShardFilter = ALL
) -> list[Shard]:
    """Return shards of a save with bytes here that ``remote`` does not have, oldest first.

    Each state has an index of its own that is in this order, so that no more is read than asked.
    """
    of_state = " UNION ALL ".join(
        f"SELECT {rows.SHARD_COLUMNS} FROM shards JOIN saves ON saves.number = shards.save "
        f"WHERE shards.save = ? AND {state} AND here "
        f"AND {NOT_VERIFIED_AT} AND {shard_filter.clause}"
        for state in (IS_DIRTY, IS_CLEAN)
    )
    values = (number, remote, *shard_filter.values)
    query = f"{of_state} ORDER BY 1 LIMIT ?"  # by version
    return [rows.shard_of(row) for row in sql.execute(query, (*values, *values, limit))]


def is_out_of_reach(sql: apsw.Connection, number: int, remote: str) -> bool:
    """Return whether some shard of a save that was put here is neither at ``remote`` nor here."""
    query = (
        f"SELECT 1 FROM shards JOIN parts USING (save, rank) WHERE save = ? AND {IS_EVICTED} "
        f"AND {NOT_VERIFIED_AT}"
    )
    return rows.exists(sql, query, number, remote)


def lag_of(sql: apsw.Connection, remote: str) -> Lag:
    """Return the lag of a replica; given up are steps that are of some use elsewhere."""
    query = (
        "SELECT count(DISTINCT save), count(*), coalesce(sum(size_bytes), 0), "
        "(SELECT count(*) FROM copies JOIN saves ON number = save WHERE remote = ?1 "
        f"AND {LOST_COPIES.sql('copies.state')} AND {COPIED_SAVES.sql('saves.state')}) "
        "FROM owed_shards WHERE remote = ?1"
    )
    return Lag(*sql.execute(query, (remote,)).get)


def waiting_since(sql: apsw.Connection, remote: str) -> float | None:
    """Return when the first save that ``remote`` is owed something of was sealed here, if any."""
    sealed_at: float | None = sql.execute(
        "SELECT min(sealed_at) FROM (SELECT max(sealed_at) AS sealed_at FROM copies "
        "JOIN parts USING (save) WHERE remote = ?1 AND due AND EXISTS (SELECT 1 FROM owed_shards "
        "WHERE owed_shards.save = copies.save AND owed_shards.remote = ?1) "
        f"GROUP BY copies.save HAVING min({IS_SEALED}))",
        (remote,),
    ).get
    return sealed_at


def durable_lag(sql: apsw.Connection, remote: str) -> Lag:
    """Return the lag of the durable remote."""
    query = (
        "SELECT count(DISTINCT shards.save), count(*), coalesce(sum(size_bytes), 0) FROM shards "
        "JOIN saves ON saves.number = shards.save "
        f"WHERE {IS_DIRTY} AND {DRAINED_SAVES.sql('saves.state')} AND {NOT_VERIFIED_AT}"
    )
    return Lag(*sql.execute(query, (remote,)).get)


def donor_of(sql: apsw.Connection, shard: Shard, remote: str) -> tuple[Shard, Stored] | None:
    """Return the nearest kin with bytes of ``shard`` at ``remote``, and how it is stored there."""
    donor = twin_of(sql, shard, remote) or previous_of(sql, shard, remote)
    stored = shards.stored_of(sql, donor.version, remote) if donor is not None else None
    return (donor, stored) if donor is not None and stored is not None else None


def twin_of(sql: apsw.Connection, shard: Shard, remote: str) -> Shard | None:
    """Return a shard of the same save with the same bytes that ``remote`` has, if there is one."""
    content = shard.content
    return shards.first_shard(
        sql,
        f"{_VERIFIED_THERE} WHERE shards.save = ? AND shards.version != ? AND size_bytes = ? "
        "AND digest = ? AND block_digests = ? LIMIT 1",
        *(remote, shard.save, shard.version, content.size_bytes),
        *(rows.packed(content.digest), digests.pack(content.block_digests)),
    )


def has_content(sql: apsw.Connection, number: int, twins: Twins, remote: str) -> bool:
    """Return whether ``remote`` has a shard of a save with this size and digest."""
    size_bytes, digest = twins
    query = f"{_VERIFIED_THERE} WHERE shards.save = ? AND size_bytes = ? AND digest = ? LIMIT 1"
    return rows.exists(sql, query, remote, number, size_bytes, rows.packed(digest))


def previous_of(sql: apsw.Connection, shard: Shard, remote: str) -> Shard | None:
    """Return the shard of that name in the run's newest earlier save of which ``remote`` has it."""
    return shards.first_shard(
        sql,
        f"{_VERIFIED_THERE} WHERE saves.run = ? AND saves.number < ? AND shards.name = ? "
        f"AND {COPIED_SAVES.sql('saves.state')} ORDER BY saves.number DESC LIMIT 1",
        *(remote, shard.run, shard.save, shard.name),
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
        f"WHERE drains.pack = ? AND drains.remote = ? AND {IS_EVICTED} "
        "AND shards.save = (SELECT save FROM shards WHERE version = ?) "
        "AND shards.size_bytes <= ? ORDER BY drains.pack_start, shards.version"
    )
    values = (pack, remote, version, PACKED_UP_TO_BYTES)
    return [PackedExtent(*row) for row in sql.execute(query, values)]


def shards_at(
    sql: apsw.Connection, extents: Iterable[PackedExtent]
) -> list[tuple[Shard, PackedExtent]]:
    """Return the shard of each extent, but of those that went meanwhile."""
    found = [(shards.shard_by_version(sql, extent.version), extent) for extent in extents]
    return [(shard, extent) for shard, extent in found if shard is not None]


def record_verified(
    sql: apsw.Connection,
    version: int,
    remote: str,
    required: Sequence[str],
    now: float,
    stored: Stored | None = None,
) -> ShardState:
    """Record that ``remote`` holds the shard, verified; without ``stored``, its raw bytes.

    Clean once every remote of ``required`` does, and every required replica that the save is
    to be brought to.
    """
    shard = shards.require(sql, version)
    return _verify(sql, shard, remote, required, stored or Stored.raw(shard.content), now)


def record_packed(
    sql: apsw.Connection,
    packs: Mapping[int, InPack],
    remote: str,
    required: Sequence[str],
    now: float,
) -> list[Shard]:
    """Record that ``remote`` holds shards in a pack, all in one transaction.

    Those that were replaced, deleted, or found damaged meanwhile are passed over. Returns the
    others.
    """
    found = [shards.shard_by_version(sql, version) for version in packs]
    listed = [s for s in found if s is not None and s.state in UNDAMAGED_SHARDS]
    for shard in listed:
        stored = replace(Stored.raw(shard.content), pack=packs[shard.version])
        _verify(sql, shard, remote, required, stored, now)
    return listed


def record_location(
    sql: apsw.Connection, number: int, location: str, remote: str = DURABLE
) -> None:
    """Record where a save's objects go at a remote; it never changes afterwards."""
    sql.execute(
        "UPDATE copies SET location = ?, due = 1 "
        "WHERE save = ? AND remote = ? AND location IS NULL",
        (location, number, remote),
    )


def record_part(
    sql: apsw.Connection, number: int, rank: int, remote: str = DURABLE, *, uploaded: bool
) -> None:
    """Record whether a rank's part document is at a remote."""
    query = "DELETE FROM copied_parts WHERE rank = ? AND save = ? AND remote = ?"
    if uploaded:
        query = (
            "INSERT OR IGNORE INTO copied_parts SELECT save, remote, ? FROM copies "
            "WHERE save = ? AND remote = ?"
        )
    sql.execute(query, (rank, number, remote))


def record_lost(sql: apsw.Connection, version: int, remote: str) -> ShardState:
    """Record that ``remote`` lost a shard, and return the shard's state.

    It is dirty again if its bytes are here and the remote has to have them. The encoding that the
    remote had stays known: see ``lost_as``.
    """
    shard = shards.require(sql, version)
    if shard.state not in SOUND_SHARDS and remote == DURABLE:
        return shard.state  # nothing here could take the place of what was there
    uploads.forget_upload(sql, version, remote)
    sql.execute(
        "UPDATE drains SET verified_at = NULL, attempts = 0 WHERE version = ? AND remote = ?",
        (version, remote),
    )
    awaited = {DURABLE, *shards.required_replicas(sql, version)}
    if shard.state is not ShardState.CLEAN or remote not in awaited:
        return shard.state
    move(sql, version, ShardEvent.LOST_REMOTELY)
    return ShardState.DIRTY


def record_outcome(
    sql: apsw.Connection,
    policy: Policy,
    number: int,
    state: SaveState,
    incident: IncidentRecord | None,
    now: float,
) -> list[Shard]:
    """Record how a save ended at the durable remote; return the shards removed: see ``ended``."""
    return list(ended(sql, policy, (number, DURABLE), state, incident, now).removed)


def ended(
    sql: apsw.Connection,
    policy: Policy,
    at: tuple[int, str],
    outcome: SaveState,
    incident: IncidentRecord | None,
    now: float,
) -> SaveOutcome:
    """Record that a save, by number, ended at a remote: published, superseded, refused or deleted.

    What was decided here in the meantime stays: a deleted save is never published, a published
    one never superseded by a late report. A published save may make older ones local-only, by
    policy.
    """
    number, remote = at
    save, copy = saves.require_save(sql, number), copy_of(sql, number, remote)
    if copy is None:
        return SaveOutcome(news=False)
    decides = remote == DURABLE
    event = end_of(save.state, copy.state, outcome, decides=decides)
    if event is None:
        return SaveOutcome(news=False, wait=not decides and is_undecided(save.state, outcome))
    if isinstance(event, CopyEvent):
        _end_copy(sql, number, remote, event, now)
        return SaveOutcome(news=True)
    if save.state is SaveState.SUPERSEDED and _is_published_since(sql, save):
        return SaveOutcome(news=True)
    return SaveOutcome(True, _end_save(sql, policy, save, event, incident, now))


def give_up(sql: apsw.Connection, number: int, remote: str, now: float) -> bool:
    """Record that a replica never gets a save whole; return whether that is news."""
    copy = copy_of(sql, number, remote)
    if copy is None or copy.state is not CopyState.OPEN:
        return False
    _end_copy(sql, number, remote, CopyEvent.GIVE_UP, now)
    return True


def _end_save(
    sql: apsw.Connection,
    policy: Policy,
    save: Save,
    event: SaveEvent,
    incident: IncidentRecord | None,
    now: float,
) -> tuple[Shard, ...]:
    """End a save as the durable remote decided; return the shards removed."""
    if incident is not None:
        notes.insert_incident(sql, incident, now)
    if event is SaveEvent.PUBLISH:
        saves.publish(sql, save.number, now, None)
        saves.skip_older(sql, policy, save.number, now)
    elif event is SaveEvent.DELETE:
        return tuple(saves.delete_save(sql, save.number))
    else:
        move(sql, save.number, event)
    return ()


def _end_copy(sql: apsw.Connection, number: int, remote: str, event: CopyEvent, now: float) -> None:
    """End a save at a replica; unless it was published there, its shards need not wait for it."""
    also = "published_at = ?, due = location IS NOT NULL"
    published_at = now if event is CopyEvent.PUBLISH else None
    move(sql, (number, remote), event, also=also, values=(published_at,))
    _settle(sql, number)


_SUPERFLUOUS = (
    f"remote = ? AND {CopyState.DELETED.sql_not('state')} AND save IN (SELECT number FROM saves "
    f"WHERE {DECIDED_SAVES.sql()})"
)


def are_superfluous(sql: apsw.Connection, remote: str) -> bool:
    """Return whether a remote has copies of saves that the durable remote decided about."""
    return rows.exists(sql, f"SELECT 1 FROM copies WHERE {_SUPERFLUOUS}", remote)


def delete_superfluous(sql: apsw.Connection, remote: str) -> None:
    """Let the drain of a remote delete those copies: it keeps steps until they are durable."""
    also = "due = location IS NOT NULL"
    move_all(sql, _SUPERFLUOUS, CopyEvent.DELETE, also=also, values=(remote,))


def record_swept(sql: apsw.Connection, number: int, remote: str = DURABLE) -> None:
    """Record that an ended save has no unfinished uploads of ours left at a remote.

    One that was deleted, or opened again, while its drain swept still has work there.
    """
    query = f"UPDATE copies SET due = 0 WHERE save = ? AND remote = ? AND {SWEPT_COPIES.sql()}"
    sql.execute(query, (number, remote))
    uploads.forget_leftovers(sql, number)


def forget_save(sql: apsw.Connection, number: int, remote: str = DURABLE) -> bool:
    """Forget where a deleted save was at a remote, as its objects are gone there.

    Its tombstone stays in the bucket. Return whether that is news.
    """
    sql.execute(
        "UPDATE copies SET location = NULL, due = 0 WHERE save = ? AND remote = ? "
        f"AND {CopyState.DELETED.sql()} AND location IS NOT NULL",
        (number, remote),
    )
    news = sql.changes() > 0
    uploads.forget_leftovers(sql, number)
    return news


def _verify(
    sql: apsw.Connection,
    shard: Shard,
    remote: str,
    required: Sequence[str],
    stored: Stored,
    now: float,
) -> ShardState:
    version = shard.version
    shards.insert_stored(sql, version, remote, stored, now)
    awaited = {*required, *shards.required_replicas(sql, version)}
    if not awaited <= shards.verified_remotes(sql, version):
        return shard.state
    move(sql, version, ShardEvent.VERIFIED_REMOTELY)
    return after(shard.state, ShardEvent.VERIFIED_REMOTELY)


def _is_published_since(sql: apsw.Connection, save: Save) -> bool:
    """Return whether the save that superseded ``save`` here, or a later one, is published."""
    return any(
        later.number > save.number and later.state is SaveState.PUBLISHED
        for later in saves.saves_of(sql, save.run, save.step)
    )


def saves_to_send_again(sql: apsw.Connection, remote: str) -> list[Save]:
    """Return the published saves of which ``remote`` lost shards whose bytes are here."""
    lost = (
        f"SELECT save FROM lost_copies JOIN shards USING (version) WHERE remote = ? AND {IS_DIRTY}"
    )
    condition = f"{DURABLE_SAVES.sql()} AND number IN ({lost}) ORDER BY number"
    return saves.saves_where(sql, condition, remote)


def saves_to_verify(sql: apsw.Connection, remote: str) -> list[Save]:
    """Return the published saves with dirty shards that were not verified at ``remote``.

    It lost them, or another node published the save before this node's drain had looked.
    """
    unsent = f"SELECT save FROM shards WHERE {IS_DIRTY} AND {NOT_VERIFIED_AT}"
    condition = f"{DURABLE_SAVES.sql()} AND number IN ({unsent}) ORDER BY number"
    return saves.saves_where(sql, condition, remote)


def lost_as(sql: apsw.Connection, version: int, remote: str) -> Stored | None:
    """Return how ``remote`` stored a shard that it lost; None if it did not lose it."""
    return shards.stored_in(sql, "lost_copies", version, remote)


def lost_packs(sql: apsw.Connection, number: int, remote: str) -> dict[int, str]:
    """Return the name of the pack that each lost shard of a save was in, by the shard's version."""
    query = (
        "SELECT version, pack FROM lost_copies JOIN shards USING (version) "
        "WHERE remote = ? AND save = ? AND pack IS NOT NULL"
    )
    return dict(sql.execute(query, (remote, number)))


def is_described(sql: apsw.Connection, number: int, rank: int, remote: str) -> bool:
    """Return whether a document at ``remote`` says how it stores the shards of a rank.

    The drain writes it once, so those may not be sent as anything else from then on.
    """
    query = (
        "SELECT EXISTS (SELECT 1 FROM copies WHERE save = ?1 AND remote = ?3 "
        f"AND {CopyState.PUBLISHED.sql()}) OR EXISTS "
        "(SELECT 1 FROM copied_parts WHERE save = ?1 AND rank = ?2 AND remote = ?3)"
    )
    return bool(sql.execute(query, (number, rank, remote)).get)


def _in_one_object(sql: apsw.Connection, version: int, remote: str) -> list[Shard]:
    """Return the shards that ``remote`` held in one object with ``version``, itself among them."""
    versions = rows.column(
        sql,
        "SELECT other.version FROM drains AS this JOIN drains AS other USING (pack, remote) "
        "JOIN shards AS here ON here.version = this.version "
        "JOIN shards AS there ON there.version = other.version AND there.save = here.save "
        "WHERE this.version = ? AND remote = ?",
        version,
        remote,
    )
    return [shards.require(sql, each) for each in versions or [version]]


def record_missing(
    sql: apsw.Connection,
    version: int,
    remote: str,
    incident: IncidentRecord,
    now: float,
    *,
    publish_again: bool,
) -> bool:
    """Record that the object of a shard is missing: the drain sends it again if it is here.

    With ``publish_again`` its save's documents are written again too, where this node has a part of
    it. Every save gets such an incident once; return whether this was it.
    """
    shard = shards.require(sql, version)
    number = shard.save
    for each in _in_one_object(sql, version, remote):
        if each.state is ShardState.CLEAN:
            record_lost(sql, each.version, remote)
    sql.execute("UPDATE copies SET due = 1 WHERE save = ? AND remote = ?", (number, DURABLE))
    if publish_again and shard.state is ShardState.CLEAN and saves.parts_of(sql, number):
        sql.execute("DELETE FROM copied_parts WHERE save = ? AND remote = ?", (number, DURABLE))
        move_all(sql, "number = ?", SaveEvent.REOPEN, also="wanted = 1", values=(number,))
    known = "SELECT 1 FROM incidents WHERE run = ? AND step = ? AND message = ?"
    if sql.execute(known, (incident.run, incident.step, incident.message)).fetchone():
        return False
    notes.insert_incident(sql, incident, now)
    return True


def configure_replicas(sql: apsw.Connection, replicas: Mapping[str, bool]) -> None:
    """Take ``replicas`` (name to whether it is required) for those of the settings.

    A new one gets what is open, and the published steps that were saved here and still have all
    their bytes. What one that is required from now on is still to get is dirty again. Shards
    that waited for one that is gone, or is not required any more, are clean if nothing else is
    missing.
    """
    known = set(rows.column(sql, "SELECT name FROM replicas"))
    sql.execute("DELETE FROM replicas")
    sql.executemany(
        "INSERT INTO replicas VALUES (?, ?)",
        [(name, int(required)) for name, required in replicas.items()],
    )
    for name in sorted(replicas.keys() - known):
        _begin_with(sql, name)
    _wait_for_required(sql)
    for number in rows.column(sql, f"SELECT DISTINCT save FROM shards WHERE {IS_DIRTY}"):
        assert isinstance(number, int)
        _settle(sql, number)


def _begin_with(sql: apsw.Connection, name: str) -> None:
    """Begin copies at a new replica of all saves that can still be sent there."""
    sql.execute(
        "INSERT OR IGNORE INTO copies (save, remote) SELECT number, ? FROM saves "
        f"WHERE {OPEN_SAVES.sql()} OR ({DURABLE_SAVES.sql()} "
        "AND EXISTS (SELECT 1 FROM parts WHERE save = number) "
        "AND NOT EXISTS (SELECT 1 FROM shards WHERE save = number "
        "AND NOT here))",
        (name,),
    )


def _wait_for_required(sql: apsw.Connection) -> None:
    """Keep the bytes here that a required replica has not got."""
    lacking = (
        "here AND EXISTS (SELECT 1 FROM copies "
        "JOIN replicas ON replicas.name = copies.remote "
        f"WHERE copies.save = shards.save AND required AND {_COPY_IS_OPEN} "
        f"AND {NOT_VERIFIED_AT.replace('?', 'replicas.name')})"
    )
    move_all(sql, lacking, ShardEvent.REMOTE_ADDED)


def _settle(sql: apsw.Connection, number: int) -> None:
    """Make the dirty shards of a save clean that wait for no remote any more."""
    for shard in shards.dirty_shards_of(sql, number):
        if shards.is_everywhere(sql, shard.version):
            move(sql, shard.version, ShardEvent.VERIFIED_REMOTELY)
