"""Data files on a real disk: who may write, who may read, what a name can be."""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from cachetier.errors import ConfigError, OpenForWritingError
from cachetier.local.files import data_files as files_module
from cachetier.local.files.data_files import ALIGNMENT_BYTES, DiskFiles, probe
from tests.stateful.unsynced import unsynced


@pytest.fixture
def disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[DiskFiles]:
    monkeypatch.setattr(files_module, "WRITER_PATIENCE_TRIES", 0)  # no forked child to wait for
    with unsynced():
        disk = DiskFiles(tmp_path)
        disk.prepare()
        yield disk


def written(disk: DiskFiles, data: bytes) -> str:
    file_id, descriptor = disk.create(len(data))
    os.pwrite(descriptor, data, 0)
    os.ftruncate(descriptor, len(data))
    os.close(descriptor)
    return file_id


def test_a_file_is_created_with_room_for_its_bytes_in_whole_blocks(
    disk: DiskFiles, tmp_path: Path
) -> None:
    file_id, descriptor = disk.create(ALIGNMENT_BYTES + 1)

    assert os.fstat(descriptor).st_size == 2 * ALIGNMENT_BYTES
    assert (tmp_path / "data" / file_id[:2] / file_id).stat().st_mode & 0o777 == 0o600
    assert dict(disk.all()) == {file_id: 2 * ALIGNMENT_BYTES}
    os.close(descriptor)


def test_an_empty_file_takes_no_room(disk: DiskFiles) -> None:
    file_id, descriptor = disk.create(0)

    assert dict(disk.all()) == {file_id: 0}
    os.close(descriptor)


