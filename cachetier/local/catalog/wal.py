"""The catalog's write-ahead log: the mark ``running``, which names it, and a check of its frames.

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

import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import apsw

from cachetier.errors import CatalogDamagedError
from cachetier.local.files.data_files import sync_directory, write_synced
from cachetier.local.files.permissions import unfollowed

_HEADER = struct.Struct(">8I")
_FRAME = struct.Struct(">6I")
_MAGIC = 0x377F0682
_WORD = 0xFFFFFFFF
SECTOR_BYTES = 512  # what a disk writes whole, at the least


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


MARK_NAME = "running"
_NO_LOG = "none\n"
OTHERS_CHECKPOINTS = 10_000


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
    """Return what so many zeros make of the sums (1, 0) and (0, 1).

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
    """Check what may be checked of the log before SQLite opens it.

    Raises:
        CatalogDamagedError: Opening the catalog would lose commits, or it has lost them already.
    """
    if not may_be_lost and is_log_lost(catalog):
        raise CatalogDamagedError(
            f"{log_path(catalog).name} is gone, or is another than `{MARK_NAME}` names: "
            "acknowledged commits went with it",
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
            "the disk did not let the catalog begin its log",
            hint="Start again; if that repeats, look at the disk.",
        )
    write_synced(mark_path(catalog), f"{life[0]} {life[1]}\n")


def begin_mark_without_log(catalog: Path) -> None:
    """Make the mark of a log that is lost for good, so that no service starts on what is left."""
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
