"""Read less of a remote shard than all of it, or its neighbours in a pack along with it.

Whoever wants a tensor out of a large shard should not wait for the rest of it, nor push other
shards out of the cache. But blocks read so are not kept, and cost a request each; so a shard of
which a quarter has been read in this way is restored after all. No reader has to know beforehand.

Who reads one shard of a pack pays for little more than that; who goes on gets windows that grow
until all of the pack comes at once. Neighbours are only taken along: whatever goes wrong with them
concerns nobody, and they stay remote.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

from cachetier_client.bucket_format.stored import InPack, Stored
from cachetier_client.clock import Clock
from cachetier_client.io.digests import BLOCK_BYTES, blocks_of

from cachetier.errors import CachetierError, IntegrityError
from cachetier.local.catalog import copies
from cachetier.local.store import Store
from cachetier.model.packs import PackedExtent, is_packable, read_along
from cachetier.model.shard import Shard
from cachetier.remote.base import Into, ObjectStore, deliver, room_of
from cachetier.remote.wrapped import WrappedObjectStore
from cachetier.restore.link import InPieces, Link
from cachetier.restore.one_fetch import OneFetch
from cachetier.restore.remote_shard import RemoteShard
from cachetier.restore.replica_choice import Sources, is_missing

# Bytes and neighbours, request by request.
WINDOWS = ((1 << 20, 16), (8 << 20, 256), (32 << 20, 2048))
WINDOWS_AT_ONCE = 2
WINDOW_SECONDS = 2.0  # most are done within it
FORGET_SECONDS = 60.0
REMEMBERED_PACKS = 1024
RESTORED_FROM = 0.25
REMEMBERED_SHARDS = 4096

Neighbours = tuple[tuple[Shard, RemoteShard], ...]


@dataclass(frozen=True, slots=True)
class ReadaheadWindow:
    """The shards that one read of a pack brought: the one asked for, and its neighbours.

    They are read from memory, and verified as from anywhere.
    """

    asked: RemoteShard
    neighbours: Neighbours = ()


class ReadAhead:
    """Reads packed shards with their neighbours. Thread-safe."""

    def __init__(self, store: Store, sources: Sources, clock: Clock, link: Link) -> None:
        self._store = store
        self._sources = sources
        self._clock = clock
        self._link = link
        self._lock = threading.Lock()
        self._reads: dict[str, tuple[int, float]] = {}  # by key; those read last at the end
        self._free = threading.Semaphore(WINDOWS_AT_ONCE)

    def packed(self, shard: Shard) -> RemoteShard | None:
        """Return the nearest copy of ``shard`` if it is in a pack, and small."""
        if not is_packable(shard.content.size_bytes):
            return None
        nearest = next(iter(self._sources.of(shard)), None)
        return nearest if nearest is not None and nearest.stored.pack is not None else None

    @contextmanager
    def reading(self, shard: Shard, source: RemoteShard) -> Iterator[ReadaheadWindow]:
        """Lend what one read of the pack brings; without neighbours nothing is read yet.

        The memory is bounded: who finds it in use for long reads for himself.
        """
        pack = source.stored.pack
        small = is_packable(shard.content.size_bytes)
        if pack is None or not small or not self._free.acquire(timeout=WINDOW_SECONDS):
            yield ReadaheadWindow(source)
            return
        try:
            window = self._read(shard, source, pack)
            if window.neighbours:
                yield window
                return
        finally:
            self._free.release()
        yield window

    def _read(self, shard: Shard, source: RemoteShard, pack: InPack) -> ReadaheadWindow:
        remote, name = source.remote, pack.name
        evicted = self._store.read(copies.evicted_in_pack, shard.version, remote, name)
        asked = next((each for each in evicted if each.version == shard.version), None)
        if asked is None or any(each.end > pack.size_bytes for each in evicted):
            return ReadaheadWindow(source)
        along = read_along(evicted, asked, *self._next_window(source.key))
        if not along:
            return ReadaheadWindow(source)
        start = min(asked.start, *(each.start for each in along))
        data = bytearray(max(asked.end, *(each.end for each in along)) - start)
        try:
            if data:
                objects = InPieces(source.objects, self._link, BLOCK_BYTES)
                objects.read_into(source.key, start, memoryview(data))
        except CachetierError:
            return ReadaheadWindow(source)  # the plain read that follows says what is wrong
        held = replace(source, objects=_Held(source.objects, start, data))
        found = self._store.read(copies.shards_at, along)
        return ReadaheadWindow(
            held, tuple(_neighbour(held, shard, extent) for shard, extent in found)
        )

    def _next_window(self, key: str) -> tuple[int, int]:
        """Return how much to read of a pack now, and count the read."""
        now = self._clock.monotonic()
        with self._lock:
            reads, read_at = self._reads.pop(key, (0, now))
            if now - read_at > FORGET_SECONDS:
                reads = 0
            self._reads[key] = reads + 1, now
            if len(self._reads) > REMEMBERED_PACKS:
                del self._reads[next(iter(self._reads))]
        return WINDOWS[min(reads, len(WINDOWS) - 1)]


def _neighbour(held: RemoteShard, shard: Shard, extent: PackedExtent) -> tuple[Shard, RemoteShard]:
    pack = held.stored.pack
    assert pack is not None
    stored = replace(Stored.raw(shard.content), pack=replace(pack, start=extent.start))
    return shard, replace(held, content=shard.content, stored=stored)


class _Held(WrappedObjectStore):
    """A store of which one range is here already."""

    def __init__(self, store: ObjectStore, start: int, data: bytearray) -> None:
        super().__init__(store)
        self._start = start
        self._data = memoryview(data)

    def read_into(self, _key: str, start: int, into: Into, etag: str | None = None) -> None:  # noqa: ARG002
        at = start - self._start
        deliver([self._data[at : at + room_of(into)]], into)


# --- a few blocks --------------------------------------------------------------------------------


class RangeReads:
    """Remembers how much of which shard was read in ranges. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._read_bytes: dict[int, int] = {}  # by version; those read last at the end

    def leave_remote(self, shard: Shard, blocks: int) -> bool:
        """Return whether to read so many more blocks of ``shard`` without restoring it."""
        with self._lock:
            read_bytes = self._read_bytes.pop(shard.version, 0) + blocks * BLOCK_BYTES
            if read_bytes >= shard.content.size_bytes * RESTORED_FROM:
                return False
            self._read_bytes[shard.version] = read_bytes
            if len(self._read_bytes) > REMEMBERED_SHARDS:
                del self._read_bytes[next(iter(self._read_bytes))]
        return True


