"""The worker's part for objects of the S3 door: send their parts ahead, show and delete them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial

from cachetier_client.bucket_format.stored import Codec
from cachetier_client.s3_errors import is_about_one_object

from cachetier.drain.messages import LocalObject, LocalShard
from cachetier.drain.priority.gates import ComputeSlots
from cachetier.drain.schedule.tasks import Task, TaskKind
from cachetier.drain.serve.service import DrainService
from cachetier.drain.upload.deletions import MountDeletions
from cachetier.drain.upload.objects import (
    ObjectTarget,
    ObjectUpload,
    PieceToSend,
    SupersededError,
    delete_object,
)
from cachetier.drain.upload.part_sender import UploadContext
from cachetier.drain.upload.reported_progress import ReportedProgress
from cachetier.drain.upload.source import DamagedError, ShardSource, opened_source
from cachetier.drain.upload.stopwatch import TimedObjectStore, timed
from cachetier.drain.upload.target import ConflictError, RefusedKeyError
from cachetier.errors import NotFoundError, RemoteError
from cachetier.model.superseding import MARGIN_SECONDS, DeletionRecord, Stamp
from cachetier.remote.base import ObjectStore
from cachetier.remote.store_clock import StoreClock

OpenStore = Callable[[str], ObjectStore]


@dataclass(frozen=True, slots=True)
class Stamps:
    """What stamps are made of: whose they are, and the clocks that tell the time of them."""

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
        """Do ``task``, and report what became of it; raises as ``ObjectUpload.show``."""
        with timed() as watch:
            opened = self._serve.open_object(task.version, self._clock.between)
            context = replace(self._context, store=TimedObjectStore(self._store(task.bucket)))
            begun = opened.upload_id, opened.part_bytes, Codec.RAW, 0
            first = opened.pieces[0].version if opened.pieces else 0
            progress = ReportedProgress(self._serve, first, LocalShard(None, (), None, *begun))
            try:
                etag = self._sent(task, opened, context, progress)
            except (SupersededError, ConflictError, RemoteError) as error:
                report = self._end_of(task.version, error, damaged=opened.damaged)
                if report is None:
                    raise
                if progress.upload_id is not None:
                    context.store.abort_upload(task.name, progress.upload_id)
                    progress.gone()
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
        progress: ReportedProgress,
    ) -> str:
        """Return the ETag of the object that is visible now; empty where none is."""
        target = self._target(task, opened)
        if opened.deleted:
            self._record_deletion(task, opened, target)
            delete_object(context, target)
            return ""
        pieces = [PieceToSend(each.version, each.size_bytes, each.digest) for each in opened.pieces]
        upload = ObjectUpload(context, target, pieces, self._opened_piece, progress)
        if opened.damaged:
            upload.refuse_damaged()
        if task.kind is TaskKind.SHOW:
            return upload.show()
        upload.send_ahead()
        return ""

    def _target(self, task: Task, opened: LocalObject) -> ObjectTarget:
        stamp = Stamp(self._stamps.store_id, opened.version, opened.acknowledged_at)
        return ObjectTarget(
            task.name,
            opened.etag,
            task.size_bytes,
            task.digest,
            opened.headers,
            opened.metadata,
            stamp,
            opened.base,
            opened.conditional,
            # A deletion takes nothing that was put later, by whatever time, and all that was put
            # before.
            0.0 if opened.deleted or self._comes_at_once(opened) else MARGIN_SECONDS,
            self._serve.own_version_seen,
            lambda: self._is_deleted(task, opened, stamp),
        )

    def _comes_at_once(self, opened: LocalObject) -> bool:
        """Return whether a version finds in the bucket what it was put over, as at S3.

        What was acknowledged before this node was stopped does not, whatever its age.
        """
        now = self._clock.now()
        if opened.from_before or now is None or opened.acknowledged_at is None:
            return False
        return now - opened.acknowledged_at <= MARGIN_SECONDS

    def _record_deletion(self, task: Task, opened: LocalObject, target: ObjectTarget) -> None:
        """Write down what a request deleted, before the first of it goes; what nobody timed not."""
        at = target.stamp.acknowledged_at
        if opened.request is None:
            return
        if at is not None and opened.deletions:
            record = DeletionRecord(self._stamps.store_id, at, opened.deletions)
            self._deletions(task.bucket, opened.prefix).record(record)
        self._serve.deletions_recorded(opened.request)

    def _is_deleted(self, task: Task, opened: LocalObject, stamp: Stamp) -> bool:
        """Return whether somebody deleted a put since, as far as records tell."""
        if opened.deleted:
            return False
        if self._clock.now() is None and not self._asked:
            self._asked = True
            self._store(task.bucket).check()
        if self._comes_at_once(opened):
            return False
        age_seconds = self._stamps.wall() - opened.committed_at
        return self._deletions(task.bucket, opened.prefix).covers(stamp, task.name, age_seconds)

    @contextmanager
    def _opened_piece(self, piece: PieceToSend) -> Iterator[ShardSource]:
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
