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
from cachetier_client.io.digests import BLOCK_BYTES

from cachetier.errors import (
    BackpressureError,
    CachetierError,
    DeadlineError,
    FencedError,
    IntegrityError,
    NotFoundError,
    RemoteError,
)
from cachetier.local.catalog import objects, saves, shards
from cachetier.local.catalog.rows import IncidentRecord
from cachetier.local.catalog.saves import VisibleShard
from cachetier.local.store import Store
from cachetier.model.lifecycle import DURABLE_SAVES, OPEN_SAVES, ShardState
from cachetier.model.names import DURABLE
from cachetier.model.objects import is_mount
from cachetier.model.shard import Shard
from cachetier.remote.bucket import Bucket, Remote
from cachetier.restore.adopt import Adoption
from cachetier.restore.arrivals import Arriving, arrives_no_longer
from cachetier.restore.fill import Refill, Room
from cachetier.restore.knowledge import Knowledge, Stale, max_age_of
from cachetier.restore.link import Link
from cachetier.restore.mounted import MountedObjects
from cachetier.restore.one_fetch import OneFetch
from cachetier.restore.pace import RestorePace
from cachetier.restore.published import FoundStep, PublishedSteps
from cachetier.restore.readahead import RangeReads, RemoteBlocks
from cachetier.restore.replica_choice import NO_REPLICAS, Replicas, Sources, is_missing

Source = Literal["local", "remote"]
FOLLOWED_FROM_BYTES = 2 * BLOCK_BYTES  # one that is smaller is here before it is asked for
OPEN_FRESH_SECONDS = 1.0  # an open save of which nobody knows a rival
CANNOT_SAY = (RemoteError, NotFoundError)
ROOM_SECONDS = 2.0  # who reads a part and can go on without does not wait long for room


@dataclass(frozen=True, slots=True)
class Opened:
    """A shard ready to be read: a descriptor, which the receiver closes, or its bytes.

    From ``open_part`` it may have neither: then its blocks are read from ``remote`` one by one.
    From ``follow`` it may be ``arriving`` still: ``arrived`` says which of its blocks are there.
    ``stale``: the bucket could not be asked which save of the step it is.
    """

    shard: Shard
    descriptor: int | None
    body: bytes | None
    source: Source
    remote: RemoteBlocks | None = None
    arriving: bool = False
    stale: Stale | None = None


