"""Start-up compares rows with files, and puts right what it may."""

from __future__ import annotations

import os
from pathlib import Path

import apsw
import pytest
from cachetier_client.identity.names import SaveIds

from cachetier.errors import CatalogDamagedError, IntegrityError
from cachetier.local.catalog import notes
from cachetier.local.files.data_files import DiskFiles
from cachetier.local.recovery import Recovered, open_store
from cachetier.model.lifecycle import ShardState
from cachetier.model.shard import Shard
from tests.fakes.fake_clock import FakeClock
from tests.fakes.faulty_files import FaultyFiles, refuse
from tests.fakes.memory_store import MemoryObjectStore
from tests.stateful.node import Node

IDS = SaveIds("run", 1, "save")
DATA = bytes(range(256)) * 400


@pytest.fixture
def killed(tmp_path: Path, vfs: str) -> Node:
    """A node with one dirty shard, which each test kills and starts again."""
    remote = MemoryObjectStore(minimum_part_bytes=1)
    killed = Node(tmp_path / "killed", remote, FakeClock(), vfs=vfs)
    killed.put(IDS, "a", DATA)
    return killed


def restarted(node: Node, vfs: str) -> Node:
    node.die()
    return Node(node.cache_dir, node.bucket.objects, FakeClock(), vfs=vfs)


def file_of(node: Node, shard: Shard) -> Path:
    assert shard.file_id is not None
    return node.cache_dir / "data" / shard.file_id[:2] / shard.file_id


def found(recovered: Recovered) -> tuple[int, int, int]:
    return recovered.rubbish_files, recovered.set_aside_files, recovered.lost_shards


def test_a_sound_directory_is_left_alone(killed: Node, vfs: str) -> None:
    again = restarted(killed, vfs)

    assert found(again.recovered) == (0, 0, 0)
    assert again.get("run", 1, "a") == DATA
    assert again.store.store_id == killed.store.store_id
    assert again.store.space.used_bytes == len(DATA)
    again.close()


def test_a_start_refuses_a_catalog_whose_texts_are_overwritten(killed: Node, vfs: str) -> None:
    garbage = b"\x83" * 32

    def overwrite(sql: apsw.Connection) -> None:
        sql.execute("UPDATE shards SET file_id = CAST(? AS TEXT)", (garbage,)).fetchall()

    killed.store.write(overwrite)
    with pytest.raises(CatalogDamagedError, match="cannot be read"):
        restarted(killed, vfs)


def test_a_file_that_was_never_committed_is_removed(killed: Node, vfs: str) -> None:
    file_id, writer = killed.store.files.create(100)
    os.close(writer)

    again = restarted(killed, vfs)

    assert found(again.recovered) == (1, 0, 0)
    assert file_id not in dict(again.store.files.all())
    again.close()


def test_a_file_marked_as_committed_but_without_a_row_is_kept_for_a_person(
    killed: Node, vfs: str
) -> None:
    file_id, writer = killed.store.files.create(100)
    os.close(writer)
    reader = killed.store.files.open(file_id)
    killed.store.files.seal(reader, b"identity")
    os.close(reader)

    again = restarted(killed, vfs)

    assert found(again.recovered) == (0, 1, 0)
    assert (killed.cache_dir / "lost+found" / file_id).exists()
    again.close()


@pytest.mark.parametrize("harm", ["missing", "short", "long"])
def test_a_dirty_row_without_its_file_is_quarantined_and_reported_once(
    killed: Node, vfs: str, harm: str
) -> None:
    harm_file(file_of(killed, killed.rows()[0]), harm)

    again = restarted(killed, vfs)
    assert found(again.recovered) == (0, 0, 1)
    assert [row.state for row in again.rows()] == [ShardState.QUARANTINED]
    with pytest.raises(IntegrityError):
        again.get("run", 1, "a")

    third = restarted(again, vfs)
    incidents = third.store.read(lambda sql: notes.incidents_after(sql, 0))
    assert [(i.code, i.run, i.step, i.name, i.rank) for i in incidents] == [
        ("integrity", "run", 1, "a", 0)
    ]
    third.close()


@pytest.mark.parametrize("harm", ["missing", "short", "long"])
def test_a_clean_row_without_its_file_is_evicted_and_comes_back_from_the_remote(
    killed: Node, vfs: str, harm: str
) -> None:
    killed.drain.drain_all()
    harm_file(file_of(killed, killed.rows()[0]), harm)

    again = restarted(killed, vfs)

    assert [row.state for row in again.rows()] == [ShardState.EVICTED]
    assert dict(again.store.files.all()) == {}, "the harmed file takes room"
    assert again.store.space.used_bytes == 0
    assert again.store.read(notes.newest_incident) == 0
    assert again.get("run", 1, "a") == DATA
    again.close()


def harm_file(path: Path, harm: str) -> None:
    if harm == "missing":
        path.unlink()
    else:
        os.truncate(path, len(DATA) + (1 if harm == "long" else -1))


def test_the_names_of_new_directories_are_synced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cache directory whose own name is lost takes everything with it."""
    synced: list[str] = []
    monkeypatch.setattr(
        os, "fsync", lambda descriptor: synced.append(os.readlink(f"/proc/self/fd/{descriptor}"))
    )
    from cachetier.local.recovery import lock_directory

    os.close(lock_directory(tmp_path / "a" / "b" / "cache"))

    for parent in (tmp_path, tmp_path / "a", tmp_path / "a" / "b"):
        assert str(parent) in synced


def test_a_store_that_cannot_be_opened_leaves_no_descriptor_open(tmp_path: Path, vfs: str) -> None:
    cache_dir = tmp_path / "cache"
    cache_dir.mkdir()
    open_store(cache_dir, 1 << 20, FakeClock(), vfs=vfs).store.close()
    (cache_dir / "store-id").write_text("another\n")
    before = len(os.listdir("/proc/self/fd"))

    for _ in range(3):
        with pytest.raises(Exception, match="of store"):
            open_store(cache_dir, 1 << 20, FakeClock(), vfs=vfs)

    assert len(os.listdir("/proc/self/fd")) == before


def test_a_disk_that_fails_while_files_are_compared_leaves_the_store_closed_and_whole(
    killed: Node, vfs: str
) -> None:
    killed.die()
    files = FaultyFiles(DiskFiles(killed.cache_dir), [refuse("all")])
    before = len(os.listdir("/proc/self/fd"))

    with pytest.raises(OSError, match="Input/output error"):
        open_store(killed.cache_dir, 1 << 20, FakeClock(), files=files, vfs=vfs)

    assert files.fired
    assert len(os.listdir("/proc/self/fd")) == before
    again = Node(killed.cache_dir, killed.bucket.objects, FakeClock(), vfs=vfs)
    assert again.get("run", 1, "a") == DATA
    again.close()
