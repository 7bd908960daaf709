"""Page-aligned memory, addresses of buffers, and what direct I/O asks of both.

``O_DIRECT`` needs memory, offset and length aligned. Most tensors are not (allocators align to 16
or 64 bytes), so their blocks pass through a page-aligned block; ``ctypes.memmove`` copies without
holding the GIL, slice assignment does not.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import functools
import mmap
import os
import struct
import threading
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from cachetier_client import forks
from cachetier_client.io.digests import BLOCK_BYTES

PAGE_BYTES = mmap.PAGESIZE
LARGE_PAGE_BYTES = 2 << 20
_PRIVATE = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS  # shared memory would be the children's too

_COPIED_WITHOUT_GIL_BYTES = 65536
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
    array = _owned_bytes(size_bytes).from_address(address)
    array.owner = owner
    return memoryview(array).cast("B")


@functools.lru_cache(2048)
def _owned_bytes(size_bytes: int) -> Any:
    """Return the type of so many bytes that has room for an owner.

    Types are cyclic garbage, which a program may have stopped collecting; tensors' sizes recur.
    """
    return type("OwnedBytes", (ctypes.c_ubyte * size_bytes,), {})


def copy_bytes(into: memoryview, source: memoryview) -> None:
    """Copy as many bytes as both have; many without the GIL."""
    if len(source) >= _COPIED_WITHOUT_GIL_BYTES and len(into) == len(source):
        ctypes.memmove(address_of(into), address_of(source), len(source))
    else:
        into[:] = source


def aligned_memory(size_bytes: int) -> memoryview:
    """Return fresh page-aligned memory of at least ``size_bytes``, rounded up to whole pages.

    In large pages where the system has them, which are touched sooner and read into faster.
    """
    rounded = max(PAGE_BYTES, -(-size_bytes // PAGE_BYTES) * PAGE_BYTES)
    if rounded < LARGE_PAGE_BYTES:
        return memoryview(mmap.mmap(-1, rounded, flags=_PRIVATE))
    memory = mmap.mmap(
        -1, rounded + LARGE_PAGE_BYTES, flags=_PRIVATE
    )  # untouched, it costs nothing
    with contextlib.suppress(OSError):  # a system without
        memory.madvise(mmap.MADV_HUGEPAGE)
    view = memoryview(memory)
    start = -address_of(view) % LARGE_PAGE_BYTES
    return view[start : start + rounded]


class Block:
    """Page-aligned memory for one block: fresh, or ``view``."""

    __slots__ = ("address", "view")

    def __init__(self, view: memoryview | None = None) -> None:
        self.view = aligned_memory(BLOCK_BYTES) if view is None else view
        self.address = address_of(self.view)

    def take(self, source: memoryview, at: int = 0) -> None:
        """Copy ``source`` in."""
        copy_bytes(self.view[at : at + len(source)], source)

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
        self._lock = threading.RLock()  # a stream that is collected gives back at any moment
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

    @contextlib.contextmanager
    def borrowed(self) -> Iterator[Block]:
        """Lend a block to what happens inside."""
        block = self.take()
        try:
            yield block
        finally:
            self.give_back(block)

    def clear(self) -> None:
        """Free what is kept."""
        with self._lock:
            self._free.clear()

    def abandon(self) -> None:
        """Start again in a child."""
        self._lock = threading.RLock()
        self._free = []
        forks.own(self)


@dataclass(frozen=True, slots=True)
class DirectIO:
    """The alignment that direct I/O on a file needs.

    ``wants_large_pages``: a block in small pages has more pieces than a request to the disk takes.
    """

    memory_bytes: int
    offset_bytes: int
    wants_large_pages: bool = False

    def takes(self, address: int, size_bytes: int) -> bool:
        """Return whether memory at ``address`` may be written or read directly."""
        return address % self.memory_bytes == 0 and size_bytes % self.offset_bytes == 0

    def fills(self, address: int, size_bytes: int) -> bool:
        """Return whether memory at ``address`` is best read into directly.

        What begins where a large page does is taken to be in large pages.
        """
        large = address % LARGE_PAGE_BYTES == 0
        return self.takes(address, size_bytes) and (large or not self.wants_large_pages)

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
    return replace(needs, wants_large_pages=_wants_large_pages(os.fstat(descriptor).st_dev))


@functools.cache
def _wants_large_pages(device: int) -> bool:
    """Return whether requests to the disk hold less in small pages than they may hold in all.

    False where the program's memory is in large pages anyway, and where the system does not say.
    Virtual disks take some 254 pieces; reads of a megabyte at a time are a third slower.
    """
    queue = f"/sys/dev/block/{os.major(device)}:{os.minor(device)}"
    for place in (f"{queue}/queue", f"{queue}/../queue"):  # a disk, or a partition of one
        try:
            pieces = int(_text(f"{place}/max_segments"))
            most_bytes = int(_text(f"{place}/max_sectors_kb")) * 1024
            pages = _text("/sys/kernel/mm/transparent_hugepage/enabled")
        except (OSError, ValueError):
            continue
        return pieces * PAGE_BYTES < min(most_bytes, BLOCK_BYTES) and "[always]" not in pages
    return False


def _text(path: str) -> str:
    with open(path, encoding="ascii") as file:
        return file.read()


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
