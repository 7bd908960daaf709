"""The catalog's rules: what a put, a seal, an abort and a delete may do, and to what."""

from __future__ import annotations

import pytest
from cachetier_client.bucket_format.documents import Manifest, ManifestState
from cachetier_client.bucket_format.stored import NO_FACTS, Content, Stored
from cachetier_client.identity.names import SaveIds
from cachetier_client.io.digests import digest_of

from cachetier.errors import CachetierError, NotFoundError
from cachetier.local.catalog import copies, manifests, notes, parts, saves, shards
from cachetier.local.catalog.parts import Committed
from cachetier.local.catalog.rows import IncidentRecord, NewShard, RemoteCopy
from cachetier.local.store import Store
from cachetier.model.checkpoint import Save
from cachetier.model.lifecycle import ForbiddenTransitionError, PartState, SaveState, ShardState
from cachetier.model.shard import Shard

IDS = SaveIds("run", 1, "save-1", 0, 2)
OTHER_RANK = SaveIds("run", 1, "save-1", 1, 2)
NEWER = SaveIds("run", 1, "save-2", 0, 2)
NOW = 5.0


def content(data: bytes) -> Content:
    return Content(len(data), digest_of(data), (digest_of(data),))


def put(store: Store, ids: SaveIds, name: str, data: bytes = b"bytes") -> Committed:
    new = NewShard(name, ids.rank, content(data), body=data)
    return store.write(parts.commit_shard, store.policy, ids, new, NOW)


def refusal_of(store: Store, ids: SaveIds, name: str, data: bytes = b"bytes") -> str:
    with pytest.raises(CachetierError) as refusal:
        put(store, ids, name, data)
    return refusal.value.code


def states(store: Store, step: int = 1) -> dict[str, SaveState]:
    found = store.read(lambda sql: saves.saves_of(sql, "run", step))
    return {save.save_id: save.state for save in found}


def number_of(store: Store, save_id: str) -> int:
    save = store.read(lambda sql: saves.save_named(sql, "run", 1, save_id))
    assert save is not None
    return save.number


def publish(store: Store, save_id: str) -> None:
    store.write(
        copies.record_outcome,
        store.policy,
        number_of(store, save_id),
        SaveState.PUBLISHED,
        None,
        NOW,
    )


def part_states(store: Store, save_id: str = "save-1") -> dict[int, PartState]:
    number = number_of(store, save_id)
    return {part.rank: part.state for part in store.read(lambda s: saves.parts_of(s, number))}


def visible(store: Store, name: str) -> Shard | None:
    return store.read(lambda sql: saves.visible_shard(sql, "run", 1, name))


# --- puts ---------------------------------------------------------------------------------------


def test_a_put_begins_its_save_and_opens_its_part(store: Store) -> None:
    shard = put(store, IDS, "a").shard

    assert (shard.state, shard.inline, shard.rank) == (ShardState.DIRTY, True, 0)
    assert states(store) == {"save-1": SaveState.OPEN}
    assert part_states(store) == {0: PartState.OPEN}
    assert visible(store, "a") == shard


def test_the_same_bytes_again_get_the_same_receipt(store: Store) -> None:
    first = put(store, IDS, "a")
    again = put(store, IDS, "a")

    assert again == Committed(first.shard, repeated=True)


def test_other_bytes_replace_the_first_until_the_rank_seals(store: Store) -> None:
    first = put(store, IDS, "a", b"first").shard
    second = put(store, IDS, "a", b"second")

    assert second.replaced == (first,)
    assert second.shard.version > first.version
    assert visible(store, "a") == second.shard
    assert store.read(lambda sql: shards.body_of(sql, first.version)) is None


def test_after_the_seal_the_same_bytes_get_their_receipt_and_others_are_refused(
    store: Store,
) -> None:
    first = put(store, IDS, "a").shard
    store.write(parts.seal, store.policy, IDS, 2, NOW)

    assert put(store, IDS, "a").shard == first
    assert refusal_of(store, IDS, "a", b"other") == "sealed"
    assert refusal_of(store, IDS, "new", b"new") == "sealed"
    assert put(store, OTHER_RANK, "b").shard.rank == 1, "another rank's part is its own"


