"""Bring evicted shards back from the remote, each once per node, whoever asks.

The blocks of a shard come in parallel ranged reads, each checked against its digest, into a staged
file that becomes the shard's clean local copy. A remote copy that fails its digest is an error,
never data.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager

from cachetier.clock import Clock
from cachetier.errors import BackpressureError, DeadlineError, IntegrityError, NotFoundError
from cachetier.fetch import Range, RemoteShard
from cachetier.ingest import disk_error
from cachetier.local import queries
from cachetier.local.store import Staged, Store
from cachetier.model.lifecycle import ShardState
from cachetier.model.shard import Shard
from cachetier.model.stored import Stored
from cachetier.remote.bucket import Bucket

PARALLEL_RANGES = 4


class Refill:
    """Gives evicted shards their local bytes back. Thread-safe."""

    def __init__(
        self,
        store: Store,
        bucket: Bucket,
        clock: Clock,
        *,
        remote: str,
        make_room: Callable[[], None],
        on_restored: Callable[[Shard], None] = lambda _shard: None,
    ) -> None:
        self._store = store
        self._bucket = bucket
        self._clock = clock
        self._remote = remote
        self._make_room = make_room
        self._on_restored = on_restored
        self._ranges = ThreadPoolExecutor(PARALLEL_RANGES, thread_name_prefix="restore")
        self._flights = SingleFlight()

    def close(self) -> None:
        """Let the range readers go."""
        self._ranges.shutdown(wait=False, cancel_futures=True)

    def fetch(self, shard: Shard, deadline: float) -> None:
        """Return once ``shard`` has local bytes, or is replaced or deleted.

        Raises:
            IntegrityError, NotFoundError: There is no sound remote copy.
            BackpressureError: No room for it.
            DeadlineError: Somebody else's fetch of it did not end in time.
        """
        leads = False
        while not leads:  # whoever waited looks again, and leads if the other one failed
            left = max(0.0, deadline - self._clock.monotonic())
            with self._flights.lead_or_wait(shard.version, left) as leads:
                if leads:
                    self._fetch_if_it_lasts(shard, deadline)

    def _fetch_if_it_lasts(self, shard: Shard, deadline: float) -> None:
        """Fetch ``shard``, unless it is replaced or deleted meanwhile: whoever asked looks again.

        Its row goes before its object does, so an object that changed is damage only under a row.
        """
        try:
            self._fetch(shard, deadline)
        except (IntegrityError, NotFoundError):
            if self._store.read(lambda sql: queries.shard_by_version(sql, shard.version)):
                raise

    def _fetch(self, shard: Shard, deadline: float) -> None:
        known = self._store.read(lambda sql: queries.shard_by_version(sql, shard.version))
        if known is None or known.state is not ShardState.EVICTED:
            return
        size_bytes = shard.content.size_bytes
        left = max(0.0, deadline - self._clock.monotonic())
        if not self._store.space.reserve(size_bytes, left, self._make_room):
            raise BackpressureError(
                f"no room to restore {size_bytes} bytes", run=shard.run, step=shard.step
            )
        try:
            staged = self._store.stage(size_bytes)
        except OSError as error:
            self._store.space.release(size_bytes)
            raise disk_error(error) from error
        except BaseException:
            self._store.space.release(size_bytes)
            raise
        try:
            self._fill(staged, shard)
        except BaseException:
            self._store.discard(staged)
            raise
        self._store.restored(staged, shard)
        self._on_restored(shard)

    def _fill(self, staged: Staged, shard: Shard) -> None:
        source = self._source(shard)
        pending: list[Future[None]] = [
            self._ranges.submit(self._fill_range, staged, shard, source, wanted)
            for wanted in source.ranges()
        ]
        try:
            for future in pending:
                future.result()
        finally:
            for future in pending:
                future.cancel()
            for future in pending:
                if not future.cancelled():
                    future.exception()  # wait: nobody may write once the descriptor is closed
        assert staged.writer is not None
        os.ftruncate(staged.writer, shard.content.size_bytes)

    def _fill_range(self, staged: Staged, shard: Shard, source: RemoteShard, wanted: Range) -> None:
        assert staged.writer is not None
        try:
            for offset, block in source.read(wanted):
                _write_all(staged.writer, memoryview(block), offset)
        except IntegrityError as error:
            raise _bad_remote_copy(shard, error.message) from error

    def _source(self, shard: Shard) -> RemoteShard:
        version = shard.version
        save = self._store.read(
            lambda sql: queries.save_named(sql, shard.run, shard.step, shard.save_id)
        )
        if save is None or save.location is None:
            raise NotFoundError(f"shard {shard.name} has no remote copy", run=shard.run)
        stored = self._store.read(lambda sql: queries.stored_of(sql, version, self._remote))
        key = self._bucket.layout.shard_key(shard.run, save.location, shard.name)
        whole = shard.content
        return RemoteShard(self._bucket.objects, key, whole, stored or Stored.raw(whole))


class SingleFlight:
    """Lets one caller do a thing while others who want the same wait for it."""

    def __init__(self) -> None:
        self._landed = threading.Condition()
        self._flying: set[int] = set()

    @contextmanager
    def lead_or_wait(self, key: int, timeout_seconds: float) -> Iterator[bool]:
        """Yield True to the caller who is to do it, False to one for whom it was just done.

        Raises:
            DeadlineError: The other's flight did not land in time.
        """
        with self._landed:
            leads = key not in self._flying
            if leads:
                self._flying.add(key)
            elif not self._landed.wait_for(lambda: key not in self._flying, timeout_seconds):
                raise DeadlineError("another restore of the same shard takes longer than this call")
        try:
            yield leads
        finally:
            if leads:
                with self._landed:
                    self._flying.discard(key)
                    self._landed.notify_all()


def _bad_remote_copy(shard: Shard, message: str) -> IntegrityError:
    return IntegrityError(
        message,
        run=shard.run,
        step=shard.step,
        rank=shard.rank,
        name=shard.name,
    )


def _write_all(descriptor: int, data: memoryview, offset: int) -> None:
    while data:
        written = os.pwrite(descriptor, data, offset)
        data, offset = data[written:], offset + written
