"""The catalog's rules: what a put, a seal, an abort and a delete may do, and to what."""

from __future__ import annotations

import pytest
from cachetier_client.io.digests import digest_of

from cachetier.errors import CachetierError, NotFoundError
from cachetier.local.catalog import queries
from cachetier.local.catalog.catalog import Catalog, Committed
from cachetier.local.catalog.records import IncidentRecord, NewShard, RemoteCopy
from cachetier.local.store import Store
from cachetier.model.checkpoint import PartState, Save, SaveState
from cachetier.model.lifecycle import ForbiddenTransitionError, ShardEvent, ShardState
from cachetier.model.shard import Content, SaveIds, Shard
from cachetier.model.stored import Stored

IDS = SaveIds("run", 1, "save-1", 0, 2)
OTHER_RANK = SaveIds("run", 1, "save-1", 1, 2)
NEWER = SaveIds("run", 1, "save-2", 0, 2)
NOW = 5.0


def content(data: bytes) -> Content:
    return Content(len(data), digest_of(data), (digest_of(data),))


@pytest.fixture
def catalog(store: Store) -> Catalog:
    return store.catalog


def put(catalog: Catalog, ids: SaveIds, name: str, data: bytes = b"bytes") -> Committed:
    return catalog.commit_shard(ids, name, content(data), NOW, body=data)


def refusal_of(catalog: Catalog, ids: SaveIds, name: str, data: bytes = b"bytes") -> str:
    with pytest.raises(CachetierError) as refusal:
        put(catalog, ids, name, data)
    return refusal.value.code


def saves(store: Store, step: int = 1) -> dict[str, SaveState]:
    found = store.read(lambda sql: queries.saves_of(sql, "run", step))
    return {save.save_id: save.state for save in found}


def number_of(store: Store, save_id: str) -> int:
    save = store.read(lambda sql: queries.save_named(sql, "run", 1, save_id))
    assert save is not None
    return save.number


def publish(store: Store, save_id: str) -> None:
    store.drain_log.record_outcome(number_of(store, save_id), SaveState.PUBLISHED, None, NOW)


def parts(store: Store, save_id: str = "save-1") -> dict[int, PartState]:
    number = number_of(store, save_id)
    return {part.rank: part.state for part in store.read(lambda s: queries.parts_of(s, number))}


def visible(store: Store, name: str) -> Shard | None:
    return store.read(lambda sql: queries.visible_shard(sql, "run", 1, name))


# --- puts ---------------------------------------------------------------------------------------


def test_a_put_begins_its_save_and_opens_its_part(store: Store, catalog: Catalog) -> None:
    shard = put(catalog, IDS, "a").shard

    assert (shard.state, shard.inline, shard.rank) == (ShardState.DIRTY, True, 0)
    assert saves(store) == {"save-1": SaveState.OPEN}
    assert parts(store) == {0: PartState.OPEN}
    assert visible(store, "a") == shard


def test_the_same_bytes_again_get_the_same_receipt(catalog: Catalog) -> None:
    first = put(catalog, IDS, "a")
    again = put(catalog, IDS, "a")

    assert again == Committed(first.shard, repeated=True)


def test_other_bytes_replace_the_first_until_the_rank_seals(store: Store, catalog: Catalog) -> None:
    first = put(catalog, IDS, "a", b"first").shard
    second = put(catalog, IDS, "a", b"second")

    assert second.replaced == (first,)
    assert second.shard.version > first.version
    assert visible(store, "a") == second.shard
    assert store.read(lambda sql: queries.body_of(sql, first.version)) is None


def test_after_the_seal_the_same_bytes_get_their_receipt_and_others_are_refused(
    catalog: Catalog,
) -> None:
    first = put(catalog, IDS, "a").shard
    catalog.seal(IDS, 2, NOW)

    assert put(catalog, IDS, "a").shard == first
    assert refusal_of(catalog, IDS, "a", b"other") == "sealed"
    assert refusal_of(catalog, IDS, "new", b"new") == "sealed"
    assert put(catalog, OTHER_RANK, "b").shard.rank == 1, "another rank's part is its own"


def test_a_name_is_one_ranks(catalog: Catalog) -> None:
    first = put(catalog, IDS, "a").shard

    assert refusal_of(catalog, OTHER_RANK, "a", b"other") == "sealed"
    assert put(catalog, OTHER_RANK, "a").shard == first, "the same bytes are no conflict"


def test_a_newer_save_supersedes_an_open_one(store: Store, catalog: Catalog) -> None:
    put(catalog, IDS, "a", b"old")
    put(catalog, NEWER, "a", b"new")

    assert saves(store) == {"save-1": SaveState.SUPERSEDED, "save-2": SaveState.OPEN}
    assert refusal_of(catalog, IDS, "a", b"late") == "save_superseded"
    found = visible(store, "a")
    assert found is not None
    assert found.save_id == "save-2"


