"""A ring of blocks that a stream fills and writing threads empty, used again and again.

A stream keeps the block it is filling; one that is full comes back as soon as it is written. So
streams on one ring only ever wait for the disk, as long as there is a block for each of them.
"""

from __future__ import annotations

import ctypes
import threading
from typing import Self

from cachetier_client import forks
from cachetier_client.deadline import Deadline
from cachetier_client.errors import InvalidRequestError
from cachetier_client.io.aligned import Block, address_of, aligned_memory
from cachetier_client.io.digests import BLOCK_BYTES


class Ring:
    """A bounded number of page-aligned blocks, for streams to share. Thread-safe and fork-safe.

    The memory is taken and touched once, here; a forked child that uses the ring takes its own.

    Args:
        size_bytes: All of it, rounded up to whole blocks of 4 MiB: at least one for each stream
            that is open at a time.

    Attributes:
        size_bytes: How much there is.
        memory: All of it in a row.
        address: Where it begins.
    """

    def __init__(self, size_bytes: int) -> None:
        if size_bytes < 1:
            raise InvalidRequestError(
                f"a ring of {size_bytes} bytes holds nothing",
                hint="Pass the ring's size in bytes, such as 1 << 30.",
            )
        self.size_bytes = -(-size_bytes // BLOCK_BYTES) * BLOCK_BYTES
        self._start()
        self._allocate()

    def take(self, deadline: Deadline) -> Block:
        """Return a block, once one is free; its bytes are anyone's.

        Raises:
            DeadlineError: None was in time.
            InvalidRequestError: The ring is closed.
        """
        with self._changed:
            self._allocate()
            while not self._free:
                self._check_open()
                if not self._changed.wait(deadline.require("waiting for a block of the ring")):
                    raise deadline.passed("waiting for a block of the ring")
            self._check_open()
            block = self._free.pop()
            self._lent[block.address] = block
            return block

    def give_back(self, block: Block) -> None:
        """Return a block that nothing uses any more; one that is not this ring's is ignored."""
        with self._changed:
            if self._lent.pop(block.address, None) is block and not self.closed:
                self._free.append(block)
                self._changed.notify()

    @property
    def free_blocks(self) -> int:
        """How many blocks nobody uses at the moment."""
        return len(self._free)

    def close(self) -> None:
        """Free the memory, once the streams that use it have let go; may be called twice."""
        forks.disown(self)
        with self._changed:
            self.closed = True
            self._free.clear()
            self._lent.clear()
            self.memory = memoryview(b"")
            self._changed.notify_all()

    def abandon(self) -> None:
        """Let the parent's memory be, in a forked child: it is still written from there."""
        self._start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _start(self) -> None:
        self._changed = threading.Condition()  # may be entered again by a stream being collected
        self.closed = False
        self.memory = memoryview(b"")
        self.address = 0
        self._free: list[Block] = []
        self._lent: dict[int, Block] = {}
        forks.own(self)

    def _allocate(self) -> None:
        if len(self.memory) or self.closed:
            return
        self.memory = _touched(self.size_bytes)
        self.address = address_of(self.memory)
        starts = range(0, self.size_bytes, BLOCK_BYTES)
        self._free = [Block(self.memory[start : start + BLOCK_BYTES]) for start in starts]
        self._free.reverse()

    def _check_open(self) -> None:
        if self.closed:
            raise InvalidRequestError("the ring is closed", hint="Make a new Ring.")


def _touched(size_bytes: int) -> memoryview:
    """Return page-aligned memory that is there already."""
    memory = aligned_memory(size_bytes)
    ctypes.memset(address_of(memory), 0, size_bytes)
    return memory
