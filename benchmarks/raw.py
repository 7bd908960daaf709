"""What the disk gives without cachetier: the lower side of every ratio.

The direct baselines use the best case that Python reaches: memory in large pages, blocks of 4 MiB,
four threads that hold no lock while the kernel works.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import time
from pathlib import Path

from cachetier.doctor.rawdisk import each_block

OFF_THE_PAGE_BYTES = 64  # how allocators align tensors
_RANDOM_BYTES = 16 << 20


def random_buffer(size_bytes: int, off_bytes: int = OFF_THE_PAGE_BYTES) -> memoryview:
    """Return touched memory of random bytes that starts ``off_bytes`` after a page's start."""
    whole = memoryview(
        mmap.mmap(-1, size_bytes + off_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANON)
    )
    return _filled(whole[off_bytes:])


def aligned_buffer(size_bytes: int) -> memoryview:
    """Return touched, page-aligned memory of random bytes, in large pages if there are any."""
    whole = mmap.mmap(-1, size_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANON)
    with contextlib.suppress(OSError):
        whole.madvise(mmap.MADV_HUGEPAGE)
    return _filled(memoryview(whole))


def write_direct(path: Path, data: memoryview) -> float:
    """Create, preallocate, write past the page cache from four threads, sync; return seconds."""
    began = time.perf_counter()
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_DIRECT
    descriptor = os.open(path, flags, 0o600)
    try:
        os.posix_fallocate(descriptor, 0, len(data))
        each_block(len(data), lambda start, end: os.pwrite(descriptor, data[start:end], start))
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    return time.perf_counter() - began


def read_direct(path: Path, into: memoryview) -> float:
    """Read past the page cache into aligned memory from four threads; return seconds."""
    began = time.perf_counter()
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECT)
    try:
        each_block(len(into), lambda start, end: os.preadv(descriptor, [into[start:end]], start))
    finally:
        os.close(descriptor)
    return time.perf_counter() - began


def write_and_sync(path: Path, data: memoryview) -> float:
    """Write the whole buffer through the page cache and sync it; return seconds."""
    began = time.perf_counter()
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        left = data
        while left:
            left = left[os.write(descriptor, left) :]
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    return time.perf_counter() - began


def append_and_sync(descriptor: int, data: bytes) -> float:
    """Append and sync the data; return seconds."""
    began = time.perf_counter()
    os.write(descriptor, data)
    os.fdatasync(descriptor)
    return time.perf_counter() - began


def _filled(view: memoryview) -> memoryview:
    pattern = os.urandom(min(len(view), _RANDOM_BYTES))
    for start in range(0, len(view), len(pattern) or 1):
        piece = view[start : start + len(pattern)]
        piece[:] = pattern[: len(piece)]
        piece[:8] = start.to_bytes(8, "little")[: len(piece)]  # no two blocks are equal
    return view
