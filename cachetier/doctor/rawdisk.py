"""Measure the bare disk: small synced writes, large direct writes, reads.

Every function works in a directory that the caller lends and removes afterwards.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from cachetier_client.io.aligned import DirectIO, aligned_memory, switch_to_direct

BLOCK_BYTES = 4 << 20
SMALL_BYTES = 4096
THREADS = 4
_SMALL_FILE_BYTES = 4 << 20
_FLAGS = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC


@dataclass(frozen=True, slots=True)
class Times:
    """How long something took that was done ``count`` times."""

    count: int
    p50_seconds: float
    p99_seconds: float

    @classmethod
    def of(cls, seconds: Sequence[float]) -> Times:
        ordered = sorted(seconds)
        return cls(len(ordered), at(ordered, 0.50), at(ordered, 0.99))


def at(ordered: Sequence[float], share: float) -> float:
    """Return the value that ``share`` of the ascending values do not exceed."""
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def synced_writes(directory: Path, seconds: float, most: int = 500) -> tuple[Times, Times]:
    """Write 4 KiB and sync it, again and again; return (writing alone, writing and syncing).

    Ten at least, however long they take, and ``most`` at most.
    """
    data = os.urandom(SMALL_BYTES)
    written: list[float] = []
    synced: list[float] = []
    with _file(directory / "small") as descriptor:
        os.posix_fallocate(descriptor, 0, _SMALL_FILE_BYTES)
        os.fsync(descriptor)
        ends_at = time.perf_counter() + seconds
        while len(synced) < 10 or (len(synced) < most and time.perf_counter() < ends_at):
            began = time.perf_counter()
            os.pwrite(descriptor, data, len(synced) * SMALL_BYTES % _SMALL_FILE_BYTES)
            wrote = time.perf_counter()
            os.fdatasync(descriptor)
            written.append(wrote - began)
            synced.append(time.perf_counter() - began)
    return Times.of(written), Times.of(synced)


def direct_io(directory: Path) -> DirectIO | None:
    """Write one block past the page cache; return what that asked for, or None if it cannot be."""
    with _file(directory / "direct") as descriptor:
        needs = switch_to_direct(descriptor)
        if needs is None:
            return None
        try:
            os.pwrite(descriptor, aligned_memory(needs.padded(SMALL_BYTES)), 0)
        except OSError:
            return None  # the flag is taken, and the first write refused
        return needs


def random_memory(size_bytes: int) -> memoryview:
    """Return touched, aligned memory in which no two blocks are equal."""
    view = aligned_memory(size_bytes)
    pattern = os.urandom(min(len(view), BLOCK_BYTES))
    for start in range(0, len(view), len(pattern)):
        piece = view[start : start + len(pattern)]
        piece[:] = pattern[: len(piece)]
        piece[:8] = (start + 1).to_bytes(8, "little")[: len(piece)]
    return view[:size_bytes]


def write_file(path: Path, data: memoryview) -> float:
    """Preallocate, write from four threads past the page cache where it can be, sync.

    The file stays; ``data`` is page-aligned, in whole pages. Returns the seconds it took.
    """
    began = time.perf_counter()
    descriptor = os.open(path, _FLAGS, 0o600)
    try:
        os.posix_fallocate(descriptor, 0, len(data))
        switch_to_direct(descriptor)
        each_block(len(data), lambda start, end: os.pwrite(descriptor, data[start:end], start))
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    return time.perf_counter() - began


def read_file(path: Path, into: memoryview) -> float:
    """Read from four threads past the page cache where it can be; return seconds."""
    began = time.perf_counter()
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        switch_to_direct(descriptor)
        each_block(len(into), lambda start, end: os.preadv(descriptor, [into[start:end]], start))
    finally:
        os.close(descriptor)
    return time.perf_counter() - began


def each_block(size_bytes: int, move: Callable[[int, int], int]) -> None:
    """Call ``move`` with each block's start and end, in four threads at once.

    Raises:
        OSError: It moved only a part of a block.
    """

    def whole(start: int) -> None:
        end = min(start + BLOCK_BYTES, size_bytes)
        if move(start, end) != end - start:
            raise OSError(f"the disk moved only a part of the block at byte {start}")

    with ThreadPoolExecutor(THREADS) as threads:
        for _ in threads.map(whole, range(0, size_bytes, BLOCK_BYTES)):
            pass


@contextmanager
def _file(path: Path) -> Iterator[int]:
    descriptor = os.open(path, _FLAGS, 0o600)
    try:
        yield descriptor
    finally:
        os.close(descriptor)
        with contextlib.suppress(OSError):  # the caller removes the directory anyway
            path.unlink()