def test_a_name_is_one_ranks(store: Store) -> None:
    first = put(store, IDS, "a").shard

    assert refusal_of(store, OTHER_RANK, "a", b"other") == "sealed"
    assert put(store, OTHER_RANK, "a").shard == first, "the same bytes are no conflict"


def test_a_newer_save_supersedes_an_open_one(store: Store) -> None:
    put(store, IDS, "a", b"old")
    put(store, NEWER, "a", b"new")

    assert states(store) == {"save-1": SaveState.SUPERSEDED, "save-2": SaveState.OPEN}
    assert refusal_of(store, IDS, "a", b"late") == "save_superseded"
    found = visible(store, "a")
    assert found is not None
    assert found.save_id == "save-2"


def test_a_published_step_wants_an_overwrite_and_stays_visible_until_it_is_replaced(
    store: Store,
) -> None:
    old = put(store, IDS, "a", b"old").shard
    publish(store, "save-1")

    assert refusal_of(store, NEWER, "a", b"new") == "step_published"
    overwrite = SaveIds("run", 1, "save-2", 0, 2, overwrite=True)
    new = put(store, overwrite, "a", b"new").shard
    assert visible(store, "a") == old
    publish(store, "save-2")
    assert visible(store, "a") == new
    assert states(store) == {"save-1": SaveState.SUPERSEDED, "save-2": SaveState.PUBLISHED}


def test_an_earlier_save_that_is_the_step_again_replaces_the_later_one(store: Store) -> None:
    put(store, IDS, "a", b"old")
    publish(store, "save-1")
    put(store, SaveIds("run", 1, "save-2", 0, 2, overwrite=True), "a", b"new")
    publish(store, "save-2")
    seen = Manifest(
        state=ManifestState.PUBLISHED,
        run="run",
        step=1,
        save_id="save-1",
        location="1",
        nonce="nonce",
        started_at=1.0,
        world_size=2,
    )
    before = store.read(manifests.settled, "run", 1)

    learned = store.write(manifests.learn, store.policy, seen, before, NOW)

    assert learned is not None
    assert [save.save_id for save in learned.ended] == ["save-2"]
    assert states(store) == {"save-1": SaveState.PUBLISHED, "save-2": SaveState.SUPERSEDED}


def test_a_published_save_takes_no_other_bytes(store: Store) -> None:
    put(store, IDS, "a")
    publish(store, "save-1")

    assert refusal_of(store, IDS, "a", b"other") == "sealed"
    assert refusal_of(store, IDS, "b") == "sealed"
    assert put(store, IDS, "a").repeated


def test_a_put_that_is_refused_begins_no_save(store: Store) -> None:
    put(store, IDS, "a")
    publish(store, "save-1")
    refusal_of(store, NEWER, "a")

    assert list(states(store)) == ["save-1"]


def test_a_quarantined_shard_may_be_put_again(store: Store) -> None:
    shard = put(store, IDS, "a").shard
    store.write(shards.record_damage, shard.version, None, NOW)

    again = put(store, IDS, "a")

    assert not again.repeated
    assert again.shard.state is ShardState.DIRTY
    assert [replaced.version for replaced in again.replaced] == [shard.version]


# --- seals and aborts ---------------------------------------------------------------------------


def test_a_seal_says_which_ranks_have_sealed_here(store: Store) -> None:
    assert store.write(parts.seal, store.policy, OTHER_RANK, 2, NOW) == [1]
    assert store.write(parts.seal, store.policy, IDS, 2, NOW) == [0, 1]
    assert store.write(parts.seal, store.policy, IDS, 2, NOW) == [0, 1], (
        "sealing twice changes nothing"
    )


def test_a_part_is_known_once_it_is_sealed_and_of_a_save_that_ended_every_one_is(
    store: Store,
) -> None:
    def knows(ids: SaveIds) -> bool:
        return store.read(parts.knows, ids.run, ids.step, ids.save_id, ids.rank)

    assert not knows(IDS)
    put(store, IDS, "a")
    assert not knows(IDS)
    store.write(parts.seal, store.policy, IDS, None, NOW)
    assert (knows(IDS), knows(OTHER_RANK), knows(NEWER)) == (True, False, False)
    publish(store, "save-1")
    assert knows(OTHER_RANK)


