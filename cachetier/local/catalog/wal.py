"""Tell a torn tail of SQLite's write-ahead log from damage in its middle.

SQLite replays a log up to the first frame that fails its checksum and says nothing of what follows:
one flipped bit silently takes back every commit after it. A crash can only tear the last
transaction, as each is synced before the next begins. So a bad frame that is followed by a frame of
a later transaction is damage, and start-up must refuse. (Start-up lets the log start over after
this check, with other salts, so that no frames of two crashes are taken for those of one.)

Source: https://www.sqlite.org/fileformat2.html#the_write_ahead_log
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from cachetier.errors import CatalogDamagedError
from cachetier.local.files.permissions import unfollowed

_HEADER = struct.Struct(">8I")
_FRAME = struct.Struct(">6I")
_MAGIC = 0x377F0682
_WORD = 0xFFFFFFFF
SECTOR_BYTES = 512  # what a disk writes whole, at the least


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


def check(path: Path) -> None:
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
