"""The restore path: opens a shard here if it is here and sound, else fills it from a remote.

What this node never saw is looked for in the bucket (``adopt``); what is only remote is brought
back first (``refill``), so that every reader gets local bytes.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

from cachetier_client.clock import Clock
from cachetier_client.identity.places import has_one_step
from cachetier_client.io.digests import BLOCK_BYTES

from cachetier.errors import (
    BackpressureError,
    CachetierError,
    DeadlineError,
    IntegrityError,
    NotFoundError,
    RemoteError,
)
from cachetier.local.catalog import local_copies, object_reads, queries
from cachetier.local.catalog.records import IncidentRecord
from cachetier.local.store import Store
from cachetier.model.checkpoint import OPEN_STATES, SaveState
from cachetier.model.lifecycle import ShardState
from cachetier.model.objects import is_mount
from cachetier.model.shard import Shard
from cachetier.remote.bucket import Bucket, Remote
from cachetier.restore.adopt import Adoption
from cachetier.restore.arrivals import arrives_no_longer
from cachetier.restore.fill import Refill, Room
from cachetier.restore.link import Link
from cachetier.restore.missing import MissingObjects
from cachetier.restore.mounted import MountedObjects
from cachetier.restore.published import FoundStep, PublishedSteps
from cachetier.restore.readahead import RangeReads, RemoteBlocks
from cachetier.restore.replica_choice import (
    AWAY_SECONDS,
    NO_REPLICAS,
    Replicas,
    Sources,
    is_missing,
)

Source = Literal["local", "remote"]
FOLLOWED_FROM_BYTES = 2 * BLOCK_BYTES  # one that is smaller is here before it is asked for
FRESH_SECONDS = 0.2  # for so long nobody looks again whether a file was written anew elsewhere
ROOM_SECONDS = 2.0  # who reads a part and can go on without does not wait long for room


@dataclass(frozen=True, slots=True)
class Opened:
    """A shard ready to be read: a descriptor, which the receiver closes, or its bytes.

    From ``open_part`` it may have neither: then its blocks are read from ``remote`` one by one.
    From ``follow`` it may be ``arriving`` still: ``arrived`` says which of its blocks are there.
    """

    shard: Shard
    descriptor: int | None
    body: bytes | None
    source: Source
    remote: RemoteBlocks | None = None
    arriving: bool = False


@dataclass(frozen=True, slots=True)
class RestoreListener:
    """Whoever wants to hear of what is read.

    ``on_used`` gets each shard that was opened here, ``on_opened`` the seconds until it was
    ready, ``on_restored`` each shard that was brought back, and ``on_range_read`` the
    size of each block that was read from a remote, and not kept.
    """

    on_used: Callable[[Shard], None] = lambda _shard: None
    on_opened: Callable[[float], None] = lambda _seconds: None
    on_restored: Callable[[Shard], None] = lambda _shard: None
    on_range_read: Callable[[int], None] = lambda _size_bytes: None


NOBODY = RestoreListener()


def local_damage(shard: Shard) -> IncidentRecord:
    """Return what clients hear of a shard whose local bytes fail their digest."""
    return IncidentRecord(
        code="integrity",
        message=f"the local bytes of shard {shard.name} fail their digest",
        hint="Save the step again, or restore an older one.",
        **shard.context,
    )


class Restore:
    """Opens shards for reading. Thread-safe.

    Args:
        store: What is here.
        bucket: The durable remote, which the catalog calls ``remote``.
        clock: For deadlines and rows.
        remote: See ``bucket``.
        replicas: Asked before it.
        room: Where shards go that are brought back.
        missing: Looks into objects that are not there any more.
        mounted: Knows where the pieces of objects of the S3 door are.
        listener: Hears of what is read.
    """

    def __init__(  # noqa: PLR0913 - what a restore is put together from
        self,
        store: Store,
        bucket: Bucket,
        clock: Clock,
        *,
        remote: str,
        replicas: Replicas = NO_REPLICAS,
        room: Room,
        missing: MissingObjects | None = None,
        mounted: MountedObjects | None = None,
        listener: RestoreListener = NOBODY,
    ) -> None:
        self._store = store
        self._clock = clock
        self._listener = listener
        durable = Remote(remote, bucket)
        self._missing = missing or MissingObjects(store, durable, clock, lambda: None)
        self._durable_name = remote
        self._asked_at: dict[int, float] = {}
        self.sources = Sources(store, durable, clock, replicas, mounted)
        absences = self.sources.absences
        self.published = PublishedSteps(store, durable, replicas.remotes, absences)
        self._adoption = Adoption(store, durable, self.published, clock)
        self._range_reads = RangeReads()
        self.link = Link()
        self._refill = Refill(
            store,
            self.sources,
            clock,
            self.link,
            room=room,
            on_restored=listener.on_restored,
        )

    def close(self) -> None:
        """Let the range readers go."""
        self._refill.close()

    def open(self, run: str, step: int, name: str, timeout_seconds: float) -> Opened:
        """Return the shard that readers of the step see.

        Raises:
            NotFoundError: Neither this node nor the bucket has it.
            IntegrityError: The only copy is damaged.
            BackpressureError: No room to restore it into.
            DeadlineError: Somebody else's restore of it did not end in time.
        """
        started_at = self._clock.monotonic()
        shard = self._find(run, step, name)
        opened = self._local(shard) or self._brought_back(shard, started_at + timeout_seconds)
        self._listener.on_opened(self._clock.monotonic() - started_at)
        return opened

    def follow(self, run: str, step: int, name: str, timeout_seconds: float) -> Opened:
        """Return the shard that readers of the step see, perhaps while it is still arriving.

        Raises as ``open`` does; what goes wrong later is raised by ``arrived``.
        """
        started_at = self._clock.monotonic()
        deadline = started_at + timeout_seconds
        shard = self._find(run, step, name)
        opened = self._local(shard)
        if opened is not None and opened.source == "remote":  # in memory still: no direct reads
            opened = replace(opened, arriving=True)
        if opened is None and shard.content.size_bytes >= FOLLOWED_FROM_BYTES:
            descriptor = self._refill.arrivals.follow(
                shard, lambda: self._bring_for_followers(shard, deadline)
            ).opened(timeout_seconds)
            if descriptor is not None:
                opened = Opened(shard, descriptor, None, "remote", arriving=True)
        if opened is None:  # it has come meanwhile, or somebody else brings it
            opened = self._local(self._find(run, step, name)) or self._brought_back(shard, deadline)
        self._listener.on_opened(self._clock.monotonic() - started_at)
        return opened

    def _bring_for_followers(self, shard: Shard, deadline: float) -> None:
        descriptor = self._brought_back(shard, deadline).descriptor
        if descriptor is not None:
            os.close(descriptor)

    def arrived(
        self, run: str, step: int, name: str, version: int, more_than: int, timeout_seconds: float
    ) -> set[int]:
        """Return the blocks of a shard from ``follow`` that are there, once they are more.

        Raises:
            NotFoundError: It is not on its way any more: open it again.
            CachetierError: It cannot be brought; as ``open`` raises.
        """
        arriving = self._refill.arrivals.of(version)
        if arriving is not None and _is(arriving.shard, run, step, name):
            return arriving.blocks(more_than, timeout_seconds)
        shard = self._store.read(queries.shard_by_version, version)
        if shard is None or not _is(shard, run, step, name) or not self._has_file(shard):
            raise arrives_no_longer(name)
        return set(range(len(shard.content.block_digests)))

    def _has_file(self, shard: Shard) -> bool:
        return shard.file_id is not None or self._store.open_files.holds(shard.version)

    def _brought_back(self, shard: Shard, deadline: float) -> Opened:
        """Fetch a shard that is only remote, and open it here."""
        run, step, name = shard.run, shard.step, shard.name
        try:
            self._refill.fetch(shard, deadline)
        except IntegrityError as error:
            if not is_missing(error):
                raise
            why = self._missing.error_of(shard)
            if why is None and self._store.read(queries.shard_by_version, shard.version) is None:
                return self._brought_back(self._find(run, step, name), deadline)
            raise why or error from error
        restored = self._local(self._find(run, step, name))
        if restored is None:
            raise BackpressureError(
                "the restored shard had to make room at once", run=run, step=step, name=name
            )
        return Opened(restored.shard, restored.descriptor, restored.body, "remote")

    def open_part(
        self,
        run: str,
        step: int,
        name: str,
        blocks: int,
        timeout_seconds: float,
        whole: Callable[[str, int, str, float], Opened] | None = None,
    ) -> Opened:
        """Return the shard that readers of the step see, to read ``blocks`` blocks of it.

        One that is only remote stays so while little of it is read, and if there is no room for it.
        What is on its way, or to be, is opened by ``whole``: ``open``, or ``follow``. Raises as
        ``open`` does, but not for lack of room or time.
        """
        shard = self._find(run, step, name)
        local = self._local(shard)
        if local is not None:
            return local
        arrives = self._refill.arrivals.of(shard.version) is not None
        if arrives or not self._range_reads.leave_remote(shard, blocks):
            with contextlib.suppress(BackpressureError, DeadlineError):
                return (whole or self.open)(run, step, name, min(timeout_seconds, ROOM_SECONDS))
        blocks_there = RemoteBlocks(
            shard, self.sources, self.link, self._listener.on_range_read, self._missing.error_of
        )
        return Opened(shard, None, None, "remote", blocks_there)

    def look(self, run: str, step: int, name: str) -> tuple[Shard, Source]:
        """Return the shard that readers of the step see, and where its bytes would come from.

        Nothing is fetched. Raises as ``open`` does.
        """
        shard = self._find(run, step, name)
        self._refuse_if_lost(shard)
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
            sound = copy.reads_right()
        finally:
            copy.close()
        if not sound:
            self.report_damage(shard)
        return sound

    def report_damage(self, shard: Shard) -> ShardState | None:
        """Take a shard whose local bytes failed their digest out of use.

        A clean one is dropped, so that the next reader gets the remote copy; a dirty one is
        quarantined. Returns the state it was in, or None if it was replaced or deleted meanwhile.
        """
        incident, now = local_damage(shard), self._clock.now()
        try:
            before = self._store.write(local_copies.record_damage, shard.version, incident, now)
        except NotFoundError:
            return None
        if before.state is ShardState.CLEAN:
            self._store.drop([before])
        self._store.open_files.forget(shard.version)
        return before.state

    # --- finding ---------------------------------------------------------------------------------

    def _find(self, run: str, step: int, name: str) -> Shard:
        if is_mount(run):  # a piece is of one version, and named after it
            piece = self._store.read(object_reads.piece_named, run, name)
            if piece is None:
                raise NotFoundError(f"piece {name} was replaced meanwhile", run=run, name=name)
            return piece
        shard = self._known(run, step, name)
        if shard is not None and not (self._is_hearsay(shard) or self._is_replaced(shard)):
            return shard
        save = self._store.read(queries.shown_save, run, step)
        if save is not None and save.state in OPEN_STATES:
            raise NotFoundError(f"no shard {name} in step {step}", run=run, step=step, name=name)
        try:
            self._adoption.adopt(run, step, name)
        except (RemoteError, NotFoundError):
            if shard is None:
                raise
        shard = self._known(run, step, name)
        if shard is None:
            raise NotFoundError(f"no shard {name} in step {step}", run=run, step=step, name=name)
        return shard

    def _is_hearsay(self, shard: Shard) -> bool:
        """Return whether only a replica is known to have the step, and it is time to ask again.

        The durable remote may have it by now, or another save of it.
        """
        save = self._store.read(queries.save_by_number, shard.save)
        if save is None or save.state is not SaveState.REPLICATED:
            return False
        now, asked_at = self._clock.monotonic(), self._asked_at.get(save.number, float("-inf"))
        if self.sources.absences.away(self._durable_name) or now - asked_at < AWAY_SECONDS:
            return False
        self._asked_at[save.number] = now
        return True

    def _is_replaced(self, shard: Shard) -> bool:
        """Return whether another node has since saved anew what stands for one step alone.

        Steps of a run are saved by all nodes, or not again; a file may be written again anywhere,
        and then only the bucket knows. What is here is read while the bucket cannot be asked.
        """
        save = self._store.read(queries.save_by_number, shard.save)
        if save is None or save.state is not SaveState.PUBLISHED or not has_one_step(save.run):
            return False
        now, asked_at = self._clock.monotonic(), self._asked_at.get(save.number, float("-inf"))
        if now - asked_at < FRESH_SECONDS:
            return False
        self._asked_at[save.number] = now
        return self.published.newer(save) is not None

    def _known(self, run: str, step: int, name: str) -> Shard | None:
        return self._store.read(queries.visible_shard, run, step, name)

    # --- local -----------------------------------------------------------------------------------

    def _local(self, shard: Shard) -> Opened | None:
        if shard.state is ShardState.QUARANTINED:
            self._refuse_if_lost(shard)
            return None
        try:
            copy = self._store.local_copy(shard)
        except FileNotFoundError:
            self._look_into_missing(shard)
            return None
        if copy is None:
            return None
        if not copy.looks_right():
            copy.close()
            self._give_up(shard)
            return None
        self._listener.on_used(shard)
        handed_out = copy.descriptor is not None and shard.file_id is None
        source: Source = "remote" if handed_out else "local"
        return Opened(shard, copy.descriptor, copy.body, source)

    def _look_into_missing(self, shard: Shard) -> None:
        """A file went after its row was read: evicted, which is fine, or lost, which is not."""
        now = self._store.read(queries.shard_by_version, shard.version)
        if now is not None and now.file_id == shard.file_id:
            self._give_up(now)

    def _give_up(self, shard: Shard) -> None:
        """Take damaged local bytes out of use; raise if there are no others."""
        self.report_damage(shard)
        now = self._store.read(queries.shard_by_version, shard.version)
        if now is not None:
            self._refuse_if_lost(now)

    def _refuse_if_lost(self, shard: Shard) -> None:
        """Raise if the local bytes are damaged and no remote has others."""
        if shard.state is ShardState.QUARANTINED and not self.sources.of(shard):
            raise _quarantined(shard)

    def bring_back(self, shard: Shard, timeout_seconds: float) -> None:
        """Give a shard without sound bytes here those of the nearest remote copy, for good.

        Raises:
            IntegrityError, NotFoundError: There is no sound copy.
            RemoteError, BackpressureError, DeadlineError: Not now.
        """
        self._refill.fetch(shard, self._clock.monotonic() + timeout_seconds, keep=True)

    def adopt_rank(self, found: FoundStep, rank: int) -> None:
        """Have the catalog know what a rank of a published step put: see ``Adoption``."""
        self._adoption.adopt_rank(found, rank)

    def mend(self, timeout_seconds: float) -> int:
        """Bring back damaged shards that a remote has, so that they reach the others as well.

        Returns how many came back; what cannot be brought back now is tried at the next call.
        """
        mended = 0
        for shard in self._store.read(queries.quarantined_shards):
            if self.sources.of(shard):
                with contextlib.suppress(CachetierError):
                    self._refill.fetch(shard, self._clock.monotonic() + timeout_seconds)
                    mended += 1
        return mended


def _is(shard: Shard, run: str, step: int, name: str) -> bool:
    return (shard.run, shard.step, shard.name) == (run, step, name)


def _quarantined(shard: Shard) -> IntegrityError:
    return IntegrityError(
        f"shard {shard.name} is damaged on this node and was not yet durable", **shard.context
    )
