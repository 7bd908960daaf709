"""A disk that fails is told of, by what failed; what works is not."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from cachetier_client.bucket_format.stored import Content
from cachetier_client.clock import SystemClock
from cachetier_client.identity.names import SaveIds
from cachetier_client.io.digests import digest_of

from cachetier.errors import BackpressureError, FencedError, OpenForWritingError, StagedIOError
from cachetier.local.catalog import figures, saves
from cachetier.local.files.data_files import DiskFiles
from cachetier.local.lost_and_found import LostAndFound
from cachetier.local.recovery import open_store
from cachetier.local.store import Store
from tests.fakes.faulty_files import FaultyFiles, FileOperation, refuse

IDS = SaveIds("r", 1, "s")
DATA = b"x" * 8192


@contextmanager
def opened(path: Path, files: FaultyFiles, told: Callable[[str], None]) -> Iterator[Store]:
    store = open_store(path, 1 << 20, SystemClock(), files=files, on_disk_error=told).store
    try:
        yield store
    finally:
        store.close()


@pytest.fixture
def disk(tmp_path: Path) -> DiskFiles:
    files = DiskFiles(tmp_path)
    files.prepare()
    return files


@pytest.mark.parametrize(
    ("operation", "told", "counted_bytes"),
    [
        ("create", "write", 0),
        ("preallocate", "write", 4096),  # what the extension has not got, it gives back
        ("seal", "sync", 8192),  # the file stays for the next start
        ("sync_name", "sync", 8192),
    ],
)
def test_each_failure_is_told_once_and_raised(
    tmp_path: Path, disk: DiskFiles, operation: FileOperation, told: str, counted_bytes: int
) -> None:
    heard: list[str] = []
    faults = FaultyFiles(disk, [refuse(operation)])
    error = BackpressureError if told == "write" else FencedError
    with opened(tmp_path, faults, heard.append) as store:
        with pytest.raises(error):
            put(store)

        assert heard == [told]
        assert not faults.pending
        assert store.space.used_bytes == counted_bytes


def put(store: Store) -> None:
    """Stage a file, extend it, write it and commit it."""
    assert store.space.try_reserve(4096)
    staged = store.stage(4096)
    assert store.space.try_reserve(4096)
    store.extend(staged, len(DATA))
    assert staged.writer is not None
    os.pwrite(staged.writer, DATA, 0)
    store.commit(staged, IDS, "x", Content(len(DATA), digest_of(DATA), (digest_of(DATA),)))


def test_a_staged_file_that_somebody_removed_is_refused_at_its_commit(
    tmp_path: Path, disk: DiskFiles
) -> None:
    heard: list[str] = []
    with opened(tmp_path, FaultyFiles(disk, []), heard.append) as store:
        assert store.space.try_reserve(4096)
        staged = store.stage(4096)
        assert staged.writer is not None
        os.pwrite(staged.writer, DATA[:4096], 0)
        disk.remove(staged.file_id)
        digest = digest_of(DATA[:4096])

        with pytest.raises(StagedIOError, match="somebody removed the staged file"):
            store.commit(staged, IDS, "x", Content(4096, digest, (digest,)))

        assert store.read(figures.local_bytes) == store.space.used_bytes == 0
        assert store.fenced is None and not heard
        put(store)


def test_what_works_and_what_a_caller_does_wrong_are_no_failures(
    tmp_path: Path, disk: DiskFiles
) -> None:
    heard: list[str] = []
    with opened(tmp_path, FaultyFiles(disk, []), heard.append) as store:
        put(store)
        assert store.space.try_reserve(4096)
        staged = store.stage(4096)
        assert staged.writer is not None
        writer = os.dup(staged.writer)
        try:
            os.pwrite(writer, bytes(4096), 0)
            with pytest.raises(OpenForWritingError):
                store.commit(staged, IDS, "y", Content(4096, 0, (0,)))
        finally:
            os.close(writer)

    assert heard == []


@pytest.mark.parametrize(("number", "right"), [(errno.EIO, False), (errno.EMFILE, None)])
def test_bytes_are_called_damaged_only_where_the_disk_says_so(
    tmp_path: Path,
    disk: DiskFiles,
    monkeypatch: pytest.MonkeyPatch,
    number: int,
    right: bool | None,
) -> None:
    def fails(*_args: object) -> bytes:
        raise OSError(number, os.strerror(number))

    with opened(tmp_path, FaultyFiles(disk), lambda _what: None) as store:
        put(store)
        shard = store.read(saves.visible_shard, "r", 1, "x")
        assert shard is not None
        copy = store.local_copy(shard)
        assert copy is not None
        assert copy.reads_right()
        monkeypatch.setattr(os, "pread", fails)
        if right is None:
            with pytest.raises(OSError, match=os.strerror(number)):
                copy.reads_right()
        else:
            assert copy.reads_right() is right
        copy.close()


def test_a_cache_that_never_set_a_file_aside_has_none(tmp_path: Path) -> None:
    assert LostAndFound(tmp_path).size_bytes() == 0
