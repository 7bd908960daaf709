"""The mark ``running``: commits may lie in the write-ahead log alone, and this is that log.

SQLite opens a database without its log and says nothing of the commits that went with it. So the
mark is there, synced, before a commit is acknowledged, and goes when a clean stop has brought all
of them into the database. A mark without its log: acknowledged commits are lost.

It names the log by the header: SQLite counts how often it starts the log over, and adds as much to
the first salt. Another program that checkpoints adds to the salt alone, and after a start while it
has the catalog open SQLite counts from 0. An empty log is no log: the header is synced before the
mark is made, and nobody but SQLite at a clean stop takes it away.
"""

from __future__ import annotations

import os
from pathlib import Path

import apsw

from cachetier.errors import CatalogDamagedError
from cachetier.local.catalog import wal
from cachetier.local.files.data_files import sync_directory, write_synced
from cachetier.local.files.permissions import unfollowed

MARK_NAME = "running"
_NO_LOG = "none\n"
OTHERS_CHECKPOINTS = 10_000


def mark_path(catalog: Path) -> Path:
    """Return the path of the mark of a catalog."""
    return catalog.with_name(MARK_NAME)


def is_log_lost(catalog: Path) -> bool:
    """Return whether there is a mark, and not the log that it names."""
    try:
        with open(mark_path(catalog), "rb", opener=unfollowed) as file:
            marked = file.read().split()
    except FileNotFoundError:
        return False
    found = wal.life_of(wal.log_path(catalog))
    try:
        sequence, salt = (int(number) for number in marked)
    except ValueError:
        return True
    if found is None:
        return True
    begun_over = max(0, found[0] - sequence)
    others = (found[1] - salt - begun_over) % (1 << 32)
    return others > OTHERS_CHECKPOINTS


def check_log(catalog: Path, *, may_be_lost: bool = False) -> None:
    """Check what may be checked of the log before SQLite opens it.

    Raises:
        CatalogDamagedError: Opening the catalog would lose commits, or it has lost them already.
    """
    if not may_be_lost and is_log_lost(catalog):
        raise CatalogDamagedError(
            f"{wal.log_path(catalog).name} is gone, or is another than `{MARK_NAME}` names: "
            "acknowledged commits went with it",
            hint="Put it back if you have it. Else run `cachetier fsck --repair`: it takes back "
            "every data file that is whole, and says which shards may be lost.",
        )
    wal.check(wal.log_path(catalog))


def begin(sql: apsw.Connection, catalog: Path) -> None:
    """Make the mark of the log of ``sql``, unless there is one: no commit is acknowledged before.

    One that a kill left stays, as the log went on; so does one whose log is lost.

    Raises:
        CatalogDamagedError: There is no log; nothing was written.
    """
    if mark_path(catalog).exists():
        return
    sql.pragma("user_version", int(sql.pragma("user_version")))  # a commit: the log has its header
    life = wal.life_of(wal.log_path(catalog))
    if life is None:  # SQLite goes on without a log if it could not begin one
        raise CatalogDamagedError(
            "the disk did not let the catalog begin its log",
            hint="Start again; if that repeats, look at the disk.",
        )
    write_synced(mark_path(catalog), f"{life[0]} {life[1]}\n")


def begin_without_log(catalog: Path) -> None:
    """Make the mark of a log that is lost for good, so that no service starts on what is left."""
    write_synced(mark_path(catalog), _NO_LOG)


def end(sql: apsw.Connection, catalog: Path) -> None:
    """Bring every commit into the database, and take the mark of its log away.

    Raises:
        apsw.Error: Not all of them could be.
    """
    sql.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_FULL)
    if not is_log_lost(catalog):
        remove(catalog)


def remove(catalog: Path) -> None:
    """Take the mark away, whatever log it names."""
    try:
        os.unlink(mark_path(catalog))
    except FileNotFoundError:
        return
    sync_directory(catalog.parent)
