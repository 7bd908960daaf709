"""Objects that were verified go missing: deleted by another node, by a person, by a rule."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from cachetier_client.bucket_format import publication
from cachetier_client.bucket_format.layout import Layout
from cachetier_client.bucket_format.stored import Stored
from cachetier_client.identity.names import SaveIds

from cachetier.errors import IntegrityError, NotFoundError, RemoteRefusedError, TransientError
from cachetier.local.catalog import manifests, notes, saves
from cachetier.local.catalog.rows import NewShard, RemoteCopy
from cachetier.model.checkpoint import Save, claimant_of
from cachetier.model.levels import Level
from cachetier.model.lifecycle import SaveState, ShardState
from cachetier.reclaim.evict import Evictor, Watermarks
from cachetier.remote.bucket import Bucket, Remote
from cachetier.restore.fill import Room
from cachetier.restore.knowledge import Knowledge
from cachetier.restore.restore import Restore
from tests.fakes.memory_store import MemoryObjectStore
from tests.integration.drain_node import BLOCK, REMOTE, Node, content_of, keys_of_saves, patterned
from tests.integration.serving import serving

SECONDS = 60.0
LARGE = patterned(200_000)
NAMES = ("a", "b")


def ids(step: int = 5, save_id: str = "save", rank: int = 0, world_size: int = 1) -> SaveIds:
    return SaveIds("run", step, save_id, rank, world_size)


@dataclass
class Tier:
    """A node with what makes room on it."""

    node: Node
    evictor: Evictor
    restore: Restore

    def saved(self, which: SaveIds, names: Sequence[str] = NAMES) -> None:
        """Save a step and have it published."""
        for name in names:
            self.node.put(which, name, LARGE + name.encode())
        self.node.seal(which)
        self.drained(which)

    def drained(self, which: SaveIds) -> None:
        with self.node.draining():
            self.node.wait_durable(which, SECONDS)

    def make_room(self) -> None:
        self.evictor.make_room()

    def state(self, which: SaveIds, name: str) -> ShardState | None:
        shard = self.node.shard(which, name)
        return shard.state if shard is not None else None

    def latest(self, level: Level = Level.LOCAL) -> int | None:
        found = self.node.checkpoints.latest("run", level)
        return found.step if found is not None else None

    def incidents(self) -> list[str]:
        return [incident.message for incident in self.node.told()]

    def read(self, which: SaveIds, name: str) -> bytes:
        opened = self.restore.open(which.run, which.step, name, SECONDS)
        assert opened.descriptor is not None
        with open(opened.descriptor, "rb") as file:
            return file.read()


@contextmanager
def tier(cache_dir: Path, bucket: MemoryObjectStore) -> Iterator[Tier]:
    """Open a node that evicts all that it may, whenever it is asked for room."""
    node = Node(cache_dir, bucket)
    durable = Remote(REMOTE, node.bucket)
    missing = Knowledge(node.store, durable, node.clock, on_change=node.changes.ring)
    restore = Restore(
        *(node.store, node.bucket, node.clock),
        remote=REMOTE,
        room=Room(node.changes.ring),
        knowledge=missing,
    )
    evictor = Evictor(
        *(node.store, node.clock, restore.sources.still_there),
        look_into=missing.look_into,
        watermarks=Watermarks(0.0, 0.0),
    )
    try:
        yield Tier(node, evictor, restore)
    finally:
        restore.close()
        node.close()


@pytest.fixture
def bucket() -> MemoryObjectStore:
    return MemoryObjectStore()


@pytest.fixture
def one(tmp_path: Path, bucket: MemoryObjectStore) -> Iterator[Tier]:
    with tier(tmp_path / "one", bucket) as opened:
        yield opened


@pytest.fixture
def other(tmp_path: Path, bucket: MemoryObjectStore) -> Iterator[Tier]:
    with tier(tmp_path / "other", bucket) as opened:
        yield opened


def remove(bucket: MemoryObjectStore, part: str) -> list[str]:
    """Remove what has ``part`` in its key, as other hands do."""
    keys = [key for key in bucket.list("").keys if part in key]
    for key in keys:
        bucket.delete(key)
    return keys


# --- deleted and replaced ------------------------------------------------------------------------


def test_a_step_that_another_node_deleted_goes_here_too(one: Tier, other: Tier) -> None:
    one.saved(ids(4))
    one.saved(ids(5))
    other.node.checkpoints.delete_step("run", 5)
    with other.node.draining():
        other.node.wait_until(lambda: other.node.save(ids(5)).location is None)

    one.make_room()

    assert one.node.save(ids(5)).state is SaveState.DELETED
    assert one.node.store.space.used_bytes == 0
    assert one.latest() is None, "the bytes of the other one made room"
    assert one.latest(Level.DURABLE) == 4
    assert not one.incidents(), "whoever deleted it wanted that"


def test_a_step_of_two_nodes_that_a_third_deleted_goes_from_both(
    one: Tier, other: Tier, tmp_path: Path, bucket: MemoryObjectStore
) -> None:
    for rank, each in enumerate((one, other)):
        each.node.put(ids(rank=rank, world_size=2), f"shard-{rank}", LARGE)
        each.node.seal(ids(rank=rank, world_size=2))
    with one.node.draining(), other.node.draining():
        one.node.wait_durable(ids(), SECONDS)
        other.node.wait_durable(ids(), SECONDS)
    with tier(tmp_path / "third", bucket) as third:
        third.node.checkpoints.delete_step("run", 5)
        with third.node.draining():
            third.node.wait_until(lambda: third.node.save(ids()).location is None)

    for each in (one, other):
        each.make_room()
        assert each.node.save(ids()).state is SaveState.DELETED
        assert each.node.store.space.used_bytes == 0


def test_of_a_deletion_that_is_under_way_the_tombstone_tells(
    one: Tier, bucket: MemoryObjectStore
) -> None:
    one.saved(ids())
    seen = one.node.bucket.manifest("run", 5)
    assert seen is not None
    assert one.node.bucket.put_manifest(publication.deleted(seen.manifest, "nonce"), seen)
    remove(bucket, "/5/a")

    one.make_room()
    with one.node.draining():
        one.node.wait_until(lambda: one.node.save(ids()).location is None)

    assert one.node.store.space.used_bytes == 0
    assert keys_of_saves(bucket) == ("ckpt/run/5/.cachetier/manifest.json",)


def test_a_pinned_step_that_another_node_deleted_stays_here(one: Tier, other: Tier) -> None:
    one.saved(ids())
    one.node.checkpoints.pin("run", 5)
    other.node.checkpoints.delete_step("run", 5)
    with other.node.draining():
        other.node.wait_until(lambda: other.node.save(ids()).location is None)

    one.make_room()
    shard = one.node.shard(ids(), "a")
    assert shard is not None
    one.evictor.evict(shard)  # as by who read the rows before the pin

    assert one.read(ids(), "a") == LARGE + b"a"
    assert one.node.store.read(notes.is_pinned, "run", 5)


def test_a_save_that_another_node_replaced_ends_here(
    one: Tier, other: Tier, bucket: MemoryObjectStore
) -> None:
    one.saved(ids())
    newer = SaveIds("run", 5, "newer", 0, 1, overwrite=True)
    other.saved(newer)
    assert remove(bucket, "/5/a"), "collected by another node"

    one.make_room()

    assert one.node.save(ids()).state is SaveState.SUPERSEDED
    assert one.node.store.space.used_bytes == 0
    assert one.read(newer, "a") == LARGE + b"a"


# --- lost ----------------------------------------------------------------------------------------


def test_objects_of_a_published_step_that_somebody_removed_are_sent_again(
    one: Tier, bucket: MemoryObjectStore
) -> None:
    one.saved(ids())
    before = bucket.get("ckpt/run/5/.cachetier/manifest.json")
    (key,) = remove(bucket, "/5/a")

    one.make_room()
    one.make_room()

    assert one.state(ids(), "a") is ShardState.DIRTY
    view = one.node.checkpoints.step("run", 5)[0]
    assert "durable" not in view.levels
    (incident,) = one.incidents()
    assert "missing in the bucket" in incident
    one.drained(ids())
    assert bucket.get(key) == LARGE + b"a"
    assert bucket.get("ckpt/run/5/.cachetier/manifest.json") == before
    one.make_room()
    assert one.state(ids(), "a") is ShardState.EVICTED
    assert one.read(ids(), "a") == LARGE + b"a"
    assert len(one.incidents()) == 1


def test_a_step_of_which_everything_expired_is_published_anew(
    one: Tier, bucket: MemoryObjectStore
) -> None:
    one.saved(ids())
    remove(bucket, "")

    one.make_room()
    one.drained(ids())

    manifest = one.node.bucket.published("run", 5)
    assert manifest is not None and manifest.save_id == "save"
    assert len(manifest.shards) == len(NAMES)
    (incident,) = one.incidents()
    assert "expired" in incident
    one.make_room()
    assert one.node.store.space.used_bytes == 0
    assert one.read(ids(), "b") == LARGE + b"b"


def test_a_step_that_was_read_here_alone_is_sent_again_too(
    one: Tier, other: Tier, bucket: MemoryObjectStore
) -> None:
    one.saved(ids())
    assert other.read(ids(), "a") == LARGE + b"a"
    (key,) = remove(bucket, "/5/a")

    other.make_room()
    with other.node.draining():
        other.node.wait_clean(ids(), "a")

    assert bucket.get(key) == LARGE + b"a"


def test_a_compressed_object_comes_back_as_the_documents_say(
    one: Tier, other: Tier, bucket: MemoryObjectStore
) -> None:
    data = b"compress me " * 400_000
    one.node.put(ids(), "a", data)
    one.node.seal(ids())
    with one.node.draining(compression="zstd:3"):
        one.node.wait_durable(ids(), SECONDS)
    (key,) = [key for key in bucket.list("").keys if key.endswith("/a")]
    stored = bucket.get(key)
    remove(bucket, "/5/a")

    one.make_room()
    with one.node.draining(compression="zstd:3"):
        one.node.wait_clean(ids(), "a")

    assert bucket.get(key) == stored
    assert other.read(ids(), "a") == data


def test_what_cannot_be_sent_again_as_it_was_stays_here_and_is_told_of(
    one: Tier, bucket: MemoryObjectStore
) -> None:
    data = b"compress me " * 400_000
    one.node.put(ids(), "a", data)
    one.node.seal(ids())
    with one.node.draining(compression="zstd:19"):
        one.node.wait_durable(ids(), SECONDS)
    remove(bucket, "/5/a")

    one.make_room()
    with one.node.draining(compression="off"):
        one.node.wait_until(lambda: len(one.incidents()) > 1)

    assert one.state(ids(), "a") is ShardState.DIRTY
    assert "cannot be sent as it was stored" in one.incidents()[-1]
    assert one.read(ids(), "a") == data


def test_a_pack_comes_back_as_it_was(tmp_path: Path, bucket: MemoryObjectStore) -> None:
    with tier(tmp_path / "packing", bucket) as packing:
        packing.node.packing = True
        packing.saved(ids(), ("a", "b", "c"))
        (key,) = remove(bucket, "/pack-")
        packing.make_room()
        packing.drained(ids())

        assert key in bucket.list("").keys
        packing.make_room()
        assert packing.read(ids(), "b") == LARGE + b"b"


@pytest.mark.parametrize("compression", ["off", "zstd:3"])
def test_small_objects_come_back_as_objects_though_they_would_go_in_a_pack_now(
    tmp_path: Path, other: Tier, bucket: MemoryObjectStore, compression: str
) -> None:
    data = b"compress me " * 40_000
    with tier(tmp_path / "packing", bucket) as packing:
        for name in NAMES:
            packing.node.put(ids(), name, data + name.encode())
        packing.node.seal(ids())
        with packing.node.draining(compression=compression):
            packing.node.wait_durable(ids(), SECONDS)
        keys = [*remove(bucket, "/5/a"), *remove(bucket, "/5/b")]

        packing.node.packing = True
        packing.make_room()
        with packing.node.draining(compression=compression):
            for name in NAMES:
                packing.node.wait_clean(ids(), name)

        assert set(keys) <= set(bucket.list("").keys)
        assert other.read(ids(), "b") == data + b"b"


# --- nothing is decided --------------------------------------------------------------------------


@pytest.mark.parametrize("error", [RemoteRefusedError("no bucket"), TransientError("no answer")])
def test_without_its_bucket_nothing_is_decided(
    one: Tier, bucket: MemoryObjectStore, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    one.saved(ids())
    remove(bucket, "")
    asked: list[None] = []

    def refuse() -> None:
        asked.append(None)
        raise error

    monkeypatch.setattr(bucket, "check", refuse)

    one.make_room()

    assert asked
    assert one.state(ids(), "a") is ShardState.CLEAN
    assert one.node.save(ids()).state is SaveState.PUBLISHED
    assert not one.incidents()


# --- a whole service -----------------------------------------------------------------------------


def test_a_cache_full_of_a_step_that_was_deleted_elsewhere_takes_puts_again() -> None:
    first, second = bytes(600_000), bytes(700_000)
    with serving(capacity="1 MB", when_full="reject") as served:
        assert served.put("a", first).status == 201
        served.drained("a", first)
        store = served.service.store
        (save,) = store.read(saves.saves_of, "r", 1)
        bucket = Bucket(served.objects, Layout("p"))
        claim = publication.claim(claimant_of(save), None, "nonce")
        assert bucket.put_manifest(publication.deleted(claim, "nonce"), None)
        remove(served.objects, "/1/a")

        assert served.call("PUT", "/v1/runs/r/steps/2/shards/b", second).status == 201

        assert [each.state for each in store.read(saves.saves_of, "r", 1)] == ["deleted"]
        assert store.space.used_bytes == len(second)


def test_a_service_that_holds_the_only_copy_says_so_and_keeps_it() -> None:
    first, second = bytes(600_000), bytes(700_000)
    with serving(capacity="1 MB", when_full="reject") as served:
        assert served.put("a", first).status == 201
        served.drained("a", first)
        remove(served.objects, "/1/a")

        assert served.call("PUT", "/v1/runs/r/steps/2/shards/b", second).status == 507

        status = served.service.operations.status()
        assert status["dirty_bytes"] == len(first)
        (incident,) = served.service.store.read(notes.incidents_after, 0)
        assert "missing in the bucket" in incident.message


# --- readers -------------------------------------------------------------------------------------


def test_a_reader_learns_that_the_step_was_deleted(one: Tier, other: Tier) -> None:
    one.saved(ids())
    one.make_room()
    other.node.checkpoints.delete_step("run", 5)
    with other.node.draining():
        other.node.wait_until(lambda: other.node.save(ids()).location is None)

    with pytest.raises(NotFoundError, match="was deleted by another node"):
        one.read(ids(), "a")

    assert one.node.save(ids()).state is SaveState.DELETED


def test_a_reader_of_a_step_that_another_save_replaced_gets_the_new_bytes(
    one: Tier, other: Tier, bucket: MemoryObjectStore
) -> None:
    one.saved(ids())
    one.make_room()
    newer = SaveIds("run", 5, "newer", 0, 1, overwrite=True)
    other.node.put(newer, "a", LARGE + b"newer")
    other.node.seal(newer)
    other.drained(newer)
    remove(bucket, "/5/a")

    assert one.read(newer, "a") == LARGE + b"newer"
    assert one.node.save(ids()).state is SaveState.SUPERSEDED


def test_what_is_known_from_a_replica_alone_goes_by_the_tombstone_too(one: Tier) -> None:
    store, now = one.node.store, 1.0
    save = Save(0, "run", 5, "save", SaveState.REPLICATED, 1, False, now)
    content = content_of(b"x")
    near = RemoteCopy("near", Stored.raw(content))
    new = NewShard("a", 0, content, state=ShardState.EVICTED, copies=(near,))
    store.write(manifests.adopt, store.policy, save, [new], now)
    shard = one.node.shard(ids(), "a")
    assert shard is not None
    one.evictor.evict(shard)
    assert one.node.save(ids()).state is SaveState.REPLICATED
    claim = publication.claim(claimant_of(save), None, "nonce")
    assert one.node.bucket.put_manifest(publication.deleted(claim, "nonce"), None)

    one.evictor.evict(shard)

    assert one.node.save(ids()).state is SaveState.DELETED


def test_a_reader_learns_that_the_object_was_removed_behind_the_tier(
    one: Tier, bucket: MemoryObjectStore
) -> None:
    one.saved(ids())
    one.make_room()
    remove(bucket, "/5/a")

    with pytest.raises(IntegrityError, match="though it is published: somebody removed them"):
        one.read(ids(), "a")

    assert one.node.save(ids()).state is SaveState.PUBLISHED
    assert one.read(ids(), "b") == LARGE + b"b"


def test_a_reader_of_a_part_learns_it_too(one: Tier, bucket: MemoryObjectStore) -> None:
    one.node.put(ids(), "large", patterned(6 * BLOCK))
    one.saved(ids())
    one.make_room()
    opened = one.restore.open_part("run", 5, "large", 1, SECONDS)
    assert opened.remote is not None
    remove(bucket, "/5/large")

    with pytest.raises(IntegrityError, match="though it is published: somebody removed them"):
        opened.remote.read(0)


def test_a_part_that_is_removed_before_the_step_is_whole_is_written_again(
    tmp_path: Path, bucket: MemoryObjectStore
) -> None:
    first, second = (Node(tmp_path / name, bucket) for name in ("one", "two"))
    try:
        for node, rank in ((first, 0), (second, 1)):
            which = ids(rank=rank, world_size=2)
            node.put(which, f"shard-{rank}", LARGE)
            node.seal(which)
            if rank == 0:
                with node.draining():
                    node.wait_until(lambda: bool(remove(bucket, "rank-0.json")))
        with first.draining(), second.draining():
            first.wait_durable(ids(world_size=2), SECONDS)
            second.wait_durable(ids(world_size=2), SECONDS)
    finally:
        first.close()
        second.close()
