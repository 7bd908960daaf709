"""What the drain has reached is recorded, and late reports change nothing that was decided here."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from cachetier_client.bucket_format.stored import Codec, Content, Stored, StoredFrame, table_bytes
from cachetier_client.bucket_format.uploads import UploadedPart
from cachetier_client.identity.names import SaveIds
from cachetier_client.io.digests import digest_of

from cachetier.errors import CatalogDamagedError, NotFoundError
from cachetier.local.catalog import copies, notes, parts, saves, shards, uploads
from cachetier.local.catalog.rows import IncidentRecord, NewShard, UploadRecord
from cachetier.local.store import Store
from cachetier.model.lifecycle import ForbiddenTransitionError, SaveState, ShardState
from cachetier.model.names import DURABLE
from cachetier.model.shard import Shard

IDS = SaveIds("run", 1, "save-1", 0, 1)
NOW = 5.0


def put(store: Store, data: bytes = b"bytes", ids: SaveIds = IDS) -> Shard:
    content = Content(len(data), digest_of(data), (digest_of(data),))
    return store.write(
        parts.commit_shard, store.policy, ids, NewShard("a", ids.rank, content, body=data), NOW
    ).shard


def state_of(store: Store, shard: Shard) -> ShardState | None:
    found = store.read(lambda sql: shards.shard_by_version(sql, shard.version))
    return found.state if found is not None else None


def save_state(store: Store, save_id: str = "save-1") -> SaveState:
    save = store.read(lambda sql: saves.save_named(sql, "run", 1, save_id))
    assert save is not None
    return save.state


def test_an_upload_is_found_again_with_its_finished_parts(store: Store) -> None:
    shard = put(store)
    store.write(uploads.begin_upload, shard.version, DURABLE, UploadRecord("upload", 16))
    part = UploadedPart(1, "etag", 16, 0xAB, 0, 16)
    store.write(uploads.record_parts, shard.version, DURABLE, [part])

    progress = store.read(lambda sql: uploads.progress_of(sql, shard.version, DURABLE))

    assert (progress.upload_id, progress.part_bytes, progress.parts) == ("upload", 16, (part,))


def test_an_upload_has_the_parts_of_its_own_shard_and_remote_alone(store: Store) -> None:
    first, second = put(store), put(store, ids=SaveIds("run", 2, "save-1", 0, 1))
    found = {(each.version, remote) for each in (first, second) for remote in ("far", "near")}
    for version, remote in found:
        of = f"{version} {remote}"
        store.write(uploads.begin_upload, version, remote, UploadRecord(of, 16))
        part = UploadedPart(1, of, 16, 0xAB, 0, 16)
        store.write(uploads.record_parts, version, remote, [part])

    for version, remote in found:
        progress = store.read(uploads.progress_of, version, remote)
        assert progress.upload_id == f"{version} {remote}"
        assert [part.etag for part in progress.parts] == [f"{version} {remote}"]


def test_an_upload_of_frames_is_found_again_with_what_each_part_holds(store: Store) -> None:
    shard = put(store)
    store.write(
        uploads.begin_upload, shard.version, DURABLE, UploadRecord("upload", 16, Codec.ZSTD)
    )
    part = UploadedPart(
        1, "etag", 16, 2**64 - 1, 8 << 20, 4 << 20, (StoredFrame(7, 1), StoredFrame(9, 2**64 - 1))
    )
    store.write(uploads.record_parts, shard.version, DURABLE, [part])

    progress = store.read(lambda sql: uploads.progress_of(sql, shard.version, DURABLE))

    assert (progress.codec, progress.parts) == (Codec.ZSTD, (part,))


def test_what_a_remote_holds_is_remembered_for_each(store: Store) -> None:
    shard = put(store)
    frames = Stored(Codec.ZSTD, 50 + table_bytes(1), 2**64 - 1, (StoredFrame(50, 3),))
    store.write(uploads.begin_upload, shard.version, "far", UploadRecord("upload", 16, Codec.ZSTD))
    store.write(copies.record_verified, shard.version, "far", ["far", "near"], NOW, frames)
    store.write(copies.record_verified, shard.version, "near", ["far", "near"], NOW)

    def stored(remote: str) -> Stored | None:
        return store.read(lambda sql: shards.stored_of(sql, shard.version, remote))

    assert stored("far") == frames
    assert stored("near") == Stored.raw(shard.content)
    assert stored("nowhere") is None


@pytest.mark.parametrize("sizes", [(), (50, 49), (99,)], ids=["none", "too many", "another sum"])
def test_frames_that_cannot_be_the_shard_are_damage(store: Store, sizes: tuple[int, ...]) -> None:
    shard = put(store)
    lie = Stored(Codec.ZSTD, 50 + table_bytes(1), 1, tuple(StoredFrame(size, 1) for size in sizes))
    store.write(copies.record_verified, shard.version, DURABLE, [DURABLE], NOW, lie)

    with pytest.raises(CatalogDamagedError):
        store.read(lambda sql: shards.stored_of(sql, shard.version, DURABLE))


def test_a_new_upload_forgets_the_parts_of_the_old_one(store: Store) -> None:
    shard = put(store)
    store.write(uploads.begin_upload, shard.version, DURABLE, UploadRecord("first", 16))
    store.write(
        uploads.record_parts,
        shard.version,
        DURABLE,
        [UploadedPart(1, "etag", 16, 0xAB, 0, 16)],
    )

    store.write(uploads.begin_upload, shard.version, DURABLE, UploadRecord("second", 32))
    progress = store.read(lambda sql: uploads.progress_of(sql, shard.version, DURABLE))
    assert (progress.upload_id, progress.part_bytes, progress.parts) == ("second", 32, ())

    store.write(uploads.forget_upload, shard.version, DURABLE)
    progress = store.read(lambda sql: uploads.progress_of(sql, shard.version, DURABLE))
    assert progress.upload_id is None


def test_attempts_are_counted_from_one(store: Store) -> None:
    shard = put(store)

    assert [store.write(uploads.count_attempt, shard.version, DURABLE) for _ in range(3)] == [
        1,
        2,
        3,
    ]
    assert store.write(uploads.count_attempt, shard.version, "another") == 1


def test_a_shard_is_clean_once_every_required_remote_has_it(store: Store) -> None:
    shard = put(store)

    assert (
        store.write(copies.record_verified, shard.version, "near", ["near", "far"], NOW)
        is ShardState.DIRTY
    )
    assert (
        store.write(copies.record_verified, shard.version, "far", ["near", "far"], NOW)
        is ShardState.CLEAN
    )
    assert (
        store.write(copies.record_verified, shard.version, "far", ["near", "far"], NOW)
        is ShardState.CLEAN
    )


def test_reports_about_a_replaced_shard_are_refused(store: Store) -> None:
    shard = put(store, b"first")
    store.write(uploads.begin_upload, shard.version, DURABLE, UploadRecord("upload", 16))
    put(store, b"second")

    reports: list[Callable[[], object]] = [
        lambda: store.write(copies.record_verified, shard.version, DURABLE, [DURABLE], NOW),
        lambda: store.write(
            uploads.begin_upload, shard.version, DURABLE, UploadRecord("again", 16)
        ),
        lambda: store.write(
            uploads.record_parts,
            shard.version,
            DURABLE,
            [UploadedPart(1, "etag", 16, 1, 0, 16)],
        ),
        lambda: store.write(uploads.count_attempt, shard.version, DURABLE),
        lambda: store.write(copies.record_lost, shard.version, DURABLE),
    ]
    for report in reports:
        with pytest.raises(NotFoundError):
            report()


def test_damaged_bytes_do_not_become_clean(store: Store) -> None:
    shard = put(store)
    store.write(shards.record_damage, shard.version, None, NOW)

    with pytest.raises(ForbiddenTransitionError):
        store.write(copies.record_verified, shard.version, DURABLE, [DURABLE], NOW)
    assert state_of(store, shard) is ShardState.QUARANTINED


def test_what_the_remote_lost_is_sent_again_if_it_is_here(store: Store) -> None:
    shard = put(store)
    assert store.write(copies.record_lost, shard.version, DURABLE) is ShardState.DIRTY, (
        "it was never clean"
    )
    store.write(copies.record_verified, shard.version, DURABLE, [DURABLE], NOW)

    assert store.write(copies.record_lost, shard.version, DURABLE) is ShardState.DIRTY
    assert store.read(lambda sql: shards.verified_remotes(sql, shard.version)) == set()


def test_what_the_remote_lost_and_is_not_here_stays_evicted(store: Store) -> None:
    shard = put(store)
    store.write(copies.record_verified, shard.version, DURABLE, [DURABLE], NOW)
    store.write(shards.evict, shard.version)

    assert store.write(copies.record_lost, shard.version, DURABLE) is ShardState.EVICTED


def test_a_location_never_changes(store: Store) -> None:
    number = store.write(parts.admit, store.policy, IDS, NOW).number
    store.write(copies.record_location, number, "1")
    store.write(copies.record_location, number, "1~save-1")

    save = store.read(lambda sql: saves.save_by_number(sql, number))
    assert save is not None
    assert save.location == "1"


@pytest.mark.parametrize(
    "late", [SaveState.PUBLISHED, SaveState.SUPERSEDED, SaveState.REFUSED, SaveState.DELETED]
)
def test_a_deleted_save_stays_deleted_whatever_is_reported_late(
    store: Store, late: SaveState
) -> None:
    put(store)
    number = store.write(parts.admit, store.policy, IDS, NOW).number
    store.write(saves.delete_step, "run", 1)

    incident = IncidentRecord("x", "late", "", "run", 1)
    assert store.write(copies.record_outcome, store.policy, number, late, incident, NOW) == []

    assert save_state(store) is SaveState.DELETED
    assert store.read(notes.newest_incident) == 0


@pytest.mark.parametrize("late", [SaveState.SUPERSEDED, SaveState.REFUSED, SaveState.DELETED])
def test_a_published_save_stays_published_whatever_is_reported_late(
    store: Store, late: SaveState
) -> None:
    number = store.write(parts.admit, store.policy, IDS, NOW).number
    store.write(copies.record_outcome, store.policy, number, SaveState.PUBLISHED, None, NOW)

    store.write(copies.record_outcome, store.policy, number, late, None, NOW)

    assert save_state(store) is SaveState.PUBLISHED


def test_a_save_published_in_the_instant_it_was_superseded_counts(store: Store) -> None:
    number = store.write(parts.admit, store.policy, IDS, NOW).number
    store.write(parts.admit, store.policy, SaveIds("run", 1, "save-2", 0, 1), NOW)
    assert save_state(store) is SaveState.SUPERSEDED

    store.write(copies.record_outcome, store.policy, number, SaveState.PUBLISHED, None, NOW)

    assert save_state(store) is SaveState.PUBLISHED


def test_a_superseded_save_is_not_published_over_a_newer_published_one(store: Store) -> None:
    number = store.write(parts.admit, store.policy, IDS, NOW).number
    newer = store.write(parts.admit, store.policy, SaveIds("run", 1, "save-2", 0, 1), NOW).number
    store.write(copies.record_outcome, store.policy, newer, SaveState.PUBLISHED, None, NOW)

    store.write(copies.record_outcome, store.policy, number, SaveState.PUBLISHED, None, NOW)

    assert save_state(store) is SaveState.SUPERSEDED
    assert save_state(store, "save-2") is SaveState.PUBLISHED


def test_a_save_deleted_elsewhere_lets_go_of_its_shards(store: Store) -> None:
    shard = put(store)
    number = store.write(parts.admit, store.policy, IDS, NOW).number

    assert store.write(
        copies.record_outcome, store.policy, number, SaveState.DELETED, None, NOW
    ) == [shard]
    assert state_of(store, shard) is None


def test_an_outcome_and_its_incident_are_recorded_together(store: Store) -> None:
    number = store.write(parts.admit, store.policy, IDS, NOW).number
    store.write(
        copies.record_outcome,
        store.policy,
        number,
        SaveState.REFUSED,
        IncidentRecord("step_published", "m", "h", "run", 1),
        NOW,
    )

    found = store.read(lambda sql: notes.incidents_after(sql, 0))
    assert [(i.code, i.at) for i in found] == [("step_published", NOW)]


def test_a_deleted_save_is_unfinished_until_its_objects_are_gone(store: Store) -> None:
    number = store.write(parts.admit, store.policy, IDS, NOW).number
    store.write(copies.record_location, number, "1")
    store.write(saves.delete_step, "run", 1)
    assert [s.number for s in store.read(saves.unfinished_saves)] == [number]

    store.write(copies.forget_save, number)

    assert store.read(saves.unfinished_saves) == []


def test_a_twin_has_the_same_bytes_in_the_same_save(store: Store) -> None:
    def put_as(name: str, step: int, data: bytes) -> Shard:
        content = Content(len(data), digest_of(data), (digest_of(data),))
        new = NewShard(name, 0, content, body=data)
        ids = SaveIds("run", step, "save-1", 0, 1)
        shard = store.write(parts.commit_shard, store.policy, ids, new, NOW).shard
        store.write(copies.record_verified, shard.version, DURABLE, [DURABLE], NOW)
        return shard

    put_as("before", 1, b"bytes")
    shard, _ = put_as("a", 2, b"bytes"), put_as("b", 2, b"other")
    assert store.read(copies.twin_of, shard, DURABLE) is None

    twin = put_as("c", 2, b"bytes")
    found = store.read(copies.twin_of, shard, DURABLE)
    assert found is not None and found.version == twin.version
    assert store.read(copies.twin_of, shard, "elsewhere") is None
