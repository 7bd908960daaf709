"""The answers of this node to a peer.

Blocks of shards and documents, from its disk or by one fetch.

No other peer is asked for blocks; a document that a peer fetches tells which shard is meant.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import ExitStack
from typing import TypeVar

from cachetier_client.bucket_format.layout import Layout, rank_of_part
from cachetier_client.io.digests import BLOCK_BYTES, blocks_of, digest_of

from cachetier.errors import CachetierError, InvalidRequestError, NotFoundError
from cachetier.local.catalog import parts, saves, shards
from cachetier.local.local_copy import LocalCopy
from cachetier.local.store import Store
from cachetier.model.lifecycle import ShardState
from cachetier.model.objects import is_mount
from cachetier.model.shard import Shard
from cachetier.remote.neighbours.client import WantedBlocks
from cachetier.restore.one_fetch import Flight, OneFetch
from cachetier.restore.restore import Restore

BEAT_SECONDS = 0.25  # a peer that waits hears so often that this node is alive
BLOCKS_AT_MOST = 64
LOOKS_AT_ONCE = 16

Bytes = bytes | bytearray | memoryview
_ReadBlock = Callable[[int], Bytes | None]
Result = TypeVar("Result")


class PeerAnswers:
    """Answers peers. Thread-safe."""

    def __init__(self, store: Store, restore: Restore, one_fetch: OneFetch, layout: Layout) -> None:
        self._store = store
        self._restore = restore
        self._one_fetch = one_fetch
        self._layout = layout
        self._looking = ThreadPoolExecutor(LOOKS_AT_ONCE, thread_name_prefix="peers-look")

    def close(self) -> None:
        """Let the threads go."""
        self._looking.shutdown(wait=False, cancel_futures=True)

    def held_shards(self, run: str, step: int, save_id: str) -> list[str]:
        """Return the names of the shards of a save that are whole and sound on this node."""
        save = self._store.read(saves.save_named, run, step, save_id)
        found = self._store.read(shards.shards_of, save.number) if save is not None else []
        return [each.name for each in found if each.here and not each.lacks_bytes]

    def knows(self, run: str, step: int, save_id: str, rank: int) -> bool:
        """Return whether this node brings a rank's part on, or knows how its save ended."""
        return self._store.read(parts.knows, run, step, save_id, rank)

    def document(self, key: str, digest: int) -> Iterator[Bytes | None]:
        """Yield a document of a step once it has come, and None while it has not.

        Raises:
            InvalidRequestError: The key is that of no such document.
            CachetierError: It cannot be read.
        """
        prefix, folder = self._layout.prefix, key.rpartition("/")[0]
        is_document = rank_of_part(key) is not None or key.endswith("/manifest.json")
        in_step = folder.endswith("/.cachetier") and key.startswith(f"{prefix}/" if prefix else "")
        if not (is_document and in_step):
            raise InvalidRequestError("peers read the documents of steps alone")
        body = yield from _awaited(self._one_fetch.own_document(key, digest))
        yield body

    def blocks(self, wanted: WantedBlocks) -> Iterator[Bytes | None]:
        """Yield the blocks in order, each verified, and None while the next one has not come.

        A block lasts until the next one.

        Raises:
            NotFoundError: This node knows no such shard, or is to read its disk and has no copy.
            CachetierError: It cannot be fetched.
        """
        shard = yield from _awaited(self._looking.submit(self._shard, wanted))
        last = blocks_of(shard.content.size_bytes)
        first, end = wanted.first_block, wanted.first_block + wanted.count
        if not (0 <= first < end <= last and wanted.count <= BLOCKS_AT_MOST):
            raise InvalidRequestError(f"shard {shard.name} has {last} blocks")
        with ExitStack() as held:
            on_disk = self._on_disk(shard, held)
            flight: Flight | None = None
            for number in range(first, end):
                block = yield from self._here(shard, number, on_disk)
                while block is None:
                    flight = flight or self._flight(shard, number, end, wanted)
                    block = flight.block(number, BEAT_SECONDS)
                    if block is None:
                        yield None
                        block = yield from self._here(shard, number, on_disk)
                yield block

    def _here(
        self, shard: Shard, number: int, on_disk: _ReadBlock
    ) -> Generator[None, None, Bytes | None]:
        """Yield None while a busy disk is read, and return the block, or None if it is not here."""
        looked = self._looking.submit(lambda: self._arrived(shard, number) or on_disk(number))
        try:
            return (yield from _awaited(looked))
        finally:
            wait([looked])  # the caller closes the file next

    def _shard(self, wanted: WantedBlocks) -> Shard:
        if is_mount(wanted.run):
            raise NotFoundError("objects of mounts are not shared among peers")
        shard, _source = self._restore.look(wanted.run, wanted.step, wanted.name)
        if (shard.save_id, shard.content.digest) != (wanted.save_id, wanted.digest):
            text = f"step {wanted.step} is another save here"
            raise NotFoundError(text, run=wanted.run, step=wanted.step, name=wanted.name)
        return shard

    def _on_disk(self, shard: Shard, held: ExitStack) -> _ReadBlock:
        """Return what reads a block of the local copy, and None where there is no sound one."""
        copy: LocalCopy | None = None
        is_damaged = False

        def read(number: int) -> Bytes | None:
            nonlocal copy, is_damaged
            if copy is None:  # the last of it may have come just now
                copy = self._local_copy(shard)
                if copy is None:
                    return None
                held.callback(copy.close)
            if is_damaged:
                return None
            if copy.body is not None:
                return copy.body if digest_of(copy.body) == shard.content.digest else None
            assert copy.descriptor is not None
            block = _read(copy.descriptor, shard, number)
            if block is None:
                is_damaged = True
                self._restore.report_damage(shard)
            return block

        return read

    def _local_copy(self, shard: Shard) -> LocalCopy | None:
        now = self._store.read(shards.shard_by_version, shard.version)
        if now is None or now.state is ShardState.QUARANTINED:
            return None
        try:
            return self._store.local_copy(now)
        except FileNotFoundError:
            return None

    def _arrived(self, shard: Shard, number: int) -> Bytes | None:
        """Return a block of what this node restores itself, if it has come."""
        arriving = self._restore.arriving(shard.version)
        if arriving is None or not arriving.has(number):
            return None
        try:
            descriptor = arriving.opened(0.0)
        except CachetierError:
            return None
        if descriptor is None:
            return None
        try:
            return _read(descriptor, shard, number)
        finally:
            os.close(descriptor)

    def _flight(self, shard: Shard, first: int, end: int, wanted: WantedBlocks) -> Flight:
        """Return the range that this node fetches for all: the blocks that are not on it."""
        copies = () if wanted.held else self._restore.sources.of(shard)
        if not copies:
            raise NotFoundError(f"shard {shard.name} is not on this node", **shard.context)
        return self._one_fetch.flights.of(shard, copies[0], copies[0].blocks(first, end - first))


def _awaited(future: Future[Result]) -> Generator[None, None, Result]:
    """Yield None until ``future`` is done, and return its result."""
    while not wait([future], BEAT_SECONDS).done:
        yield None
    return future.result()


def _read(descriptor: int, shard: Shard, number: int) -> Bytes | None:
    """Return a block of a file, or None where it is damaged."""
    start = number * BLOCK_BYTES
    length = min(BLOCK_BYTES, shard.content.size_bytes - start)
    try:
        block = os.pread(descriptor, length, start)
    except OSError:
        return None
    return block if digest_of(block) == shard.content.block_digests[number] else None
