"""A node whose disk failed, or is full to the last byte or inode, starts and reads what it can."""

from __future__ import annotations

import errno
import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from cachetier_client import BackpressureError, Client
from cachetier_client.identity.names import SaveIds

from cachetier.errors import ConfigError, DiskFullError
from cachetier.local.catalog import shards
from cachetier.local.catalog.connection import SPARE_FILES, SPARE_NAME
from cachetier.local.files import data_files
from cachetier.model.names import STORE_ID_NAME
from tests.fakes.fake_clock import FakeClock
from tests.fakes.memory_store import MemoryObjectStore
from tests.integration.serving import Served, serving, shard_path
from tests.stateful.node import Node

LARGE = os.urandom(9 << 20)
RANK: dict[str, Any] = {"rank": 0, "world_size": 1, "save_id": "one"}
SECONDS = 60.0


class TmpfsDisk:
    """A small tmpfs of its own, of which others take every inode or every byte."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._others = path / "others"

    def take_inodes(self) -> None:
        self._others.mkdir(exist_ok=True)
        try:
            for number in range(10_000):
                (self._others / f"{time.monotonic_ns()}-{number}").touch()
        except OSError:
            return
        raise AssertionError("the disk has more inodes than it should")

    def take_bytes(self) -> None:
        with (self.path / "others.bin").open("ab", buffering=0) as file:
            for size_bytes in (1 << 20, 4096):
                try:
                    while True:
                        file.write(bytes(size_bytes))
                except OSError:
                    continue

    @property
    def free(self) -> tuple[int, int]:
        found = os.statvfs(self.path)
        return found.f_bavail, found.f_favail


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[TmpfsDisk]:
    point = tmp_path / "disk"
    point.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=64m,nr_inodes=400", "tmpfs", str(point)]
    try:
        subprocess.run(mount, check=True, capture_output=True, timeout=60)
    except (FileNotFoundError, subprocess.CalledProcessError) as error:
        pytest.skip(f"needs root: {error}")
    try:
        yield TmpfsDisk(point)
    finally:
        subprocess.run(["umount", "--lazy", str(point)], check=True, timeout=60)


@contextmanager
def serving_at(disk: TmpfsDisk, **more: Any) -> Iterator[tuple[Served, Client]]:
    settings = {"allow_volatile": True, "capacity": "48 MB", **more}
    with (
        serving(disk.path / "cache", **settings) as served,
        Client(served.unix_url, run="r", fallback="fail") as client,
    ):
        yield served, client


def save(client: Client, step: int) -> None:
    client.put_shard(LARGE, step=step, name="x", **RANK)
    client.seal(None, step, **RANK)


@pytest.mark.parametrize("lacks", ["inodes", "bytes"])
def test_a_node_starts_again_and_again_while_its_disk_has_nothing_left(
    disk: TmpfsDisk, lacks: str
) -> None:
    with serving_at(disk) as (_, client):
        save(client, 1)
    for _time in range(3):
        getattr(disk, f"take_{lacks}")()
        assert 0 in disk.free
        with serving_at(disk, when_full="reject") as (served, client):
            assert bytes(client.get_shard("r", 1, "x")) == LARGE
            getattr(disk, f"take_{lacks}")()  # what the start has left
            served.service.store.look_at_disk()
            warnings = " ".join(client.status()["warnings"])
            assert "the disk is full" in warnings
            assert ("inodes left" in warnings) == (lacks == "inodes")
            with pytest.raises(BackpressureError, match="full"):
                client.put_shard(LARGE, step=2, name="y", timeout_seconds=SECONDS, **RANK)
            assert served.service.store.fenced is None


def test_a_put_on_a_disk_without_an_inode_is_taken_when_a_clean_shard_went(
    disk: TmpfsDisk,
) -> None:
    with serving_at(disk) as (served, client):
        save(client, 1)
    disk.take_inodes()
    with serving_at(disk) as (served, client):
        disk.take_inodes()
        store = served.service.store
        (shard,) = store.read(shards.shards_of, 1)
        store.files.remove(str(shard.file_id))  # as an eviction does
        store.look_at_disk()
        client.put_shard(LARGE, step=2, name="y", timeout_seconds=SECONDS, **RANK)
        assert bytes(client.get_shard("r", 2, "y")) == LARGE


def test_the_disk_is_tried_on_a_file_that_is_there_if_none_can_be_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving(tmp_path / "cache"):
        pass
    known = tmp_path / "cache" / STORE_ID_NAME
    well = data_files.probe(tmp_path / "cache", known=known)

    def full(*_arguments: object, **_options: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(data_files.DiskFiles, "create", full)
    assert data_files.probe(tmp_path / "cache", known=known) == well
    with pytest.raises(ConfigError, match="takes no file: No space left"):
        data_files.probe(tmp_path / "cache")


def test_a_catalog_for_which_there_is_no_inode_is_not_called_damaged(disk: TmpfsDisk) -> None:
    with serving_at(disk):
        pass
    for spare in (disk.path / "cache" / SPARE_NAME).iterdir():
        spare.unlink()
    disk.take_inodes()
    with pytest.raises(DiskFullError, match="has no room to open") as caught, serving_at(disk):
        pass
    assert "df -i" in caught.value.hint


def test_spare_files_are_kept_for_the_start_and_lent_to_it(disk: TmpfsDisk) -> None:
    with serving_at(disk):
        pass
    spare = disk.path / "cache" / SPARE_NAME
    assert len(list(spare.iterdir())) == SPARE_FILES
    disk.take_inodes()
    with serving_at(disk):
        assert list(spare.iterdir()) == []


def test_a_fenced_node_hands_through_from_the_bucket_what_it_evicted(tmp_path: Path) -> None:
    objects, clock = MemoryObjectStore(minimum_part_bytes=1), FakeClock()
    (tmp_path / "elsewhere").mkdir()
    elsewhere = Node(tmp_path / "elsewhere", objects, clock)
    of = SaveIds("r", 1, "one", 0, 1)
    elsewhere.put(of, "x", LARGE)
    elsewhere.checkpoints.seal(of, 1)
    elsewhere.drain.drain_all()
    layout = elsewhere.bucket.layout
    with (
        serving(bucket=(objects, layout)) as served,
        Client(served.unix_url, run="r", fallback="fail") as client,
    ):
        assert served.call("HEAD", shard_path("x")).status == 200  # it knows of it, and has nothing
        served.service.store.fence("a sync failed")
        assert bytes(client.get_shard("r", 1, "x")) == LARGE
        answer = served.call("GET", shard_path("x"))
        assert (answer.status, answer.body) == (200, LARGE)
        assert served.service.store.fenced
    elsewhere.close()