def test_a_published_step_wants_an_overwrite_and_stays_visible_until_it_is_replaced(
    store: Store, catalog: Catalog
) -> None:
    old = put(catalog, IDS, "a", b"old").shard
    publish(store, "save-1")

    assert refusal_of(catalog, NEWER, "a", b"new") == "step_published"
    overwrite = SaveIds("run", 1, "save-2", 0, 2, overwrite=True)
    new = put(catalog, overwrite, "a", b"new").shard
    assert visible(store, "a") == old
    publish(store, "save-2")
    assert visible(store, "a") == new
    assert saves(store) == {"save-1": SaveState.SUPERSEDED, "save-2": SaveState.PUBLISHED}


def test_a_published_save_takes_no_other_bytes(store: Store, catalog: Catalog) -> None:
    put(catalog, IDS, "a")
    publish(store, "save-1")

    assert refusal_of(catalog, IDS, "a", b"other") == "sealed"
    assert refusal_of(catalog, IDS, "b") == "sealed"
    assert put(catalog, IDS, "a").repeated


def test_a_put_that_is_refused_begins_no_save(store: Store, catalog: Catalog) -> None:
    put(catalog, IDS, "a")
    publish(store, "save-1")
    refusal_of(catalog, NEWER, "a")

    assert list(saves(store)) == ["save-1"]


def test_a_quarantined_shard_may_be_put_again(store: Store, catalog: Catalog) -> None:
    shard = put(catalog, IDS, "a").shard
    catalog.move(shard.version, ShardEvent.LOCAL_DAMAGE, None, NOW)

    again = put(catalog, IDS, "a")

    assert not again.repeated
    assert again.shard.state is ShardState.DIRTY
    assert [replaced.version for replaced in again.replaced] == [shard.version]


# --- seals and aborts ---------------------------------------------------------------------------


def test_a_seal_says_which_ranks_have_sealed_here(catalog: Catalog) -> None:
    assert catalog.seal(OTHER_RANK, 2, NOW) == [1]
    assert catalog.seal(IDS, 2, NOW) == [0, 1]
    assert catalog.seal(IDS, 2, NOW) == [0, 1], "sealing twice changes nothing"


def test_an_abort_takes_back_one_ranks_shards(store: Store, catalog: Catalog) -> None:
    mine = put(catalog, IDS, "a").shard
    put(catalog, OTHER_RANK, "b")

    assert catalog.abort_rank(IDS) == [mine]

    assert visible(store, "a") is None
    assert visible(store, "b") is not None
    assert parts(store) == {0: PartState.ABORTED, 1: PartState.OPEN}


def test_a_new_put_reopens_an_aborted_part(store: Store, catalog: Catalog) -> None:
    put(catalog, IDS, "a")
    catalog.abort_rank(IDS)

    put(catalog, IDS, "a")

    assert parts(store) == {0: PartState.OPEN}


def test_what_is_sealed_cannot_be_aborted(catalog: Catalog) -> None:
    put(catalog, IDS, "a")
    catalog.seal(IDS, 2, NOW)

    with pytest.raises(CachetierError) as refusal:
        catalog.abort_rank(IDS)
    assert refusal.value.code == "sealed"


def test_the_abort_of_a_save_that_never_began_disturbs_no_other(
    store: Store, catalog: Catalog
) -> None:
    put(catalog, IDS, "a")

    assert catalog.abort_rank(NEWER) == []

    assert saves(store) == {"save-1": SaveState.OPEN}


# --- deletes ------------------------------------------------------------------------------------


def test_one_shard_of_an_unsealed_part_can_be_deleted(store: Store, catalog: Catalog) -> None:
    shard = put(catalog, IDS, "a").shard

    assert catalog.delete_shard("run", 1, "a") == shard
    assert visible(store, "a") is None
    with pytest.raises(NotFoundError):
        catalog.delete_shard("run", 1, "a")


def test_a_shard_of_a_sealed_part_cannot_be_deleted_alone(catalog: Catalog) -> None:
    put(catalog, IDS, "a")
    catalog.seal(IDS, 2, NOW)

    with pytest.raises(CachetierError) as refusal:
        catalog.delete_shard("run", 1, "a")
    assert refusal.value.code == "sealed"


def test_a_shard_of_a_step_published_elsewhere_cannot_be_deleted_alone(
    store: Store, catalog: Catalog
) -> None:
    """Its part was sealed on another node; it would only come back from the bucket."""
    adopt(catalog)

    with pytest.raises(CachetierError) as refusal:
        catalog.delete_shard("run", 1, "a")
    assert refusal.value.code == "sealed"
    assert visible(store, "a") is not None


def test_a_deleted_step_is_gone_for_good(store: Store, catalog: Catalog) -> None:
    first = put(catalog, IDS, "a").shard
    second = put(catalog, NEWER, "a").shard

    assert catalog.delete_step("run", 1) == [first, second]

    assert visible(store, "a") is None
    assert refusal_of(catalog, IDS, "a") == "aborted"
    assert refusal_of(catalog, NEWER, "a") == "aborted"
    assert catalog.delete_step("run", 1) == []
    assert put(catalog, SaveIds("run", 1, "save-3", 0, 2), "a").shard.save_id == "save-3"