def test_a_disk_without_room_leaves_no_file_behind(
    disk: DiskFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_args: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    before = len(os.listdir("/proc/self/fd"))

    with pytest.raises(OSError, match="No space"):
        disk.create(100)

    assert list(disk.all()) == []
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_file_that_somebody_can_write_to_is_not_sealed(disk: DiskFiles) -> None:
    file_id, writer = disk.create(10)
    reader = disk.open(file_id)

    with pytest.raises(OpenForWritingError):
        disk.seal(reader, b"identity")
    os.close(writer)
    disk.seal(reader, b"identity")

    assert disk.identity(file_id) == b"identity"
    os.close(reader)


def test_a_mapping_that_outlives_its_descriptor_is_a_writer_too(disk: DiskFiles) -> None:
    file_id, writer = disk.create(mmap.PAGESIZE)
    mapping = mmap.mmap(writer, mmap.PAGESIZE)
    os.close(writer)
    reader = disk.open(file_id)

    with pytest.raises(OpenForWritingError):
        disk.seal(reader, b"identity")
    mapping.close()
    disk.seal(reader, b"identity")
    os.close(reader)


def test_a_writer_that_is_gone_in_a_moment_is_waited_for(
    disk: DiskFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process forked in the middle of a put holds its descriptors until it has started."""
    file_id, writer = disk.create(10)
    reader = disk.open(file_id)
    monkeypatch.setattr(files_module, "WRITER_PATIENCE_TRIES", 3)
    monkeypatch.setattr(time, "sleep", lambda _seconds: os.close(writer))

    disk.seal(reader, b"identity")

    os.close(reader)


def test_a_filesystem_without_leases_is_refused(
    disk: DiskFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    file_id = written(disk, b"x")
    reader = disk.open(file_id)

    def refuse(*_args: int) -> int:
        raise OSError(22, "Invalid argument")

    monkeypatch.setattr(fcntl, "fcntl", refuse)
    with pytest.raises(ConfigError, match="leases"):
        disk.seal(reader, b"identity")
    os.close(reader)


def test_whether_a_file_is_read_is_told_by_the_kernel(disk: DiskFiles) -> None:
    file_id = written(disk, b"x")
    assert disk.unread(file_id)

    reader = disk.open(file_id)
    assert not disk.unread(file_id)
    os.close(reader)

    assert disk.unread(file_id)
    disk.remove(file_id)
    assert disk.unread(file_id), "nobody reads what is gone"


READ_AND_ASK = """
import os, sys, threading
from pathlib import Path
from cachetier.local.files.data_files import DiskFiles

disk, file_id, enough = DiskFiles(Path(sys.argv[1])), sys.argv[2], threading.Event()

def read():
    while not enough.is_set():
        os.close(disk.open(file_id))

threading.Thread(target=read, daemon=True).start()
answers = {disk.unread(file_id) for _ in range(20_000)}
enough.set()
sys.exit(answers != {True, False})
"""


def test_those_who_ask_at_once_whether_a_file_is_read_are_no_readers(disk: DiskFiles) -> None:
    file_id, writer = disk.create(4096)
    os.close(writer)

    with ThreadPoolExecutor(4) as pool:
        unread = pool.map(lambda _: disk.unread(file_id), range(400))
    assert all(unread)


def test_opening_a_file_while_it_is_asked_for_readers_kills_nobody(
    disk: DiskFiles, tmp_path: Path
) -> None:
    """A broken lease is told by a signal, and by default that signal, SIGIO, ends the process."""
    command = [sys.executable, "-c", READ_AND_ASK, str(tmp_path), written(disk, b"x")]

    assert subprocess.run(command, check=False, timeout=60).returncode == 0


def test_removing_twice_is_no_error(disk: DiskFiles) -> None:
    file_id = written(disk, b"x")
    disk.remove(file_id)
    disk.remove(file_id)

    assert list(disk.all()) == []


def test_a_file_set_aside_is_kept_for_a_person(disk: DiskFiles, tmp_path: Path) -> None:
    file_id = written(disk, b"kept")

    disk.set_aside(file_id)

    assert list(disk.all()) == []
    assert (tmp_path / "lost+found" / file_id).read_bytes() == b"kept"


@pytest.mark.parametrize(
    "file_id",
    ["", "..", "../../etc/passwd", "A" * 32, "0" * 31, "0" * 33, "0" * 32 + "\n", "0/" * 16],
)
def test_only_an_id_of_ours_becomes_a_path(disk: DiskFiles, file_id: str) -> None:
    for call in (disk.open, disk.remove, disk.unread, disk.set_aside, disk.identity):
        with pytest.raises(ValueError, match="is not a data file's id"):
            call(file_id)


def test_links_and_foreign_files_in_the_data_directory_are_not_ours(
    disk: DiskFiles, tmp_path: Path
) -> None:
    (tmp_path / "secret").write_text("secret")
    planted = "0b" + "0" * 30
    (tmp_path / "data" / "0b" / planted).symlink_to(tmp_path / "secret")
    (tmp_path / "data" / "0b" / "notes.txt").write_text("x")
    (tmp_path / "data" / "README").write_text("x")

    assert list(disk.all()) == []
    with pytest.raises(OSError, match="symbolic links"):
        disk.open(planted)


def test_files_in_a_folder_that_is_not_made_any_more_are_ours_too(
    disk: DiskFiles, tmp_path: Path
) -> None:
    older = "ab" + "0" * 30
    (tmp_path / "data" / "ab").mkdir()
    (tmp_path / "data" / "ab" / older).write_bytes(b"x")

    assert list(disk.all()) == [(older, 1)]
    os.close(disk.open(older))
    disk.remove(older)
    assert list(disk.all()) == []


def test_directories_are_prepared_again_without_harm(disk: DiskFiles, tmp_path: Path) -> None:
    file_id = written(disk, b"x")
    other = tmp_path / "data" / ("00" if file_id[:2] != "00" else "01")
    other.rmdir()

    disk.prepare()

    assert [found for found, _ in disk.all()] == [file_id]
    assert other.is_dir()


def test_a_probe_tries_the_disk_and_leaves_nothing(tmp_path: Path) -> None:
    found = probe(tmp_path)

    assert found["leases"] is True
    assert set(found) == {"direct_io", "leases", "attributes"}
    assert list(DiskFiles(tmp_path).all()) == []


def test_a_disk_that_cannot_sync_is_refused_by_the_probe(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    DiskFiles(tmp_path).prepare()
    real = os.fsync

    def broken(descriptor: int) -> None:
        if os.path.isdir(f"/proc/self/fd/{descriptor}"):
            return real(descriptor)
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "fsync", broken)
    with pytest.raises(ConfigError, match="cannot sync"):
        probe(tmp_path)
    assert list(DiskFiles(tmp_path).all()) == []


@pytest.mark.parametrize("lease", ["granted beside a writer", "not known"])
def test_a_disk_that_cannot_tell_writers_is_refused_by_the_probe(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lease: str
) -> None:
    DiskFiles(tmp_path).prepare()
    real = fcntl.fcntl

    def overlay(descriptor: int, command: int, argument: int = 0) -> int:
        if command != fcntl.F_SETLEASE:
            return real(descriptor, command, argument)
        if lease == "not known":
            raise OSError(errno.EINVAL, "Invalid argument")
        return 0

    monkeypatch.setattr(fcntl, "fcntl", overlay)
    with pytest.raises(ConfigError, match="cannot tell whether a file is open") as refused:
        probe(tmp_path)

    assert "not on overlayfs" in refused.value.hint
    assert list(DiskFiles(tmp_path).all()) == []


def test_a_disk_without_direct_io_and_attributes_is_taken_and_said_to_be_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = fcntl.fcntl

    def buffered(descriptor: int, command: int, argument: int = 0) -> int:
        if command == fcntl.F_SETFL and argument & os.O_DIRECT:
            raise OSError(errno.EINVAL, "Invalid argument")
        return real(descriptor, command, argument)

    monkeypatch.setattr(fcntl, "fcntl", buffered)
    monkeypatch.setattr(os, "setxattr", unsupported)

    assert probe(tmp_path) == {"direct_io": False, "leases": True, "attributes": False}


def unsupported(*_args: object) -> None:
    raise OSError(errno.EOPNOTSUPP, "Operation not supported")


def test_a_disk_that_cannot_allocate_ahead_or_mark_files_keeps_their_bytes_all_the_same(
    disk: DiskFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "posix_fallocate", unsupported)
    monkeypatch.setattr(os, "setxattr", unsupported)
    file_id = written(disk, b"bytes")
    reader = disk.open(file_id)

    disk.seal(reader, b"identity")

    assert os.read(reader, 10) == b"bytes"
    assert disk.identity(file_id) is None
    os.close(reader)


def test_a_mark_that_the_full_disk_does_not_take_is_no_sealed_file(
    disk: DiskFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_args: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    file_id = written(disk, b"bytes")
    reader = disk.open(file_id)
    monkeypatch.setattr(os, "setxattr", full)
    with pytest.raises(OSError, match="No space"):
        disk.seal(reader, b"identity")
    os.close(reader)
