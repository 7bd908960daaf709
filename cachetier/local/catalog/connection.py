"""Open the catalog's database: one connection that writes, others that read, one schema.

The one that writes also checkpoints. apsw brings its own SQLite, as the versions that distributions
ship may lose a commit when the WAL is reset (fixed in 3.51.3).

``Reserve`` is room on the disk that is the catalog's alone: to drain, to evict and to delete is to
commit. Blocks are allocated behind the ends of the log and its index, where SQLite finds them and
nobody else can take them. For the database to grow there is the file ``reserve``, since SQLite cuts
off what lies behind the database's end: it is given up by the piece when a commit finds the disk
full, and filled up again once there is room. It stays over a stop, so that the service also starts
on a disk without a free byte. Puts leave half of it alone. The empty files in ``spare`` keep inodes
for a start, whose log, index, mark and socket are files.

Linux drops a process's locks on a file when any descriptor of it is closed, SQLite's too: so the
index stays open for as long as the catalog is.

Source: docs/design/0018-full-disk.md.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
from collections.abc import Sequence
from pathlib import Path

import apsw

from cachetier import libc
from cachetier.errors import BackpressureError, CatalogDamagedError, ConfigError, DiskFullError
from cachetier.local.catalog import schema, wal
from cachetier.local.files.data_files import FULL, bytes_on_disk, inodes_of
from cachetier.local.files.permissions import unfollowed

SAFE_SQLITE = 3_051_003
WAL_PAGES = 4096
JOURNAL_LIMIT_BYTES = 64 << 20
BUSY_MILLISECONDS = 5_000
# What SQLite says of a disk that fails, or of bytes that are not what was written. All else that it
# says to who reads is a defect of ours.
UNREADABLE = (apsw.CorruptError, apsw.NotADBError, apsw.IOError, apsw.CantOpenError)
RESERVE_NAME = "reserve"
RESERVE_BYTES = 32 << 20
LEAST_BYTES = 1 << 20
OPENING_BYTES = 1 << 20  # to open a catalog, and to try what the disk can do
INDEX_BYTES = 256 << 10  # of the shared memory: 32 KiB for every 4096 pages of the log
PIECES = 8
SPARE_NAME, SPARE_FILES = "spare", 8
_WRITES = (apsw.SQLITE_IOERR_WRITE, apsw.SQLITE_IOERR_SHMSIZE, apsw.SQLITE_IOERR_SHMOPEN)


class Reserve:
    """The room of an open catalog: a quarter for its log, the rest for the database to grow."""

    def __init__(self, catalog: Path, capacity_bytes: int) -> None:
        """Hold a sixteenth of ``capacity_bytes``, within bounds; as much of it as there is now."""
        size_bytes = max(LEAST_BYTES, min(RESERVE_BYTES, capacity_bytes // 16))
        self._size_bytes = size_bytes - size_bytes // 4
        self._parts = [
            (unfollowed(catalog.with_name(f"{catalog.name}-shm"), os.O_RDWR), INDEX_BYTES),
            (unfollowed(catalog.with_name(f"{catalog.name}-wal"), os.O_RDWR), size_bytes // 4),
            (unfollowed(catalog.with_name(RESERVE_NAME), os.O_RDWR | os.O_CREAT), self._size_bytes),
        ]
        self._kept = True  # by the filesystem: some allocate nothing ahead
        self._directory, self._spare = catalog.parent, _spare_files(catalog.parent)
        self.fill()

    @property
    def left_bytes(self) -> int:
        """How much of the file there is."""
        return bytes_on_disk(os.fstat(self._parts[-1][0]))

    @property
    def is_low(self) -> bool:
        """Return whether less is left than is kept from puts."""
        return self._kept and self.left_bytes < self._size_bytes // 2

    def fill(self) -> bool:
        """Allocate what is missing; return whether puts may use the catalog."""
        inodes = inodes_of(self._directory)
        if inodes is None or inodes[0] > 2 * SPARE_FILES:  # else they are for what just starts
            self._keep_spare_files()
        self._fill(self._parts)
        return not self.is_low

    def _keep_spare_files(self) -> None:
        while self._spare and _made(self._spare[-1]):
            self._spare.pop()

    def _fill(self, parts: Sequence[tuple[int, int]]) -> None:
        for descriptor, size_bytes in parts:
            if self._kept and bytes_on_disk(os.fstat(descriptor)) < size_bytes:
                self._allocate(descriptor, size_bytes)

    def give(self) -> bool:
        """Give a piece up for the commit that needs it; return whether there was one."""
        descriptor, left_bytes = self._parts[-1][0], self.left_bytes
        os.ftruncate(descriptor, left_bytes)  # to cut the end off it must not lie behind the end
        os.ftruncate(descriptor, max(0, left_bytes - self._size_bytes // PIECES))
        return left_bytes > 0

    def close(self) -> None:
        """Keep for the next start what SQLite's own files gave back, once they are closed."""
        *logs, file = self._parts
        for descriptor, _size_bytes in logs:  # by which removed files take their room still
            os.close(descriptor)
        self._keep_spare_files()
        self._fill([file])
        self._kept = False
        os.close(file[0])

    def _allocate(self, descriptor: int, size_bytes: int) -> None:
        """Allocate so many bytes, or as many pieces of them as the disk has room for."""
        for pieces in range(PIECES, 0, -1):
            try:
                libc.allocate_behind_the_end(descriptor, size_bytes * pieces // PIECES)
                return
            except OSError as error:
                self._kept = error.errno not in (errno.EOPNOTSUPP, errno.ENOSYS)
                if error.errno not in FULL:
                    return


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
    lend_reserve(path.parent)
    try:
        connection = _opened(path, apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_CREATE, vfs)
    except apsw.Error as error:
        raise _unusable(path, error) from error
    try:
        _refuse_newer(connection)  # before anything of it is changed
        _configure(connection)
        # Where commits may lie in the log alone it is started over, and never empty.
        checkpoint = "RESTART" if wal.mark_path(path).exists() else "TRUNCATE"
        connection.execute(f"PRAGMA wal_checkpoint({checkpoint})").fetchall()
        _migrate(connection, now)
        connection.execute(f"PRAGMA wal_checkpoint({checkpoint})").fetchall()  # tables need no log
        wal.begin_mark(connection, path)
    except apsw.BusyError as error:
        abandon(connection)
        raise BackpressureError(
            f"another process holds the lock of {path.name}: {error}",
            hint="End it: a backup, or `sqlite3`. Then start again; nothing was lost.",
        ) from error
    except apsw.Error as error:
        full = is_full(connection, error)
        abandon(connection)
        raise _no_room(path) if full else _unusable(path, error) from error
    except OSError as error:
        abandon(connection)
        raise _no_room(path) if error.errno in FULL else error from error
    except BaseException:
        abandon(connection)
        raise
    return connection


def close_writer(connection: apsw.Connection, *, sound: bool) -> None:
    """Close the catalog; a sound one in good order, if that can be had. It only saves time."""
    try:
        if sound:
            wal.end_mark(connection, Path(connection.filename))
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


def lend_reserve(cache_dir: Path) -> None:
    """Give the reserve of a closed catalog back to a disk that has no room to open it in."""
    if (inodes := inodes_of(cache_dir)) is not None and inodes[0] < SPARE_FILES:
        for spare in _spare_files(cache_dir):
            spare.unlink(missing_ok=True)
    status, path = os.statvfs(cache_dir), cache_dir / RESERVE_NAME
    if status.f_bavail * status.f_frsize < OPENING_BYTES and path.exists():
        os.close(unfollowed(path, os.O_WRONLY | os.O_TRUNC))


def _spare_files(cache_dir: Path) -> list[Path]:
    return [cache_dir / SPARE_NAME / str(number) for number in range(SPARE_FILES)]


def _made(spare: Path) -> bool:
    try:
        spare.parent.mkdir(mode=0o700, exist_ok=True)
        os.close(unfollowed(spare, os.O_WRONLY | os.O_CREAT))
    except OSError:
        return False
    return True


def is_full(connection: apsw.Connection, error: apsw.Error) -> bool:
    """Return whether the disk had no room; SQLite calls only some of these cases ``full``.

    A sync that failed for want of room is none of them: what it did not write is lost.
    """
    if isinstance(error, apsw.CantOpenError):  # what the system said of it is forgotten by then
        inodes = inodes_of(Path(connection.filename).parent)
        return inodes is not None and not inodes[0]
    refused = getattr(error, "extendedresult", apsw.SQLITE_OK) in _WRITES
    return isinstance(error, apsw.FullError) or (refused and connection.system_errno in FULL)
