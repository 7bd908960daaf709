"""A trainer that only writes files, and who meddles with them while they are adopted."""

from __future__ import annotations

import ctypes
import mmap
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest
from cachetier_client import Client
from cachetier_client.adopt import sources
from cachetier_client.io.block_file import SystemFiles

MIB = 1 << 20
MARKER = "trainer_state.json"


def save(folder: Path, files: Mapping[str, bytes], marker: str = MARKER) -> Path:
    """Write a step's files, then the one that ends its save."""
    for name, data in {**files, marker: b"{}"}.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    return folder


def stored(client: Client, run: str, step: int) -> dict[str, bytes]:
    """Return the bytes of a step's shards by name."""
    names = [shard.name for shard in client.step(run, step).shards]
    return {name: bytes(client.get_shard(run, step, name)) for name in names}


def on_disk(folder: Path) -> dict[str, bytes]:
    """Return the bytes of all files below a folder by their path in it."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


class Reads(SystemFiles):
    """Counts the blocks that are read of a trainer's files, and does something before some."""

    def __init__(self) -> None:
        self.count = 0
        self.before: dict[int, Callable[[], object]] = {}  # by the number of the read, from 1

    def preadv(self, descriptor: int, into: memoryview, offset: int) -> int:
        self.count += 1
        if (action := self.before.pop(self.count, None)) is not None:
            action()
        return super().preadv(descriptor, into, offset)


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> Reads:
    counted = Reads()
    monkeypatch.setattr(sources, "SystemFiles", lambda: counted)
    return counted


@contextmanager
def mapped_for_writing(path: Path) -> Iterator[None]:
    """Hold a shared mapping of a file, and no descriptor: ``mmap.mmap`` would keep one."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [
        ctypes.c_void_p,
        *(ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long),
    ]
    libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    descriptor = os.open(path, os.O_RDWR)
    protection = mmap.PROT_READ | mmap.PROT_WRITE
    address = libc.mmap(None, mmap.PAGESIZE, protection, mmap.MAP_SHARED, descriptor, 0)
    os.close(descriptor)
    assert address not in (None, ctypes.c_void_p(-1).value), os.strerror(ctypes.get_errno())
    try:
        yield
    finally:
        libc.munmap(address, mmap.PAGESIZE)