def test_what_a_taken_over_save_replaced_is_kept_when_nobody_can_say_it_again(
    store: Store,
) -> None:
    for ids, replaces in ((IDS, ("save-0",)), (OTHER_RANK, ())):
        store.write(parts.take_over, store.policy, ids, replaces, NOW)

    save = store.read(saves.save_named, "run", 1, "save-1")
    assert save is not None
    assert save.replaces == ("save-0",)


def test_an_abort_takes_back_one_ranks_shards(store: Store) -> None:
    mine = put(store, IDS, "a").shard
    put(store, OTHER_RANK, "b")

    assert store.write(parts.abort_rank, IDS) == [mine]

    assert visible(store, "a") is None
    assert visible(store, "b") is not None
    assert part_states(store) == {0: PartState.ABORTED, 1: PartState.OPEN}


def test_a_new_put_reopens_an_aborted_part(store: Store) -> None:
    put(store, IDS, "a")
    store.write(parts.abort_rank, IDS)

    put(store, IDS, "a")

    assert part_states(store) == {0: PartState.OPEN}


def test_what_is_sealed_cannot_be_aborted(store: Store) -> None:
    put(store, IDS, "a")
    store.write(parts.seal, store.policy, IDS, 2, NOW)

    with pytest.raises(CachetierError) as refusal:
        store.write(parts.abort_rank, IDS)
    assert refusal.value.code == "sealed"


def test_the_abort_of_a_save_that_never_began_disturbs_no_other(store: Store) -> None:
    put(store, IDS, "a")

    assert store.write(parts.abort_rank, NEWER) == []

    assert states(store) == {"save-1": SaveState.OPEN}


# --- deletes ------------------------------------------------------------------------------------


def test_one_shard_of_an_unsealed_part_can_be_deleted(store: Store) -> None:
    shard = put(store, IDS, "a").shard

    assert store.write(parts.delete_shard, "run", 1, "a") == shard
    assert visible(store, "a") is None
    with pytest.raises(NotFoundError):
        store.write(parts.delete_shard, "run", 1, "a")


def test_a_shard_of_a_sealed_part_cannot_be_deleted_alone(store: Store) -> None:
    put(store, IDS, "a")
    store.write(parts.seal, store.policy, IDS, 2, NOW)

    with pytest.raises(CachetierError) as refusal:
        store.write(parts.delete_shard, "run", 1, "a")
    assert refusal.value.code == "sealed"


def test_a_shard_of_a_step_published_elsewhere_cannot_be_deleted_alone(store: Store) -> None:
    """Its part was sealed on another node; it would only come back from the bucket."""
    adopt(store)

    with pytest.raises(CachetierError) as refusal:
        store.write(parts.delete_shard, "run", 1, "a")
    assert refusal.value.code == "sealed"
    assert visible(store, "a") is not None


def test_a_deleted_step_is_gone_for_good(store: Store) -> None:
    first = put(store, IDS, "a").shard
    second = put(store, NEWER, "a").shard

    assert store.write(saves.delete_step, "run", 1) == [first, second]

    assert visible(store, "a") is None
    assert refusal_of(store, IDS, "a") == "aborted"
    assert refusal_of(store, NEWER, "a") == "aborted"
    assert store.write(saves.delete_step, "run", 1) == []
    assert put(store, SaveIds("run", 1, "save-3", 0, 2), "a").shard.save_id == "save-3"


def test_only_saves_that_were_replaced_are_collected(store: Store) -> None:
    old = put(store, IDS, "a", b"old").shard
    put(store, NEWER, "a", b"new")

    assert store.write(saves.delete_superfluous_shards, number_of(store, "save-2")) == []
    assert store.write(saves.delete_superfluous_shards, number_of(store, "save-1")) == [old]


# --- states -------------------------------------------------------------------------------------


def test_an_evicted_shard_lets_go_of_its_bytes_and_takes_a_file_when_restored(store: Store) -> None:
    shard = put(store, IDS, "a").shard
    store.write(copies.record_verified, shard.version, "r", ["r"], NOW)

    before = store.write(shards.evict, shard.version)
    assert (before.state, before.inline) == (ShardState.CLEAN, True)
    assert store.read(lambda sql: shards.body_of(sql, shard.version)) is None

    assert store.write(shards.attach, shard.version, "f" * 32).state is ShardState.EVICTED
    restored = store.read(lambda sql: shards.shard_by_version(sql, shard.version))
    assert restored is not None
    assert (restored.state, restored.file_id, restored.inline) == (
        ShardState.CLEAN,
        "f" * 32,
        False,
    )


