"""All that a drain process may ask and report: each public method is one call of the channel.

The drain calls the methods by way of ``channel``, which makes the messages from their annotations:
a call is answered when all that it reports is synced, one that returns ``NoReply`` is not answered.
A report about a shard that was replaced or deleted meanwhile raises NotFoundError: the drain drops
that work and clears away what it sent.

A *donor* is an object that may have bytes of a shard already. First a *twin*: another shard of the
same save with the same bytes, as parameters that all ranks hold; it is copied whole. Else the shard
of the same name in the run's save before. What is named was verified once; whether it still lies
there, the drain finds out.

Source: docs/design/0001-drain-channel.md, docs/design/0046-the-channel-as-a-service.md.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from cachetier_client.bucket_format.stored import InPack, Stored
from cachetier_client.bucket_format.uploads import UploadedPart
from cachetier_client.identity.names import MOUNT_MARK

from cachetier.drain.messages import (
    DrainOrders,
    Handout,
    LocalObject,
    LocalShard,
    NoReply,
    PartPage,
)
from cachetier.drain.pace.remote_health import Health
from cachetier.drain.priority.policy import Training
from cachetier.drain.schedule import scheduler
from cachetier.drain.schedule.scheduler import SaveView
from cachetier.drain.schedule.tasks import (
    NEXT_MOVES,
    Task,
    TaskKind,
    Work,
    object_task,
    task_of,
)
from cachetier.drain.serve.snapshot import mounts_to_show, unfinished
from cachetier.drain.upload.compression_model import CompressionVerdict
from cachetier.drain.upload.stopwatch import Phases
from cachetier.errors import (
    BackpressureError,
    CatalogDamagedError,
    FencedError,
    IntegrityError,
    NotFoundError,
    PreconditionFailedError,
    RemoteRefusedError,
)
from cachetier.local.catalog import copies, notes, objects, saves, shards, uploads
from cachetier.local.catalog.notes import OwnClaim
from cachetier.local.catalog.rows import IncidentRecord, UploadRecord
from cachetier.local.catalog.shards import small_of
from cachetier.model.checkpoint import END_ERRORS, Save, sealed_here
from cachetier.model.compression import UNCOMPRESSED, Rules, mode_like
from cachetier.model.lifecycle import (
    DRAINED_SAVES,
    REPLACED_SAVES,
    ForbiddenTransitionError,
    ObjectState,
    SaveState,
    ShardState,
)
from cachetier.model.objects import ObjectVersion
from cachetier.model.pace import PaceState
from cachetier.model.packs import PACK_MEMBERS, Member, next_pack
from cachetier.model.shard import Shard
from cachetier.remote.store_clock import StoreClock
from cachetier.telemetry import events
from cachetier.telemetry.events import of, tell

if TYPE_CHECKING:  # the drain process reads the methods' annotations, and needs none of these
    from cachetier_client.clock import Clock

    from cachetier.drain.schedule.queue_state import QueueState
    from cachetier.drain.serve.remote_state import RemoteState
    from cachetier.drain.serve.stats import DrainStats
    from cachetier.local.local_copy import LocalCopy
    from cachetier.local.store import Store
    from cachetier.model.objects import Mount
    from cachetier.notifier import Changes
    from cachetier.steps.incidents import Incidents

log = logging.getLogger(__name__)

CONFLICT_SECONDS = 30.0
PUBLISH_IN_A_HURRY_SECONDS = 2.0
PUBLISH_UNSEALED_SECONDS = 30.0
UNDECIDED_SECONDS = 5.0
PAGE_SHARDS = 500
PAGE_DIGESTS = 200_000  # some 5 MB

_REPLACED, _REFUSED = "replaces what is there", "sends it again, once the bucket takes it"


@dataclass(frozen=True, slots=True)
class DrainContext:
    """Everything on the side of ``serve``, for one remote.

    ``packing``: small shards of a rank go there together. ``mounts`` are those of the S3 door whose
    objects go to the remote's server, by what the catalog calls them; ``store_clock`` is that
    server's.
    """

    store: Store
    queue: QueueState
    stats: DrainStats
    changes: Changes
    incidents: Incidents
    clock: Clock
    remote_state: RemoteState
    packing: bool = False
    mounts: Mapping[str, Mount] = field(default_factory=dict)
    store_clock: StoreClock = field(default_factory=StoreClock)


class DrainService:
    """Hands tasks to one drain process, and records its reports in the catalog. Thread-safe.

    Every public method can be called by the drain.
    """

    def __init__(
        self, context: DrainContext, orders: DrainOrders, rules: Rules = UNCOMPRESSED
    ) -> None:
        """``orders`` are the answer to ``hello``, ``rules`` say how to compress."""
        self._context = context
        self._store = context.store
        self._queue = context.queue
        self._stats = context.stats
        self._clock = context.clock
        self._remote_state = context.remote_state
        self._remote = context.remote_state.remote
        self._orders = orders
        self._rules = rules
        # Puts that come before the remote is asked would hide that the catalog is an older one.
        own = context.store.read(notes.own_claim, self._remote)
        self._counter_at_start: int | None = own.counter

    # --- the drain itself ------------------------------------------------------------------------

    def hello(self, courtesy: dict[str, Any]) -> DrainOrders:
        """The first call: what the kernel was asked for by now; the rest is reported later."""
        self._stats.courtesy(courtesy)
        return self._orders

    def read_claim(self) -> OwnClaim:
        """Return what this cache directory claims of its store id at the remote."""
        own, at_start = self._store.read(notes.own_claim, self._remote), self._counter_at_start
        return own if at_start is None else replace(own, counter=at_start)

    def intend_claim(self, epoch: str, nonce: str, before: str) -> None:
        """Write down what is about to be claimed, over ``before``.

        Another ``epoch`` than before: the directory went back in time, or was copied.
        """
        own, what = self._store.read(notes.own_claim, self._remote), (epoch, nonce, before)
        self._store.write(notes.intend_claim, self._remote, *what, self._clock.now())
        self._counter_at_start = None
        if epoch != own.epoch:
            where = {"remote": self._remote, "store_id": self._store.store_id}
            tell(log, events.STORE_NOT_ALONE, **where, epoch=epoch)

    def report_courtesy(self, report: dict[str, Any]) -> Training:
        """Take how the drain behaves, once a second; return what it should know of training."""
        self._stats.courtesy(report)
        hints = self._queue.phases.hints()
        return Training(hints.hinting_ranks, hints.busy_ranks, self._store.space.wanted_bytes > 0)

    def report_health(self, health: Health) -> NoReply:
        """Take how the remote is."""
        self._stats.remote_health(health.state, health.reason)
        if health.retry:
            self._queue.forgive_all()
        self._context.changes.ring()

    def report_traffic(self, counts: Mapping[str, int], pace: PaceState) -> NoReply:
        """Add what went over the wire since the last call; take how fast the remote is asked."""
        self._stats.traffic(counts, pace)

    def report_copies(self, counts: Mapping[str, int], state: str) -> NoReply:
        """Add what was copied inside the remote since the last call; take whether it may be."""
        self._stats.copied(counts, state)

    def report_compression(
        self, blocks: Mapping[str, int], runs: Mapping[str, CompressionVerdict]
    ) -> NoReply:
        """Take how blocks were stored since the last call, and of each run the last verdict."""
        self._stats.compression.hear(blocks, runs)

    # --- handing out work ------------------------------------------------------------------------

    def next_work(self, count: int) -> Handout:
        """Return up to ``count`` tasks; for none of them, only how the drain may go on."""
        wants_room, rate_limit = self._store.space.wanted_bytes > 0, self._queue.rate_limit
        if self._store.fenced is not None or not count:  # nothing could be recorded
            hurried = wants_room or self._queue.is_hurried()
            return Handout(hurried=hurried, rate_limit=rate_limit)
        situation = self._queue.situation(wants_room=wants_room)
        plan = scheduler.plan(self._unfinished(count), situation, count)
        self._queue.handed_out(plan.fairness)
        tasks = tuple(task for work in plan.work if (task := self._task(work)) is not None)
        hurried = wants_room or self._queue.is_hurried()
        return Handout(tasks, plan.due_in_seconds, hurried, rate_limit)

    def _unfinished(self, count: int) -> list[SaveView]:
        """Return what is to be done, less what the remote can never get whole."""
        remote_state, mounts = self._remote_state, self._context.mounts
        blocked = self._queue.blocked()
        views = unfinished(
            self._store,
            remote_state,
            blocked,
            self._row_damaged,
            count,
            beside_packs=self._queue.names_in_flight if self._context.packing else None,
            copying=self._stats.copies == "on",
        )
        for view in views[:]:
            save = view.save
            if save.state in DRAINED_SAVES and remote_state.out_of_reach(save):
                views.remove(view)
                if remote_state.give_up(save.number, self._clock.now()):
                    self._stats.gave_up(save)
        if mounts:
            views += mounts_to_show(
                self._store, remote_state, mounts, blocked, self._row_damaged, count
            )
        return views

    def _row_damaged(self, save: Save, error: CatalogDamagedError) -> None:
        if self._stats.conflict(-save.number, error.message) and self._remote_state.decides:
            self._add_incident(save, error.message, error.hint)

    def _task(self, work: Work) -> Task | None:
        number = self._queue.take(work)
        if number is None:
            return None
        if work.version is not None:
            return object_task(number, work, self._context.mounts[work.save.run].bucket)
        claimant = self._store.read(saves.claimant, work.save)
        shard = work.shard
        mode = self._rules.mode_of(work.save.run, shard.name if shard is not None else "")
        if shard is not None:
            lost = self._store.read(copies.lost_as, shard.version, self._remote)
            mode = mode_like(mode, lost.codec) if lost is not None else mode
        return task_of(number, work, claimant, mode)

    def finish_task(self, task: int, *, done: bool) -> None:
        """Free the key of a task."""
        self._queue.finish(task, done=done)

    def fail_task(self, task: int, code: str, message: str, seconds: float) -> None:
        """Put work off that failed for this reason; it is tried again for ever."""
        work = self._queue.work(task)
        if work is None:
            return
        self._stats.count_failure(work, code, message)
        attempt = self._count_attempt(work)
        self._stats.tell_failure(work, code, message, seconds, attempt)
        if code in NEXT_MOVES:
            self._queue.put_off(work.key, CONFLICT_SECONDS)
            self._report_conflict(work, message, NEXT_MOVES[code])
        else:
            self._queue.back_off(work.key, attempt)

    def _count_attempt(self, work: Work) -> int | None:
        """Count a failed attempt at a shard; None where that is not in the catalog, or cannot be.

        That must not keep the work from being put off: it would be sent again at once, for ever.
        """
        if work.shard is None:
            return None
        try:
            return self._store.write(uploads.count_attempt, work.shard.version, self._remote)
        except (FencedError, BackpressureError):
            return None

    def _report_conflict(self, work: Work, message: str, next_move: str) -> None:
        number = work.shard.version if work.shard is not None else -work.save.number
        if self._stats.conflict(number, message) and self._remote_state.decides:
            name = work.shard.name if work.shard is not None else None
            where = {"name": name, "remote": self._remote}
            tell(log, events.SHARD_CONFLICT, **of(work.save), reason=message, **where)
            self._add_incident(work.shard or work.save, message, next_move)

    # --- shards ----------------------------------------------------------------------------------

    def open_shard(self, version: int) -> LocalShard:
        """Return a shard that is to be sent, with its bytes or a descriptor of them."""
        shard = self._shard(version)
        if not self._remote_state.wants(shard):
            raise NotFoundError(f"shard version {version} is {shard.state}")
        upload = replace(self._store.read(uploads.progress_of, version, self._remote), parts=())
        replaced = self._store.read(uploads.replaced_by, shard.save, shard.name, self._remote)
        copy = self._local_copy(shard)
        block_digests = shard.content.block_digests
        return LocalShard(copy.body, block_digests, copy.descriptor, upload, replaced)

    def _local_copy(self, shard: Shard) -> LocalCopy:
        try:
            copy = self._store.local_copy(shard)
        except FileNotFoundError:
            if self._shard(shard.version).file_id == shard.file_id:
                self._quarantine(shard, "its data file is missing")
            copy = None
        if copy is None:
            raise NotFoundError(f"shard version {shard.version} has no bytes here")
        return copy

    def find_donor(self, version: int) -> tuple[Shard, str, Stored] | None:
        """Return a shard at the remote that another may be put together from, where and how."""
        found = self._store.read(copies.donor_of, self._shard(version), self._remote)
        if found is None:
            return None
        donor, stored = found
        there = self._remote_state.save(donor.save)
        if there is None or there.location is None:
            return None
        return donor, there.location, stored

    def finished_parts(self, version: int) -> tuple[UploadedPart, ...]:
        """Return the parts of a shard's upload that are recorded."""
        return self._store.read(uploads.progress_of, version, self._remote).parts

    def upload_begun(self, version: int, upload: UploadRecord) -> None:
        lost = self._store.read(copies.lost_as, version, self._remote)
        how = upload.codec, upload.element_size
        if lost is not None and (lost.codec, lost.element_size) != how:
            self._refuse_if_described(self._shard(version))
        self._store.write(uploads.begin_upload, version, self._remote, upload)

    def upload_gone(self, version: int) -> None:
        self._store.write(uploads.forget_upload, version, self._remote)

    def parts_done(self, version: int, parts: tuple[UploadedPart, ...]) -> None:
        self._store.write(uploads.record_parts, version, self._remote, parts)
        self._stats.progressed()

    def shard_verified(self, version: int, stored: Stored, seconds: float, phases: Phases) -> None:
        """Record that a read-side call has confirmed that the shard is at the remote."""
        shard = self._shard(version)
        lost = self._store.read(copies.lost_as, version, self._remote)
        if lost not in (None, stored):
            self._refuse_if_described(shard)
        try:
            self._remote_state.verified(version, self._clock.now(), stored)
        except ForbiddenTransitionError:
            return  # a reader met damage meanwhile: the shard stays quarantined
        self._stats.drained(shard, stored, seconds, phases)
        self._context.changes.ring()

    def _refuse_if_described(self, shard: Shard) -> None:
        """Refuse what sends a lost shard again otherwise than it was stored.

        Raises:
            IntegrityError: A document says how it was: nobody could read it any more by that.
        """
        if self._store.read(copies.is_described, shard.save, shard.rank, self._remote):
            message = f"{shard.name} is lost in the bucket and cannot be sent as it was stored"
            if self._stats.conflict(shard.version, message):
                hint = "Its bytes stay on this node: read it here, or save the step again."
                self._add_incident(shard, message, hint)
            raise IntegrityError(message, **shard.context)

    def shard_damaged(self, version: int, message: str) -> None:
        """Quarantine a shard whose local bytes are not what was committed."""
        self._quarantine(self._shard(version), message)

    def _quarantine(self, shard: Shard, what: str) -> None:
        incident = IncidentRecord(
            code="integrity",
            message=f"shard {shard.name} is damaged on this node and was not sent: {what}",
            hint="Save the step again, or restore another one.",
            **shard.context,
        )
        before = self._store.write(shards.record_damage, shard.version, incident, self._clock.now())
        elsewhere = before.state is ShardState.CLEAN  # at another remote
        self._stats.quarantined(shard, what, lost=not elsewhere)
        if elsewhere:
            self._store.drop([before])  # only the local bytes go
        self._announce()

    def shards_lost(self, versions: tuple[int, ...]) -> None:
        """Have shards sent again that were verified and are gone from the remote, all of a pack."""
        states = self._remote_state.lost(versions)
        for version, state in zip(versions, states, strict=True):
            shard = self._shard(version)
            message = f"{shard.name} is not in the bucket as it was verified"
            new = self._stats.conflict(version, message)
            if new and self._remote_state.decides and state is not ShardState.DIRTY:
                hint = "Its bytes are not on this node any more: save the step again."
                self._add_incident(shard, message, hint)

    # --- packs -----------------------------------------------------------------------------------

    def pack_members(self, save: int, rank: int) -> list[Member]:
        """Return the members of a rank's next pack; what is on its way already stays out."""
        busy = self._queue.names_in_flight(save)
        small = self._remote_state.wanted(save, PACK_MEMBERS + len(busy), small_of(rank))
        lost = self._store.read(copies.lost_packs, save, self._remote)
        free = [shard for shard in small if shard.name not in busy]
        # What was in one pack goes in one again: the same members make the same object.
        together = [each for each in free if lost.get(each.version) == lost.get(free[0].version)]
        return next_pack(map(Member.of, together))

    def pack_verified(
        self, save: int, members: dict[int, InPack], size_bytes: int, seconds: float
    ) -> None:
        """Record where each member of a pack lies, by its version, all in one transaction."""
        lost = self._store.read(copies.lost_packs, save, self._remote)
        for version, pack in members.items():
            if lost.get(version, pack.name) != pack.name:
                self._refuse_if_described(self._shard(version))
        recorded = self._remote_state.packed(members, self._clock.now())
        self._stats.packed(len(recorded), size_bytes)
        for shard in recorded:
            share = shard.content.size_bytes / max(1, size_bytes)
            self._stats.drained(shard, Stored.raw(shard.content), seconds * share)
        self._context.changes.ring()

    # --- objects of the S3 door ------------------------------------------------------------------

    def open_object(self, version: int, clock: tuple[float, float] | None) -> LocalObject:
        """Return a version to show; ``clock`` is the drain's ``StoreClock.between``."""
        store_clock = self._context.store_clock
        store_clock.learn(clock)
        found = self._object(version)
        pieces = self._store.read(objects.pieces_of, version)
        progress = self._store.read(
            uploads.progress_of, pieces[0].version if pieces else 0, self._remote
        )
        request, at = found.request, found.acknowledged_at
        at = store_clock.acknowledged_at(version) if at is None else at
        return LocalObject(
            replace(found, acknowledged_at=at),
            list(map(Member.of, pieces)),
            replace(progress, parts=()),
            self._context.mounts[found.run].prefix,
            store_clock.is_from_before(at),
            not _is_sound(found, pieces),
            {} if request is None else self._store.read(objects.deleted_with, request),
        )

    def object_shown(self, version: int, etag: str, seconds: float, phases: Phases) -> None:
        """Record that the bucket shows a version under ``etag``, verified; empty: it is deleted."""
        found, now = self._object(version), self._clock.now()
        try:
            removed = self._store.write(objects.record_shown, version, etag, self._remote, now)
        except ForbiddenTransitionError:
            # A reader met damage meanwhile, and the bucket has the bytes.
            self.object_superseded(
                version, "the bucket has the object; its bytes on this node are damaged"
            )
            return
        self._store.drop(removed)
        self._stats.shown(found, seconds, phases)
        self._context.changes.ring()

    def object_superseded(self, version: int, reason: str) -> None:
        """Record that something newer than a version is in the bucket, or was deleted there."""
        found, now = self._object(version), self._clock.now()
        self._store.drop(self._store.write(objects.record_superseded, version, reason, now))
        self._stats.superseded(found, reason)
        self._context.changes.ring()

    def object_conflict(
        self, version: int, message: str, *, refused: bool = False, damaged: bool = False
    ) -> None:
        """Let a person decide about a version, as the bucket has something that it may not replace.

        Or the bucket has ``refused`` the version, or the version's bytes are ``damaged`` here. The
        versions behind it under its key wait until then.
        """
        found, ours, code = self._object(version), _REPLACED, PreconditionFailedError.code
        if refused:
            message = f"the bucket does not take {found.key}: {message}"
            ours, code = _REFUSED, RemoteRefusedError.code
        elif damaged:
            message = f"{found.key} is damaged on this node: the bucket never shows it"
            code = IntegrityError.code
        mount = found.run.removeprefix(MOUNT_MARK)
        hint = (
            "Later puts under this key wait. Decide with "
            f"`cachetier s3 resolve ours {mount} KEY`, which {ours}, "
            f"or `cachetier s3 resolve theirs {mount} KEY`, which drops ours."
        )
        incident = IncidentRecord(code, message, hint, found.run, 0, found.key)
        now = self._clock.now()
        self._store.drop(self._store.write(objects.record_conflict, version, incident, now))
        self._stats.object_conflict(found, message)
        self._announce()

    def own_version_seen(self, seen: int) -> None:
        """Number versions from behind one that the bucket names: this directory went back."""
        self._store.write(objects.raise_versions, seen)

    def deletions_recorded(self, request: int) -> None:
        """The bucket has a record of what was deleted together."""
        self._store.write(objects.record_deletions_recorded, request)

    def _object(self, number: int) -> ObjectVersion:
        """Return a version that is to be brought to the bucket, or raise NotFoundError."""
        version = self._store.read(objects.by_version, number)
        if version is None or version.state is not ObjectState.DIRTY:
            raise NotFoundError(f"version {number} is not to be drained any more")
        return version

    # --- saves -----------------------------------------------------------------------------------

    def read_part(self, save: int, rank: int, after: int) -> PartPage:
        """Return what a rank's part must list, from behind the version ``after`` on."""
        which = save, rank, self._remote, after, PAGE_SHARDS
        found = self._store.read(shards.stored_shards_of_rank, *which)
        page = PartPage([])
        digests = 0
        for shard, stored in found:
            facts = shard.facts.without_hints()
            page.shards.append((shard.version, shard.name, shard.content, stored, facts))
            digests += len(shard.content.block_digests) + (len(stored.frames) if stored else 0)
            if digests > PAGE_DIGESTS:
                break
        more = len(page.shards) < len(found) or len(found) == PAGE_SHARDS
        return PartPage(page.shards, more)

    def names_of_save(self, save: int, names: tuple[str, ...]) -> list[str]:
        """Return which of ``names`` are, or were, shards of the save here."""
        return self._store.read(uploads.names_of_save, save, names)

    def save_located(self, save: int, location: str) -> None:
        self._remote_state.locate(save, location)

    def part_written(
        self, save: int, rank: int, shards: int, size_bytes: int, seconds: float
    ) -> None:
        self._remote_state.part(save, rank, uploaded=True)
        found = self._save(save)
        counted = {"shards": shards, "size_bytes": size_bytes, "seconds": seconds}
        where = {"remote": self._remote, "age_seconds": self._age_seconds(found)}
        tell(log, events.PART_DRAINED, rank=rank, **of(found), **counted, **where)
        self._queue.forgive((save, TaskKind.PUBLISH, ""))

    def save_followed(self, save: int) -> None:
        """Record that rank 0 has sealed, wherever it is."""
        self._remote_state.followed(save)
        self._context.changes.ring()

    def save_not_ready(
        self, save: int, kind: TaskKind, ranks: tuple[int, ...] | None = None
    ) -> None:
        """Look again, less and less, at a step of which another node's part is missing.

        The parts of ``ranks`` are at the remote, None: nobody looked. A part that was written here
        and is gone is written again.
        """
        found = self._save(save)
        parts = self._remote_state.parts(save)
        for part in parts:
            there = ranks is None or part.rank in ranks
            if part.uploaded and not there:
                self._remote_state.part(save, part.rank, uploaded=False)
        key = (save, kind, "")
        if self._queue.hurried(found):
            self._queue.recheck(key, PUBLISH_IN_A_HURRY_SECONDS)
        elif sealed_here(parts) or kind is TaskKind.FOLLOW:
            self._queue.recheck(key)
        else:
            self._queue.put_off(key, PUBLISH_UNSEALED_SECONDS)

    def save_ended(self, save: int, state: SaveState, message: str, seconds: float) -> None:
        """Record how a save ended; ``message`` is empty where nothing went wrong."""
        found = self._save(save)
        if state is SaveState.SUPERSEDED and self._is_replaced_here(found):
            message = ""
        incident = None
        if message and state in REPLACED_SAVES:
            kind = END_ERRORS[state]
            incident = IncidentRecord(kind.code, message, kind.hint, found.run, found.step)
        outcome = self._remote_state.ended(save, state, incident, self._clock.now())
        self._store.drop(outcome.removed)
        if outcome.wait or not outcome.news:  # it lacks shards still, or was replaced meanwhile
            for task in (TaskKind.CLAIM, TaskKind.FOLLOW, TaskKind.PUBLISH):
                self._queue.put_off((save, task, ""), UNDECIDED_SECONDS)
        if outcome.news:
            self._tell_end(found, state, message, seconds)
        self._announce()

    def _is_replaced_here(self, save: Save) -> bool:
        """Return whether the step was saved again here: who did that knows, and nothing is wrong.

        The newer save may be published by a report that comes after this one.
        """
        found = self._store.read(saves.saves_of, save.run, save.step)
        newer = [each for each in found if each.number > save.number]
        return any(sealed_here(self._store.read(saves.parts_of, each.number)) for each in newer)

    def _tell_end(self, save: Save, state: SaveState, message: str, seconds: float) -> None:
        if state is SaveState.PUBLISHED:
            here = self._store.read(shards.summary_of, save.number)
            self._stats.published(save, here, seconds, decides=self._remote_state.decides)
            return
        fields = {**self._end_of(save), "state": state}
        if message:
            tell(log, events.SAVE_REFUSED, **fields, reason=message)
        else:
            tell(log, events.SAVE_ENDED, **fields)

    def save_removed(self, save: int, left: int, example: str | None) -> None:
        """Forget a deleted save: all it had there is gone, but for ``left`` objects of others."""
        found = self._remote_state.save(save)
        if self._remote_state.removed(save) and found is not None:
            tell(log, events.SAVE_DELETED, **self._end_of(found))
            if left:
                counted = {"count": left, "key": example}
                tell(log, events.OBJECTS_LEFT, **of(found), remote=self._remote, **counted)
        self._announce()

    def save_swept(self, save: int) -> None:
        self._remote_state.swept(save)

    def _end_of(self, save: Save) -> dict[str, Any]:
        """Return what is told of any end; where it ``decides`` it ends the save."""
        where = {"remote": self._remote, "decides": self._remote_state.decides}
        return {**of(save), **where, "age_seconds": self._age_seconds(save)}

    def _age_seconds(self, save: Save) -> float:
        return max(0.0, self._clock.now() - save.started_at)

    # --- all of them -----------------------------------------------------------------------------

    def _shard(self, version: int) -> Shard:
        """Return a shard, or raise NotFoundError."""
        return self._store.read(shards.require, version)

    def _save(self, number: int) -> Save:
        """Return a save as this remote's drain sees it, or raise NotFoundError."""
        save = self._remote_state.save(number)
        if save is None:
            raise NotFoundError(f"there is no save {number}")
        return save

    def _add_incident(self, about: Shard | Save, message: str, hint: str) -> None:
        """Let clients hear of what went wrong with a shard or a save."""
        name, rank = (about.name, about.rank) if isinstance(about, Shard) else (None, None)
        code = PreconditionFailedError.code if isinstance(about, Shard) else IntegrityError.code
        incident = IncidentRecord(code, message, hint, about.run, about.step, name, rank)
        self._store.write(notes.insert_incident, incident, self._clock.now())
        self._announce()

    def _announce(self) -> None:
        """Let those who wait look again, and clients see what is new."""
        self._context.incidents.refresh()
        self._context.changes.ring()


def _is_sound(version: ObjectVersion, pieces: Sequence[Shard]) -> bool:
    there = len(pieces) == version.pieces
    return there and all(each.state is ShardState.DIRTY for each in pieces)
