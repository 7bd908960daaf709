"""Give bytes back: from this node if they are here and sound, else from the remote, verified.

A shard that is only remote is fetched once per node, whoever asks: its blocks come in parallel
ranged reads, each checked against the digest in its rank's part, into a staged file that becomes
the shard's clean local copy. A remote copy that fails its digest is an error, never data.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

from cachetier.checkpoints import save_of
from cachetier.clock import Clock
from cachetier.errors import (
    BackpressureError,
    DeadlineError,
    DigestMismatchError,
    IntegrityError,
    NotFoundError,
    SizeMismatchError,
)
from cachetier.fetch import Range, RemoteShard
from cachetier.ingest import check_content, disk_error
from cachetier.local import copies, queries
from cachetier.local.records import Incident, NewShard, RemoteCopy
from cachetier.local.store import Staged, Store
from cachetier.model.checkpoint import OPEN_STATES, visible_save
from cachetier.model.documents import Manifest, Part, ShardEntry
from cachetier.model.lifecycle import ShardEvent, ShardState
from cachetier.model.shard import Shard
from cachetier.model.stored import Stored
from cachetier.remote.bucket import Bucket

PARALLEL_RANGES = 4

Source = Literal["local", "remote"]


@dataclass(frozen=True, slots=True)
class Opened:
    """A shard ready to be read: a descriptor, which the receiver closes, or its bytes."""

    shard: Shard
    descriptor: int | None
    body: bytes | None
    source: Source


class Restore:
    """Opens shards for reading. Thread-safe."""

    def __init__(
        self,
        store: Store,
        bucket: Bucket,
        clock: Clock,
        *,
        remote: str,
        make_room: Callable[[], None],
        on_used: Callable[[Shard], None] = lambda _shard: None,
        on_restored: Callable[[Shard], None] = lambda _shard: None,
        on_damaged: Callable[[Shard], None] = lambda _shard: None,
    ) -> None:
        self._store = store
        self._bucket = bucket
        self._clock = clock
        self._remote = remote
        self._make_room = make_room
        self._on_used = on_used
        self._on_restored = on_restored
        self._on_damaged = on_damaged
        self._ranges = ThreadPoolExecutor(PARALLEL_RANGES, thread_name_prefix="restore")
        self._flights = SingleFlight()

    def close(self) -> None:
        """Let the range readers go."""
        self._ranges.shutdown(wait=False, cancel_futures=True)

    def open(self, run: str, step: int, name: str, timeout_seconds: float) -> Opened:
        """Return the shard that readers of the step see.

        Raises:
            NotFoundError: Neither this node nor the bucket has it.
            IntegrityError: The only copy is damaged.
            BackpressureError: No room to restore it into.
            DeadlineError: Somebody else's restore of it did not end in time.
        """
        deadline = self._clock.monotonic() + timeout_seconds
        shard = self._find(run, step, name)
        local = self._local(shard)
        if local is not None:
            return local
        self._fetch_once(shard, deadline)
        restored = self._local(self._find(run, step, name))
        if restored is None:
            raise BackpressureError(
                "the restored shard had to make room at once", run=run, step=step, name=name
            )
        return Opened(restored.shard, restored.descriptor, restored.body, "remote")

    def look(self, run: str, step: int, name: str) -> tuple[Shard, Source]:
        """Return the shard that readers of the step see, and where its bytes would come from.

        Nothing is fetched. Raises as ``open`` does.
        """
        shard = self._find(run, step, name)
        if shard.state is ShardState.QUARANTINED:
            raise _quarantined(shard)
        return shard, "local" if shard.inline or shard.file_id is not None else "remote"

    def verify(self, run: str, step: int, name: str) -> bool:
        """Read the local copy of a shard and return whether it is sound.

        A damaged one is taken out of use.
        """
        shard = self._find(run, step, name)
        try:
            copy = self._store.local_copy(shard)
        except FileNotFoundError:
            with contextlib.suppress(IntegrityError):
                self._look_into_missing(shard)
            return False
        if copy is None:
            return shard.state is not ShardState.QUARANTINED
        try:
            sound = copies.reads_right(copy)
        finally:
            copies.close(copy)
        if not sound:
            self.report_damage(shard)
        return sound

    def report_damage(self, shard: Shard) -> ShardState | None:
        """Take a shard whose local bytes failed their digest out of use.

        A clean one is dropped, so that the next reader gets the remote copy; a dirty one is
        quarantined. Returns the state it was in, or None if it was replaced or deleted meanwhile.
        """
        incident = Incident(
            code="integrity",
            message=f"the local bytes of shard {shard.name} fail their digest",
            hint="Save the step again, or restore an older one.",
            run=shard.run,
            step=shard.step,
            name=shard.name,
            rank=shard.rank,
        )
        now = self._clock.now()
        try:
            before = self._store.catalog.move(shard.version, ShardEvent.LOCAL_DAMAGE, incident, now)
        except NotFoundError:
            return None
        if before.state is ShardState.CLEAN:
            self._store.drop([before])
        self._on_damaged(shard)
        return before.state

    # --- finding ---------------------------------------------------------------------------------

    def _find(self, run: str, step: int, name: str) -> Shard:
        shard = self._known(run, step, name)
        if shard is not None:
            return shard
        save = visible_save(self._store.read(lambda sql: queries.saves_of(sql, run, step)))
        if save is not None and save.state in OPEN_STATES:
            raise NotFoundError(f"no shard {name} in step {step}", run=run, step=step, name=name)
        self._adopt(run, step, name)
        shard = self._known(run, step, name)
        if shard is None:
            raise NotFoundError(f"no shard {name} in step {step}", run=run, step=step, name=name)
        return shard

    def _known(self, run: str, step: int, name: str) -> Shard | None:
        return self._store.read(lambda sql: queries.visible_shard(sql, run, step, name))

    def _adopt(self, run: str, step: int, name: str) -> None:
        """Learn from the bucket what the rank of ``name`` put; the manifest pins its part."""
        manifest = self._bucket.published(run, step)
        if manifest is None:
            raise NotFoundError(f"run {run} has no step {step}", run=run, step=step, name=name)
        listed = next((entry for entry in manifest.shards if entry.name == name), None)
        if listed is None:
            raise NotFoundError(f"no shard {name} in step {step}", run=run, step=step, name=name)
        part = self._part(manifest, listed.rank)
        for entry in part.shards:
            _check_entry(part, entry)
        shards = [self._adopted(entry) for entry in part.shards]
        self._store.catalog.adopt(save_of(manifest), shards, self._clock.now())

    def _adopted(self, entry: ShardEntry) -> NewShard:
        copy = RemoteCopy(self._remote, entry.stored())
        evicted = ShardState.EVICTED
        return NewShard(entry.name, entry.rank, entry.content(), state=evicted, copy=copy)

    def _part(self, manifest: Manifest, rank: int) -> Part:
        pinned = next((part.digest for part in manifest.parts if part.rank == rank), None)
        if pinned is None:
            raise IntegrityError(f"the manifest names no part of rank {rank}", run=manifest.run)
        return self._bucket.part(manifest.run, manifest.location, rank, pinned)

    # --- local -----------------------------------------------------------------------------------

    def _local(self, shard: Shard) -> Opened | None:
        if shard.state is ShardState.QUARANTINED:
            raise _quarantined(shard)
        try:
            copy = self._store.local_copy(shard)
        except FileNotFoundError:
            self._look_into_missing(shard)
            return None
        if copy is None:
            return None
        if not copies.looks_right(copy):
            copies.close(copy)
            self._give_up(shard)
            return None
        self._on_used(shard)
        return Opened(shard, copy.descriptor, copy.body, "local")

    def _look_into_missing(self, shard: Shard) -> None:
        """A file went after its row was read: evicted, which is fine, or lost, which is not."""
        now = self._store.read(lambda sql: queries.shard_by_version(sql, shard.version))
        if now is not None and now.file_id == shard.file_id:
            self._give_up(now)

    def _give_up(self, shard: Shard) -> None:
        """Take damaged local bytes out of use; raise if there are no others."""
        if self.report_damage(shard) in (ShardState.DIRTY, ShardState.QUARANTINED):
            raise _quarantined(shard)

    # --- remote ----------------------------------------------------------------------------------

    def _fetch_once(self, shard: Shard, deadline: float) -> None:
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


def _check_entry(part: Part, entry: ShardEntry) -> None:
    """Refuse what a part says of a shard if that contradicts itself: the bucket is not ours alone.

    Raises:
        IntegrityError: The blocks are not those of the whole.
    """
    try:
        check_content(entry.content())
    except (SizeMismatchError, DigestMismatchError) as error:
        raise IntegrityError(
            f"the part of rank {part.rank} is wrong about shard {entry.name}: {error.message}",
            run=part.run,
            step=part.step,
            rank=part.rank,
            name=entry.name,
        ) from None


def _quarantined(shard: Shard) -> IntegrityError:
    return IntegrityError(
        f"shard {shard.name} is damaged on this node and was not yet durable",
        run=shard.run,
        step=shard.step,
        name=shard.name,
    )


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
