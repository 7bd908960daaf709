"""Fill: bring an evicted shard back from the nearest remote, once for all who ask.

The blocks of a shard come in ranged reads, as many at once as bring more, each checked against its
digest, into a staged file that becomes the shard's clean local copy, or goes with its last reader.
A remote copy that fails its digest is passed over for the next one, or an error; never data. What
lies in a pack brings its neighbours along.
"""

from __future__ import annotations

import threading
import zlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from typing import Generic, TypeVar

from cachetier_client.bucket_format.stored import Codec
from cachetier_client.clock import Clock
from cachetier_client.io.digests import BLOCK_BYTES
from cachetier_client.units import shown_size

from cachetier import callers
from cachetier.errors import (
    BackpressureError,
    CachetierError,
    DeadlineError,
    IntegrityError,
    NotFoundError,
)
from cachetier.local.catalog import shards
from cachetier.local.store import Staged, Store
from cachetier.model.lifecycle import ForbiddenTransitionError, ShardState
from cachetier.model.shard import Shard
from cachetier.restore.arrivals import Arrivals, Arriving
from cachetier.restore.filling import Filling
from cachetier.restore.link import Link
from cachetier.restore.one_fetch import FetchRoute, OneFetch
from cachetier.restore.pace import RestorePace
from cachetier.restore.readahead import Neighbours, ReadAhead
from cachetier.restore.remote_shard import (
    LARGE_FROM_BLOCKS,
    LARGE_RANGE_BLOCKS,
    RANGE_BLOCKS,
    Range,
    RemoteShard,
)
from cachetier.restore.replica_choice import Sources

FRAMES_AT_ONCE = 24  # each has a frame and a block in memory

Key = TypeVar("Key")


@dataclass(frozen=True, slots=True)
class Room:
    """The room on this node for what is brought back.

    ``make`` is called once when there is none for a shard, and ``keeps`` says of one that has its
    room whether it stays.
    """

    make: Callable[[], None]
    keeps: Callable[[], bool] = lambda: True


