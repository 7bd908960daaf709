"""A shard written as a stream, without knowing its length.

The caller's bytes are gathered into page-aligned blocks, and other threads write full blocks while
the caller goes on. Large writes are split, small ones coalesced. What fits into one block is kept
until close and put whole, so that it survives a service that is away for a moment.

Blocks come from a ring, if the stream was given one, else at most four from the client's pool.
"""

from __future__ import annotations

import contextlib
import os
import threading
import warnings
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from typing import Any, Self

from cachetier_client.deadline import Deadline
from cachetier_client.errors import InvalidRequestError, SizeMismatchError, inherited
from cachetier_client.io.aligned import Block
from cachetier_client.io.buffers import Gathered, bytes_of
from cachetier_client.io.digests import BLOCK_BYTES
from cachetier_client.io.filling import BlockBuffer, Copy
from cachetier_client.io.ring import Ring
from cachetier_client.io.workers import Workers
from cachetier_client.results import Receipt
from cachetier_client.transport.base import PutRequest, Reply, Sink, Transport

BLOCKS_PER_STREAM = 4
CACHED_BYTES = 1 << 20  # so much is in the processor's cache after a copy, for its digest


@dataclass(frozen=True, slots=True)
class Destination:
    """Where a stream goes, and what the client adds to each call on it.

    ``guard`` names failures, ``deadline`` begins a call's time, ``finish`` turns the reply into a
    receipt.
    """

    transport: Transport
    request: PutRequest
    workers: Workers
    ring: Ring | None
    guard: Callable[[], AbstractContextManager[object]]
    deadline: Callable[[], Deadline]
    finish: Callable[[Reply, Deadline], Receipt]

    def let_go(self, filling: BlockBuffer) -> None:
        """Give a block back once nobody copies into it; lose it where that cannot be known."""
        with contextlib.suppress(Exception):
            filling.settle()
            (self.ring or self.workers.blocks).give_back(filling.block)


