"""Objects of a mount as the door reads them: of this node, of the bucket, and of both."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import apsw
import pytest
from cachetier_client.bucket_format.uploads import DIGEST_KEY, ETAG_KEY
from cachetier_client.io.digests import BLOCK_BYTES, digest_of, to_hex

from cachetier.callers import working_for
from cachetier.errors import (
    CallerGoneError,
    IntegrityError,
    NoSuchKeyError,
    NotFoundError,
    RemoteDigestError,
    TransientError,
)
from cachetier.local.catalog import objects
from cachetier.model.levels import Level
from cachetier.model.objects import NO_HEAD
from cachetier.model.shard import Shard
from cachetier.objects.foreign import RANGE_BYTES
from cachetier.restore.mounted import FRESH_SECONDS, GONE_SECONDS
from tests.fakes.bodies import noise
from tests.fakes.fake_clock import FakeClock
from tests.fakes.faulty_store import corrupt
from tests.stateful.node import Node
from tests.unit.objects.mounted_node import HEAD, MOUNT, MountedNode

KEY = "in/data/model"
SMALL, LARGE = b"hello", noise(3 * BLOCK_BYTES + 5)
PARTS = (noise(70_000), noise(2 * BLOCK_BYTES + 1), b"tail")


@pytest.fixture
def world(node: Node, clock: FakeClock) -> Iterator[MountedNode]:
    world = MountedNode(node.store, clock)
    yield world
    world.restore.close()


def damage(node: Node, piece: Shard) -> None:
    assert piece.file_id is not None
    with (node.cache_dir / "data" / piece.file_id[:2] / piece.file_id).open("r+b") as file:
        file.seek(BLOCK_BYTES)
        file.write(b"other")


# --- what this node knows ------------------------------------------------------------------------


@pytest.mark.parametrize("parts", [(SMALL,), (LARGE,), PARTS, (b"",)])
def test_what_was_put_is_read_before_the_bucket_has_it(
    world: MountedNode, parts: tuple[bytes, ...]
) -> None:
    world.bucket.go_down()
    version = world.put(KEY, *parts)

    found = world.reads.head(MOUNT, KEY)

    assert (found.etag, found.level, found.head) == (version.etag, Level.LOCAL, HEAD)
    assert (found.size_bytes, found.digest) == (sum(map(len, parts)), version.digest)
    assert (found.part_sizes, found.source) == (version.part_sizes, "local")
    assert world.read(KEY) == b"".join(parts)


@pytest.mark.parametrize("parts", [(SMALL,), (LARGE,), PARTS])
def test_what_was_evicted_comes_back_piece_by_piece(
    world: MountedNode, parts: tuple[bytes, ...]
) -> None:
    version = world.evicted(KEY, *parts)

    found = world.reads.head(MOUNT, KEY)
    assert (found.etag, found.level, found.source) == (version.etag, Level.DURABLE, "remote")
    assert world.read(KEY) == b"".join(parts)
    world.bucket.go_down()  # nothing more is fetched
    world.until_brought_back(version)
    assert world.reads.head(MOUNT, KEY).source == "local"  # it was kept


def test_a_deletion_hides_what_the_bucket_still_has(world: MountedNode) -> None:
    world.shown(KEY, SMALL)
    world.delete(KEY)

    with pytest.raises(NoSuchKeyError):
        world.reads.head(MOUNT, KEY)


def test_a_damaged_local_block_of_a_clean_piece_is_read_from_the_bucket(
    world: MountedNode, node: Node
) -> None:
    version = world.shown(KEY, *PARTS)
    damage(node, world.pieces(version)[1])

    assert world.read(KEY) == b"".join(PARTS)


# --- what only the bucket knows ------------------------------------------------------------------


@pytest.mark.parametrize("data", [b"", SMALL, noise(3 * RANGE_BYTES + 5)])
def test_an_object_that_only_the_bucket_knows_is_read_from_there(
    world: MountedNode, data: bytes
) -> None:
    etag = world.foreign(KEY, data)

    found = world.reads.head(MOUNT, KEY)
    assert (found.etag, found.size_bytes) == (etag, len(data))
    assert (found.level, found.source) == (Level.DURABLE, "remote")
    assert world.read(KEY) == data
    assert world.read(KEY, 3, len(data)) == data[3:]


def test_another_node_tells_the_etag_headers_and_metadata_that_the_first_door_gave(
    world: MountedNode, tmp_path_factory: pytest.TempPathFactory, clock: FakeClock
) -> None:
    version = world.shown(KEY, SMALL)
    another = Node(tmp_path_factory.mktemp("another"), world.memory, clock)
    try:
        reads = MountedNode(another.store, clock, bucket_of_all=world.memory).reads
        found = reads.head(MOUNT, KEY)
    finally:
        another.close()

    assert found.etag == version.etag
    assert found.head == HEAD
    assert found.digest == version.digest


def test_bytes_that_changed_on_the_way_never_end_as_if_they_were_whole(world: MountedNode) -> None:
    data = noise(2 * RANGE_BYTES + 5)
    world.foreign(KEY, data)
    world.bucket.add(corrupt("read_into"))

    opened = world.reads.open(MOUNT, KEY)
    assert opened.foreign is not None
    read = b""
    with pytest.raises(RemoteDigestError):
        for piece in opened.foreign.read(0, len(data)):
            read += piece
    assert len(read) < len(data)
    assert not world.bucket.pending


def test_an_object_that_is_replaced_while_it_is_read_is_not_mixed_with_another(
    world: MountedNode,
) -> None:
    world.foreign(KEY, noise(2 * RANGE_BYTES))
    opened = world.reads.open(MOUNT, KEY)
    world.foreign(KEY, noise(2 * RANGE_BYTES))

    with pytest.raises(Exception, match="is not"):
        world.bytes_of(opened)


def test_a_key_that_is_nowhere_is_no_key_and_only_the_bucket_can_say_so(
    world: MountedNode,
) -> None:
    with pytest.raises(NoSuchKeyError):
        world.reads.open(MOUNT, KEY)
    world.bucket.go_down()
    with pytest.raises(TransientError):
        world.reads.open(MOUNT, KEY)


def test_our_own_notes_are_no_keys(world: MountedNode) -> None:
    world.foreign("in/.cachetier/order/node-1", b"note")
    world.foreign("in/a", b"")

    with pytest.raises(NoSuchKeyError):
        world.reads.head(MOUNT, "in/.cachetier/order/node-1")
    assert [each.key for each in world.reads.list(MOUNT, "in/", "", "", 10).objects] == ["in/a"]
    assert world.reads.list(MOUNT, "in/", "/", "", 10).prefixes == ()


# --- what both know ------------------------------------------------------------------------------


def test_a_foreign_change_of_a_clean_key_is_what_is_read(world: MountedNode) -> None:
    world.shown(KEY, SMALL)
    assert world.read(KEY) == SMALL
    etag = world.foreign(KEY, b"theirs")
    world.clock.advance(FRESH_SECONDS + 1)

    assert world.reads.head(MOUNT, KEY).etag == etag
    assert world.read(KEY) == b"theirs"
    assert world.reads.head(MOUNT, KEY).head.metadata == NO_HEAD.metadata
    assert world.store.read(objects.current, MOUNT.run, KEY) is None  # its room is free


def test_a_foreign_deletion_of_a_clean_key_is_what_is_read(world: MountedNode) -> None:
    world.shown(KEY, SMALL)
    world.memory.delete(KEY)

    with pytest.raises(NoSuchKeyError):
        world.read(KEY)


def test_a_clean_key_is_looked_at_once_in_some_seconds(world: MountedNode) -> None:
    world.shown(KEY, SMALL)

    for _ in range(3):
        world.read(KEY)
    assert world.bucket.calls["head"] == 1
    world.clock.advance(FRESH_SECONDS + 1)
    world.read(KEY)
    assert world.bucket.calls["head"] == 2


def test_while_the_bucket_is_away_clean_keys_are_read_without_waiting_for_it(
    world: MountedNode,
) -> None:
    world.shown(KEY, SMALL)
    world.bucket.go_down()

    assert world.read(KEY) == SMALL
    assert world.read(KEY) == SMALL
    assert world.bucket.calls["head"] == 1


def test_an_evicted_piece_of_an_object_that_was_replaced_meanwhile_is_to_be_read_again(
    world: MountedNode,
) -> None:
    world.evicted(KEY, LARGE)
    opened = world.reads.open(MOUNT, KEY)
    world.foreign(KEY, b"theirs")

    with pytest.raises(NotFoundError, match="read it again"):
        world.bytes_of(opened)
    assert world.read(KEY) == b"theirs"


def test_an_evicted_piece_that_is_damaged_in_the_bucket_is_damage(world: MountedNode) -> None:
    world.evicted(KEY, LARGE)
    world.memory.damage(KEY, at=BLOCK_BYTES)

    with pytest.raises(IntegrityError):
        world.read(KEY)


def test_a_conflict_is_read_as_it_is_here(world: MountedNode) -> None:
    world.put(KEY, SMALL)
    world.foreign(KEY, b"theirs")

    assert world.read(KEY) == SMALL


# --- eviction ------------------------------------------------------------------------------------


@pytest.mark.parametrize("there", ["the same", "newer", "older", "nothing"])
def test_what_is_damaged_here_before_it_is_shown_is_read_from_a_bucket_that_makes_up_for_it(
    world: MountedNode, node: Node, there: str
) -> None:
    if there == "older":
        world.foreign(KEY, b"older")
        world.clock.advance(60.0)
    version = world.put(KEY, LARGE)
    at = world.clock.now()

    def give_time(sql: apsw.Connection) -> None:
        sql.execute("UPDATE objects SET acknowledged_at = ?", (at,))

    world.store.write(give_time)
    if there == "the same":
        metadata = {ETAG_KEY: version.etag, DIGEST_KEY: to_hex(version.digest)}
        world.memory.put(KEY, LARGE, digest=digest_of(LARGE), metadata=metadata)
    if there == "newer":
        world.clock.advance(60.0)
        world.foreign(KEY, b"newer")
    (piece,) = world.pieces(version)
    damage(node, piece)
    if there in ("nothing", "older"):
        for _ in range(2):
            with pytest.raises(IntegrityError):
                world.read(KEY)
        return

    with pytest.raises(NotFoundError, match="read it again"):
        world.read(KEY)
    assert world.read(KEY) == (LARGE if there == "the same" else b"newer")


def test_dirty_pieces_are_never_evicted(world: MountedNode) -> None:
    version = world.put(KEY, *PARTS)

    assert not any(world.evictor.evict(piece) for piece in world.pieces(version))


def test_pieces_of_an_object_that_is_gone_stay_for_a_while_and_go_then(world: MountedNode) -> None:
    version = world.shown(KEY, LARGE)
    world.memory.delete(KEY)
    (piece,) = world.pieces(version)

    assert not world.evictor.evict(piece)
    world.clock.advance(GONE_SECONDS - 1)
    assert not world.evictor.evict(piece)
    assert world.store.space.used_bytes == len(LARGE)
    world.clock.advance(2)
    assert not world.evictor.evict(piece)  # it goes whole, and not by pieces
    assert world.store.space.used_bytes == 0


def test_pieces_of_an_object_that_was_replaced_go_at_once(world: MountedNode) -> None:
    version = world.shown(KEY, LARGE)
    world.foreign(KEY, b"theirs")

    world.evictor.evict(world.pieces(version)[0])

    assert world.store.space.used_bytes == 0


def test_nothing_is_evicted_while_the_bucket_cannot_say(world: MountedNode) -> None:
    version = world.shown(KEY, LARGE)
    world.bucket.go_down()

    assert not world.evictor.evict(world.pieces(version)[0])


# --- listings ------------------------------------------------------------------------------------


def test_a_listing_has_what_waits_and_what_the_bucket_has(world: MountedNode) -> None:
    clean = world.shown("in/clean", SMALL)
    world.shown("in/deleted", SMALL)
    world.delete("in/deleted")
    dirty = world.put("in/dirty", SMALL)
    there = world.foreign("in/there", SMALL)
    world.foreign("outside", SMALL)

    page = world.reads.list(MOUNT, "", "", "", 10)

    assert [(each.key, each.etag, each.level) for each in page.objects] == [
        ("in/clean", clean.etag, Level.DURABLE),
        ("in/dirty", dirty.etag, Level.LOCAL),
        ("in/there", there, Level.DURABLE),
    ]
    assert page.objects[0].modified_at == clean.committed_at
    assert page.next_after is None


def test_pages_of_a_listing_go_on_where_the_last_one_ended(world: MountedNode) -> None:
    for name in ("a/1", "a/2", "b"):
        world.put(f"in/{name}", SMALL)
        world.foreign(f"in/{name}-there", SMALL)

    first = world.reads.list(MOUNT, "in/", "/", "", 1)
    assert (first.prefixes, first.objects, first.next_after) == (("in/a/",), (), "in/a/")
    second = world.reads.list(MOUNT, "in/", "/", "in/a/", 1)
    assert ([each.key for each in second.objects], second.next_after) == (["in/b"], "in/b")
    third = world.reads.list(MOUNT, "in/", "/", "in/b", 1)
    assert ([each.key for each in third.objects], third.next_after) == (["in/b-there"], None)


@pytest.mark.parametrize("prefix", ["", "i"])
def test_a_mount_is_one_common_prefix_to_who_lists_above_it(
    world: MountedNode, prefix: str
) -> None:
    assert world.reads.list(MOUNT, prefix, "/", "", 10).prefixes == ()
    world.put("in/a/b", SMALL)

    assert world.reads.list(MOUNT, prefix, "/", "", 10).prefixes == ("in/",)
    assert world.reads.list(MOUNT, prefix, "/", "in/", 10).prefixes == ()
    assert world.reads.list(MOUNT, "other", "/", "", 10).prefixes == ()


def test_what_is_the_services_own_is_passed_over_at_once(world: MountedNode) -> None:
    for number in range(50):
        world.foreign(f"in/.cachetier/deleted/{number:04}", SMALL)
    world.foreign("in/there", SMALL)
    before = world.bucket.calls["list"]

    page = world.reads.list(MOUNT, "in/", "", "", 1)

    assert [each.key for each in page.objects] == ["in/there"]
    assert world.bucket.calls["list"] - before <= 2


def test_a_listing_ends_with_its_caller(world: MountedNode) -> None:
    for number in range(9):
        world.put(f"in/{number}", SMALL)
    theirs, ours = socket.socketpair()
    before = world.bucket.calls["list"]

    with ours, working_for(ours):
        theirs.close()
        with pytest.raises(CallerGoneError):
            world.reads.list(MOUNT, "in/", "", "", 1)

    assert world.bucket.calls["list"] == before