class Refill:
    """Gives evicted shards their local bytes back. Thread-safe."""

    def __init__(
        self,
        store: Store,
        sources: Sources,
        clock: Clock,
        link: Link,
        *,
        room: Room,
        pace: RestorePace,
        one_fetch: OneFetch | None = None,
        on_restored: Callable[[Shard], None] = lambda _shard: None,
    ) -> None:
        self._store = store
        self._sources = sources
        self._clock = clock
        self._room = room
        self._one_fetch = one_fetch
        self._pace = pace
        self._on_restored = on_restored
        self._link = link
        self._turn = zlib.crc32(store.store_id.encode())  # other nodes have others
        self._behind = threading.Lock()
        self._frames = threading.Semaphore(FRAMES_AT_ONCE)
        self.arrivals = Arrivals()
        self._flights: SingleFlight[int] = SingleFlight()
        self._ahead = ReadAhead(store, sources, clock, link)
        self._packs: SingleFlight[str] = SingleFlight()

    def close(self) -> None:
        """Let the threads go."""
        self.arrivals.close()
        self._link.close()

    def fetch(self, shard: Shard, deadline: float, *, keep: bool = False) -> None:
        """Return once ``shard`` has local bytes, kept or handed out, or is replaced or deleted.

        ``keep``: it stays in any case, unless somebody else is bringing it already.

        Raises:
            IntegrityError, NotFoundError: There is no sound remote copy.
            RemoteError: None that can be reached.
            BackpressureError: No room for it.
            DeadlineError: Somebody else's fetch of it did not end in time.
        """
        leads = False
        while not leads:  # whoever waited looks again, and leads if the other one failed
            left = max(0.0, deadline - self._clock.monotonic())
            with self._flights.lead_or_wait(shard.version, left) as leads:
                if leads:
                    self._fetch_if_it_lasts(shard, deadline, keep=keep)

    def _fetch_if_it_lasts(self, shard: Shard, deadline: float, *, keep: bool) -> None:
        """Fetch ``shard``, unless it is replaced or deleted meanwhile: the caller then looks again.

        Its row goes before its object does, so an object that changed is damage only under a row.
        """
        try:
            self._fetch(shard, deadline, keep=keep)
        except (IntegrityError, NotFoundError):
            if self._store.read(shards.shard_by_version, shard.version):
                raise

    def _fetch(self, shard: Shard, deadline: float, *, keep: bool) -> None:
        """Fetch ``shard``; of a pack one at a time, as it may bring what the others want.

        What comes out of a pack is always kept: most of it comes before somebody wants it.
        """
        packed = self._ahead.packed(shard)
        if packed is None:
            self._bring_back(shard, deadline, keep=keep)
            return
        leads = False
        while not leads and self._lacks_bytes(shard):
            left = max(0.0, deadline - self._clock.monotonic())
            with self._packs.lead_or_wait(packed.key, left) as leads:
                if leads:
                    self._bring_back(shard, deadline, keep=True)

    def _lacks_bytes(self, shard: Shard) -> bool:
        known = self._store.read(shards.shard_by_version, shard.version)
        if known is None or not known.lacks_bytes:
            return False
        return not self._store.open_files.holds(shard.version)

    def _bring_along(self, shard: Shard, source: RemoteShard, deadline: float) -> None:
        """Keep a neighbour if there is time and room: nobody asked for it, so nobody hears more."""
        size_bytes = shard.content.size_bytes
        if self._clock.monotonic() > deadline or not self._store.space.try_reserve(size_bytes):
            return
        with suppress(CachetierError, ForbiddenTransitionError, OSError):
            staged = self._store.stage(size_bytes)
            try:
                filling = self._filling(staged)
                for wanted in source.ranges():
                    self._fill_range(filling, shard, source, None, wanted)
                filling.cut(size_bytes)
            except BaseException:
                self._store.discard(staged)
                raise
            self._store.restored(staged, shard)
            self._on_restored(shard)

    def _bring_back(self, shard: Shard, deadline: float, *, keep: bool) -> None:
        if not self._lacks_bytes(shard):
            return
        size_bytes = shard.content.size_bytes
        left = max(0.0, deadline - self._clock.monotonic())
        bring = partial(self._bring, shard, deadline, keep=keep)
        brought = self._store.in_room(size_bytes, left, self._room.make, bring)
        if not brought:
            raise BackpressureError(
                f"no room to restore {shown_size(size_bytes)}", run=shard.run, step=shard.step
            )

    def _bring(self, shard: Shard, deadline: float, *, keep: bool) -> bool:
        """Fetch ``shard`` into the room that is reserved for it."""
        keep = keep or shard.state is ShardState.QUARANTINED or self._room.keeps()
        arriving = self.arrivals.of(shard.version)
        with ExitStack() as held:
            held.enter_context(self._pace.wanting([shard]))
            route = None
            if self._one_fetch is not None:
                route = self._one_fetch.route(shard)
                arriving = held.enter_context(self.arrivals.shown(shard))
            staged = self._store.stage(shard.content.size_bytes)
            filling = self._filling(staged, arriving, keep=keep)

            def fill(source: RemoteShard) -> Neighbours:
                window = held.enter_context(self._ahead.reading(shard, source))
                self._fill(filling, shard, window.asked, route)
                return window.neighbours

            try:
                if arriving is not None:
                    arriving.begins(self._store.files.open(staged.file_id))
                neighbours = self._sources.first(shard, fill)
            except BaseException:
                self._store.discard(staged)
                raise
            if keep:
                self._keep(staged, shard, arriving)
            else:
                self._store.hand_out(staged, shard)
            self._on_restored(shard)
            self._link.each(lambda each: self._bring_along(*each, deadline), neighbours)
        return True

    def _keep(self, staged: Staged, shard: Shard, arriving: Arriving | None) -> None:
        """Make the staged file the shard's; one at a time where its readers have it already."""
        if arriving is None:
            self._store.restored(staged, shard)
            return
        with self._behind:
            self._store.restored(staged, shard)
        arriving.is_kept()

    def _filling(
        self, staged: Staged, arriving: Arriving | None = None, *, keep: bool = True
    ) -> Filling:
        assert staged.writer is not None
        return Filling(staged.writer, self._link, arriving, keep=keep)

    def _fill(
        self, filling: Filling, shard: Shard, source: RemoteShard, route: FetchRoute | None
    ) -> None:
        shared = route if source.stored.pack is None else None
        bring = partial(self._fill_range, filling, shard, source, shared)
        turn, slots, range_blocks = self._turn, source.slots, RANGE_BLOCKS
        if shared is not None:  # all nodes want the same at the same time
            turn, slots = 0, shared.one_fetch.slots
        elif len(shard.content.block_digests) >= LARGE_FROM_BLOCKS:
            range_blocks = LARGE_RANGE_BLOCKS
        # Returns when nobody writes any more: the descriptor may be closed then.
        self._link.each(bring, source.ranges(turn, range_blocks), slots)
        filling.cut(shard.content.size_bytes)

    def _fill_range(
        self,
        filling: Filling,
        shard: Shard,
        source: RemoteShard,
        route: FetchRoute | None,
        wanted: Range,
    ) -> None:
        in_memory = route is None and source.stored.codec is not Codec.RAW
        read = partial(source.bring, descriptor=filling.descriptor)
        if route is not None:
            read = partial(route.bring, source)
        try:
            with self._frames if in_memory else nullcontext():
                read(wanted, filling.write, filling.came)
            self._pace.came(shard.version, len(wanted.sizes) * BLOCK_BYTES)
        except IntegrityError as error:
            raise IntegrityError(error.message, **shard.context) from error


class SingleFlight(Generic[Key]):
    """Lets one caller do a thing while others who want the same wait for it."""

    def __init__(self) -> None:
        self._landed = threading.Condition()
        self._flying: set[Key] = set()

    @contextmanager
    def lead_or_wait(self, key: Key, timeout_seconds: float) -> Iterator[bool]:
        """Yield True to the caller who is to do it, False to one for whom it was just done.

        Raises:
            DeadlineError: The other's flight did not land in time.
        """
        with self._landed:
            leads = key not in self._flying
            if leads:
                self._flying.add(key)
            elif not callers.wait_for(
                self._landed, lambda: key not in self._flying, timeout_seconds
            ):
                raise DeadlineError("another restore of the same bytes takes longer than this call")
        try:
            yield leads
        finally:
            if leads:
                with self._landed:
                    self._flying.discard(key)
                    self._landed.notify_all()
