"""A shard written as a stream, without knowing its length.

The caller's bytes are gathered into page-aligned blocks, and other threads write full blocks while
the caller goes on. Large writes are split, small ones coalesced. What fits into one block is kept
until close and put whole, so that it survives a service that is away for a moment.
"""

from __future__ import annotations

import os
import warnings
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from cachetier_client.aligned import Block, address_of
from cachetier_client.buffers import bytes_of
from cachetier_client.deadline import Deadline
from cachetier_client.digests import BLOCK_BYTES, digest_of
from cachetier_client.errors import InvalidRequestError, inherited
from cachetier_client.names import Part
from cachetier_client.results import Receipt
from cachetier_client.transport import Reply, Sink, Transport
from cachetier_client.workers import Workers

BLOCKS_PER_STREAM = 4
_COPIED_WITHOUT_GIL_BYTES = 65536


@dataclass(frozen=True, slots=True)
class Destination:
    """Where a stream goes, and what the client adds to each call on it.

    ``element_size`` is 0 where nobody said. ``guard`` names failures, ``deadline`` begins a call's
    time, ``finish`` turns the reply into a receipt.
    """

    transport: Transport
    part: Part
    name: str
    size_bytes: int | None
    element_size: int
    workers: Workers
    guard: Callable[[], AbstractContextManager[object]]
    deadline: Callable[[], Deadline]
    finish: Callable[[Reply, Deadline], Receipt]


class ShardWriter:
    """A writable binary stream that becomes a shard at ``close``; an exception leaves nothing.

    Each call may take the stream's ``timeout_seconds``. Not thread-safe. It has no descriptor to
    give away.

    Attributes:
        receipt: The promise, once the stream is closed.
        closed: Whether it takes no more bytes.
    """

    mode = "wb"

    def __init__(self, destination: Destination) -> None:
        self.receipt: Receipt | None = None
        self.closed = False
        self._failed = False
        self._process = os.getpid()
        self._to = destination
        self._size = 0
        self._digests: list[int] = []
        self._block: Block | None = None
        self._filled = 0
        self._digest = 0
        self._blocks = 0
        self._sink: Sink | None = None
        self._writing: deque[tuple[Future[None], Block]] = deque()

    def write(self, data: Any) -> int:
        """Take bytes, and return how many."""
        view = bytes_of(data)
        with self._to.guard():
            self._check_open()
            deadline = self._to.deadline()
            with self._aborting():
                self._take(view, deadline)
        return len(view)

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
        for future, _ in self._writing:
            if not future.cancel():
                future.exception()  # nobody may write once the descriptor is closed
        self._writing.clear()
        if self._sink is not None:
            self._sink.abort(self._to.deadline())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if kind is None:
            self.close()
        else:
            self.abort()

    def __del__(self) -> None:
        if not getattr(self, "closed", True) and not self._is_inherited():
            warnings.warn(f"shard {self._to.name} was never closed", ResourceWarning, stacklevel=2)
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
            raise InvalidRequestError("the stream is closed", hint="Open the shard anew.")

    def _take(self, view: memoryview, deadline: Deadline) -> None:
        address = address_of(view) if len(view) >= _COPIED_WITHOUT_GIL_BYTES else 0
        at = 0
        while at < len(view):
            block = self._block_with_room(deadline)
            piece = view[at : at + BLOCK_BYTES - self._filled]
            self._digest = digest_of(piece, self._digest)  # before anything else touches them
            if address:
                block.fill(address + at, len(piece), self._filled)
            else:
                block.view[self._filled : self._filled + len(piece)] = piece
            self._filled += len(piece)
            self._size += len(piece)
            at += len(piece)

    def _block_with_room(self, deadline: Deadline) -> Block:
        if self._block is not None and self._filled == BLOCK_BYTES:
            self._send(self._block, deadline)
        if self._block is None:
            self._block = self._free_block(deadline)
        return self._block

    def _send(self, block: Block, deadline: Deadline) -> None:
        """Hand the filled block over to be written."""
        to, size, offset = self._to, self._filled, self._size - self._filled
        if self._sink is None:
            self._sink = to.transport.open_sink(
                to.part, to.name, to.size_bytes, deadline, to.element_size
            )
        sink = self._sink
        sink.reserve(offset + size, deadline)
        self._digests.append(self._digest)
        self._filled = self._digest = 0

        def write() -> None:
            sink.write(block, size, offset, deadline)

        future = to.workers.start(write) if sink.parallel else None
        if future is None:
            write()
        else:
            self._writing.append((future, block))
            self._block = None

    def _free_block(self, deadline: Deadline) -> Block:
        if self._blocks < BLOCKS_PER_STREAM:
            self._blocks += 1
            return Block()
        return self._wait_for_oldest(deadline)

    def _wait_for_oldest(self, deadline: Deadline) -> Block:
        future, block = self._writing[0]
        try:
            future.result(deadline.remaining())
        except TimeoutError:
            if future.done():
                raise  # the write itself said so
            raise deadline.passed("writing the shard") from None
        self._writing.popleft()
        return block

    def _commit(self, deadline: Deadline) -> Reply:
        if self._sink is None:
            whole = self._block.view[: self._filled] if self._block else memoryview(b"")
            to = self._to
            return to.transport.put(to.part, to.name, whole, deadline, to.element_size)
        if self._block is not None and self._filled:
            self._send(self._block, deadline)
        while self._writing:
            self._wait_for_oldest(deadline)
        return self._sink.commit(self._size, self._digests, deadline)
