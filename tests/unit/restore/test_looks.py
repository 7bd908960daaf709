"""Whether a remote still holds a shard: its own object, or the pack that it lies in."""

from __future__ import annotations

import pytest
from cachetier_client.bucket_format.layout import Layout
from cachetier_client.bucket_format.stored import Codec, Content, InPack, Stored
from cachetier_client.bucket_format.uploads import object_metadata
from cachetier_client.io.digests import digest_of

from cachetier.model.lifecycle import ShardState
from cachetier.model.shard import Shard
from cachetier.remote.bucket import Bucket, Remote
from cachetier.restore import replica_choice
from cachetier.restore.replica_choice import MOMENT_SECONDS, Looks
from tests.fakes.fake_clock import FakeClock
from tests.fakes.faulty_store import FaultyObjectStore
from tests.fakes.memory_store import MemoryObjectStore

BODIES = (b"first", b"second")
WHOLE = b"".join(BODIES)
PACK = f"pack-0-{digest_of(WHOLE):016x}"


def shard_of(body: bytes) -> Shard:
    content = Content(len(body), digest_of(body), (digest_of(body),))
    state = ShardState.CLEAN
    return Shard(1, 1, "run", 7, "save", body.decode(), 0, content, state, None, True, 0.0)


FIRST, SECOND = map(shard_of, BODIES)


def packed(start: int, size_bytes: int, digest: int = digest_of(WHOLE)) -> Stored:
    body = WHOLE[start : start + size_bytes]
    in_pack = InPack(PACK, start, len(WHOLE), digest)
    return Stored(Codec.RAW, size_bytes, digest_of(body), pack=in_pack)


PLACES = packed(0, 5), packed(5, 6)


class World:
    def __init__(self) -> None:
        self.objects = FaultyObjectStore(MemoryObjectStore())
        self.bucket = Bucket(self.objects, Layout())
        self.clock = FakeClock()
        self.looks = Looks(self.clock)
        self.key = self.bucket.layout.pack_key("run", "7", PACK)
        self.put(WHOLE)

    def put(self, body: bytes, save_id: str = "save") -> None:
        content = Content(len(body), digest_of(body), ())
        metadata = object_metadata(save_id, "store", 0, content)
        self.objects.put(self.key, body, digest=content.digest, metadata=metadata)

    def there(self, shard: Shard, stored: Stored, remote: str = "far", location: str = "7") -> bool:
        return self.looks.holds(Remote(remote, self.bucket), shard, location, stored)


@pytest.fixture
def world() -> World:
    return World()


def test_a_packed_shard_is_there_while_its_pack_is(world: World) -> None:
    assert world.bucket.holds(FIRST, "7", PLACES[0])
    assert world.bucket.holds(SECOND, "7", PLACES[1])
    world.objects.delete(world.key)
    assert not world.bucket.holds(FIRST, "7", PLACES[0])


@pytest.mark.parametrize(("body", "save_id"), [(WHOLE[:-1], "save"), (WHOLE, "other")])
def test_another_object_in_its_place_is_not_its_pack(
    world: World, body: bytes, save_id: str
) -> None:
    world.put(body, save_id)

    assert not world.bucket.holds(FIRST, "7", PLACES[0])


def test_other_bytes_of_the_same_size_are_not_its_pack(world: World) -> None:
    assert not world.bucket.holds(FIRST, "7", packed(0, 5, digest=7))


def test_a_pack_is_asked_for_once_in_a_moment(world: World) -> None:
    assert world.there(FIRST, PLACES[0])
    assert world.there(SECOND, PLACES[1])
    assert world.objects.calls["head"] == 1
    world.clock.advance(MOMENT_SECONDS)
    assert world.there(FIRST, PLACES[0])
    assert world.objects.calls["head"] == 2


def test_the_packs_of_each_remote_and_place_are_asked_for(world: World) -> None:
    assert world.there(FIRST, PLACES[0])
    assert world.there(FIRST, PLACES[0], remote="near")
    assert not world.there(FIRST, PLACES[0], location="7~other")

    assert world.objects.calls["head"] == 3


def test_a_pack_that_was_not_there_is_asked_for_again(world: World) -> None:
    world.objects.delete(world.key)
    assert not world.there(FIRST, PLACES[0])
    world.put(WHOLE)
    assert world.there(FIRST, PLACES[0])


def test_a_shard_of_its_own_is_asked_for_each_time(world: World) -> None:
    stored = Stored.raw(FIRST.content)
    metadata = object_metadata("save", "store", 1, FIRST.content)
    world.objects.put("run/7/first", b"first", digest=stored.digest, metadata=metadata)

    assert world.there(FIRST, stored)
    assert world.there(FIRST, stored)
    assert world.objects.calls["head"] == 2


def test_of_many_packs_those_asked_for_last_are_remembered(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replica_choice, "REMEMBERED_PACKS", 2)
    remotes = ("far", "near", "next")
    for remote in remotes:
        assert world.there(FIRST, PLACES[0], remote=remote)
    for remote in remotes[1:]:
        assert world.there(SECOND, PLACES[1], remote=remote)
    assert world.objects.calls["head"] == 3

    assert world.there(SECOND, PLACES[1], remote="far")
    assert world.objects.calls["head"] == 4
