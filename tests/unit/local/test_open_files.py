"""Who has what open: what a writer took beyond its reservation, and what readers keep."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from cachetier_client.identity.names import SaveIds

from cachetier import callers, libc
from cachetier.access.principals import Caller, Principal
from cachetier.access.roles import Role
from cachetier.errors import BackpressureError, SizeMismatchError
from cachetier.local import open_files
from cachetier.local.open_files import GRACE_SECONDS, METADATA_BYTES, exceeds
from cachetier.local.store import Staged
from cachetier.model.lifecycle import ShardState
from cachetier.model.shard import Shard
from tests.fakes.fake_clock import FakeClock
from tests.fakes.memory_store import MemoryObjectStore
from tests.stateful.invariants import judge_bytes
from tests.stateful.node import Node, content_of, write

IDS = SaveIds("run", 1, "save", 0, 1)
SIZE_BYTES = 100_000
KIB = 1024


@pytest.mark.parametrize(
    ("reserved", "size", "allocated"),
    [
        (4096, 4096, 4096),
        (4097, 8192, 8192),  # the last block whole
        (4097, 8192, 8192 + METADATA_BYTES),
        (64 << 20, 64 << 20, (64 << 20) + METADATA_BYTES + (1 << 20)),
        (4096, 0, 0),
    ],
)
def test_what_an_honest_put_takes_is_within_its_reservation(
    reserved: int, size: int, allocated: int
) -> None:
    assert not exceeds(reserved, size, allocated)


@pytest.mark.parametrize(
    ("reserved", "size", "allocated"),
    [
        (4096, 4097, 8192),
        (4096, 1 << 40, 4096),  # a hole: its next write fills it
        (4096, 4096, 4096 + METADATA_BYTES + KIB),  # behind its end
        (0, 1, 0),
    ],
)
def test_more_than_that_is_beyond_it(reserved: int, size: int, allocated: int) -> None:
    assert exceeds(reserved, size, allocated)


def rank_of(user: str) -> Caller:
    """Return a rank of ``user 7``."""
    return Caller(Principal("p", Role.WRITE), uid=int(user.split()[1]), pid=1)


@contextmanager
def handed_out(node: Node, holder: str = "user 7") -> Iterator[tuple[Staged, int]]:
    """Begin a put of ``SIZE_BYTES`` for ``holder``; yield it and the descriptor they have."""
    with callers.working_for(None, rank_of(holder)):
        staged = node.ingest.begin(IDS, "a", SIZE_BYTES, 0.0)
    assert isinstance(staged, Staged)
    assert staged.writer is not None
    descriptor, staged.writer = staged.writer, None
    try:
        yield staged, descriptor
    finally:
        os.close(descriptor)
        node.store.open_files.look()


def test_a_put_within_its_reservation_is_counted_as_booked(node: Node) -> None:
    with handed_out(node) as (staged, descriptor):
        os.pwrite(descriptor, bytes(SIZE_BYTES), 0)
        node.store.open_files.look()

        assert node.store.space.used_bytes == SIZE_BYTES
        assert node.store.open_files.refusals() == []
        node.ingest.abort(staged)
    assert node.store.space.used_bytes == 0


def test_a_put_beyond_it_is_counted_as_measured_until_nobody_has_it_open(node: Node) -> None:
    with handed_out(node) as (staged, descriptor):
        os.posix_fallocate(descriptor, 0, 4 * SIZE_BYTES)
        node.store.open_files.look()

        measured = os.fstat(descriptor).st_blocks * 512
        assert node.store.space.used_bytes == measured >= 4 * SIZE_BYTES
        assert list(node.store.files.all()) == []
        with pytest.raises(SizeMismatchError, match=f"{SIZE_BYTES} bytes were reserved, 40"):
            node.ingest.commit(staged, IDS, "a", content_of(bytes(SIZE_BYTES)))
        assert node.store.space.used_bytes == measured, "the put is over, its writer is there"
        (told,) = node.store.open_files.refusals()
        assert told.startswith("p, user 7, process 1 wrote past a reservation")
    assert node.store.space.used_bytes == 0
    assert node.store.open_files.refusals() == []


def test_its_holder_begins_nothing_meanwhile_and_others_do(node: Node) -> None:
    with handed_out(node) as (staged, descriptor):
        os.ftruncate(descriptor, 2 * SIZE_BYTES)
        node.store.open_files.look()
        node.ingest.abort(staged)

        with callers.working_for(None, rank_of("user 7")):
            with pytest.raises(BackpressureError, match="p, user 7: a refused put is still open"):
                node.ingest.begin(IDS, "b", 10, 0.0)
            with pytest.raises(BackpressureError):
                node.ingest.begin_inline(IDS, "b", b"", content_of(b"").digest, 0.0)()
        with callers.working_for(None, rank_of("user 8")):
            node.put(IDS, "b", bytes(SIZE_BYTES))
        node.put(IDS, "c", bytes(SIZE_BYTES))
    with callers.working_for(None, rank_of("user 7")):
        node.put(IDS, "d", bytes(SIZE_BYTES))


def test_what_does_not_fit_into_the_capacity_is_cut_and_no_other_file_is(node: Node) -> None:
    node.put(IDS, "kept", bytes(SIZE_BYTES))
    (kept,) = node.rows()
    with handed_out(node) as (_staged, descriptor):
        os.posix_fallocate(descriptor, 0, 900_000 + SIZE_BYTES)
        node.store.open_files.look()

        assert os.fstat(descriptor).st_blocks == 0
        assert node.store.space.used_bytes == SIZE_BYTES
        assert dict(node.store.files.all()) == {kept.file_id: SIZE_BYTES}
        os.pwrite(descriptor, bytes(8192), 1 << 22)
        node.store.open_files.look()
        assert node.store.space.used_bytes == SIZE_BYTES + 8192, "who writes on is counted on"


def test_a_reservation_that_grows_may_be_written_and_one_that_was_refused_does_not_grow(
    node: Node,
) -> None:
    with handed_out(node) as (staged, descriptor):
        node.ingest.extend(staged, 3 * SIZE_BYTES, 0.0)
        os.pwrite(descriptor, bytes(SIZE_BYTES), 2 * SIZE_BYTES)
        node.store.open_files.look()
        assert node.store.space.used_bytes == 3 * SIZE_BYTES

        os.ftruncate(descriptor, 4 * SIZE_BYTES)
        node.store.open_files.look()
        used_bytes = node.store.space.used_bytes
        with pytest.raises(SizeMismatchError, match="300000 bytes were reserved, 400"):
            node.ingest.extend(staged, 5 * SIZE_BYTES, 0.0)
        assert node.store.space.used_bytes == used_bytes
        node.ingest.abort(staged)
    assert node.store.space.used_bytes == 0


def test_room_behind_the_end_that_no_look_saw_is_seen_at_commit(node: Node) -> None:
    staged = node.ingest.begin(IDS, "a", SIZE_BYTES, 0.0)
    assert isinstance(staged, Staged)
    write(staged, bytes(SIZE_BYTES))
    assert staged.writer is not None
    libc.allocate_behind_the_end(staged.writer, 5 * SIZE_BYTES)

    with pytest.raises(SizeMismatchError, match="of the disk"):
        node.ingest.commit(staged, IDS, "a", content_of(bytes(SIZE_BYTES)))
    assert node.store.space.used_bytes == 0


def test_what_is_behind_the_end_and_within_the_bound_is_freed_at_commit(node: Node) -> None:
    staged = node.ingest.begin(IDS, "a", SIZE_BYTES, 0.0)
    assert isinstance(staged, Staged)
    write(staged, bytes(SIZE_BYTES))
    assert staged.writer is not None
    libc.allocate_behind_the_end(staged.writer, SIZE_BYTES + METADATA_BYTES // 2)
    before_blocks = os.fstat(staged.writer).st_blocks

    node.ingest.commit(staged, IDS, "a", content_of(bytes(SIZE_BYTES)))
    (shard,) = node.rows()
    assert shard.file_id is not None
    after = os.stat(node.cache_dir / "data" / shard.file_id[:2] / shard.file_id)
    assert after.st_size == SIZE_BYTES
    assert after.st_blocks * 512 < SIZE_BYTES + 8192 < before_blocks * 512


def test_one_holder_opens_so_many_puts_and_no_more(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(open_files, "STAGED_LIMIT", 1)
    with handed_out(node) as (staged, _descriptor):
        with (
            callers.working_for(None, rank_of("user 7")),
            pytest.raises(BackpressureError, match="p, user 7: 1 puts are open"),
        ):
            node.ingest.begin(IDS, "b", 10, 0.0)
        with handed_out(node, "user 8") as (other, _):
            node.ingest.abort(other)
        node.ingest.abort(staged)
    with handed_out(node) as (staged, _descriptor):
        node.ingest.abort(staged)


def test_a_file_that_cannot_be_removed_is_counted_on(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    def remove(_file_id: str) -> None:
        raise OSError(errno.EIO, "it fails")

    with handed_out(node) as (staged, _descriptor), monkeypatch.context() as failing:
        failing.setattr(node.store.files, "remove", remove)
        node.ingest.abort(staged)
    assert node.store.space.used_bytes == SIZE_BYTES
    assert len(list(node.store.files.all())) == 1


def test_what_was_committed_or_brought_back_is_measured_no_more(node: Node) -> None:
    shard = clean(node)
    assert node.evict(shard)
    node.get("run", 1, "a")

    descriptor = os.open(node.cache_dir / "catalog.db", os.O_RDONLY)  # where theirs was
    node.store.open_files.look()

    assert node.store.open_files.refusals() == []
    assert node.store.space.used_bytes == SIZE_BYTES
    os.close(descriptor)


# --- readers -------------------------------------------------------------------------------------


def clean(node: Node, name: str = "a") -> Shard:
    node.put(IDS, name, bytes(SIZE_BYTES))
    node.drain.drain_all()
    return next(row for row in node.rows() if row.name == name)


@contextmanager
def read_by(node: Node, holder: str, name: str = "a") -> Iterator[int]:
    with callers.working_for(None, rank_of(holder)):
        descriptor = node.restore.open("run", 1, name, 0.0).descriptor
    assert descriptor is not None
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def test_within_the_grace_a_shard_that_is_read_stays(node: Node, clock: FakeClock) -> None:
    shard = clean(node)
    with read_by(node, "user 7"):
        assert not node.evict(shard)
        clock.advance(GRACE_SECONDS - 1)
        assert not node.evict(shard)
    assert node.rows()[0].state is ShardState.CLEAN


def test_after_it_the_shard_goes_and_its_reader_finishes(node: Node, clock: FakeClock) -> None:
    shard = clean(node)
    with read_by(node, "user 7") as descriptor:
        node.evict(shard)
        clock.advance(GRACE_SECONDS)

        assert not node.evict(shard), "its bytes did not go yet"

        assert node.rows()[0].state is ShardState.EVICTED
        assert list(node.store.files.all()) == []
        assert os.pread(descriptor, SIZE_BYTES + 1, 0) == bytes(SIZE_BYTES), "never truncated"
        lent = node.store.open_files.lent()
        assert (lent.size_bytes, lent.holder) == (SIZE_BYTES, "p, user 7, process 1")
        assert node.store.space.used_bytes == SIZE_BYTES
        node.store.open_files.look_at_readers()
        assert node.store.space.used_bytes == SIZE_BYTES

    node.store.open_files.look_at_readers()
    assert node.store.space.used_bytes == 0
    assert node.store.open_files.lent().size_bytes == 0
    assert node.get("run", 1, "a") == bytes(SIZE_BYTES), "from the remote"
    judge_bytes(node)


def test_no_more_is_lent_than_room_is_lacking(node: Node, clock: FakeClock) -> None:
    """What nobody reads goes first, and what was lent comes back by itself."""
    for name in "abcd":
        clean(node, name)
    with read_by(node, "user 7", "a"), read_by(node, "user 7", "b"), read_by(node, "user 7", "c"):
        node.evictor._evict_until(3 * SIZE_BYTES)  # `d` will do
        clock.advance(GRACE_SECONDS)
        node.evictor._evict_until(2 * SIZE_BYTES)
        states = {row.name: row.state for row in node.rows()}
        assert states["d"] is ShardState.EVICTED
        assert sum(state is ShardState.EVICTED for state in states.values()) == 2
        node.evictor._evict_until(2 * SIZE_BYTES)
        assert sum(row.state is ShardState.EVICTED for row in node.rows()) == 2


def test_readers_that_follow_one_another_stop_eviction_no_longer_than_the_grace(
    node: Node, clock: FakeClock
) -> None:
    shard = clean(node)
    with read_by(node, "user 7"):
        node.evict(shard)
    with read_by(node, "user 8"):
        clock.advance(GRACE_SECONDS)
        node.evict(shard)
        assert node.rows()[0].state is ShardState.EVICTED
        assert node.store.open_files.lent().holder == "p, user 8, process 1"


def test_a_shard_that_nobody_read_in_between_has_its_grace_anew(
    node: Node, clock: FakeClock
) -> None:
    shard = clean(node)
    with read_by(node, "user 7"):
        node.evict(shard)
    node.store.open_files.look_at_readers()
    clock.advance(GRACE_SECONDS)
    with read_by(node, "user 7"):
        node.evict(shard)
    assert node.rows()[0].state is ShardState.CLEAN


def test_a_dirty_shard_never_goes_however_long_it_is_read(node: Node, clock: FakeClock) -> None:
    node.put(IDS, "a", bytes(SIZE_BYTES))
    (shard,) = node.rows()
    with read_by(node, "user 7"):
        node.evict(shard)
        clock.advance(2 * GRACE_SECONDS)
        node.evict(shard)
    assert node.rows()[0].state is ShardState.DIRTY
    assert node.get("run", 1, "a") == bytes(SIZE_BYTES)


def test_a_deleted_shard_is_counted_while_it_is_read(node: Node) -> None:
    clean(node)
    with read_by(node, "user 7"):
        node.checkpoints.delete_step("run", 1)
        assert node.store.space.used_bytes == SIZE_BYTES
        node.store.open_files.look_at_readers()
        assert node.store.open_files.lent().holder == "p, user 7, process 1"
    node.store.open_files.look_at_readers()
    assert node.store.space.used_bytes == 0


def test_who_has_most_open_is_named(node: Node) -> None:
    for name in "abc":
        clean(node, name)
    with read_by(node, "user 7", "a"), read_by(node, "user 8", "b"), read_by(node, "user 8", "c"):
        lent = node.store.open_files.lent()

    assert (lent.size_bytes, lent.holder_bytes) == (3 * SIZE_BYTES, 2 * SIZE_BYTES)
    assert lent.holder == "p, user 8, process 1"
    assert lent.shards == {row.version for row in node.rows()}


def test_no_more_readers_are_remembered_than_there_is_room_for(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(open_files, "READERS_LIMIT", 2)
    for name in "abc":
        clean(node, name)
    with read_by(node, "user 7"), read_by(node, "user 7", "b"), read_by(node, "user 7", "c"):
        assert node.store.open_files.lent().size_bytes == 2 * SIZE_BYTES


def test_what_the_service_opens_for_itself_is_lent_to_nobody(node: Node) -> None:
    copy = node.store.local_copy(clean(node))
    assert copy is not None

    assert node.store.open_files.lent().size_bytes == 0
    copy.close()


def test_what_was_lent_is_gone_after_a_crash_and_its_row_says_so(
    tmp_path: Path, clock: FakeClock, vfs: str, remote: MemoryObjectStore
) -> None:
    first = Node(tmp_path / "crashed", remote, clock, vfs=vfs)
    shard = clean(first)
    with read_by(first, "user 7"):
        first.evict(shard)
        clock.advance(GRACE_SECONDS)
        first.evict(shard)
        first.die()

        again = Node(tmp_path / "crashed", remote, clock, vfs=vfs)
        assert again.recovered.lost_shards == 0
        assert again.rows()[0].state is ShardState.EVICTED
        judge_bytes(again)
        assert again.get("run", 1, "a") == bytes(SIZE_BYTES)
        again.close()
