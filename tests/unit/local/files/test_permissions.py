"""Who may get at the cache directory, and what becomes of links in it."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from cachetier.errors import CatalogDamagedError, ConfigError
from cachetier.local.catalog import connection
from cachetier.local.files.data_files import DiskFiles, write_synced
from cachetier.local.lost_and_found import LostAndFound
from cachetier.local.recovery import lock_directory, open_store
from tests.fakes.fake_clock import FakeClock

SOMEBODY = 12345
is_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root gives a directory away")


@pytest.fixture
def cache_dir(tmp_path: Path) -> Path:
    """A directory that was used before, and stopped."""
    made = tmp_path / "cache"
    started(made)
    return made


def started(cache_dir: Path) -> None:
    """Start up, and stop, as the service does."""
    lock = lock_directory(cache_dir)
    try:
        open_store(cache_dir, 1 << 20, FakeClock()).store.close()
    finally:
        os.close(lock)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.parametrize("bits", [0o770, 0o707, 0o1777, 0o720])
def test_a_directory_that_others_may_write_to_is_refused(cache_dir: Path, bits: int) -> None:
    cache_dir.chmod(bits)

    with pytest.raises(ConfigError, match="others may write") as refused:
        lock_directory(cache_dir)

    assert f"chmod go-w {cache_dir}" in refused.value.hint


@pytest.mark.parametrize("bits", [0o700, 0o755, 0o750, 0o711])
def test_a_directory_that_others_may_only_look_into_is_taken(cache_dir: Path, bits: int) -> None:
    cache_dir.chmod(bits)

    started(cache_dir)

    assert mode(cache_dir) == bits


@is_root
def test_a_directory_of_somebody_else_is_refused(cache_dir: Path) -> None:
    os.chown(cache_dir, SOMEBODY, -1)

    with pytest.raises(ConfigError, match=f"belongs to user {SOMEBODY}") as refused:
        lock_directory(cache_dir)

    assert f"chown {os.geteuid()} {cache_dir}" in refused.value.hint


@is_root
def test_files_that_somebody_else_owns_in_it_are_refused(cache_dir: Path) -> None:
    os.chown(cache_dir / "catalog.db", SOMEBODY, -1)

    with pytest.raises(ConfigError, match=r"catalog\.db belongs to user"):
        lock_directory(cache_dir)


@pytest.mark.parametrize("name", ["catalog.db", "store-id", "data", "data/0a", "lost+found"])
def test_what_an_older_version_left_open_to_others_is_narrowed(cache_dir: Path, name: str) -> None:
    path = cache_dir / name
    path.chmod(0o777 if path.is_dir() else 0o666)

    started(cache_dir)

    assert mode(path) == (0o700 if path.is_dir() else 0o600)


@pytest.mark.parametrize(
    "name",
    ["catalog.db", "catalog.db-wal", "running", "store-id", "reserve", "data", "data/0a"],
)
def test_a_link_in_the_place_of_a_file_or_folder_is_refused(
    cache_dir: Path, tmp_path: Path, name: str
) -> None:
    path, elsewhere = cache_dir / name, tmp_path / "elsewhere"
    if path.exists():
        path.rename(elsewhere)
    else:
        elsewhere.write_text("precious")
    before = elsewhere.read_bytes() if elsewhere.is_file() else b""
    path.symlink_to(elsewhere)

    with pytest.raises(ConfigError, match="is a symbolic link") as refused:
        lock_directory(cache_dir)

    assert str(path) in refused.value.message
    assert not elsewhere.is_file() or elsewhere.read_bytes() == before


def test_a_cache_directory_may_be_a_link_to_one_that_is_fit(
    cache_dir: Path, tmp_path: Path
) -> None:
    link = tmp_path / "link"
    link.symlink_to(cache_dir)

    started(link)
    cache_dir.chmod(0o777)

    with pytest.raises(ConfigError, match="others may write"):
        lock_directory(link)


def test_a_link_that_comes_later_is_not_followed_either(cache_dir: Path, tmp_path: Path) -> None:
    """Nobody else can put one there; these are the second wall."""
    precious = tmp_path / "precious"
    precious.write_text("precious")
    files, file_id = DiskFiles(cache_dir), "0" * 32
    folder = cache_dir / "data" / "00"
    (folder / file_id).symlink_to(precious)
    (cache_dir / "lost+found" / file_id).symlink_to(precious)
    (cache_dir / "note.new").symlink_to(precious)
    os.setxattr(precious, "user.cachetier.shard", b"mine")

    with pytest.raises(FileNotFoundError):
        files.open(file_id)
    with pytest.raises(OSError, match="symbolic links"):
        files.preallocate(file_id, 4096)
    assert files.identity(file_id) is None
    assert not list(LostAndFound(cache_dir).all())
    with pytest.raises(OSError, match="symbolic links"):
        write_synced(cache_dir / "note", "text")
    assert precious.read_text() == "precious"

    folder.rename(tmp_path / "00")
    folder.symlink_to(tmp_path / "00")
    with pytest.raises(OSError):  # ELOOP, or ENOTDIR for a folder
        files.sync_name(file_id)


@pytest.mark.parametrize("suffix", ["", "-wal", "-shm"])
def test_sqlite_follows_no_link(cache_dir: Path, tmp_path: Path, suffix: str) -> None:
    path, elsewhere = cache_dir / f"catalog.db{suffix}", tmp_path / "elsewhere"
    if suffix:
        path.unlink(missing_ok=True)
    else:
        path.rename(elsewhere)
    path.symlink_to(elsewhere)

    with pytest.raises(CatalogDamagedError):
        connection.open_writer(cache_dir / "catalog.db", 0.0)

    assert not suffix or not elsewhere.exists()


def test_a_mark_that_is_a_link_is_not_read(cache_dir: Path, tmp_path: Path) -> None:
    (tmp_path / "running").write_text("1 1")
    (cache_dir / "running").symlink_to(tmp_path / "running")

    with pytest.raises(OSError, match="symbolic links"):
        connection.is_log_lost(cache_dir / "catalog.db")
