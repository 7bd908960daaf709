"""What the kernel tells of a folder, through the thin layer."""

from __future__ import annotations

import ctypes
import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from cachetier_client.adopt import inotify as module
from cachetier_client.adopt.inotify import FileEvent, Inotify


@pytest.fixture
def inotify() -> Iterator[Inotify]:
    opened = Inotify()
    yield opened
    opened.close()


def test_finished_files_and_new_folders_are_told_of_and_deletions_are_not(
    inotify: Inotify, tmp_path: Path
) -> None:
    assert inotify.add(str(tmp_path))
    (tmp_path / "written").write_bytes(b"x")
    (tmp_path / "folder").mkdir()
    (tmp_path / "written").rename(tmp_path / "renamed")
    (tmp_path / "renamed").unlink()

    written = str(tmp_path / "written")
    assert inotify.read(0) == [
        FileEvent(written, is_folder=False),  # made
        FileEvent(written, is_folder=False),  # closed
        FileEvent(str(tmp_path / "folder"), is_folder=True),
        FileEvent(str(tmp_path / "renamed"), is_folder=False),
    ]
    assert inotify.read(0) == []


def test_a_file_that_is_only_being_written_says_nothing_until_it_is_closed(
    inotify: Inotify, tmp_path: Path
) -> None:
    path = tmp_path / "file"
    path.touch()
    assert inotify.add(str(tmp_path))
    with path.open("r+b") as file:
        file.write(b"x" * 100_000)
        file.flush()
        assert inotify.read(0) == []
    assert inotify.read(0) == [FileEvent(str(path), is_folder=False)]


def test_a_folder_that_moved_is_told_of_under_its_new_name_once_it_is_added(
    inotify: Inotify, tmp_path: Path
) -> None:
    (tmp_path / "tmp").mkdir()
    inotify.add(str(tmp_path / "tmp"))
    (tmp_path / "tmp").rename(tmp_path / "final")
    inotify.add(str(tmp_path / "final"))
    os.close(os.open(tmp_path / "final" / "a", os.O_CREAT | os.O_RDONLY))
    assert inotify.read(0) == [FileEvent(str(tmp_path / "final" / "a"), is_folder=False)]


def test_a_folder_that_is_gone_or_none_is_not_watched(inotify: Inotify, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to(tmp_path)
    assert not inotify.add(str(tmp_path / "gone"))
    assert not inotify.add(str(tmp_path / "file"))
    assert not inotify.add(str(tmp_path / "link"))


def test_too_many_folders_name_the_setting(
    inotify: Inotify, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Full:
        @staticmethod
        def inotify_add_watch(*_: object) -> int:
            ctypes.set_errno(errno.ENOSPC)
            return -1

    monkeypatch.setattr(module, "_libc", Full)
    with pytest.raises(OSError, match="max_user_watches"):
        inotify.add(str(tmp_path))
