"""How much of a file lies in the page cache, asked of the kernel."""

from __future__ import annotations

import ctypes
import mmap
import os
from pathlib import Path

import pytest


def resident_bytes(path: Path) -> int:
    """Return how much of ``path`` is in the page cache (``mincore`` on a mapping of it)."""
    size_bytes = path.stat().st_size
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [
        ctypes.c_void_p,
        *(ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long),
    ]
    libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    libc.mincore.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p]
    pages = ctypes.create_string_buffer(-(-size_bytes // mmap.PAGESIZE))
    descriptor = os.open(path, os.O_RDONLY)
    try:
        address = libc.mmap(None, size_bytes, mmap.PROT_READ, mmap.MAP_SHARED, descriptor, 0)
        assert address not in (None, ctypes.c_void_p(-1).value), os.strerror(ctypes.get_errno())
        try:
            assert libc.mincore(address, size_bytes, pages) == 0, os.strerror(ctypes.get_errno())
        finally:
            libc.munmap(address, size_bytes)
    finally:
        os.close(descriptor)
    return sum(page & 1 for page in pages.raw) * mmap.PAGESIZE


def drop_from_cache(path: Path) -> None:
    """Have nothing of ``path`` in the page cache; skip the test where that cannot be."""
    descriptor = os.open(path, os.O_RDWR)
    try:
        os.fsync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(descriptor)
    if resident_bytes(path):
        pytest.skip(f"{path.parent} cannot leave the page cache: a filesystem in memory")
