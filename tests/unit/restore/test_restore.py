"""Bytes come back from here if they are sound, else from the remote, verified; or not at all."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from cachetier_client.bucket_format.documents import PartDocument, decode, encode
from cachetier_client.identity.names import SaveIds
from cachetier_client.io.digests import BLOCK_BYTES, digest_of

from cachetier.errors import CachetierError, IntegrityError, TransientError
from cachetier.local.catalog import notes
from cachetier.model.lifecycle import ShardState
from cachetier.model.shard import Shard
from cachetier.remote.base import if_match
from cachetier.restore.fill import Room
from tests.fakes.fake_clock import FakeClock
from tests.fakes.faulty_store import FaultyObjectStore, corrupt, fail
from tests.fakes.memory_store import MemoryObjectStore
from tests.stateful.fake_drain import REMOTE
from tests.stateful.node import Node

IDS = SaveIds("run", 1, "save", 0, 1)
DATA = bytes(range(256)) * 400
KEY = "tier/run/1/a"


def code_of(call: Callable[[], object]) -> str:
    with pytest.raises(CachetierError) as refusal:
        call()
    return refusal.value.code


def publish(node: Node, data: bytes = DATA) -> None:
    node.put(IDS, "a", data)
    node.checkpoints.seal(IDS, 1)
    node.drain.drain_all()


def evict(node: Node) -> None:
    for row in node.rows():
        assert node.evict(row)


def state(node: Node) -> ShardState:
    (row,) = node.rows()
    return row.state


def local_file(node: Node) -> Path:
    (row,) = node.rows()
    assert row.file_id is not None
    return node.cache_dir / "data" / row.file_id[:2] / row.file_id


@pytest.fixture
def elsewhere(
    tmp_path: Path, remote: MemoryObjectStore, clock: FakeClock, vfs: str
) -> Iterator[Node]:
    elsewhere = Node(tmp_path / "elsewhere", remote, clock, vfs=vfs)
    yield elsewhere
    elsewhere.close()


# --- the usual ways -----------------------------------------------------------------------------


def test_local_bytes_are_given_from_here(node: Node) -> None:
    node.put(IDS, "a", DATA)
    opened = node.restore.open("run", 1, "a", 0.0)

    assert (opened.source, opened.body) == ("local", None)
    assert opened.descriptor is not None
    assert os.pread(opened.descriptor, len(DATA), 0) == DATA
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.write(opened.descriptor, b"x")
    os.close(opened.descriptor)


@pytest.mark.parametrize("size", [0, 1, 300, 100_000])
def test_what_is_only_remote_comes_back_and_stays(node: Node, size: int) -> None:
    publish(node, bytes(size))
    evict(node)
    assert node.store.space.used_bytes == 0

    opened = node.restore.open("run", 1, "a", 0.0)

    assert opened.source == "remote"
    assert opened.descriptor is not None
    assert os.fstat(opened.descriptor).st_size == size
    os.close(opened.descriptor)
    assert state(node) is ShardState.CLEAN
    assert node.store.space.used_bytes == size
    assert node.restore.look("run", 1, "a")[1] == "local"


def test_several_blocks_come_back_in_order(node: Node) -> None:
    node.store.space.capacity_bytes = 64 << 20
    data = bytes([1]) * BLOCK_BYTES + bytes([2]) * BLOCK_BYTES + b"tail"
    publish(node, data)
    evict(node)

    assert node.get("run", 1, "a") == data


def test_a_node_that_never_saw_the_run_restores_it_from_the_bucket(
    node: Node, elsewhere: Node
) -> None:
    publish(elsewhere)

    assert node.restore.look("run", 1, "a")[1] == "remote"
    assert node.get("run", 1, "a") == DATA
    assert state(node) is ShardState.CLEAN


def test_bytes_come_back_for_a_rank_that_no_put_would_be_taken_from(node: Node) -> None:
    publish(node)
    evict(node)
    (shard,) = node.rows()  # as an old bucket may name it
    assert node.store.space.reserve(len(DATA), 0.0, lambda: None)
    staged = node.store.stage(len(DATA))
    assert staged.writer is not None
    os.pwrite(staged.writer, DATA, 0)

    node.store.restored(staged, replace(shard, rank=2**40))

    assert state(node) is ShardState.CLEAN
    assert local_file(node).read_bytes() == DATA


def test_an_unknown_shard_is_not_found_here_nor_there(node: Node) -> None:
    assert code_of(lambda: node.get("run", 1, "a")) == "not_found"
    node.put(IDS, "a", DATA)
    assert code_of(lambda: node.get("run", 1, "b")) == "not_found"
    publish(node)
    assert code_of(lambda: node.get("run", 1, "b")) == "not_found"
    assert code_of(lambda: node.restore.look("run", 2, "a")) == "not_found"


def test_an_open_save_is_not_mixed_with_what_the_bucket_has(node: Node, elsewhere: Node) -> None:
    """This node saves the step anew: until that is whole, the published save is the step."""
    publish(elsewhere)
    again = SaveIds("run", 1, "again", 0, 1)
    node.put(again, "b", b"new")

    assert node.get("run", 1, "a") == DATA
    assert code_of(lambda: node.get("run", 1, "b")) == "not_found"
    assert [row.name for row in node.rows()] == ["b", "a"], "the drain decides about the new save"
    node.checkpoints.seal(again, 1)
    assert code_of(lambda: node.get("run", 1, "b")) == "not_found", "it does not overwrite"


# --- local damage -------------------------------------------------------------------------------


def flip(path: Path) -> None:
    body = bytearray(path.read_bytes())
    body[77] ^= 1
    path.write_bytes(body)


HARMS: dict[str, Callable[[Path], object]] = {
    "flipped": flip,
    "short": lambda path: os.truncate(path, 10),
    "long": lambda path: os.truncate(path, len(DATA) + 1),
    "missing": Path.unlink,
}


@pytest.mark.parametrize("harm", HARMS)
def test_damage_to_clean_bytes_costs_only_a_read_from_the_remote(node: Node, harm: str) -> None:
    publish(node)
    before = len(os.listdir("/proc/self/fd"))
    HARMS[harm](local_file(node))

    assert node.get("run", 1, "a") == DATA

    assert state(node) is ShardState.CLEAN
    assert node.store.space.used_bytes == len(DATA)
    assert [size for _, size in node.store.files.all()] == [len(DATA)]
    assert node.store.read(notes.newest_incident) == 0
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize("harm", HARMS)
def test_damage_to_the_only_bytes_is_an_error_and_an_incident_never_data(
    node: Node, harm: str
) -> None:
    node.put(IDS, "a", DATA)
    before = len(os.listdir("/proc/self/fd"))
    HARMS[harm](local_file(node))

    for _ in range(2):
        assert code_of(lambda: node.get("run", 1, "a")) == "integrity"
    assert code_of(lambda: node.restore.look("run", 1, "a")) == "integrity"

    assert state(node) is ShardState.QUARANTINED
    found = node.store.read(lambda sql: notes.incidents_after(sql, 0))
    assert [(i.code, i.name, i.rank) for i in found] == [("integrity", "a", 0)]
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize("harm", HARMS)
@pytest.mark.parametrize("clean", [True, False])
def test_a_reader_that_met_damage_can_have_it_verified(node: Node, harm: str, clean: bool) -> None:
    node.put(IDS, "a", DATA)
    if clean:
        node.drain.drain_one()
    assert node.restore.verify("run", 1, "a") is True
    HARMS[harm](local_file(node))

    assert node.restore.verify("run", 1, "a") is False

    assert state(node) is (ShardState.EVICTED if clean else ShardState.QUARANTINED)
    assert node.restore.verify("run", 1, "a") is clean, "what is remote is not in doubt"


def test_a_shard_in_the_catalog_is_verified_too(node: Node) -> None:
    node.put(IDS, "a", b"small")
    assert node.restore.verify("run", 1, "a")
    node.store._committer._connection.execute("UPDATE bodies SET body = x'00'")

    assert not node.restore.verify("run", 1, "a")
    assert state(node) is ShardState.QUARANTINED


def test_a_disk_that_cannot_read_a_file_is_damage(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.put(IDS, "a", DATA)

    def broken(*_args: int) -> bytes:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "pread", broken)
    assert not node.restore.verify("run", 1, "a")
    monkeypatch.undo()
    assert state(node) is ShardState.QUARANTINED


def test_damage_that_was_met_too_late_harms_nobody(node: Node) -> None:
    """The shard was drained, replaced or deleted between the read and the report."""
    node.put(IDS, "a", DATA)
    (stale,) = node.rows()
    node.drain.drain_one()

    assert node.restore.report_damage(stale) is ShardState.CLEAN
    assert node.store.read(notes.newest_incident) == 0, "no bytes were lost"
    assert node.store.space.used_bytes == 0
    node.checkpoints.delete_step("run", 1)
    assert node.restore.report_damage(stale) is None


# --- remote damage ------------------------------------------------------------------------------


def test_a_remote_copy_that_is_not_what_was_put_is_an_error_never_data(
    node: Node, remote: MemoryObjectStore
) -> None:
    publish(node)
    evict(node)
    remote.damage(KEY, 200)

    assert code_of(lambda: node.get("run", 1, "a")) == "integrity"

    assert state(node) is ShardState.EVICTED
    assert node.store.space.used_bytes == 0
    assert list(node.store.files.all()) == []


def replaced_object(remote: MemoryObjectStore, body: bytes | None) -> None:
    info = remote.head(KEY)
    assert info is not None
    if body is None:
        remote.delete(KEY)
    else:
        remote.put(KEY, body, digest=digest_of(body), condition=if_match(info.etag))


@pytest.mark.parametrize("body", [None, b"", DATA[:-1], DATA[1:] + b"x"])
def test_a_remote_copy_that_was_removed_or_replaced_is_an_error(
    node: Node, remote: MemoryObjectStore, body: bytes | None
) -> None:
    publish(node)
    evict(node)
    replaced_object(remote, body)

    assert code_of(lambda: node.get("run", 1, "a")) == "integrity"
    assert node.store.space.used_bytes == 0


def test_a_part_that_lies_about_its_shards_is_refused(
    node: Node, elsewhere: Node, remote: MemoryObjectStore
) -> None:
    publish(elsewhere)
    key = "tier/run/1/.cachetier/rank-0.json"
    part = decode(PartDocument, remote.get(key), key)
    lie = replace(part.shards[0], block_digests="")
    body = encode(replace(part, shards=(lie,)))
    remote.put(key, body, digest=digest_of(body))
    seen = node.bucket.manifest("run", 1)
    assert seen is not None
    pinned = replace(seen.manifest.parts[0], digest=f"{digest_of(body):016x}")
    assert node.bucket.put_manifest(replace(seen.manifest, parts=(pinned,)), seen)

    with pytest.raises(IntegrityError, match="the part of rank 0 is wrong about shard a"):
        node.get("run", 1, "a")
    assert node.rows() == []


def test_a_part_that_is_not_the_one_the_manifest_pins_is_refused(
    node: Node, elsewhere: Node, remote: MemoryObjectStore
) -> None:
    publish(elsewhere)
    key = "tier/run/1/.cachetier/rank-0.json"
    body = remote.get(key) + b" "
    remote.put(key, body, digest=digest_of(body))

    assert code_of(lambda: node.get("run", 1, "a")) == "integrity"


def faulty_node(tmp_path: Path, faulty: FaultyObjectStore, vfs: str) -> Node:
    node = Node(tmp_path / "faulty", faulty, FakeClock(), vfs=vfs)
    publish(node)
    evict(node)
    return node


def test_a_bit_that_flips_on_the_way_is_noticed_and_the_next_read_is_right(
    tmp_path: Path, remote: MemoryObjectStore, vfs: str
) -> None:
    faulty = FaultyObjectStore(remote)
    node = faulty_node(tmp_path, faulty, vfs)
    faulty.add(corrupt("read_into"))

    assert code_of(lambda: node.get("run", 1, "a")) == "integrity"

    assert faulty.pending == []
    assert node.get("run", 1, "a") == DATA
    node.close()


def test_a_remote_that_fails_for_a_moment_leaves_nothing_behind(
    tmp_path: Path, remote: MemoryObjectStore, vfs: str
) -> None:
    faulty = FaultyObjectStore(remote)
    node = faulty_node(tmp_path, faulty, vfs)
    faulty.add(fail("read_into"))

    with pytest.raises(TransientError):
        node.get("run", 1, "a")

    assert faulty.pending == []
    assert node.store.space.used_bytes == 0
    assert list(node.store.files.all()) == []
    assert node.get("run", 1, "a") == DATA
    node.close()


def test_who_uses_or_restores_a_shard_is_heard(node: Node, clock: FakeClock) -> None:
    from cachetier.restore.restore import Restore, RestoreListener

    heard: list[tuple[str, str]] = []

    def hear(what: str) -> Callable[[Shard], None]:
        return lambda shard: heard.append((what, shard.name))

    restore = Restore(
        node.store,
        node.bucket,
        clock,
        remote=REMOTE,
        room=Room(lambda: None),
        listener=RestoreListener(on_used=hear("used"), on_restored=hear("restored")),
    )
    publish(node)
    flip(local_file(node))
    assert not restore.verify("run", 1, "a")
    opened = restore.open("run", 1, "a", 0.0)

    assert opened.descriptor is not None
    os.close(opened.descriptor)
    restore.close()
    assert heard == [("restored", "a"), ("used", "a")]
