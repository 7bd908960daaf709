"""What the drain has reached is recorded, and late reports change nothing that was decided here."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from cachetier_client.io.digests import digest_of

from cachetier.errors import CatalogDamagedError, NotFoundError
from cachetier.local.catalog import queries
from cachetier.local.catalog.drain_writes import DrainLog
from cachetier.local.catalog.records import FinishedUploadPart, IncidentRecord
from cachetier.local.store import Store
from cachetier.model.checkpoint import SaveState
from cachetier.model.lifecycle import ForbiddenTransitionError, ShardEvent, ShardState
from cachetier.model.shard import Content, SaveIds, Shard
from cachetier.model.stored import Codec, Stored, StoredFrame, table_bytes

IDS = SaveIds("run", 1, "save-1", 0, 1)
NOW = 5.0


@pytest.fixture
def log(store: Store) -> DrainLog:
    return store.drain_log


def put(store: Store, data: bytes = b"bytes", ids: SaveIds = IDS) -> Shard:
    content = Content(len(data), digest_of(data), (digest_of(data),))
    return store.catalog.commit_shard(ids, "a", content, NOW, body=data).shard


def state_of(store: Store, shard: Shard) -> ShardState | None:
    found = store.read(lambda sql: queries.shard_by_version(sql, shard.version))
    return found.state if found is not None else None


def save_state(store: Store, save_id: str = "save-1") -> SaveState:
    save = store.read(lambda sql: queries.save_named(sql, "run", 1, save_id))
    assert save is not None
    return save.state


def test_an_upload_is_found_again_with_its_finished_parts(store: Store, log: DrainLog) -> None:
    shard = put(store)
    log.begin_upload(shard.version, "r", "upload", 16)
    part = FinishedUploadPart(1, "etag", 16, 0xAB, 0, 16)
    log.record_parts(shard.version, "r", [part])

    progress = store.read(lambda sql: queries.progress_of(sql, shard.version, "r"))

    assert (progress.upload_id, progress.part_bytes, progress.parts) == ("upload", 16, (part,))


def test_an_upload_of_frames_is_found_again_with_what_each_part_holds(
    store: Store, log: DrainLog
) -> None:
    shard = put(store)
    log.begin_upload(shard.version, "r", "upload", 16, Codec.ZSTD)
    part = FinishedUploadPart(
        1, "etag", 16, 2**64 - 1, 8 << 20, 4 << 20, (StoredFrame(7, 1), StoredFrame(9, 2**64 - 1))
    )
    log.record_parts(shard.version, "r", [part])

    progress = store.read(lambda sql: queries.progress_of(sql, shard.version, "r"))

    assert (progress.codec, progress.parts) == (Codec.ZSTD, (part,))


def test_what_a_remote_holds_is_remembered_for_each(store: Store, log: DrainLog) -> None:
    shard = put(store)
    frames = Stored(Codec.ZSTD, 50 + table_bytes(1), 2**64 - 1, (StoredFrame(50, 3),))
    log.begin_upload(shard.version, "far", "upload", 16, Codec.ZSTD)
    log.record_verified(shard.version, "far", ["far", "near"], NOW, frames)
    log.record_verified(shard.version, "near", ["far", "near"], NOW)

    def stored(remote: str) -> Stored | None:
        return store.read(lambda sql: queries.stored_of(sql, shard.version, remote))

    assert stored("far") == frames
    assert stored("near") == Stored.raw(shard.content)
    assert stored("nowhere") is None


@pytest.mark.parametrize("sizes", [(), (50, 49), (99,)], ids=["none", "too many", "another sum"])
def test_frames_that_cannot_be_the_shard_are_damage(
    store: Store, log: DrainLog, sizes: tuple[int, ...]
) -> None:
    shard = put(store)
    lie = Stored(Codec.ZSTD, 50 + table_bytes(1), 1, tuple(StoredFrame(size, 1) for size in sizes))
    log.record_verified(shard.version, "r", ["r"], NOW, lie)

    with pytest.raises(CatalogDamagedError):
        store.read(lambda sql: queries.stored_of(sql, shard.version, "r"))


def test_a_new_upload_forgets_the_parts_of_the_old_one(store: Store, log: DrainLog) -> None:
    shard = put(store)
    log.begin_upload(shard.version, "r", "first", 16)
    log.record_parts(shard.version, "r", [FinishedUploadPart(1, "etag", 16, 0xAB, 0, 16)])

    log.begin_upload(shard.version, "r", "second", 32)
    progress = store.read(lambda sql: queries.progress_of(sql, shard.version, "r"))
    assert (progress.upload_id, progress.part_bytes, progress.parts) == ("second", 32, ())

    log.forget_upload(shard.version, "r")
    progress = store.read(lambda sql: queries.progress_of(sql, shard.version, "r"))
    assert progress.upload_id is None


def test_attempts_are_counted_from_one(store: Store, log: DrainLog) -> None:
    shard = put(store)

    assert [log.count_attempt(shard.version, "r") for _ in range(3)] == [1, 2, 3]
    assert log.count_attempt(shard.version, "another") == 1


def test_a_shard_is_clean_once_every_required_remote_has_it(store: Store, log: DrainLog) -> None:
    shard = put(store)

    assert log.record_verified(shard.version, "near", ["near", "far"], NOW) is ShardState.DIRTY
    assert log.record_verified(shard.version, "far", ["near", "far"], NOW) is ShardState.CLEAN
    assert log.record_verified(shard.version, "far", ["near", "far"], NOW) is ShardState.CLEAN


def test_reports_about_a_replaced_shard_are_refused(store: Store, log: DrainLog) -> None:
    shard = put(store, b"first")
    log.begin_upload(shard.version, "r", "upload", 16)
    put(store, b"second")

    reports: list[Callable[[], object]] = [
        lambda: log.record_verified(shard.version, "r", ["r"], NOW),
        lambda: log.begin_upload(shard.version, "r", "again", 16),
        lambda: log.record_parts(shard.version, "r", [FinishedUploadPart(1, "etag", 16, 1, 0, 16)]),
        lambda: log.count_attempt(shard.version, "r"),
        lambda: log.record_lost(shard.version, "r"),
    ]
    for report in reports:
        with pytest.raises(NotFoundError):
            report()


def test_damaged_bytes_do_not_become_clean(store: Store, log: DrainLog) -> None:
    shard = put(store)
    store.catalog.move(shard.version, ShardEvent.LOCAL_DAMAGE, None, NOW)

    with pytest.raises(ForbiddenTransitionError):
        log.record_verified(shard.version, "r", ["r"], NOW)
    assert state_of(store, shard) is ShardState.QUARANTINED


def test_what_the_remote_lost_is_sent_again_if_it_is_here(store: Store, log: DrainLog) -> None:
    shard = put(store)
    assert log.record_lost(shard.version, "r") is ShardState.DIRTY, "it was never clean"
    log.record_verified(shard.version, "r", ["r"], NOW)

    assert log.record_lost(shard.version, "r") is ShardState.DIRTY
    assert store.read(lambda sql: queries.verified_remotes(sql, shard.version)) == set()


def test_what_the_remote_lost_and_is_not_here_stays_evicted(store: Store, log: DrainLog) -> None:
    shard = put(store)
    log.record_verified(shard.version, "r", ["r"], NOW)
    store.catalog.move(shard.version, ShardEvent.EVICT, None, NOW)

    assert log.record_lost(shard.version, "r") is ShardState.EVICTED


def test_a_location_never_changes(store: Store, log: DrainLog) -> None:
    number = store.catalog.admit(IDS, NOW).number
    log.record_location(number, "1")
    log.record_location(number, "1~save-1")

    save = store.read(lambda sql: queries.save_by_number(sql, number))
    assert save is not None
    assert save.location == "1"


@pytest.mark.parametrize(
    "late", [SaveState.PUBLISHED, SaveState.SUPERSEDED, SaveState.REFUSED, SaveState.DELETED]
)
def test_a_deleted_save_stays_deleted_whatever_is_reported_late(
    store: Store, log: DrainLog, late: SaveState
) -> None:
    put(store)
    number = store.catalog.admit(IDS, NOW).number
    store.catalog.delete_step("run", 1)

    incident = IncidentRecord("x", "late", "", "run", 1)
    assert log.record_outcome(number, late, incident, NOW) == []

    assert save_state(store) is SaveState.DELETED
    assert store.read(queries.newest_incident) == 0


@pytest.mark.parametrize("late", [SaveState.SUPERSEDED, SaveState.REFUSED, SaveState.DELETED])
def test_a_published_save_stays_published_whatever_is_reported_late(
    store: Store, log: DrainLog, late: SaveState
) -> None:
    number = store.catalog.admit(IDS, NOW).number
    log.record_outcome(number, SaveState.PUBLISHED, None, NOW)

    log.record_outcome(number, late, None, NOW)

    assert save_state(store) is SaveState.PUBLISHED


def test_a_save_published_in_the_instant_it_was_superseded_counts(
    store: Store, log: DrainLog
) -> None:
    number = store.catalog.admit(IDS, NOW).number
    store.catalog.admit(SaveIds("run", 1, "save-2", 0, 1), NOW)
    assert save_state(store) is SaveState.SUPERSEDED

    log.record_outcome(number, SaveState.PUBLISHED, None, NOW)

    assert save_state(store) is SaveState.PUBLISHED


def test_a_superseded_save_is_not_published_over_a_newer_published_one(
    store: Store, log: DrainLog
) -> None:
    number = store.catalog.admit(IDS, NOW).number
    newer = store.catalog.admit(SaveIds("run", 1, "save-2", 0, 1), NOW).number
    log.record_outcome(newer, SaveState.PUBLISHED, None, NOW)

    log.record_outcome(number, SaveState.PUBLISHED, None, NOW)

    assert save_state(store) is SaveState.SUPERSEDED
    assert save_state(store, "save-2") is SaveState.PUBLISHED


def test_a_save_deleted_elsewhere_lets_go_of_its_shards(store: Store, log: DrainLog) -> None:
    shard = put(store)
    number = store.catalog.admit(IDS, NOW).number

    assert log.record_outcome(number, SaveState.DELETED, None, NOW) == [shard]
    assert state_of(store, shard) is None


def test_an_outcome_and_its_incident_are_recorded_together(store: Store, log: DrainLog) -> None:
    number = store.catalog.admit(IDS, NOW).number
    log.record_outcome(
        number, SaveState.REFUSED, IncidentRecord("step_published", "m", "h", "run", 1), NOW
    )

    found = store.read(lambda sql: queries.incidents_after(sql, 0))
    assert [(i.code, i.at) for i in found] == [("step_published", NOW)]


def test_a_deleted_save_is_unfinished_until_its_objects_are_gone(
    store: Store, log: DrainLog
) -> None:
    number = store.catalog.admit(IDS, NOW).number
    log.record_location(number, "1")
    store.catalog.delete_step("run", 1)
    assert [s.number for s in store.read(queries.unfinished_saves)] == [number]

    log.forget_save(number)

    assert store.read(queries.unfinished_saves) == []
