"""Open the catalog's database: one connection that writes, others that read, one schema, one log.

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
index stays open for as long as the catalog is. (docs/design/0018-full-disk.md)

SQLite opens a database without its log and says nothing of the commits that went with it. So the
mark is there, synced, before a commit is acknowledged, and goes when a clean stop has brought all
of them into the database. A mark without its log: acknowledged commits are lost.

The mark names the log by the header: SQLite counts how often it starts the log over, and adds as
much to the first salt. Another program that checkpoints adds to the salt alone, and after a start
while it has the catalog open SQLite counts from 0. An empty log is no log: the header is synced
before the mark is made, and nobody but SQLite at a clean stop takes it away.

SQLite replays a log up to the first frame that fails its checksum and says nothing of what follows:
one flipped bit silently takes back every commit after it. A crash can only tear the last
transaction, as each is synced before the next begins. So a bad frame that is followed by a frame of
a later transaction is damage, and start-up must refuse. (Start-up lets the log start over after
this check, with other salts, so that no frames of two crashes are taken for those of one.)

Source: https://www.sqlite.org/fileformat2.html#the_write_ahead_log
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import apsw

from cachetier import libc
from cachetier.errors import BackpressureError, CatalogDamagedError, ConfigError, DiskFullError
from cachetier.local.catalog import schema
from cachetier.local.files.data_files import (
    FULL,
    bytes_on_disk,
    inodes_of,
    sync_directory,
    write_synced,
)
from cachetier.local.files.permissions import unfollowed

SAFE_SQLITE = 3_051_003
WAL_PAGES = 4096
JOURNAL_LIMIT_BYTES = 64 << 20
BUSY_MILLISECONDS = 5_000
# What SQLite says of a disk that fails, or of bytes that are not what was written. All else that it
# says to who reads is a defect of ours. A text that is none was overwritten on the disk, too.
UNREADABLE = (
    *(apsw.CorruptError, apsw.NotADBError, apsw.IOError, apsw.CantOpenError),
    UnicodeDecodeError,
)
RESERVE_NAME = "reserve"
RESERVE_BYTES = 32 << 20
LEAST_BYTES = 1 << 20
OPENING_BYTES = 1 << 20  # to open a catalog, and to try what the disk can do
INDEX_BYTES = 256 << 10  # of the shared memory: 32 KiB for every 4096 pages of the log
PIECES = 8
SPARE_NAME, SPARE_FILES = "spare", 8
_WRITES = (apsw.SQLITE_IOERR_WRITE, apsw.SQLITE_IOERR_SHMSIZE, apsw.SQLITE_IOERR_SHMOPEN)
_HEADER = struct.Struct(">8I")
_FRAME = struct.Struct(">6I")
_MAGIC = 0x377F0682
_WORD = 0xFFFFFFFF
SECTOR_BYTES = 512  # what a disk writes whole, at the least
MARK_NAME = "running"
_NO_LOG = "none\n"
OTHERS_CHECKPOINTS = 10_000


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
            f"apsw includes SQLite {apsw.sqlite_lib_version()}, which may lose commits",
            hint="Install the pinned requirements: SQLite 3.51.3 or newer is needed.",
        )
    lend_reserve(path.parent)
    try:
        connection = _opened(path, apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_CREATE, vfs)
    except apsw.Error as error:
        raise _unusable(path, error) from error
    try:
        _refuse_other_schemas(connection)  # before anything of it is changed
        _configure(connection)
        # Where commits may lie in the log alone it is started over, and never empty.
        checkpoint = "RESTART" if mark_path(path).exists() else "TRUNCATE"
        connection.execute(f"PRAGMA wal_checkpoint({checkpoint})").fetchall()
        _migrate(connection, now)
        connection.execute(f"PRAGMA wal_checkpoint({checkpoint})").fetchall()  # tables need no log
        begin_mark(connection, path)
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
            end_mark(connection, Path(connection.filename))
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
    """Plan each statement once: by default SQLite plans joins again for every value bound."""
    connection.config(apsw.SQLITE_DBCONFIG_ENABLE_QPSG, 1)


def _configure(connection: apsw.Connection) -> None:
    connection.set_busy_timeout(BUSY_MILLISECONDS)
    _keep_plans(connection)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("PRAGMA foreign_keys = ON")
    connection.execute(f"PRAGMA wal_autocheckpoint = {WAL_PAGES}")
    connection.execute(f"PRAGMA journal_size_limit = {JOURNAL_LIMIT_BYTES}")


def _refuse_other_schemas(connection: apsw.Connection) -> None:
    found = int(connection.pragma("user_version"))
    if 0 < found < schema.VERSION - 1:
        raise CatalogDamagedError(
            f"the catalog has schema {found}, this cachetier knows {schema.VERSION} and the one "
            "before",
            hint="Start the cachetier that wrote it, flush, and begin with an empty cache "
            "directory.",
        )
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
    connection.execute(schema.FROM_BEFORE if found else schema.SCHEMA)
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

    A sync that failed for want of room is not one of them: what it did not write is lost.
    """
    if isinstance(error, apsw.CantOpenError):  # what the system said of it is forgotten by then
        inodes = inodes_of(Path(connection.filename).parent)
        return inodes is not None and not inodes[0]
    refused = getattr(error, "extendedresult", apsw.SQLITE_OK) in _WRITES
    return isinstance(error, apsw.FullError) or (refused and connection.system_errno in FULL)


