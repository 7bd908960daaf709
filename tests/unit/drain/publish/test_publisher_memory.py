"""What a publisher wrote itself is not read again, and being out of date costs a refusal."""

from __future__ import annotations

from dataclasses import replace

import pytest
from cachetier_client.bucket_format.documents import ManifestState, SeenManifest
from cachetier_client.bucket_format.publication import claim, part_of
from cachetier_client.io.digests import digest_of, to_hex

from cachetier.drain.publish import own_writes
from cachetier.drain.publish.own_writes import CLAIMS, FRESH_SECONDS, PARTS_BYTES, OwnWrites
from cachetier.drain.publish.publisher import Ended, Located, NotWhole
from cachetier.errors import IntegrityError
from cachetier.model.lifecycle import SaveState
from tests.fakes.fake_clock import FakeClock
from tests.unit.drain.publish.test_publisher import World, before_put, save_of


@pytest.fixture
def world() -> World:
    return World()


def reads(world: World) -> int:
    """Return how often anything was read or listed."""
    return sum(world.objects.calls[name] for name in ("head", "get", "list"))


def test_what_was_claimed_and_written_here_is_published_in_one_request(world: World) -> None:
    save = save_of("a", world_size=3)
    location = world.whole(save)
    before = reads(world), world.objects.calls["put"]

    assert world.publisher.publish(save, location) == Ended(SaveState.PUBLISHED)
    assert (reads(world), world.objects.calls["put"]) == (before[0], before[1] + 1)
    assert [part.rank for part in world.manifest.parts] == [0, 1, 2]


def test_it_publishes_the_same_manifest_as_one_that_reads(world: World) -> None:
    save, again = save_of("a"), World()
    world.publisher.publish(save, world.whole(save))
    again.restarted().publish(save, again.whole(save))

    theirs = again.manifest
    moved = replace(world.manifest, nonce=theirs.nonce, published_at=theirs.published_at)
    assert moved == theirs


def test_a_claim_that_was_taken_over_is_noticed(world: World) -> None:
    older, newer = save_of("a"), save_of("b", replaced=("a",))
    location = world.whole(older)
    assert world.restarted().claim(newer) == Located("7~b")

    assert world.publisher.publish(older, location) == Ended(SaveState.SUPERSEDED)
    assert world.manifest.save_id == "b"


def test_a_claim_taken_over_at_the_last_instant_is_noticed(world: World) -> None:
    older, newer = save_of("a"), save_of("b", replaced=("a",))
    location = world.whole(older)
    rival = world.restarted()
    before_put(world, ".cachetier/manifest.json", lambda: rival.claim(newer))

    assert world.publisher.publish(older, location) == Ended(SaveState.SUPERSEDED)
    assert (world.manifest.save_id, world.manifest.state) == ("b", ManifestState.CLAIMED)


def test_a_step_deleted_meanwhile_stays_deleted(world: World) -> None:
    save = save_of("a")
    location = world.whole(save)
    world.restarted().delete(save, location, set)

    assert world.publisher.publish(save, location) == Ended(SaveState.DELETED)
    assert world.manifest.state is ManifestState.DELETED


def test_a_step_that_another_node_published_first_is_published(world: World) -> None:
    save = save_of("a")
    location = world.whole(save)
    assert world.restarted().publish(save, location) == Ended(SaveState.PUBLISHED)
    nonce = world.manifest.nonce

    assert world.publisher.publish(save, location) == Ended(SaveState.PUBLISHED)
    assert world.manifest.nonce == nonce


def test_a_claim_of_a_newer_save_says_nothing_about_an_older_one(world: World) -> None:
    older, newer = save_of("a", overwrite=True), save_of("b", replaced=("a",))
    location = world.whole(older)
    world.located(newer)

    assert world.publisher.publish(older, location) == Ended(SaveState.SUPERSEDED)


def test_parts_of_other_nodes_are_read(world: World) -> None:
    save = save_of("a", world_size=2)
    location = world.located(save)
    other = world.restarted()
    for rank, publisher in enumerate((world.publisher, other)):
        publisher.write_part(save, location, rank, [world.put(save, location, f"shard-{rank}")])
    gets = world.objects.calls["get"]

    assert world.publisher.publish(save, location) == Ended(SaveState.PUBLISHED)
    # The manifest, and the other's part; not its own.
    assert world.objects.calls["get"] == gets + 2


def test_a_part_of_a_while_ago_is_read_again(world: World) -> None:
    save = save_of("a")
    location = world.whole(save)
    world.objects.delete(world.bucket.layout.part_key("run", location, 0))
    world.clock.advance(FRESH_SECONDS + 1)

    assert isinstance(world.publisher.publish(save, location), NotWhole)
    assert world.manifest.state is ManifestState.CLAIMED


def test_a_part_that_was_there_already_is_remembered_too(world: World) -> None:
    save = save_of("a")
    location = world.located(save)
    entry = world.put(save, location, "shard")
    world.restarted().write_part(save, location, 0, [entry])
    world.publisher.write_part(save, location, 0, [entry])
    before = reads(world)

    assert world.publisher.publish(save, location) == Ended(SaveState.PUBLISHED)
    assert reads(world) == before


def test_a_part_of_another_world_size_does_not_count_from_memory_either(world: World) -> None:
    save, smaller = save_of("a", world_size=2), save_of("a", world_size=1)
    location = world.located(save)
    for rank, owner in enumerate((save, smaller)):
        world.publisher.write_part(owner, location, rank, [world.put(owner, location, "shard")])

    assert isinstance(world.publisher.publish(save, location), NotWhole)


def test_objects_elsewhere_than_claimed_are_refused(world: World) -> None:
    save = save_of("a")
    world.located(save)
    world.publisher.write_part(save, "elsewhere", 0, [world.put(save, "elsewhere", "shard")])

    with pytest.raises(IntegrityError):
        world.publisher.publish(save, "elsewhere")


# --- bounds ------------------------------------------------------------------------------------


def test_parts_are_remembered_up_to_a_number_of_bytes() -> None:
    own = OwnWrites(FakeClock())
    body = bytes(PARTS_BYTES // 4)
    for rank in range(5):
        own.wrote_part("7", part_of(save_of("a"), rank, ()), body)

    assert [own.part("run", "7", rank) is None for rank in range(5)] == [True] + [False] * 4


def test_a_large_part_is_not_remembered() -> None:
    own = OwnWrites(FakeClock())
    part = part_of(save_of("a"), 0, ())
    own.wrote_part("7", part, bytes(own_writes.PART_LIMIT_BYTES + 1))

    assert own.part("run", "7", 0) is None


def test_claims_are_remembered_up_to_a_number() -> None:
    own = OwnWrites(FakeClock())
    saves = [replace(save_of("a"), step=step) for step in range(CLAIMS + 1)]
    for save in saves:
        own.claimed(SeenManifest(claim(save, None, "nonce"), "etag"))

    assert own.claim(saves[0]) is None
    assert all(own.claim(save) is not None for save in saves[1:])


def test_a_save_that_ended_is_forgotten() -> None:
    own, save = OwnWrites(FakeClock()), save_of("a")
    own.claimed(SeenManifest(claim(save, None, "nonce"), "etag"))
    part = part_of(save, 0, ())
    own.wrote_part("7", part, b"part")
    own.wrote_part("8", part, b"part")
    own.forget(save, "7")

    assert own.claim(save) is None
    assert own.part("run", "7", 0) is None
    assert own.part("run", "8", 0) == (part, to_hex(digest_of(b"part")))
