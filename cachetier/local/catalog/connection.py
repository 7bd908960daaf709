"""Open the catalog's database: one connection that writes, others that read, one schema.

The one that writes also checkpoints. apsw brings its own SQLite, as the versions that distributions
ship may lose a commit when the WAL is reset (fixed in 3.51.3).
"""

from __future__ import annotations

import contextlib
import secrets
from pathlib import Path

import apsw

from cachetier.errors import (
    BackpressureError,
    CatalogDamagedError,
    ConfigError,
    DiskFullError,
)
from cachetier.local.catalog import reserve, running, schema

SAFE_SQLITE = 3_051_003
WAL_PAGES = 4096
JOURNAL_LIMIT_BYTES = 64 << 20
BUSY_MILLISECONDS = 5_000

# What SQLite says of a disk that fails, or of bytes that are not what was written. All else that it
# says to who reads is a defect of ours.
UNREADABLE = (apsw.CorruptError, apsw.NotADBError, apsw.IOError, apsw.CantOpenError)


def open_writer(path: Path, now: float, vfs: str | None = None) -> apsw.Connection:
    """Open (or create) the catalog for writing, migrated to the current schema.

    Raises:
        CatalogDamagedError: It is not a database, is damaged, or was written by a newer cachetier.
        DiskFullError: The disk has no room to open it.
        BackpressureError: Another process holds its lock.
    """
    if apsw.SQLITE_VERSION_NUMBER < SAFE_SQLITE:
        raise ConfigError(
            f"apsw brings SQLite {apsw.sqlite_lib_version()}, which may lose commits",
            hint="Install the pinned requirements: SQLite 3.51.3 or newer is needed.",
        )
    reserve.lend(path.parent)
    try:
        connection = _opened(path, apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_CREATE, vfs)
    except apsw.Error as error:
        raise _unusable(path, error) from error
    try:
        _refuse_newer(connection)  # before anything of it is changed
        _configure(connection)
        # Where commits may lie in the log alone it is started over, and never empty.
        checkpoint = "RESTART" if running.mark_path(path).exists() else "TRUNCATE"
        connection.execute(f"PRAGMA wal_checkpoint({checkpoint})").fetchall()
        _migrate(connection, now)
        connection.execute(f"PRAGMA wal_checkpoint({checkpoint})").fetchall()  # tables need no log
        running.begin(connection, path)
    except apsw.BusyError as error:
        abandon(connection)
        raise BackpressureError(
            f"another process holds the lock of {path.name}: {error}",
            hint="End it: a backup, or `sqlite3`. Then start again; nothing was lost.",
        ) from error
    except apsw.Error as error:
        full = reserve.is_full(connection, error)
        abandon(connection)
        raise _no_room(path) if full else _unusable(path, error) from error
    except OSError as error:
        abandon(connection)
        raise _no_room(path) if error.errno in reserve.FULL else error from error
    except BaseException:
        abandon(connection)
        raise
    return connection


def close_writer(connection: apsw.Connection, *, sound: bool) -> None:
    """Close the catalog; a sound one in good order, if that can be had. It only saves time."""
    try:
        if sound:
            running.end(connection, Path(connection.filename))
            connection.close()
    except (apsw.Error, OSError):
        sound = False  # a full disk, or somebody who reads: the next start does it
    if not sound:
        abandon(connection)


def abandon(connection: apsw.Connection) -> None:
    """Close a catalog that is not to be used, and leave its files as they are."""
    with contextlib.suppress(apsw.Error):
        connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
        connection.close()


def _unusable(path: Path, error: apsw.Error) -> CatalogDamagedError:
    return CatalogDamagedError(f"the catalog {path.name} cannot be opened: {error}")


def _no_room(path: Path) -> DiskFullError:
    return DiskFullError(
        f"the disk has no room to open {path.name}",
        hint="Free some megabytes, and inodes (`df -i`), on the disk under cache_dir; start again.",
    )


def sqlite_version() -> str:
    """Return the version of the SQLite that apsw brings."""
    return str(apsw.sqlite_lib_version())


def open_reader(path: Path, vfs: str | None = None) -> apsw.Connection:
    """Open the catalog for reading only."""
    connection = _opened(path, apsw.SQLITE_OPEN_READONLY, vfs)
    connection.set_busy_timeout(BUSY_MILLISECONDS)
    _keep_plans(connection)
    return connection


def _opened(path: Path, flags: int, vfs: str | None) -> apsw.Connection:
    """Open a database that is no link; SQLite would refuse one further up, too."""
    real = path.parent.resolve() / path.name
    return apsw.Connection(str(real), flags=flags | apsw.SQLITE_OPEN_NOFOLLOW, vfs=vfs)


def store_id_of(connection: apsw.Connection) -> str:
    """Return the id that ties the catalog to its data files."""
    return str(connection.execute("SELECT id FROM store").get)


def created_at(connection: apsw.Connection) -> float:
    """Return when the directory was made."""
    return float(connection.execute("SELECT created_at FROM store").get)


def _keep_plans(connection: apsw.Connection) -> None:
    """Plan each statement once: by default SQLite plans joins anew for every value bound."""
    connection.config(apsw.SQLITE_DBCONFIG_ENABLE_QPSG, 1)


def _configure(connection: apsw.Connection) -> None:
    connection.set_busy_timeout(BUSY_MILLISECONDS)
    _keep_plans(connection)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("PRAGMA foreign_keys = ON")
    connection.execute(f"PRAGMA wal_autocheckpoint = {WAL_PAGES}")
    connection.execute(f"PRAGMA journal_size_limit = {JOURNAL_LIMIT_BYTES}")


def _refuse_newer(connection: apsw.Connection) -> None:
    found = int(connection.pragma("user_version"))
    if found > schema.VERSION:
        raise CatalogDamagedError(
            f"the catalog has schema {found}, this cachetier knows {schema.VERSION}",
            hint="Start the newer cachetier again, or drain and empty the cache directory first.",
        )


def _migrate(connection: apsw.Connection, now: float) -> None:
    found = int(connection.pragma("user_version"))
    if found == schema.VERSION:
        return
    connection.execute("BEGIN IMMEDIATE")
    for statements in schema.MIGRATIONS[found:]:
        connection.execute(statements)
    if found == 0:
        connection.execute("INSERT INTO store VALUES (?, ?)", (secrets.token_hex(8), now))
    connection.pragma("user_version", schema.VERSION)
    connection.execute("COMMIT")
