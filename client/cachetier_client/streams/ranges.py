"""Read parts of many shards at once: each block that is needed once, in several threads.

While a shard stays remote, more threads than those wait for its blocks.

A block that one buffer takes whole goes straight into it; of any other the parts are copied out of
a block of scratch memory, one for each thread. Every block is verified before a byte of it counts.
"""

from __future__ import annotations

import operator
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

from cachetier_client.deadline import Deadline
from cachetier_client.errors import (
    CachetierClientError,
    InvalidRequestError,
    SizeMismatchError,
)
from cachetier_client.identity.names import checked_name
from cachetier_client.io.aligned import BlockPool, copy_bytes
from cachetier_client.io.buffers import TensorLike, bytes_of
from cachetier_client.io.digests import BLOCK_BYTES
from cachetier_client.io.workers import Workers
from cachetier_client.transport.base import Source

WAITERS = 12

Wanted = tuple[int, memoryview]
"""Memory to fill, and from which byte on: of a shard, or of a block."""


@dataclass(slots=True)
class _Shard:
    """One shard of which parts are wanted."""

    name: str
    end: int
    blocks: dict[int, list[Wanted]]
    source: Source | None = None
    unread: int = field(init=False)

    def __post_init__(self) -> None:
        self.unread = len(self.blocks)


def checked_ranges(
    ranges: Mapping[str, Sequence[tuple[int, TensorLike]]],
) -> dict[str, list[Wanted]]:
    """Return ``ranges`` with their buffers as bytes.

    Raises:
        InvalidRequestError: Not a mapping of names to pairs of an offset and writable memory.
    """
    if not isinstance(ranges, Mapping):
        raise InvalidRequestError(
            f"the ranges are a {type(ranges).__name__}",
            hint="Pass {name: [(offset, buffer), ...]}.",
        )
    return {checked_name(name): _checked(name, listed) for name, listed in ranges.items()}


def read_ranges(
    open_source: Callable[[str, int], Source],
    ranges: Mapping[str, Sequence[Wanted]],
    workers: Workers,
    deadline: Deadline,
) -> int:
    """Fill all buffers; return how many bytes were read for them.

    Args:
        open_source: Opens a shard by its name, to read so many blocks; called once for each.
        ranges: What is wanted of each shard.
        workers: Whose threads and scratch blocks to use.
        deadline: For all of it.
    """
    shards = [_planned(name, wanted) for name, wanted in ranges.items()]
    tasks = sum(max(1, len(shard.blocks)) for shard in shards)
    waiters = ThreadPoolExecutor(WAITERS, "cachetier-waits")  # a thread begins with its first task
    reading = _Reading(open_source, shards, deadline, workers.blocks, waiters)
    try:
        workers.run(reading.work, min(workers.threads, tasks))
        reading.join()
    finally:
        waiters.shutdown()
        reading.close()
    return reading.read_bytes


