"""The worker's part for objects of the S3 door: send their parts ahead, show and delete them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial

from cachetier_client.bucket_format.stored import Content
from cachetier_client.bucket_format.uploads import DIGEST_KEY, ETAG_KEY
from cachetier_client.io.digests import to_hex
from cachetier_client.s3_errors import is_about_one_object

from cachetier.carriers.checked_file import DamagedError
from cachetier.drain.messages import LocalObject
from cachetier.drain.priority.gates import ComputeSlots
from cachetier.drain.schedule.tasks import Task, TaskKind
from cachetier.drain.serve.service import DrainService
from cachetier.drain.upload.deletions import MountDeletions
from cachetier.drain.upload.journal import Journal, ReportedJournal
from cachetier.drain.upload.objects import ObjectTarget, SupersededError, delete_object
from cachetier.drain.upload.source import ShardSource, opened_source
from cachetier.drain.upload.stopwatch import TimedObjectStore, timed
from cachetier.drain.upload.target import ConflictError, RefusedKeyError, VerifiedObject
from cachetier.drain.upload.uploader import Span, Upload, UploadContext
from cachetier.errors import NotFoundError, RemoteError
from cachetier.model.packs import Member
from cachetier.model.superseding import MARGIN_SECONDS, DeletionRecord, Stamp
from cachetier.remote.base import ObjectStore
from cachetier.remote.store_clock import StoreClock

OpenStore = Callable[[str], ObjectStore]


@dataclass(frozen=True, slots=True)
class Stamps:
    """The ingredients of stamps: their owner, and the clocks that date them."""

    store_id: str = ""
    store_clock: StoreClock = field(default_factory=StoreClock)
    wall: Callable[[], float] = time.time


class ObjectWorker:
    """Performs SEND and SHOW, on any number of threads."""

    def __init__(
        self,
        serve: DrainService,
        open_store: OpenStore,
        context: UploadContext,
        reads: ComputeSlots | None = None,
        stamps: Stamps | None = None,
    ) -> None:
        """A worker that reaches a bucket by ``open_store``, at the first object of it."""
        self._serve = serve
        self._context = context
        self._reads = reads
        self._store = lru_cache(maxsize=None)(open_store)
        self._stamps = stamps or Stamps()
        self._clock = self._stamps.store_clock
        self._deletions = lru_cache(maxsize=None)(
            lambda bucket, prefix: MountDeletions(self._store(bucket), prefix, self._clock)
        )
        self._asked = False

    def perform(self, task: Task) -> None:
        """Do ``task``, and report what became of it; raises as ``Upload.send``."""
        with timed() as watch:
            opened = self._serve.open_object(task.version, self._clock.between)
            context = replace(self._context, store=TimedObjectStore(self._store(task.bucket)))
            first = opened.pieces[0].version if opened.pieces else 0
            journal = ReportedJournal(self._serve, first, opened.upload)
            try:
                etag = self._sent(task, opened, context, journal)
            except (SupersededError, ConflictError, RemoteError) as error:
                report = self._end_of(task.version, error, damaged=opened.damaged)
                if report is None:
                    raise
                if journal.record.upload_id is not None:
                    context.store.abort_upload(task.name, journal.record.upload_id)
                    journal.gone()
                report()
                return
            if task.kind is TaskKind.SHOW:
                seconds, phases = watch.seconds, watch.phases()
                self._serve.object_shown(task.version, etag, seconds, phases)

    def _sent(
        self,
        task: Task,
        opened: LocalObject,
        context: UploadContext,
        journal: Journal,
    ) -> str:
        """Return the ETag of the object that is visible now; empty where none is.

        Raises:
            SupersededError: The bucket has it, or something newer, which was left alone.
            ConflictError, RemoteError: As ``Upload.send``.
        """
        target = self._target(task, opened)
        if opened.version.deleted:
            self._record_deletion(task, opened, target)
            delete_object(context, target)
            return ""
        if opened.damaged:  # the bucket may make up for it
            if isinstance(target.look(context.store, context.buffers.lend), VerifiedObject):
                raise SupersededError(
                    "the bucket has the object; its bytes on this node are damaged"
                )
            raise ConflictError(
                "its bytes on this node are damaged, and the bucket does not have the object"
            )
        spans = [Span(each.size_bytes, partial(self._opened, each)) for each in opened.pieces]
        upload = Upload(context, target, spans, journal)
        if task.kind is TaskKind.SHOW:
            return upload.send().etag
        upload.send_ahead()
        return ""

    def _target(self, task: Task, opened: LocalObject) -> ObjectTarget:
        version = opened.version
        stamp = Stamp(self._stamps.store_id, version.stamp_version, version.acknowledged_at)
        ours = {ETAG_KEY: version.etag, DIGEST_KEY: to_hex(task.digest)}
        # A deletion takes nothing that was put later, by whatever time, and all put before.
        at_once = version.deleted or self._comes_at_once(opened)
        return ObjectTarget(
            task.name,
            {**version.head.metadata, **ours, **stamp.as_metadata(task.name)},
            Content(task.size_bytes, task.digest, ()),
            headers=version.head.headers,
            stamp=stamp,
            base=version.base,
            conditional=version.conditional,
            margin_seconds=0.0 if at_once else MARGIN_SECONDS,
            saw=self._serve.own_version_seen,
            is_deleted=lambda: self._is_deleted(task, opened, stamp),
        )

    def _comes_at_once(self, opened: LocalObject) -> bool:
        """Return whether a version finds in the bucket what it was put over, as at S3.

        What was acknowledged before this node was stopped does not, whatever its age.
        """
        now, at = self._clock.now(), opened.version.acknowledged_at
        if opened.from_before or now is None or at is None:
            return False
        return now - at <= MARGIN_SECONDS

    def _record_deletion(self, task: Task, opened: LocalObject, target: ObjectTarget) -> None:
        """Write down what a request deleted, before the first of it goes; what nobody timed not."""
        at, request = target.stamp.acknowledged_at, opened.version.request
        if request is None:
            return
        if at is not None and opened.deletions:
            record = DeletionRecord(self._stamps.store_id, at, opened.deletions)
            self._deletions(task.bucket, opened.prefix).record(record)
        self._serve.deletions_recorded(request)

    def _is_deleted(self, task: Task, opened: LocalObject, stamp: Stamp) -> bool:
        """Return whether somebody deleted a put since, as far as records tell."""
        if opened.version.deleted:
            return False
        if self._clock.now() is None and not self._asked:
            self._asked = True
            self._store(task.bucket).check()
        if self._comes_at_once(opened):
            return False
        age_seconds = self._stamps.wall() - opened.version.committed_at
        return self._deletions(task.bucket, opened.prefix).covers(stamp, task.name, age_seconds)

    @contextmanager
    def _opened(self, piece: Member) -> Iterator[ShardSource]:
        """Yield the bytes of a piece; what is damaged is reported, and the object goes no further.

        Raises:
            NotFoundError: It is damaged, or gone.
        """
        opened = self._serve.open_shard(piece.version)
        try:
            with opened_source(opened, piece.digest, self._reads) as source:
                yield source
        except DamagedError as error:
            self._serve.shard_damaged(piece.version, str(error))
            raise NotFoundError(f"piece {piece.version} is damaged") from error

    def _end_of(
        self, version: int, error: SupersededError | ConflictError | RemoteError, *, damaged: bool
    ) -> Callable[[], None] | None:
        """Return what reports a version that goes no further; None of one to be tried again."""
        if isinstance(error, SupersededError):
            return partial(self._serve.object_superseded, version, str(error))
        conflict = partial(self._serve.object_conflict, version)
        if isinstance(error, ConflictError):
            refused = isinstance(error, RefusedKeyError)
            return partial(conflict, str(error), refused=refused, damaged=damaged)
        # A bucket that refuses this very object: only a person can mend that.
        code, status = error.context.get("remote_code"), error.context.get("remote_status")
        if not is_about_one_object(code or "", status or 0):
            return None
        return partial(conflict, error.message, refused=True)