class ShardWriter:
    """A writable binary stream that becomes a shard at ``close``; an exception leaves nothing.

    Each call may take the stream's ``timeout_seconds``. Not thread-safe. It has no descriptor to
    give away.

    Attributes:
        receipt: The promise, once the stream is closed.
        closed: Whether it takes no more bytes.
        has_owner: Whether somebody else ends it when it is collected.
    """

    mode = "wb"

    def __init__(self, destination: Destination) -> None:
        self.receipt: Receipt | None = None
        self.closed = False
        self.has_owner = False
        self._failed = False
        self._process = os.getpid()
        self._to = destination
        self._size = 0
        self._digests: list[int] = []  # of the blocks handed over; each is filled in as it is known
        self._filling: BlockBuffer | None = None
        self._sink: Sink | None = None
        self._writing: deque[tuple[Future[None], BlockBuffer]] = deque()

    def write(self, data: Any) -> int:
        """Take bytes, and return how many."""
        view = bytes_of(data)
        with self._taking(len(view)) as deadline:
            at = 0
            while at < len(view):
                filling = self._with_room(deadline)
                piece = view[at : at + filling.room_bytes]
                filling.take(piece)
                at += len(piece)
                self._has_grown(len(piece), deadline)
        return len(view)

    def write_later(self, size_bytes: int, copy: Copy, *, at_once: int = BLOCK_BYTES) -> int:
        """Take ``size_bytes`` that ``copy`` brings, and return how many.

        Args:
            size_bytes: How many bytes the source has.
            copy: Called as ``copy(into, at)``, here and in order, to put ``len(into)`` bytes of the
                source from ``at`` on into ``into``. Where they are only under way when it returns
                (copies from a device), it returns a function that waits until they are there: the
                thread that writes the block calls it first. That wait must end by itself.
            at_once: The most that ``copy`` is asked for at once; never more than a block. Less
                suits a copy in memory: its digest is taken while it is in the processor's cache.

        Raises:
            CachetierClientError: As ``write``. What ``copy`` raises comes through; it must not
                leave anything under way then.
        """
        with self._taking(size_bytes) as deadline:
            at = 0
            while at < size_bytes:
                filling = self._with_room(deadline)
                count = min(filling.room_bytes, size_bytes - at, at_once)
                filling.take_later(count, copy, at)
                at += count
                self._has_grown(count, deadline)
        return size_bytes

    def tell(self) -> int:
        """Return how many bytes were written."""
        return self._size

    def flush(self) -> None:
        """Do nothing: a shard is safe when it is closed, not before."""

    def readable(self) -> bool:
        """Return False."""
        return False

    def writable(self) -> bool:
        """Return True."""
        return True

    def seekable(self) -> bool:
        """Return False."""
        return False

    def close(self) -> None:
        """Make the shard safe, and return once it is.

        Raises:
            CachetierClientError: It is not; nothing was kept.
        """
        if self.closed and not self._failed:
            return
        with self._to.guard():
            self._check_open()
            deadline = self._to.deadline()
            with self._aborting():
                reply = self._commit(deadline)
            self.closed = True
            self.receipt = self._to.finish(reply, deadline)

    def abort(self) -> None:
        """Leave nothing behind; does nothing once closed."""
        if self.closed or self._is_inherited():
            return
        self.closed = True
        for future, filling in self._writing:
            if future.cancel():
                self._to.let_go(filling)
            else:
                future.exception()  # nobody may write once the descriptor is closed
        self._writing.clear()
        if self._filling is not None:
            self._to.let_go(self._filling)
            self._filling = None
        if self._sink is not None:
            self._sink.abort(self._to.deadline())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None:
            self.close()
        else:
            self.abort()

    def __del__(self) -> None:
        if not (getattr(self, "closed", True) or self.has_owner or self._is_inherited()):
            warnings.warn(
                f"shard {self._to.request.name} was never closed", ResourceWarning, stacklevel=2
            )
            if self._to.workers.is_at_work():  # collected on a thread that an abort may wait for
                threading.Thread(target=self.abort, name="cachetier-abort").start()
            else:
                self.abort()

    @contextmanager
    def _aborting(self) -> Iterator[None]:
        """Leave nothing behind if what happens inside fails."""
        try:
            yield
        except BaseException:
            self.abort()
            self._failed = True
            raise

    def _is_inherited(self) -> bool:
        """Whether this is a forked child's copy: the threads that write are not here."""
        return self._process != os.getpid()

    def _check_open(self) -> None:
        if self._is_inherited():
            raise inherited()
        if self._failed:
            raise InvalidRequestError(
                "the stream has failed before and kept nothing", hint="Write the shard again."
            )
        if self.closed:
            raise InvalidRequestError("the stream is closed", hint="Open the shard again.")

    @contextmanager
    def _taking(self, size_bytes: int) -> Iterator[Deadline]:
        """Take so many bytes inside."""
        with self._to.guard():
            self._check_open()
            deadline = self._to.deadline()
            with self._aborting():
                declared = self._to.request.size_bytes
                if declared is not None and self._size + size_bytes > declared:
                    raise self._mismatch(self._size + size_bytes)
                yield deadline

    def _with_room(self, deadline: Deadline) -> BlockBuffer:
        if self._filling is not None and not self._filling.room_bytes:
            self._send(self._filling, deadline)
        if self._filling is None:
            self._filling = BlockBuffer(self._free_block(deadline))
        return self._filling

    def _has_grown(self, size_bytes: int, deadline: Deadline) -> None:
        """Count bytes; hand a full block over, unless it may be the whole shard."""
        self._size += size_bytes
        goes_on = self._sink is not None or self._size < (self._to.request.size_bytes or 0)
        if self._filling is not None and not self._filling.room_bytes and goes_on:
            self._send(self._filling, deadline)

    def _send(self, filling: BlockBuffer, deadline: Deadline) -> None:
        """Hand the filled block over to be written."""
        to, offset = self._to, self._size - filling.size_bytes
        if self._sink is None:
            self._sink = to.transport.open_sink(to.request, deadline)
        sink, taken, number, let_go = self._sink, self._digests, len(self._digests), to.let_go
        sink.reserve(self._size, deadline)
        taken.append(0)
        self._filling = None

        def write() -> None:
            try:
                filling.settle()
                taken[number] = filling.digest()
                sink.write(filling.block, filling.size_bytes, offset, deadline)
            finally:
                let_go(filling)

        future = to.workers.start(write) if sink.parallel else None
        if future is None:
            write()
        else:
            self._writing.append((future, filling))

    def _free_block(self, deadline: Deadline) -> Block:
        while self._writing and self._writing[0][0].done():
            self._wait_for_oldest(deadline)
        if self._to.ring is not None:
            return self._to.ring.take(deadline)
        while len(self._writing) >= BLOCKS_PER_STREAM:
            self._wait_for_oldest(deadline)
        return self._to.workers.blocks.take()

    def _wait_for_oldest(self, deadline: Deadline) -> None:
        future, _ = self._writing[0]
        try:
            future.result(deadline.remaining())
        except TimeoutError:
            if not future.done():
                raise deadline.passed("writing the shard") from None
            future.result()  # ended in that very instant, or the write itself said so
        self._writing.popleft()

    def _commit(self, deadline: Deadline) -> Reply:
        if self._to.request.size_bytes not in (None, self._size):
            raise self._mismatch(self._size)
        if self._sink is None:
            return self._put_whole(deadline)
        if self._filling is not None:
            self._send(self._filling, deadline)
        while self._writing:
            self._wait_for_oldest(deadline)
        return self._sink.commit(self._size, self._digests, deadline)

    def _put_whole(self, deadline: Deadline) -> Reply:
        """Put what fits into one block."""
        filling, to = self._filling, self._to
        pieces = []
        if filling is not None:
            filling.settle()
            pieces.append(filling.data)
        whole = replace(to.request, size_bytes=self._size)
        reply = to.transport.put(whole, Gathered(pieces), deadline)
        if filling is not None:
            self._to.let_go(filling)
            self._filling = None
        return reply

    def _mismatch(self, size_bytes: int) -> SizeMismatchError:
        return SizeMismatchError(
            f"{size_bytes} bytes were written of a shard of {self._to.request.size_bytes}",
            hint="Pass the size that is written as size_bytes=, or none.",
        )