def read_through(source: Source, workers: Workers, deadline: Deadline) -> None:
    """Read every block of a shard in several threads, into scratch memory: each is verified."""

    def read(number: int) -> None:
        size_bytes = min(BLOCK_BYTES, source.size_bytes - number * BLOCK_BYTES)
        with workers.blocks.borrowed() as block:
            source.read_block(number, block.view[:size_bytes], deadline)

    workers.for_each(-(-source.size_bytes // BLOCK_BYTES), read)


class _Reading:
    """A queue of shards still to be opened and read, for several threads."""

    def __init__(
        self,
        open_source: Callable[[str, int], Source],
        shards: Iterable[_Shard],
        deadline: Deadline,
        pool: BlockPool,
        waiters: Executor,
    ) -> None:
        self.read_bytes = 0
        self._pool = pool
        self._waiters = waiters
        self._waiting: list[Future[None]] = []
        self._open_source = open_source
        self._deadline = deadline
        self._unopened = deque(shards)
        self._blocks: deque[tuple[_Shard, int]] = deque()
        self._opening = 0
        self._open: list[_Shard] = []
        self._failed = False
        self._changed = threading.Condition()

    def work(self) -> None:
        """Open and read until nothing is left, or another thread failed."""
        try:
            while (task := self._next()) is not None:
                self._deadline.require("reading the ranges")
                shard, number = task
                with _named(shard.name):
                    if number is None:
                        self._open_shard(shard)
                    else:
                        self._read(shard, number)
        except BaseException:  # an interrupt too
            with self._changed:
                self._failed = True
                self._changed.notify_all()
            raise

    def join(self) -> None:
        """Wait for those who read remote blocks; raise what went wrong there."""
        for waiter in self._waiting:
            waiter.result()

    def close(self) -> None:
        """Let go of what a failure has left open."""
        for shard in self._open:
            assert shard.source is not None
            shard.source.close()

    def _next(self) -> tuple[_Shard, int | None] | None:
        """Return a block to read, else a shard to open (None for its block), else None."""
        with self._changed:
            while not self._failed:
                if self._blocks:
                    return self._blocks.popleft()
                if self._unopened:
                    self._opening += 1
                    return self._unopened.popleft(), None
                if not self._opening:
                    return None
                self._changed.wait(self._deadline.require("reading the ranges"))
            return None

    def _open_shard(self, shard: _Shard) -> None:
        source = self._open_source(shard.name, len(shard.blocks))
        shard.source = source
        with self._changed:
            self._open.append(shard)
            self._opening -= 1
            if shard.end > source.size_bytes:
                raise SizeMismatchError(
                    f"bytes up to {shard.end} were asked for, of a shard of {source.size_bytes}",
                    hint="Ask for bytes that the shard has.",
                )
            self._blocks.extend((shard, number) for number in shard.blocks)
            if source.is_remote and not self._waiting:
                with suppress(RuntimeError):  # none begin while the interpreter ends
                    self._waiting = [self._waiters.submit(self.work) for _ in range(WAITERS)]
            self._changed.notify_all()
        if not shard.blocks:
            self._end(shard)

    def _read(self, shard: _Shard, number: int) -> None:
        source, wanted = shard.source, shard.blocks[number]
        assert source is not None
        size_bytes = min(BLOCK_BYTES, source.size_bytes - number * BLOCK_BYTES)
        whole = next((into for start, into in wanted if len(into) == size_bytes), None)
        if whole is not None:
            source.read_block(number, whole, self._deadline)
            _hand_out(whole, [each for each in wanted if each[1] is not whole])
        else:
            with self._pool.borrowed() as block:
                source.read_block(number, block.view[:size_bytes], self._deadline)
                _hand_out(block.view, wanted)
        with self._changed:
            self.read_bytes += size_bytes
            shard.unread -= 1
            is_last = not shard.unread
        if is_last:
            self._end(shard)

    def _end(self, shard: _Shard) -> None:
        assert shard.source is not None
        shard.source.close()
        with self._changed:
            self._open.remove(shard)


def _planned(name: str, wanted: Sequence[Wanted]) -> _Shard:
    """Return which bytes of which blocks are wanted."""
    blocks: dict[int, list[Wanted]] = {}
    end = 0
    for offset, into in wanted:
        end = max(end, offset + len(into))
        for number, start, piece in in_blocks(offset, into):
            blocks.setdefault(number, []).append((start, piece))
    return _Shard(name, end, dict(sorted(blocks.items())))


def in_blocks(offset: int, into: memoryview) -> Iterator[tuple[int, int, memoryview]]:
    """Return block by block its number, where in it to begin, and the memory to fill."""
    done = 0
    while done < len(into):
        number, start = divmod(offset + done, BLOCK_BYTES)
        piece = into[done : done + BLOCK_BYTES - start]
        yield number, start, piece
        done += len(piece)


def _hand_out(block: memoryview, wanted: Iterable[Wanted]) -> None:
    """Copy parts of a block to where they are wanted."""
    for start, into in wanted:
        copy_bytes(into, block[start : start + len(into)])


def _checked(name: str, listed: Sequence[tuple[int, TensorLike]]) -> list[Wanted]:
    try:
        pairs = [(operator.index(offset), buffer) for offset, buffer in listed]
    except (TypeError, ValueError):
        pairs = [(-1, b"")]
    if any(offset < 0 for offset, _ in pairs):
        raise InvalidRequestError(
            f"the ranges of shard {name} are not pairs of an offset and a buffer",
            hint="Pass {name: [(offset, buffer), ...]}, with offsets from 0 up.",
        )
    return [(offset, bytes_of(buffer, writable=True)) for offset, buffer in pairs]


@contextmanager
def _named(name: str) -> Iterator[None]:
    """Have failures tell which shard they are about."""
    try:
        yield
    except CachetierClientError as error:
        error.locate(name=name)
        raise