def test_a_dirty_shard_is_never_evicted(store: Store) -> None:
    shard = put(store, IDS, "a").shard

    with pytest.raises(ForbiddenTransitionError):
        store.write(shards.evict, shard.version)
    assert visible(store, "a") == shard


def test_a_shard_that_was_replaced_cannot_be_moved(store: Store) -> None:
    first = put(store, IDS, "a", b"first").shard
    put(store, IDS, "a", b"second")

    with pytest.raises(NotFoundError):
        store.write(shards.record_damage, first.version, None, NOW)


@pytest.mark.parametrize("clean", [True, False])
def test_damage_is_reported_once_and_only_where_bytes_are_lost(store: Store, clean: bool) -> None:
    shard = put(store, IDS, "a").shard
    if clean:
        store.write(copies.record_verified, shard.version, "r", ["r"], NOW)
    incident = IncidentRecord("integrity", "damaged", "", "run", 1, "a")

    for _ in range(2):
        store.write(shards.record_damage, shard.version, incident, NOW)

    found = store.read(lambda sql: notes.incidents_after(sql, 0))
    assert len(found) == (0 if clean else 1)


def test_versions_are_never_used_again(store: Store) -> None:
    versions = [put(store, IDS, "a", b"1").shard.version]
    store.write(saves.delete_step, "run", 1)
    versions.append(store.write(parts.reserve_version))
    versions.append(put(store, SaveIds("run", 2, "s"), "a").shard.version)

    assert versions == sorted(set(versions))


# --- straight to the remote, and from it --------------------------------------------------------


def far() -> NewShard:
    return NewShard.at_remote("r", "a", IDS.rank, content(b"far"), NO_FACTS)


def test_a_shard_sent_straight_to_the_remote_is_known_and_not_here(store: Store) -> None:
    shard = store.write(parts.commit_remote, store.policy, IDS, far(), NOW).shard

    assert shard.state is ShardState.EVICTED
    assert store.read(lambda sql: shards.verified_remotes(sql, shard.version)) == {"r"}
    assert store.write(parts.commit_remote, store.policy, IDS, far(), NOW).repeated


def test_a_shard_sent_straight_to_the_remote_replaces_none(store: Store) -> None:
    put(store, IDS, "a", b"here")

    with pytest.raises(CachetierError) as refusal:
        store.write(parts.commit_remote, store.policy, IDS, far(), NOW)
    assert refusal.value.code == "backpressure"


def adopt(store: Store, save_id: str = "theirs") -> None:
    published = Save(0, "run", 1, save_id, SaveState.PUBLISHED, 2, False, 1.0, "1", 2.0)
    far = content(b"far")
    copy = RemoteCopy("r", Stored.raw(far))
    store.write(
        manifests.adopt,
        store.policy,
        published,
        [NewShard("a", 0, far, state=ShardState.EVICTED, copies=(copy,))],
        NOW,
    )


def test_a_step_published_elsewhere_is_adopted_as_evicted(store: Store) -> None:
    adopt(store)
    adopt(store)

    shard = visible(store, "a")
    assert shard is not None
    assert (shard.state, shard.save_id) == (ShardState.EVICTED, "theirs")
    assert states(store) == {"theirs": SaveState.PUBLISHED}


def test_a_step_deleted_here_is_not_adopted_from_a_bucket_that_does_not_know_yet(
    store: Store,
) -> None:
    adopt(store)
    store.write(saves.delete_step, "run", 1)

    adopt(store)

    assert visible(store, "a") is None
    assert states(store) == {"theirs": SaveState.DELETED}
    number = number_of(store, "theirs")
    assert store.read(lambda sql: shards.shards_of(sql, number)) == []


def test_nothing_is_taken_back_from_a_rank_that_sealed_here(store: Store) -> None:
    put(store, IDS, "x")
    store.write(parts.seal, store.policy, IDS, 1, NOW)

    assert store.write(parts.take_back, IDS, ["x"]) == []

    assert store.read(saves.visible_shard, "run", 1, "x") is not None


def test_nothing_is_taken_back_from_a_save_that_is_not_known_here(store: Store) -> None:
    assert store.write(parts.take_back, IDS, ["x"]) == []
