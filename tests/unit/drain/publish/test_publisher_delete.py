"""Deleting a save takes what is its own, whatever lies between, and however often it begins."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from cachetier_client.bucket_format.documents import ManifestState, ShardEntry
from cachetier_client.bucket_format.layout import Layout
from cachetier_client.bucket_format.publication import Claimant
from cachetier_client.bucket_format.stored import InPack, Stored
from cachetier_client.bucket_format.uploads import object_metadata
from cachetier_client.io.digests import digest_of

from cachetier.drain.publish.publisher import Ended
from cachetier.errors import RemoteRefusedError, TransientError
from cachetier.model.lifecycle import SaveState
from cachetier.remote.wrapped import Operation
from tests.fakes.faulty_store import Fault, fail, lose_reply
from tests.unit.drain.publish.test_publisher import World, before_put, save_of, world

__all__ = ["world"]

TOMBSTONE = "run/7/.cachetier/manifest.json"
README = "run/7/README.txt"


def foreign(world: World, key: str, body: bytes = b"not ours") -> str:
    world.objects.put(key, body, digest=digest_of(body))
    return key


def keys(world: World) -> set[str]:
    return set(world.objects.list("").keys)


def test_what_lies_between_the_objects_of_a_save_outlives_them(world: World) -> None:
    save = save_of("a")
    location = world.published(save)
    between = (README, "run/7/shard-0/notes", "run/7/model/video.mp4")
    kept = {foreign(world, key) for key in between}

    assert world.publisher.delete(save, location, set) == tuple(sorted(kept))
    assert world.publisher.delete(save, location, set) == tuple(sorted(kept))
    assert keys(world) == {TOMBSTONE, *kept}


def test_objects_that_no_part_names_go_if_they_bear_the_id_of_the_save(world: World) -> None:
    save = save_of("a", world_size=2)
    location = world.whole(save_of("a"))
    world.put(save, location, "of-a-rank-that-died")
    world.put(save_of("x"), location, "of-another-save")

    assert world.publisher.delete(save, location, set) == ("run/7/of-another-save",)
    assert keys(world) == {TOMBSTONE, "run/7/of-another-save"}


def test_an_object_in_the_place_of_a_shard_that_was_never_sent_stays(world: World) -> None:
    """A conflict: the drain refused to write over it."""
    save = save_of("a")
    location = world.located(save)
    key = foreign(world, "run/7/shard-0")

    assert world.publisher.delete(save, location, {"shard-0"}.intersection) == (key,)
    assert keys(world) == {TOMBSTONE, key}


def test_no_object_that_a_part_names_costs_a_request_more(world: World) -> None:
    save = save_of("a", world_size=3)
    location = world.published(save)
    foreign(world, README)
    before = world.objects.calls.copy()
    world.publisher.delete(save, location, set)

    spent = world.objects.calls - before
    assert spent["delete"] == 3 + 3
    assert spent["get"] == 1 + 3, "the manifest, and each part"
    assert spent["head"] == 1 + 1, "the manifest, and what no part names"


def test_a_damaged_part_names_nothing_and_its_shards_go_all_the_same(world: World) -> None:
    save = save_of("a")
    location = world.published(save)
    foreign(world, "run/7/.cachetier/rank-0.json", b"{}")
    foreign(world, README)

    assert world.publisher.delete(save, location, set) == (README,)
    assert keys(world) == {TOMBSTONE, README}


def test_the_part_of_another_save_at_the_same_place_stays_with_all_that_it_names(
    world: World,
) -> None:
    """Somebody removed the manifest, and the next save of the step began at the plain keys too."""
    save, other = save_of("a"), save_of("b", 200)
    location = world.published(save)
    world.objects.delete(TOMBSTONE)
    assert world.located(other) == location
    world.objects.delete("run/7/.cachetier/rank-0.json")
    shard, inside = world.put(other, location, "theirs"), packed(world, other, location)
    world.publisher.write_part(other, location, 0, [shard, inside])
    theirs = ("run/7/.cachetier/pack-0-00000000000000aa", "run/7/.cachetier/rank-0.json")

    assert world.publisher.delete(save, location, set) == (*theirs, "run/7/theirs")
    assert world.publisher.publish(other, location) == Ended(SaveState.PUBLISHED)
    assert keys(world) == {TOMBSTONE, *theirs, "run/7/theirs"}


def test_what_may_not_be_looked_at_stays_and_a_part_that_may_not_be_read_names_nothing(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    save = save_of("a")
    location = world.published(save)
    foreign(world, README)
    refuse(world, monkeypatch, "head", README)
    refuse(world, monkeypatch, "get", "run/7/.cachetier/rank-0.json")

    assert world.publisher.delete(save, location, set) == (README,)
    assert keys(world) == {TOMBSTONE, README}


def test_a_remote_that_refuses_every_look_does_not_say_whose_anything_is(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    save = save_of("a")
    location = world.published(save)
    foreign(world, README)
    before = keys(world)
    refuse(world, monkeypatch, "head", README, TOMBSTONE, after=1)

    with pytest.raises(RemoteRefusedError):
        world.publisher.delete(save, location, set)
    assert keys(world) == before


def packed(world: World, save: Claimant, location: str) -> ShardEntry:
    """Put a pack with one shard in it."""
    pack, inside = "pack-0-00000000000000aa", world.put(save, location, "passing")
    world.objects.delete("run/7/passing")
    stored = Stored.raw(inside.content())
    held = Stored(stored.codec, 5, stored.digest, (), 0, InPack(pack, 0, 5, stored.digest))
    metadata = object_metadata(save.save_id, "store", 0, inside.content())
    body, key = b"hello", world.bucket.layout.pack_key(save.run, location, pack)
    world.objects.put(key, body, digest=digest_of(body), metadata=metadata)
    return ShardEntry.of("inside", 0, inside.content(), held)


def refuse(
    world: World, monkeypatch: pytest.MonkeyPatch, operation: str, *closed: str, after: int = 0
) -> None:
    """Refuse an operation on some keys, after it was made so often."""
    inner, made = getattr(world.objects, operation), []

    def refusing(key: str, *arguments: object) -> object:
        made.append(key)
        if key in closed and len(made) > after:
            raise RemoteRefusedError("Access Denied", key=key)
        return inner(key, *arguments)

    monkeypatch.setattr(world.objects, operation, refusing)


CUTS: list[tuple[Operation, int]] = [
    *(("delete", call) for call in range(1, 5)),
    *(("head", call) for call in range(1, 3)),
    *(("get", call) for call in range(1, 4)),
    ("list", 1),
    ("put", 1),
]


@pytest.mark.parametrize("cut", [fail, lose_reply])
@pytest.mark.parametrize(("operation", "call"), CUTS)
def test_a_delete_that_was_cut_short_is_finished_by_the_next(
    world: World, cut: Callable[[Operation, int], Fault], operation: Operation, call: int
) -> None:
    save = save_of("a", world_size=2)
    location = world.published(save)
    foreign(world, README)
    retried, world.bucket.objects = world.bucket.objects, world.objects
    world.objects.add(cut(operation, world.objects.calls[operation] + call))
    with pytest.raises(TransientError):
        world.publisher.delete(save, location, set)
    world.bucket.objects = retried

    assert not world.objects.pending
    assert world.restarted().delete(save, location, set) == (README,)
    assert keys(world) == {TOMBSTONE, README}


def test_parts_go_after_all_that_they_name(world: World) -> None:
    save = save_of("a", world_size=2)
    location = world.published(save)
    gone: list[str] = []
    delete = world.objects.delete

    def told(key: str, etag: str | None = None) -> None:
        gone.append(key)
        delete(key, etag)

    world.objects.delete = told  # type: ignore[method-assign]
    world.publisher.delete(save, location, set)

    assert gone == [
        "run/7/shard-0",
        "run/7/shard-1",
        "run/7/.cachetier/rank-0.json",
        "run/7/.cachetier/rank-1.json",
    ]


def test_packs_and_pending_seals_go_without_a_look(world: World) -> None:
    save = save_of("a")
    location = world.located(save)
    foreign(world, "run/7/.cachetier/pending-0.json", b"{}")
    foreign(world, "run/7/inside", b"under the name of a packed shard")
    entry = packed(world, save, location)
    world.publisher.write_part(save, location, 0, [entry])

    assert world.publisher.delete(save, location, set) == ("run/7/inside",)
    assert keys(world) == {TOMBSTONE, "run/7/inside"}


def test_a_save_that_is_spread_leaves_what_lies_between_under_every_prefix(world: World) -> None:
    world.bucket.layout = Layout(spread=True)
    save = save_of("a", world_size=4)
    location = world.published(save)
    prefixes = world.bucket.layout.shard_prefixes("run", location)
    kept = {foreign(world, f"{prefix}README.txt") for prefix in prefixes}

    assert set(world.publisher.delete(save, location, set)) == kept
    assert keys(world) == {TOMBSTONE, *kept}


def test_a_publication_between_the_look_and_the_tombstone_is_deleted_as_well(world: World) -> None:
    save = save_of("a")
    location = world.whole(save)
    published = before_put(
        world, "manifest.json", lambda: world.restarted().publish(save, location)
    )
    world.publisher.delete(save, location, set)

    assert published == [Ended(SaveState.PUBLISHED)]
    assert world.manifest.state is ManifestState.DELETED
    assert keys(world) == {TOMBSTONE}
