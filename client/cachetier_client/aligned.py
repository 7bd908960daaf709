"""Page-aligned memory, addresses of buffers, and what direct I/O asks of both.

``O_DIRECT`` needs memory, offset and length aligned. Most tensors are not (allocators align to 16
or 64 bytes), so their blocks pass through a page-aligned block; ``ctypes.memmove`` copies without
holding the GIL, slice assignment does not.
"""

from __future__ import annotations

import ctypes
import fcntl
import mmap
import os
import struct
import threading
from dataclasses import dataclass
from typing import Any

from cachetier_client import forks
from cachetier_client.digests import BLOCK_BYTES

PAGE_BYTES = mmap.PAGESIZE
_PRIVATE = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS  # shared memory would be the children's too

_AT_EMPTY_PATH = 0x1000
_STATX_DIOALIGN = 0x2000
_STATX_BYTES = 256
_STATX_DIO_OFFSET = 0x98
_statx: Any = getattr(ctypes.CDLL(None), "statx", None)


class _PyBuffer(ctypes.Structure):
    _fields_ = (
        ("buf", ctypes.c_void_p),
        ("obj", ctypes.py_object),
        ("len", ctypes.c_ssize_t),
        ("itemsize", ctypes.c_ssize_t),
        ("readonly", ctypes.c_int),
        ("ndim", ctypes.c_int),
        ("format", ctypes.c_char_p),
        ("shape", ctypes.c_void_p),
        ("strides", ctypes.c_void_p),
        ("suboffsets", ctypes.c_void_p),
        ("internal", ctypes.c_void_p),
    )


def address_of(view: memoryview) -> int:
    """Return the address of a contiguous view's first byte, valid while the view lives."""
    buffer = _PyBuffer()
    ctypes.pythonapi.PyObject_GetBuffer(ctypes.py_object(view), ctypes.byref(buffer), 0)
    try:
        return int(buffer.buf or 0)
    finally:
        ctypes.pythonapi.PyBuffer_Release(ctypes.byref(buffer))


def view_at(address: int, size_bytes: int, owner: object) -> memoryview:
    """Return ``size_bytes`` at ``address`` as bytes; the view keeps ``owner`` alive."""
    if not size_bytes:
        return memoryview(bytearray())
    kind: Any = type("OwnedBytes", (ctypes.c_ubyte * size_bytes,), {})  # has room for an owner
    array = kind.from_address(address)
    array.owner = owner
    return memoryview(array).cast("B")


def aligned_memory(size_bytes: int) -> memoryview:
    """Return fresh page-aligned memory of at least ``size_bytes``, rounded up to whole pages."""
    rounded = max(PAGE_BYTES, -(-size_bytes // PAGE_BYTES) * PAGE_BYTES)
    return memoryview(mmap.mmap(-1, rounded, flags=_PRIVATE))


class Block:
    """Page-aligned memory for one block."""

    __slots__ = ("address", "view")

    def __init__(self) -> None:
        self.view = aligned_memory(BLOCK_BYTES)
        self.address = address_of(self.view)

    def fill(self, source_address: int, size_bytes: int, at: int = 0) -> None:
        """Copy bytes in, without the GIL."""
        ctypes.memmove(self.address + at, source_address, size_bytes)

    def zero(self, start: int, end: int) -> None:
        """Clear the bytes from ``start`` to ``end``."""
        ctypes.memset(self.address + start, 0, end - start)


class BlockPool:
    """Keeps a few used blocks for the next call, as the first touch of memory is slow. Thread-safe.

    It never waits: what is in use is bounded by who uses it (one for each writing thread, a few for
    each stream); what is kept unused is bounded here.
    """

    def __init__(self, kept: int) -> None:
        self._kept = kept
        self._free: list[Block] = []
        self._lock = threading.Lock()
        forks.own(self)

    def take(self) -> Block:
        """Return a block; its bytes are anyone's."""
        with self._lock:
            if self._free:
                return self._free.pop()
        return Block()

    def give_back(self, block: Block) -> None:
        """Return a block that nothing uses any more."""
        with self._lock:
            if len(self._free) < self._kept:
                self._free.append(block)

    def clear(self) -> None:
        """Free what is kept."""
        with self._lock:
            self._free.clear()

    def abandon(self) -> None:
        """Start anew in a child."""
        self._lock = threading.Lock()
        self._free = []
        forks.own(self)


@dataclass(frozen=True, slots=True)
class DirectIO:
    """What direct I/O on a file asks for."""

    memory_bytes: int
    offset_bytes: int

    def takes(self, address: int, size_bytes: int) -> bool:
        """Return whether memory at ``address`` may be written or read directly."""
        return address % self.memory_bytes == 0 and size_bytes % self.offset_bytes == 0

    def padded(self, size_bytes: int) -> int:
        """Return ``size_bytes`` rounded up to what may be written."""
        return -(-size_bytes // self.offset_bytes) * self.offset_bytes


def switch_to_direct(descriptor: int) -> DirectIO | None:
    """Have a descriptor bypass the page cache; return what that asks for, or None if it cannot.

    Some file systems take the flag and refuse the first write instead: be ready for ``EINVAL``.
    """
    needs = _direct_io_needs(descriptor)
    if needs is None or BLOCK_BYTES % needs.offset_bytes or PAGE_BYTES % needs.memory_bytes:
        return None
    try:
        flags = fcntl.fcntl(descriptor, fcntl.F_GETFL)
        fcntl.fcntl(descriptor, fcntl.F_SETFL, flags | os.O_DIRECT)
    except OSError:
        return None
    return needs


def switch_to_buffered(descriptor: int) -> None:
    """Have a descriptor use the page cache again."""
    flags = fcntl.fcntl(descriptor, fcntl.F_GETFL)
    fcntl.fcntl(descriptor, fcntl.F_SETFL, flags & ~os.O_DIRECT)


def _direct_io_needs(descriptor: int) -> DirectIO | None:
    """Ask the kernel (6.1 and later) for the alignment; assume pages where it does not say.

    Returns:
        None where the file system says that it has no direct I/O.
    """
    answer = ctypes.create_string_buffer(_STATX_BYTES)
    wanted = (descriptor, b"", _AT_EMPTY_PATH, _STATX_DIOALIGN, answer)
    if _statx is not None and _statx(*wanted) == 0:
        (mask,) = struct.unpack_from("I", answer, 0)
        memory_bytes, offset_bytes = struct.unpack_from("II", answer, _STATX_DIO_OFFSET)
        if mask & _STATX_DIOALIGN:
            return DirectIO(memory_bytes, offset_bytes) if memory_bytes and offset_bytes else None
    return DirectIO(PAGE_BYTES, PAGE_BYTES)