def test_only_saves_that_were_replaced_are_collected(store: Store, catalog: Catalog) -> None:
    old = put(catalog, IDS, "a", b"old").shard
    put(catalog, NEWER, "a", b"new")

    assert catalog.collect(number_of(store, "save-2")) == []
    assert catalog.collect(number_of(store, "save-1")) == [old]


# --- states -------------------------------------------------------------------------------------


def test_an_evicted_shard_lets_go_of_its_bytes_and_takes_a_file_when_restored(
    store: Store, catalog: Catalog
) -> None:
    shard = put(catalog, IDS, "a").shard
    store.drain_log.record_verified(shard.version, "r", ["r"], NOW)

    before = catalog.move(shard.version, ShardEvent.EVICT, None, NOW)
    assert (before.state, before.inline) == (ShardState.CLEAN, True)
    assert store.read(lambda sql: queries.body_of(sql, shard.version)) is None

    assert catalog.attach(shard.version, "f" * 32).state is ShardState.EVICTED
    restored = store.read(lambda sql: queries.shard_by_version(sql, shard.version))
    assert restored is not None
    assert (restored.state, restored.file_id, restored.inline) == (
        ShardState.CLEAN,
        "f" * 32,
        False,
    )


def test_a_dirty_shard_is_never_evicted(store: Store, catalog: Catalog) -> None:
    shard = put(catalog, IDS, "a").shard

    with pytest.raises(ForbiddenTransitionError):
        catalog.move(shard.version, ShardEvent.EVICT, None, NOW)
    assert visible(store, "a") == shard


def test_a_shard_that_was_replaced_cannot_be_moved(catalog: Catalog) -> None:
    first = put(catalog, IDS, "a", b"first").shard
    put(catalog, IDS, "a", b"second")

    with pytest.raises(NotFoundError):
        catalog.move(first.version, ShardEvent.LOCAL_DAMAGE, None, NOW)


@pytest.mark.parametrize("clean", [True, False])
def test_damage_is_reported_once_and_only_where_bytes_are_lost(
    store: Store, catalog: Catalog, clean: bool
) -> None:
    shard = put(catalog, IDS, "a").shard
    if clean:
        store.drain_log.record_verified(shard.version, "r", ["r"], NOW)
    incident = IncidentRecord("integrity", "damaged", "", "run", 1, "a")

    for _ in range(2):
        catalog.move(shard.version, ShardEvent.LOCAL_DAMAGE, incident, NOW)

    found = store.read(lambda sql: queries.incidents_after(sql, 0))
    assert len(found) == (0 if clean else 1)


def test_versions_are_never_used_again(catalog: Catalog) -> None:
    versions = [put(catalog, IDS, "a", b"1").shard.version]
    catalog.delete_step("run", 1)
    versions.append(catalog.reserve_version())
    versions.append(put(catalog, SaveIds("run", 2, "s"), "a").shard.version)

    assert versions == sorted(set(versions))


# --- straight to the remote, and from it --------------------------------------------------------


def test_a_shard_sent_straight_to_the_remote_is_known_and_not_here(
    store: Store, catalog: Catalog
) -> None:
    shard = catalog.commit_remote(IDS, "a", content(b"far"), "r", NOW).shard

    assert shard.state is ShardState.EVICTED
    assert store.read(lambda sql: queries.verified_remotes(sql, shard.version)) == {"r"}
    assert catalog.commit_remote(IDS, "a", content(b"far"), "r", NOW).repeated


def test_a_shard_sent_straight_to_the_remote_replaces_none(catalog: Catalog) -> None:
    put(catalog, IDS, "a", b"here")

    with pytest.raises(CachetierError) as refusal:
        catalog.commit_remote(IDS, "a", content(b"far"), "r", NOW)
    assert refusal.value.code == "backpressure"


def adopt(catalog: Catalog, save_id: str = "theirs") -> None:
    published = Save(0, "run", 1, save_id, SaveState.PUBLISHED, 2, False, 1.0, "1", 2.0)
    far = content(b"far")
    copy = RemoteCopy("r", Stored.raw(far))
    catalog.adopt(published, [NewShard("a", 0, far, state=ShardState.EVICTED, copies=(copy,))], NOW)


def test_a_step_published_elsewhere_is_adopted_as_evicted(store: Store, catalog: Catalog) -> None:
    adopt(catalog)
    adopt(catalog)

    shard = visible(store, "a")
    assert shard is not None
    assert (shard.state, shard.save_id) == (ShardState.EVICTED, "theirs")
    assert saves(store) == {"theirs": SaveState.PUBLISHED}


def test_a_step_deleted_here_is_not_adopted_from_a_bucket_that_does_not_know_yet(
    store: Store, catalog: Catalog
) -> None:
    adopt(catalog)
    catalog.delete_step("run", 1)

    adopt(catalog)

    assert visible(store, "a") is None
    assert saves(store) == {"theirs": SaveState.DELETED}
    number = number_of(store, "theirs")
    assert store.read(lambda sql: queries.shards_of(sql, number)) == []
