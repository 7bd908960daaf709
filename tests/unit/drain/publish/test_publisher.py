"""Claiming, publishing and deleting in one bucket: two nodes, races, overwrites, lost replies."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count

import pytest
from cachetier_client.bucket_format.documents import (
    Manifest,
    ManifestState,
    SeenManifest,
    ShardEntry,
)
from cachetier_client.bucket_format.layout import Layout
from cachetier_client.bucket_format.publication import Claimant
from cachetier_client.bucket_format.stored import Content
from cachetier_client.bucket_format.uploads import object_metadata
from cachetier_client.io.digests import digest_of

from cachetier.drain.publish.publisher import (
    CROWD_RANKS,
    GIVE_WAY_SECONDS,
    SWEEPS,
    Ended,
    Located,
    LostShardsError,
    NotWhole,
    Publisher,
)
from cachetier.errors import IntegrityError, RemoteRefusedError, TransientError
from cachetier.model.lifecycle import SaveState
from cachetier.remote.bucket import Bucket
from cachetier.remote.call_policy import CallPolicy, Retries
from tests.fakes.fake_clock import FakeClock
from tests.fakes.faulty_store import FaultyObjectStore, fail, lose_reply
from tests.fakes.memory_store import MemoryObjectStore

_nonces = count(1)


def save_of(
    save_id: str,
    started_at: float = 100.0,
    *,
    world_size: int = 1,
    overwrite: bool = False,
    replaced: tuple[str, ...] = (),
) -> Claimant:
    return Claimant("run", 7, save_id, world_size, overwrite, started_at, replaced)


class World:
    """A bucket, and nodes that share it."""

    def __init__(self) -> None:
        self.objects = FaultyObjectStore(MemoryObjectStore())
        retrying = CallPolicy(self.objects, retries=Retries(sleep=lambda _seconds: None))
        self.bucket = Bucket(retrying, Layout())
        self.clock = FakeClock()
        self.publisher = self.restarted()

    def restarted(self) -> Publisher:
        """Return a publisher that remembers nothing."""
        return Publisher(self.bucket, self.clock, nonce=lambda: f"nonce-{next(_nonces)}")

    def put(self, save: Claimant, location: str, name: str, body: bytes = b"hello") -> ShardEntry:
        digest = digest_of(body)
        content = Content(len(body), digest, (digest,))
        metadata = object_metadata(save.save_id, "store", 1, content)
        key = self.bucket.layout.shard_key(save.run, location, name)
        self.objects.put(key, body, digest=digest, metadata=metadata)
        return ShardEntry.of(name, 0, content)

    def located(self, save: Claimant) -> str:
        claimed = self.publisher.claim(save)
        assert isinstance(claimed, Located)
        return claimed.location

    def whole(self, save: Claimant) -> str:
        """Claim, put a shard and write the part of each rank."""
        location = self.located(save)
        for rank in range(save.world_size):
            entry = self.put(save, location, f"shard-{rank}")
            self.publisher.write_part(save, location, rank, [entry])
        return location

    def published(self, save: Claimant) -> str:
        location = self.whole(save)
        assert self.publisher.publish(save, location) == Ended(SaveState.PUBLISHED)
        return location

    @property
    def manifest(self) -> Manifest:
        seen = self.bucket.manifest("run", 7)
        assert seen is not None
        return seen.manifest


@pytest.fixture
def world() -> World:
    return World()


# --- claiming ----------------------------------------------------------------------------------


def test_the_first_save_gets_the_plain_keys_and_keeps_them(world: World) -> None:
    assert world.located(save_of("a")) == "7"
    assert world.located(save_of("a")) == "7"
    assert world.manifest.state is ManifestState.CLAIMED


def test_a_newer_save_takes_over_at_keys_of_its_own(world: World) -> None:
    world.located(save_of("a"))

    assert world.located(save_of("b", replaced=("a",))) == "7~b"
    assert world.publisher.claim(save_of("a")) == Ended(SaveState.SUPERSEDED)


def test_a_claim_that_died_loses_to_a_whole_save_though_its_clock_was_fast(world: World) -> None:
    world.located(save_of("dead", 900))
    save = save_of("b", 100)
    location = world.whole(save)

    assert location == "7~b"
    assert world.publisher.publish(save, location) == Ended(SaveState.PUBLISHED)
    ended = world.publisher.claim(save_of("dead", 900))
    assert isinstance(ended, Ended)
    assert ended.state is SaveState.REFUSED
    assert "save b is published" in ended.message, "losing a save is told"


def test_a_save_that_its_node_saw_replaced_loses_whatever_the_clocks_say(world: World) -> None:
    world.located(save_of("a", 900))

    assert world.located(save_of("b", 100, replaced=("a",))) == "7~b"
    assert world.publisher.claim(save_of("a", 900)) == Ended(SaveState.SUPERSEDED)


def test_a_published_step_refuses_other_saves_and_says_whose_it_is(world: World) -> None:
    world.published(save_of("a"))
    ended = world.publisher.claim(save_of("b", 200))

    assert isinstance(ended, Ended)
    assert ended.state is SaveState.REFUSED
    assert "save a is published" in ended.message


def test_an_older_save_is_told_that_a_published_one_superseded_it(world: World) -> None:
    world.published(save_of("b", replaced=("a",)))
    ended = world.publisher.claim(save_of("a", overwrite=True))

    assert isinstance(ended, Ended)
    assert ended.state is SaveState.SUPERSEDED
    assert "save b is published" in ended.message


def test_a_step_that_is_deleted_may_be_claimed_anew(world: World) -> None:
    first = save_of("a")
    world.publisher.delete(first, world.published(first), set)

    assert world.publisher.claim(first) == Ended(SaveState.DELETED)
    assert world.located(save_of("b", 200)) == "7~b"


# --- parts -------------------------------------------------------------------------------------


def test_a_part_is_written_only_over_shards_that_are_there(world: World) -> None:
    save = save_of("a")
    location = world.located(save)
    entry = world.put(save, location, "there")
    missing = ShardEntry.of("missing", 0, Content(5, 5, (5,)))

    with pytest.raises(LostShardsError) as caught:
        world.publisher.write_part(save, location, 0, [entry, missing])
    assert caught.value.shards == (missing,)
    assert world.bucket.part_ranks("run", location) == set()


def test_shards_are_not_called_lost_when_the_bucket_is_gone(world: World) -> None:
    save = save_of("a")
    entry = ShardEntry.of("missing", 0, Content(5, 5, (5,)))
    location = world.located(save)

    def check() -> None:
        raise RemoteRefusedError("no bucket")

    world.bucket.objects.check = check  # type: ignore[method-assign]
    with pytest.raises(RemoteRefusedError):
        world.publisher.write_part(save, location, 0, [entry])


def test_a_part_counts_with_other_bytes_as_lost(world: World) -> None:
    save = save_of("a")
    location = world.located(save)
    entry = world.put(save, location, "shard")
    world.put(save, location, "shard", b"other")

    with pytest.raises(LostShardsError):
        world.publisher.write_part(save, location, 0, [entry])


def test_a_part_may_be_written_again_but_not_changed(world: World) -> None:
    save = save_of("a")
    location = world.located(save)
    entries = [world.put(save, location, name) for name in ("one", "two")]

    world.publisher.write_part(save, location, 0, entries)
    world.publisher.write_part(save, location, 0, entries[::-1])
    with pytest.raises(IntegrityError):
        world.publisher.write_part(save, location, 0, entries[:1])


# --- publishing --------------------------------------------------------------------------------


def test_a_step_is_published_by_whoever_finds_it_whole(world: World) -> None:
    save = save_of("a", world_size=2)
    location = world.located(save)
    for rank in range(2):
        assert isinstance(world.publisher.publish(save, location), NotWhole)
        entry = world.put(save, location, f"shard-{rank}")
        world.publisher.write_part(save, location, rank, [entry])

    assert world.publisher.publish(save, location) == Ended(SaveState.PUBLISHED)
    assert world.publisher.publish(save, location) == Ended(SaveState.PUBLISHED)
    assert [part.rank for part in world.manifest.parts] == [0, 1]
    assert [shard.name for shard in world.manifest.shards] == ["shard-0", "shard-1"]
    assert world.manifest.world_size == 2


def test_of_many_ranks_who_looked_in_vain_leaves_it_to_who_writes_the_last_part(
    world: World,
) -> None:
    save = save_of("a", world_size=CROWD_RANKS + 1)
    location = world.located(save)
    early, late = world.restarted(), world.restarted()
    for rank in range(CROWD_RANKS):
        world.publisher.write_part(save, location, rank, [world.put(save, location, f"s-{rank}")])
    assert isinstance(early.publish(save, location), NotWhole)
    late.write_part(save, location, CROWD_RANKS, [world.put(save, location, "last")])

    assert isinstance(early.publish(save, location), NotWhole)
    world.clock.advance(GIVE_WAY_SECONDS - 1)
    assert isinstance(early.publish(save, location), NotWhole)
    assert late.publish(save, location) == Ended(SaveState.PUBLISHED)
    assert early.publish(save, location) == Ended(SaveState.PUBLISHED)


def test_of_many_ranks_another_publishes_when_who_wrote_the_last_part_does_not(
    world: World,
) -> None:
    save = save_of("a", world_size=CROWD_RANKS + 1)
    location = world.located(save)
    early = world.restarted()
    assert isinstance(early.publish(save, location), NotWhole)
    world.whole(save)

    assert isinstance(early.publish(save, location), NotWhole)
    world.clock.advance(GIVE_WAY_SECONDS + 1)
    assert early.publish(save, location) == Ended(SaveState.PUBLISHED)


def test_the_manifest_pins_the_parts_it_names(world: World) -> None:
    location = world.published(save_of("a"))
    reference = world.manifest.parts[0]

    part = world.bucket.part("run", location, 0, reference.digest)
    assert (reference.shards, reference.size_bytes) == (1, 5)
    assert [shard.name for shard in part.shards] == ["shard-0"]


def test_parts_of_another_save_do_not_count(world: World) -> None:
    save, other = save_of("a", world_size=2), save_of("b", world_size=2)
    location = world.located(save)
    for rank, owner in enumerate((save, other)):
        world.publisher.write_part(owner, location, rank, [world.put(owner, location, "shard")])

    assert isinstance(world.publisher.publish(save, location), NotWhole)


def test_parts_of_another_world_size_do_not_count(world: World) -> None:
    save, smaller = save_of("a", world_size=2), save_of("a", world_size=1)
    location = world.located(save)
    for rank, owner in enumerate((save, smaller)):
        world.publisher.write_part(owner, location, rank, [world.put(owner, location, "shard")])

    assert isinstance(world.restarted().publish(save, location), NotWhole)


def test_a_damaged_part_is_never_published(world: World) -> None:
    save = save_of("a")
    location = world.whole(save)
    key = world.bucket.layout.part_key("run", location, 0)
    world.objects.put(key, b"{}", digest=digest_of(b"{}"))

    with pytest.raises(IntegrityError):
        world.restarted().publish(save, location)
    assert world.manifest.state is ManifestState.CLAIMED


def test_an_overwrite_replaces_the_published_save_once_it_is_whole(world: World) -> None:
    world.published(save_of("a", 100))
    again = save_of("b", 200, overwrite=True)
    location = world.located(again)
    assert isinstance(world.publisher.publish(again, location), NotWhole)
    assert world.manifest.save_id == "a"

    assert world.published(again) == "7~b"
    assert (world.manifest.save_id, world.manifest.location) == ("b", "7~b")
    assert "a" in world.manifest.replaces


def test_a_save_taken_over_by_a_newer_one_does_not_publish(world: World) -> None:
    older, newer = save_of("a"), save_of("b", replaced=("a",))
    location = world.whole(older)
    world.located(newer)

    assert world.publisher.publish(older, location) == Ended(SaveState.SUPERSEDED)
    assert world.manifest.state is ManifestState.CLAIMED


def test_a_save_whose_claim_is_gone_publishes_where_its_objects_are(world: World) -> None:
    save = save_of("a")
    location = world.whole(save)
    world.objects.delete(world.bucket.layout.manifest_key("run", 7))

    assert world.publisher.publish(save, location) == Ended(SaveState.PUBLISHED)
    assert world.manifest.location == location


def test_leftover_uploads_of_the_save_are_aborted_and_no_others(world: World) -> None:
    save = save_of("a")
    location = world.published(save)
    keys = ("run/7/shard-0", "run/7/theirs", "run/7/shard-0.theirs", "run/7~b/shard-0", "other/7/a")
    uploads = {key: world.objects.create_upload(key) for key in (*keys, "run/7/shard-0")}
    world.publisher.sweep(save, location, lambda names: {"shard-0"} & set(names))

    left = dict(world.objects.list_uploads(""))
    assert left == {key: uploads[key] for key in keys[1:]}


def test_uploads_that_the_store_only_says_it_aborted_are_aborted_again(world: World) -> None:
    save = save_of("a")
    location = world.published(save)
    world.objects.create_upload("run/7/shard-0")
    abort, said = world.objects.abort_upload, []

    def deaf(key: str, upload_id: str) -> None:
        said.append(key)
        if len(said) == 2:
            abort(key, upload_id)

    world.objects.abort_upload = deaf  # type: ignore[method-assign]
    world.publisher.sweep(save, location, set)

    assert said == ["run/7/shard-0"] * 2
    assert list(world.objects.list_uploads("")) == []


def test_a_store_that_lists_no_uploads_is_left_alone(world: World) -> None:
    save = save_of("a")
    location = world.published(save)
    world.objects.create_upload("run/7/shard-0")
    world.objects.add(fail("list_uploads", 1, RemoteRefusedError))
    world.publisher.sweep(save, location, set)

    assert not world.objects.pending
    assert world.objects.calls["abort_upload"] == 0


def test_of_two_nodes_that_publish_at_once_both_see_it_published(world: World) -> None:
    save = save_of("a")
    location = world.whole(save)
    interrupted = before_put(
        world, ".cachetier/manifest.json", lambda: world.publisher.publish(save, location)
    )

    assert world.publisher.publish(save, location) == Ended(SaveState.PUBLISHED)
    assert interrupted == [Ended(SaveState.PUBLISHED)]


def test_of_two_saves_that_claim_at_once_each_has_keys_of_its_own(world: World) -> None:
    claims = before_put(
        world, ".cachetier/manifest.json", lambda: world.publisher.claim(save_of("b", 200))
    )

    assert world.publisher.claim(save_of("a", 100)) == Located("7~a")
    assert claims == [Located("7")]


def test_a_manifest_that_changes_all_the_time_is_left_for_later(world: World) -> None:
    def lose(_manifest: Manifest, _over: SeenManifest | None) -> None:
        return None

    world.bucket.put_manifest = lose  # type: ignore[method-assign,assignment]
    with pytest.raises(TransientError):
        world.publisher.claim(save_of("a"))


@pytest.mark.parametrize("call", range(1, 5))
def test_lost_replies_cost_nothing(world: World, call: int) -> None:
    world.objects.add(lose_reply("put", call))  # claim, shard, part, manifest
    save = save_of("a")
    try:
        world.published(save)
    except TransientError:
        world.published(save)  # the test's own put of the shard is not repeated by itself

    assert not world.objects.pending
    assert world.manifest.state is ManifestState.PUBLISHED


# --- deleting ----------------------------------------------------------------------------------


def test_a_deleted_save_leaves_its_tombstone_and_nothing_else(world: World) -> None:
    save = save_of("a")
    location = world.published(save)
    world.objects.create_upload("run/7/unfinished")
    world.publisher.delete(save, location, set)
    world.publisher.delete(save, location, set)

    assert world.manifest.state is ManifestState.DELETED
    assert world.objects.list("").keys == ("run/7/.cachetier/manifest.json",)
    assert list(world.objects.list_uploads("")) == []


def test_a_delete_leaves_what_belongs_to_another_save(world: World) -> None:
    older, newer = save_of("a", 100), save_of("b", 200, overwrite=True)
    world.published(older)
    world.published(newer)
    world.put(save_of("x"), "77", "another-step")
    world.publisher.delete(older, "7", set)

    assert world.manifest.save_id == "b"
    assert world.manifest.state is ManifestState.PUBLISHED
    assert set(world.objects.list("").keys) == {
        "run/7/.cachetier/manifest.json",
        "run/77/another-step",
        "run/7~b/.cachetier/rank-0.json",
        "run/7~b/shard-0",
    }


def test_a_delete_of_a_newer_save_keeps_the_keys_of_the_first(world: World) -> None:
    older, newer = save_of("a", 100), save_of("b", 200)
    world.whole(older)
    world.publisher.delete(newer, world.published(newer), set)

    assert world.manifest.state is ManifestState.DELETED
    assert "run/7/shard-0" in world.objects.list("").keys
    assert world.objects.list("run/7~b/").keys == ()


def test_a_save_without_a_manifest_is_fenced_off_when_it_is_deleted(world: World) -> None:
    save = save_of("a")
    location = world.whole(save)
    world.objects.delete(world.bucket.layout.manifest_key("run", 7))
    world.publisher.delete(save, location, set)

    assert world.publisher.claim(save) == Ended(SaveState.DELETED)


def before_put(world: World, suffix: str, act: Callable[[], object]) -> list[object]:
    """Let somebody else act just before the next put under ``suffix`` reaches the store."""
    results: list[object] = []
    original = world.objects.put

    def put(key: str, *arguments: object, **options: object) -> object:
        if key.endswith(suffix) and not results:
            world.objects.put = original  # type: ignore[method-assign]
            results.append(act())
        return original(key, *arguments, **options)  # type: ignore[arg-type]

    world.objects.put = put  # type: ignore[method-assign,assignment]
    return results


# --- following rank 0 --------------------------------------------------------------------------


def test_rank_0_has_sealed_once_its_part_is_there(world: World) -> None:
    save = save_of("a", world_size=2)
    location = world.located(save)
    assert world.publisher.follow(save, location) is False

    entry = world.put(save, location, "other")
    world.publisher.write_part(save, location, 1, [entry])
    assert world.restarted().follow(save, location) is False
    world.publisher.write_part(save, location, 0, [world.put(save, location, "own")])

    assert world.restarted().follow(save, location) is True


def test_rank_0_of_another_save_does_not_count(world: World) -> None:
    other, save = save_of("other", world_size=2), save_of("a", world_size=2)
    location = world.located(save)
    world.publisher.write_part(other, location, 0, [])

    assert world.restarted().follow(save, location) is False


def test_whoever_waits_for_rank_0_hears_that_the_save_has_ended(world: World) -> None:
    save = save_of("a", world_size=2)
    location = world.located(save)
    world.located(save_of("b", replaced=("a",)))

    assert world.publisher.follow(save, location) == Ended(SaveState.SUPERSEDED)


# --- races that do not end ---------------------------------------------------------------------


def lose_every_race(world: World) -> None:
    def lost(manifest: Manifest, over: SeenManifest | None) -> SeenManifest | None:
        return None

    world.bucket.put_manifest = lost  # type: ignore[method-assign]


def test_a_step_whose_manifest_others_keep_changing_is_published_later(world: World) -> None:
    save = save_of("a")
    location = world.whole(save)
    lose_every_race(world)

    with pytest.raises(TransientError):
        world.restarted().publish(save, location)

    assert world.manifest.state is ManifestState.CLAIMED


def test_nothing_of_a_save_is_deleted_before_its_tombstone_is_there(world: World) -> None:
    save = save_of("a")
    location = world.published(save)
    keys = world.objects.list("").keys
    lose_every_race(world)

    with pytest.raises(TransientError):
        world.publisher.delete(save, location, set)

    assert world.objects.list("").keys == keys


def test_uploads_that_stay_though_they_were_aborted_are_swept_again_later(world: World) -> None:
    save = save_of("a")
    location = world.published(save)
    upload = world.objects.create_upload("run/7/shard-0")
    asked: list[str] = []

    def deaf(key: str, upload_id: str) -> None:
        asked.append(upload_id)

    world.bucket.objects.abort_upload = deaf  # type: ignore[method-assign]
    with pytest.raises(TransientError, match="cannot be removed"):
        world.publisher.sweep(save, location, set)

    assert asked == [upload] * SWEEPS


# --- what documents fix ------------------------------------------------------------------------


def test_the_part_of_a_rank_fixes_the_bytes_that_it_lists(world: World) -> None:
    save = save_of("a", world_size=2)
    location = world.located(save)
    assert not world.publisher.is_fixed(save, location, 0, "shard-0", 1)
    entry = world.put(save, location, "shard-0")
    world.publisher.write_part(save, location, 0, [entry])

    assert not world.publisher.is_fixed(save, location, 0, "shard-0", digest_of(b"hello"))
    assert world.publisher.is_fixed(save, location, 0, "shard-0", digest_of(b"other"))
    assert not world.publisher.is_fixed(save, location, 1, "shard-1", digest_of(b"other"))


def test_the_manifest_fixes_the_bytes_of_its_own_save(world: World) -> None:
    save, without_part = save_of("a"), 9
    location = world.published(save)

    assert not world.publisher.is_fixed(
        save, location, without_part, "shard-0", digest_of(b"hello")
    )
    assert world.publisher.is_fixed(save, location, without_part, "shard-0", digest_of(b"other"))
    another = save_of("b")
    assert not world.publisher.is_fixed(another, "7~b", without_part, "shard-0", 1)