# --- the write-ahead log, and its mark ------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Frame:
    """``salts_kept`` of the two salts are the log's: none in a frame of an earlier life of it."""

    offset: int
    head: bytes
    salts_kept: int
    sums: tuple[int, int]
    page: bytes

    @property
    def commits(self) -> bool:
        """Return whether a bad frame says that it ends a transaction, and can be believed.

        A head that lies in another sector than the salts behind it may be of an earlier life.
        """
        return self.head[4:] != bytes(4) and (self.offset + len(self.head)) % SECTOR_BYTES != 0


def log_path(catalog: Path) -> Path:
    """Return the path of the log of a catalog."""
    return catalog.with_name(f"{catalog.name}-wal")


def life_of(path: Path) -> tuple[int, int] | None:
    """Return how often the log at ``path`` was started over, and its first salt; None without one.

    SQLite adds one to both each time.
    """
    try:
        with open(path, "rb", opener=unfollowed) as file:
            head = file.read(_HEADER.size)
    except FileNotFoundError:
        return None
    if len(head) < _HEADER.size:
        return None
    _magic, _version, _page_bytes, sequence, salt, *_ = _HEADER.unpack(head)
    return int(sequence), int(salt)


def check_frames(path: Path) -> None:
    """Raise CatalogDamagedError if commits lie behind a damaged frame of the log at ``path``."""
    try:
        with open(path, "rb", opener=unfollowed) as file:
            log = file.read()
    except FileNotFoundError:
        return
    if len(log) <= _HEADER.size:
        return  # SQLite syncs the header before the first frame, so there was none
    magic, _version, page_bytes, _sequence, salt1, salt2, sum1, sum2 = _HEADER.unpack_from(log)
    order = ">" if magic & 1 else "<"
    running = _checksum(log[:24], order, (0, 0))
    if magic & ~1 != _MAGIC or running != (sum1, sum2):
        raise CatalogDamagedError(f"{path.name} has a damaged header: its commits would be lost")
    bad_at, bad_commits = None, False
    for frame in _frames(log, page_bytes, (salt1, salt2)):
        if bad_at is None:
            summed = _checksum(frame.head + frame.page, order, running)
            if frame.salts_kept == 2 and summed == frame.sums:
                running = summed
                continue
            bad_at, bad_commits = frame.offset, _ended_transaction(frame, order, running)
        elif frame.salts_kept == 2 and bad_commits:
            raise CatalogDamagedError(
                f"{path.name} is damaged at byte {bad_at}: commits after it would be lost"
            )
        elif frame.salts_kept == 2 and frame.commits:
            bad_commits = True


