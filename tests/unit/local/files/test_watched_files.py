"""A disk that fails is told of, by what failed; what works is not."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from cachetier.errors import FencedError, OpenForWritingError
from cachetier.local.files.data_files import DiskFiles
from cachetier.local.files.watched_files import WatchedFiles
from tests.fakes.faulty_files import FaultyFiles, refuse


@pytest.fixture
def disk(tmp_path: Path) -> DiskFiles:
    files = DiskFiles(tmp_path)
    files.prepare()
    return files


@pytest.mark.parametrize(
    ("operation", "told"),
    [("create", "write"), ("preallocate", "write"), ("seal", "sync"), ("sync_name", "sync")],
)
def test_each_failure_is_told_once_and_raised(disk: DiskFiles, operation: str, told: str) -> None:
    heard: list[str] = []
    faults = FaultyFiles(disk, [refuse(operation)])  # type: ignore[arg-type]  # one of the four
    watched = WatchedFiles(faults, heard.append)
    error = OSError if told == "write" else FencedError
    with pytest.raises(error):
        use(watched)

    assert heard == [told]
    assert not faults.pending


def use(files: WatchedFiles) -> None:
    """Do with a file what a put does."""
    file_id, writer = files.create(4096)
    os.close(writer)
    files.preallocate(file_id, 8192)
    reader = files.open(file_id)
    try:
        files.seal(reader, b"identity")
    finally:
        os.close(reader)
    files.sync_name(file_id)


def test_what_works_and_what_a_caller_does_wrong_are_no_failures(disk: DiskFiles) -> None:
    heard: list[str] = []
    watched = WatchedFiles(disk, heard.append)
    use(watched)
    file_id, writer = watched.create(4096)
    with pytest.raises(OpenForWritingError):
        watched.seal(writer, b"identity")
    os.close(writer)

    assert heard == []
    assert watched.identity(file_id) is None
    assert len(list(watched.all())) == 2
