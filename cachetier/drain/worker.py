"""The worker: performs one task and reports the result; a failed task is handed out again."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial

from cachetier_client.bucket_format.documents import ShardEntry
from cachetier_client.bucket_format.layout import Layout, pack_name
from cachetier_client.bucket_format.stored import Content, InPack
from cachetier_client.bucket_format.uploads import object_metadata

from cachetier.carriers.checked_file import DamagedError
from cachetier.drain.channel import ChannelClosedError, RefusedReportError
from cachetier.drain.messages import LocalShard
from cachetier.drain.object_worker import ObjectWorker
from cachetier.drain.pace.remote_health import RemoteHealth
from cachetier.drain.priority.gates import ComputeSlots
from cachetier.drain.publish.publisher import (
    Ended,
    Located,
    LostShardsError,
    NotWhole,
    Ours,
    Publisher,
)
from cachetier.drain.publish.store_claim import StoreClaimer
from cachetier.drain.schedule.tasks import CONFLICT, DEADLY, Task, TaskKind
from cachetier.drain.serve.service import DrainService
from cachetier.drain.upload.journal import ReportedJournal
from cachetier.drain.upload.packs import PackSender
from cachetier.drain.upload.server_copies import Offer
from cachetier.drain.upload.source import opened_source
from cachetier.drain.upload.stopwatch import elapsed, timed
from cachetier.drain.upload.target import ConflictError, StrayObjectError, UploadTarget
from cachetier.drain.upload.uploader import Uploader
from cachetier.errors import (
    CachetierError,
    IntegrityError,
    NotFoundError,
    RemoteError,
    RemoteRefusedError,
    StoppingError,
)
from cachetier.local.catalog.rows import NOTHING_REPLACED
from cachetier.model.compression import OFF, parsed_mode
from cachetier.telemetry import events
from cachetier.telemetry.events import of, tell

log = logging.getLogger(__name__)

NAMES_AT_ONCE = 200
_REFUSED_ALONE = (TaskKind.SWEEP, TaskKind.DELETE, TaskKind.SEND, TaskKind.SHOW)


class Worker:
    """Performs tasks, on any number of threads."""

    def __init__(  # noqa: PLR0913 - whom it hands each kind of task
        self,
        serve: DrainService,
        layout: Layout,
        publisher: Publisher,
        uploader: Uploader,
        remote_health: RemoteHealth,
        store_claim: StoreClaimer,
        reads: ComputeSlots | None = None,
        packs: PackSender | None = None,
        objects: ObjectWorker | None = None,
    ) -> None:
        """A worker that reads files inside slots of ``reads``.

        ``packs`` sends small shards, ``objects`` those of the S3 door.
        """
        self._serve = serve
        self._layout = layout
        self._publisher = publisher
        self._uploader = uploader
        self._remote_health = remote_health
        self._store_claim = store_claim
        self._reads = reads
        self._packs = packs
        self._objects = objects
        self._tasks = {
            TaskKind.CLAIM: self._claim,
            TaskKind.UPLOAD: self._upload,
            TaskKind.PACK: self._pack,
            TaskKind.WRITE_PART: self._write_part,
            TaskKind.FOLLOW: self._follow,
            TaskKind.PUBLISH: self._publish,
            TaskKind.DELETE: self._delete,
            TaskKind.SWEEP: self._sweep,
            TaskKind.SEND: self._object,
            TaskKind.SHOW: self._object,
        }

    def perform(self, task: Task) -> None:
        """Do ``task``, or report why not, and hand it back.

        Raises:
            ChannelClosedError: ``serve`` is gone.
        """
        with timed():
            done = self._attempt(task)
        self._serve.finish_task(task.number, done=done)

    def hand_back(self, task: Task) -> None:
        """Return ``task`` untried."""
        self._serve.finish_task(task.number, done=False)

    def _attempt(self, task: Task) -> bool:
        try:
            self._tasks[task.kind](task)
        except NotFoundError:
            return True  # replaced or deleted meanwhile: there is nothing left to do
        except StoppingError:
            return False
        except ChannelClosedError:
            raise
        except Exception as error:
            self._report_failure(task, error)
            return False
        self._remote_health.succeeded()
        return True

    def _report_failure(self, task: Task, error: Exception) -> None:
        code, message = _described(error)
        if code == CachetierError.code:
            ids = {**of(task.claimant), "kind": task.kind, "name": task.name}
            tell(log, events.DRAIN_TASK_BROKEN, **ids, error=error)
        # Recording it may fail as well, when the disk of the catalog does: nothing is lost by that.
        with suppress(NotFoundError, RefusedReportError):
            self._serve.fail_task(task.number, code, message, elapsed())
        # A remote that lets us write but not abort uploads, or delete, is well enough; and what one
        # object or its bucket is refused for says nothing of the others.
        minor = task.kind in _REFUSED_ALONE and isinstance(error, RemoteRefusedError)
        if isinstance(error, RemoteError) and not minor:
            self._remote_health.failed(error)
            if self._remote_health.is_away:
                self._store_claim.forget()

    # --- shards ----------------------------------------------------------------------------------

    def _upload(self, task: Task) -> None:
        try:
            self._send(task)
        except StrayObjectError:
            if self._is_fixed(task):
                key = self._layout.shard_key(task.claimant.run, task.place, task.name)
                what = f"{key} has the attributes that the bucket's documents list, but other bytes"
                raise ConflictError(what) from None
            self._send(task, pack_name(task.rank, task.digest))

    def _send(self, task: Task, pack: str | None = None) -> None:
        """Send a shard to its own key, or as a ``pack`` of one: no other bytes can lie there."""
        identity = self._store_claim.identity()  # this may fail: no file is open yet
        with timed() as watch:
            opened = self._serve.open_shard(task.version)
            target = self._target(task, opened, identity, pack)
            journal = ReportedJournal(self._serve, task.version, opened.upload)

            def ask() -> Offer | None:
                donor = self._serve.find_donor(task.version) if not pack else None
                return Offer.of(*donor, self._layout) if donor is not None else None

            try:
                with opened_source(opened, task.digest, self._reads) as source:
                    stored = self._uploader.upload(target, source, journal, ask)
                if pack is not None:
                    stored = replace(stored, pack=InPack(pack, 0, task.size_bytes, task.digest))
                seconds, phases = watch.seconds, watch.phases()
                self._serve.shard_verified(task.version, stored, seconds, phases)
            except NotFoundError:
                self._uploader.clear_away(target, journal.record.upload_id)
            except DamagedError as error:
                self._serve.shard_damaged(task.version, str(error))

    def _pack(self, task: Task) -> None:
        assert self._packs is not None
        for version, name, size_bytes, digest in self._packs.send(task):
            alone = replace(task, version=version, name=name, size_bytes=size_bytes, digest=digest)
            self._upload(alone)

    def _object(self, task: Task) -> None:
        assert self._objects is not None
        self._objects.perform(task)

    def _target(
        self, task: Task, opened: LocalShard, identity: str, pack: str | None
    ) -> UploadTarget:
        save = task.claimant
        content = Content(task.size_bytes, task.digest, opened.block_digests)
        return UploadTarget(
            self._layout.object_key(save.run, task.place, task.name, pack),
            object_metadata(save.save_id, identity, task.version, content),
            content,
            save.run,
            parsed_mode(task.compression) if pack is None else OFF,
            opened.replaced if pack is None else NOTHING_REPLACED,
            partial(self._is_fixed, task),
            task.facts,
        )

    def _is_fixed(self, task: Task) -> bool:
        """Return whether a document of the save says that other bytes lie at the shard's name."""
        which = task.rank, task.name, task.digest
        return self._publisher.is_fixed(task.claimant, task.place, *which)

    # --- saves -----------------------------------------------------------------------------------

    def _claim(self, task: Task) -> None:
        match self._publisher.claim(task.claimant):
            case Located(location):
                self._serve.save_located(task.save, location)
            case Ended() as ended:
                self._report_end(task, ended)

    def _write_part(self, task: Task) -> None:
        shards = [entry for _, entry in self._entries(task)]
        with self._sending_again(task):
            self._publisher.write_part(task.claimant, task.place, task.rank, shards)
        size_bytes = sum(shard.size_bytes for shard in shards)
        self._serve.part_written(task.save, task.rank, len(shards), size_bytes, elapsed())

    @contextmanager
    def _sending_again(self, task: Task) -> Iterator[None]:
        """Have shards of this node sent again that are not at the remote as they were verified.

        Raises:
            LostShardsError: There are some.
            IntegrityError: Some are of another node, which sends them again when it looks.
        """
        try:
            yield
        except LostShardsError as error:
            versions = {
                (rank, entry.name): version
                for rank in {shard.rank for shard in error.shards}
                for version, entry in self._entries(replace(task, rank=rank))
            }
            here = [versions.get((shard.rank, shard.name)) for shard in error.shards]
            self._serve.shards_lost(tuple(filter(None, here)))
            if None in here:
                other = error.shards[here.index(None)]
                what = f"{task.place}/{other.name} of rank {other.rank}, which another node put,"
                raise IntegrityError(
                    f"{what} differs from its rank's part document, or is missing"
                ) from error
            raise

    def _entries(self, task: Task) -> Iterator[tuple[int, ShardEntry]]:
        """Yield (version, entry) of each shard of a rank's part."""
        after, more = 0, True
        while more:
            page = self._serve.read_part(task.save, task.rank, after)
            for version, name, content, stored, facts in page.shards:
                yield version, ShardEntry.of(name, task.rank, content, stored, facts)
                after = version
            more = page.more

    def _publish(self, task: Task) -> None:
        with self._sending_again(task):
            ended = self._publisher.publish(task.claimant, task.place)
        if isinstance(ended, NotWhole):
            self._serve.save_not_ready(task.save, task.kind, ended.ranks)
        else:
            self._report_end(task, ended)

    def _follow(self, task: Task) -> None:
        match self._publisher.follow(task.claimant, task.place):
            case Ended() as ended:
                self._report_end(task, ended)
            case True:
                self._serve.save_followed(task.save)
            case _:
                self._serve.save_not_ready(task.save, task.kind)

    def _delete(self, task: Task) -> None:
        # Empty at a replica whose objects this node never saw: its manifest says where they are.
        location = task.place or self._publisher.location_of(task.claimant)
        left: tuple[str, ...] = ()
        if location is not None:
            left = self._publisher.delete(task.claimant, location, self._ours(task))
        self._serve.save_removed(task.save, len(left), left[0] if left else None)

    def _sweep(self, task: Task) -> None:
        self._publisher.sweep(task.claimant, task.place, self._ours(task))
        self._serve.save_swept(task.save)

    def _ours(self, task: Task) -> Ours:
        """Return what tells the names of this save's shards here from any others."""

        def ours(names: Sequence[str]) -> set[str]:
            found: set[str] = set()
            for at in range(0, len(names), NAMES_AT_ONCE):
                asked = tuple(names[at : at + NAMES_AT_ONCE])
                found.update(self._serve.names_of_save(task.save, asked))
            return found

        return ours

    def _report_end(self, task: Task, ended: Ended) -> None:
        self._serve.save_ended(task.save, ended.state, ended.message, elapsed())


def _described(error: Exception) -> tuple[str, str]:
    """Return the code and the text of a failure; ``internal`` means a defect of ours."""
    match error:
        case ConflictError():
            return CONFLICT, str(error)
        case IntegrityError():
            return DEADLY if "kills" in error.context else CONFLICT, error.message
        case LostShardsError():
            return "lost", str(error)
        case CachetierError():
            return error.code, error.message
        case RefusedReportError():
            return "refused_report", str(error)
        case OSError():
            return "disk", str(error)
    return CachetierError.code, repr(error)