def _frames(log: bytes, page_bytes: int, salts: tuple[int, int]) -> Iterator[_Frame]:
    whole = _FRAME.size + page_bytes
    for offset in range(_HEADER.size, len(log) - whole + 1, whole):
        _page, _size, salt1, salt2, sum1, sum2 = _FRAME.unpack_from(log, offset)
        kept = (salt1 == salts[0]) + (salt2 == salts[1])
        page = log[offset + _FRAME.size : offset + whole]
        yield _Frame(offset, log[offset : offset + 8], kept, (sum1, sum2), page)


def _ended_transaction(frame: _Frame, order: str, running: tuple[int, int]) -> bool:
    """Return whether a bad frame ended a transaction, as far as can be told."""
    if frame.salts_kept == 0:
        return False  # not written before the power went, or wiped out: nothing of it is left
    page, ones = _checksum(frame.page, order, (0, 0)), _after_zeros(len(frame.page))
    heads = (frame.head[:4] + (1 << bit).to_bytes(4, "big") for bit in range(32))
    sums = (_checksum(head, order, running) for head in heads)
    return frame.commits or any(
        tuple((s[0] * x + s[1] * y + z) & _WORD for x, y, z in zip(*ones, page, strict=True))
        == frame.sums
        for s in sums
    )


@cache
def _after_zeros(size_bytes: int) -> tuple[tuple[int, int], tuple[int, int]]:
    """Return the checksums of so many zeros that begin with the sums (1, 0) and (0, 1).

    Checksums are linear: that of data behind any sums follows from these, and its own.
    """
    zeros = bytes(size_bytes)
    return _checksum(zeros, "<", (1, 0)), _checksum(zeros, "<", (0, 1))


def _checksum(data: bytes, order: str, start: tuple[int, int]) -> tuple[int, int]:
    first, second = start
    words = struct.unpack(f"{order}{len(data) // 4}I", data)
    for even, odd in zip(words[::2], words[1::2], strict=True):
        first = (first + even + second) & _WORD
        second = (second + odd + first) & _WORD
    return first, second


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
    found = life_of(log_path(catalog))
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
    """Check the mark and the frames of the log before SQLite opens it.

    Raises:
        CatalogDamagedError: Opening the catalog would lose commits, or it has lost them already.
    """
    if not may_be_lost and is_log_lost(catalog):
        raise CatalogDamagedError(
            f"{log_path(catalog).name} is missing, or is not the one that `{MARK_NAME}` names: "
            "acknowledged commits are lost with it",
            hint="Put it back if you have it. Else run `cachetier fsck --repair`: it takes back "
            "every data file that is whole, and says which shards may be lost.",
        )
    check_frames(log_path(catalog))


def begin_mark(sql: apsw.Connection, catalog: Path) -> None:
    """Make the mark of the log of ``sql``, unless there is one: no commit is acknowledged before.

    One that a kill left stays, as the log went on; so does one whose log is lost.

    Raises:
        CatalogDamagedError: There is no log; nothing was written.
    """
    if mark_path(catalog).exists():
        return
    sql.pragma("user_version", int(sql.pragma("user_version")))  # a commit: the log has its header
    life = life_of(log_path(catalog))
    if life is None:  # SQLite goes on without a log if it could not begin one
        raise CatalogDamagedError(
            "the catalog could not create its log on this disk",
            hint="Start again; if that repeats, look at the disk.",
        )
    write_synced(mark_path(catalog), f"{life[0]} {life[1]}\n")


def begin_mark_without_log(catalog: Path) -> None:
    """Make the mark of a log that is lost for good, so that no service starts without it."""
    write_synced(mark_path(catalog), _NO_LOG)


def end_mark(sql: apsw.Connection, catalog: Path) -> None:
    """Bring every commit into the database, and take the mark of its log away.

    Raises:
        apsw.Error: Not all of them could be.
    """
    sql.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_FULL)
    if not is_log_lost(catalog):
        remove_mark(catalog)


def remove_mark(catalog: Path) -> None:
    """Take the mark away, whatever log it names."""
    try:
        os.unlink(mark_path(catalog))
    except FileNotFoundError:
        return
    sync_directory(catalog.parent)