@dataclass(frozen=True, slots=True)
class RestoreListener:
    """An observer of reads.

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
        knowledge: What is known of steps at the durable remote.
        mounted: Knows where the pieces of objects of the S3 door are.
        listener: Hears of what is read.
        one_fetch: Shares the restores of several nodes.
        pace: Of all that is read.
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
        knowledge: Knowledge | None = None,
        mounted: MountedObjects | None = None,
        listener: RestoreListener = NOBODY,
        one_fetch: OneFetch | None = None,
        pace: RestorePace | None = None,
    ) -> None:
        self._store = store
        self._clock = clock
        self._listener = listener
        durable = Remote(remote, bucket)
        self._has_no_replicas = not replicas.remotes
        self.knowledge = knowledge or Knowledge(store, durable, clock)
        absences = self.knowledge.absences
        self.pace = pace or RestorePace(clock)
        self.sources = Sources(store, durable, clock, replicas, mounted, absences, self.pace)
        self.published = PublishedSteps(store, durable, replicas.remotes, knowledge=self.knowledge)
        self._adoption = Adoption(store, durable, self.published, clock)
        self._range_reads = RangeReads()
        self.link = Link()
        self.one_fetch = one_fetch
        self._refill = Refill(
            store,
            self.sources,
            clock,
            self.link,
            room=room,
            one_fetch=one_fetch,
            pace=self.pace,
            on_restored=listener.on_restored,
        )

    def close(self) -> None:
        """Let the range readers go, and ask nothing more."""
        self.pace.close()
        self._refill.close()
        self.knowledge.close()
        if self.one_fetch is not None:
            self.one_fetch.close()

    def open(self, run: str, step: int, name: str, timeout_seconds: float) -> Opened:
        """Return the shard that readers of the step see.

        Raises:
            NotFoundError: Neither this node nor the bucket has it.
            IntegrityError: The only copy is damaged.
            BackpressureError: No room to restore it into.
            DeadlineError: Somebody else's restore of it did not end in time.
        """
        started_at = self._clock.monotonic()
        shard, stale = self._find(run, step, name)
        try:
            opened = self._local(shard) or self._brought_back(shard, started_at + timeout_seconds)
        except FencedError as fenced:
            opened = self._through(shard, fenced)
        self._listener.on_opened(self._clock.monotonic() - started_at)
        return replace(opened, stale=stale)

    def follow(self, run: str, step: int, name: str, timeout_seconds: float) -> Opened:
        """Return the shard that readers of the step see, perhaps while it is still arriving.

        Raises as ``open`` does; what goes wrong later is raised by ``arrived``.
        """
        started_at = self._clock.monotonic()
        shard, stale = self._find(run, step, name)
        try:
            opened = self._followed(shard, started_at + timeout_seconds, timeout_seconds)
        except FencedError as fenced:
            opened = self._through(shard, fenced)
        self._listener.on_opened(self._clock.monotonic() - started_at)
        return replace(opened, stale=stale)

    def _followed(self, shard: Shard, deadline: float, timeout_seconds: float) -> Opened:
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
            shard, _ = self._find(shard.run, shard.step, shard.name)
            opened = self._local(shard) or self._brought_back(shard, deadline)
        return opened

    def _through(self, shard: Shard, fenced: FencedError | None = None) -> Opened:
        """Return a shard that is read from a remote, as the disk takes nothing."""
        if fenced is not None and not self.sources.of(shard):
            raise fenced
        hears = self._listener.on_range_read, self.knowledge.error_of
        there = RemoteBlocks(shard, self.sources, self.link, self.one_fetch, *hears)
        return Opened(shard, None, None, "remote", there)

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
        shard = self._store.read(shards.shard_by_version, version)
        if (
            shard is None
            or not _is(shard, run, step, name)
            or (shard.file_id is None and not self._store.open_files.holds(shard.version))
        ):
            raise arrives_no_longer(name)
        return set(range(len(shard.content.block_digests)))

    def arriving(self, version: int) -> Arriving | None:
        """Return the shard of that version, if it is on its way here."""
        return self._refill.arrivals.of(version)

    def _brought_back(self, shard: Shard, deadline: float) -> Opened:
        """Fetch a shard that is only remote, and open it here."""
        run, step, name = shard.run, shard.step, shard.name
        try:
            self._refill.fetch(shard, deadline)
        except IntegrityError as error:
            if not is_missing(error):
                raise
            why = self.knowledge.error_of(shard)
            if why is None and self._store.read(shards.shard_by_version, shard.version) is None:
                return self._brought_back(self._find(run, step, name)[0], deadline)
            raise why or error from error
        restored = self._local(self._find(run, step, name)[0])
        if restored is None:
            raise BackpressureError(
                "the restored shard was evicted at once to make room", run=run, step=step, name=name
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
        shard, stale = self._find(run, step, name)
        local = self._local(shard)
        if local is not None:
            return replace(local, stale=stale)
        arrives = self._refill.arrivals.of(shard.version) is not None
        if arrives or not self._range_reads.leave_remote(shard, blocks):
            with contextlib.suppress(BackpressureError, DeadlineError):
                return (whole or self.open)(run, step, name, min(timeout_seconds, ROOM_SECONDS))
        return replace(self._through(shard), stale=stale)

    def look(self, run: str, step: int, name: str) -> tuple[Shard, Source]:
        """Return the shard that readers of the step see, and where its bytes would come from.

        Nothing is fetched. Raises as ``open`` does.
        """
        shard, _ = self._find(run, step, name)
        self._refuse_if_lost(shard)
        return shard, "local" if shard.here else "remote"

    def verify(self, run: str, step: int, name: str) -> bool:
        """Read the local copy of a shard and return whether it is sound.

        A damaged one is taken out of use.
        """
        shard, _ = self._find(run, step, name)
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
            before = self._store.write(shards.record_damage, shard.version, incident, now)
        except NotFoundError:
            return None
        if before.state is ShardState.CLEAN:
            self._store.drop([before])
        self._store.open_files.forget(shard.version)
        return before.state

    # --- finding ---------------------------------------------------------------------------------

    def _find(self, run: str, step: int, name: str) -> tuple[Shard, Stale | None]:
        """Return the shard that readers of the step see, and whether the bucket was not asked.

        The manifest is asked first if another node may know better: of a step that is published, of
        an open save that is not whole here, and of a name that is not known here.
        """
        if is_mount(run):  # a piece is of one version, and named after it
            piece = self._store.read(objects.piece_named, run, name)
            if piece is None:
                raise NotFoundError(f"piece {name} was replaced meanwhile", run=run, name=name)
            return piece, None
        known, stale = self._known(run, step, name), None
        max_age_seconds = self._max_age_seconds(known)
        if max_age_seconds is not None:
            stale = self.knowledge.refresh(run, step, max_age_seconds)
            known = self._known(run, step, name) if stale is None else known
            if known.save is None:
                text = f"step {step} was deleted by another node"
                raise NotFoundError(text, run=run, step=step, name=name)
        is_open = known.save is not None and known.save.state in OPEN_SAVES
        lacks = known.shard is None and not (is_open and self._has_no_replicas)
        if lacks or self._is_hearsay(known):
            # Of an open save replicas may have what other nodes put.
            with contextlib.suppress(*(CANNOT_SAY if is_open or known.shard is not None else ())):
                self._adoption.adopt(run, step, name)
            known = self._known(run, step, name)
        if known.shard is None:
            seems = "" if stale is None else ", and the bucket could not be asked"
            text = f"no shard {name} in step {step}{seems}"
            raise NotFoundError(text, run=run, step=step, name=name)
        return known.shard, stale

    def _is_hearsay(self, known: VisibleShard) -> bool:
        """Return whether a shard is published, and known from replicas alone."""
        shard, save = known.shard, known.save
        is_known = save is not None and save.state in DURABLE_SAVES and shard is not None
        if self._has_no_replicas or not is_known or shard is None:
            return False
        is_there = shard.state in (ShardState.CLEAN, ShardState.EVICTED)
        return is_there and self._store.read(shards.stored_of, shard.version, DURABLE) is None

    def _max_age_seconds(self, known: VisibleShard) -> float | None:
        """Return how old knowledge of a step may be for a read; None if it does not matter."""
        save = known.save
        is_open = save is not None and save.state in OPEN_SAVES
        if save is None or (known.shard is None and not is_open):
            return None  # it is adopted from what is there now
        if known.shard is None:
            return 0.0
        if not is_open:
            return max_age_of(save.run)
        if self._store.read(saves.whole_of, [save]):
            return None
        look = self.knowledge.look(save.run, save.step)
        has_rivals = look is not None and look.seen and look.seen.manifest.save_id != save.save_id
        return 0.0 if known.has_rivals or has_rivals else OPEN_FRESH_SECONDS

    def _known(self, run: str, step: int, name: str) -> VisibleShard:
        passed_over = self.knowledge.passed_over(run, step)
        return self._store.read(saves.visible, run, step, name, passed_over)

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
        now = self._store.read(shards.shard_by_version, shard.version)
        if now is not None and now.file_id == shard.file_id:
            self._give_up(now)

    def _give_up(self, shard: Shard) -> None:
        """Take damaged local bytes out of use; raise if there are no others."""
        self.report_damage(shard)
        now = self._store.read(shards.shard_by_version, shard.version)
        if now is not None:
            self._refuse_if_lost(now)

    def _refuse_if_lost(self, shard: Shard) -> None:
        """Raise if the local bytes are damaged and no remote has others."""
        if shard.state is ShardState.QUARANTINED and not self.sources.of(shard):
            what = f"shard {shard.name} is damaged on this node and was not yet durable"
            raise IntegrityError(what, **shard.context)

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
        for shard in self._store.read(shards.quarantined_shards):
            if self.sources.of(shard):
                with contextlib.suppress(CachetierError):
                    self._refill.fetch(shard, self._clock.monotonic() + timeout_seconds)
                    mended += 1
        return mended


def _is(shard: Shard, run: str, step: int, name: str) -> bool:
    return (shard.run, shard.step, shard.name) == (run, step, name)