@dataclass(frozen=True, slots=True)
class RemoteBlocks:
    """A shard read block by block from the nearest sound copy; nothing is kept here."""

    shard: Shard
    sources: Sources
    link: Link
    one_fetch: OneFetch | None = None
    on_read: Callable[[int], None] = lambda _size_bytes: None
    why_missing: Callable[[Shard], Exception | None] = lambda _shard: None

    def read(self, number: int) -> bytes | bytearray | memoryview:
        """Return one block, verified.

        Raises:
            IntegrityError, NotFoundError: There is no sound remote copy.
            RemoteError: None that can be reached.
        """
        shard = self.shard
        if not 0 <= number < blocks_of(shard.content.size_bytes):
            raise IndexError(f"shard {shard.name} has no block {number}")

        def of_copy(copy: RemoteShard) -> bytes | bytearray | memoryview:
            wanted = copy.blocks(number, 1)
            if route is not None and copy.stored.pack is None:
                return route.block(copy, wanted)
            in_pieces = replace(copy, objects=InPieces(copy.objects, self.link))
            ((_offset, block),) = in_pieces.read(wanted)
            return block

        route = self.one_fetch.route(shard) if self.one_fetch is not None else None
        try:
            with self.link.blocks:
                block = self.sources.first(shard, of_copy)
        except IntegrityError as error:
            why = self.why_missing(shard) if is_missing(error) else None
            raise why or IntegrityError(error.message, **shard.context) from error
        self.on_read(len(block))
        return block
