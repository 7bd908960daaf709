"""The worker's part for objects of the S3 door: send their parts ahead, show and delete them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import lru_cache

from cachetier_client.bucket_format.stored import Codec
from cachetier_client.s3_errors import is_about_one_object

from cachetier.drain import messages
from cachetier.drain.channel import AskingEnd
from cachetier.drain.messages import LocalShard
from cachetier.drain.priority.gates import ComputeSlots
from cachetier.drain.schedule.tasks import Task, TaskKind
from cachetier.drain.upload.objects import ObjectTarget, ObjectUpload, PieceToSend, delete_object
from cachetier.drain.upload.part_sender import UploadContext
from cachetier.drain.upload.reported_progress import ReportedProgress
from cachetier.drain.upload.source import DamagedError, ShardSource, opened_source
from cachetier.drain.upload.stopwatch import TimedObjectStore, timed
from cachetier.drain.upload.target import ConflictError
from cachetier.errors import NotFoundError, RemoteError
from cachetier.remote.base import ObjectStore

OpenStore = Callable[[str], ObjectStore]


class ObjectWorker:
    """Performs SEND and SHOW, on any number of threads."""

    def __init__(
        self,
        channel: AskingEnd,
        open_store: OpenStore,
        context: UploadContext,
        reads: ComputeSlots | None = None,
    ) -> None:
        """A worker that reaches a bucket by ``open_store``, at the first object of it."""
        self._channel = channel
        self._context = context
        self._reads = reads
        self._store = lru_cache(maxsize=None)(open_store)

    def perform(self, task: Task) -> None:
        """Do ``task``, and report what became of it; raises as ``ObjectUpload.show``."""
        with timed() as watch:
            opened = self._channel.ask(messages.OpenObject(task.version))
            context = replace(self._context, store=TimedObjectStore(self._store(task.bucket)))
            try:
                etag = self._sent(task, opened, context)
            except ConflictError as error:
                self._channel.ask(messages.ObjectConflict(task.version, str(error)))
                return
            except RemoteError as error:
                if not _refuses_for_good(error):
                    raise
                what = messages.ObjectConflict(task.version, error.message, refused=True)
                self._channel.ask(what)
                return
            if task.kind is TaskKind.SHOW:
                seconds, phases = watch.seconds, watch.phases()
                self._channel.ask(messages.ObjectShown(task.version, etag, seconds, phases))

    def _sent(self, task: Task, opened: messages.LocalObject, context: UploadContext) -> str:
        """Return the ETag of the object that is visible now; empty where none is."""
        target = ObjectTarget(
            task.name,
            opened.etag,
            task.size_bytes,
            task.digest,
            opened.headers,
            opened.metadata,
            opened.base,
        )

        def remember(base: str) -> None:
            self._channel.ask(messages.ObjectLookedAt(task.version, base))

        if opened.deleted:
            delete_object(context, target, remember)
            return ""
        pieces = [PieceToSend(each.version, each.size_bytes, each.digest) for each in opened.pieces]
        begun = opened.upload_id, opened.part_bytes, Codec.RAW, 0
        progress = ReportedProgress(
            self._channel, pieces[0].version, LocalShard(None, (), None, *begun)
        )
        upload = ObjectUpload(context, target, pieces, self._opened_piece, progress, remember)
        if task.kind is TaskKind.SHOW:
            return upload.show()
        upload.send_ahead()
        return ""

    @contextmanager
    def _opened_piece(self, piece: PieceToSend) -> Iterator[ShardSource]:
        """Yield the bytes of a piece; what is damaged is reported, and the object goes no further.

        Raises:
            NotFoundError: It is damaged, or gone.
        """
        opened = self._channel.ask(messages.OpenShard(piece.version))
        try:
            with opened_source(opened, piece.digest, self._reads) as source:
                yield source
        except DamagedError as error:
            self._channel.ask(messages.ShardDamaged(piece.version, str(error)))
            raise NotFoundError(f"piece {piece.version} is damaged") from error


def _refuses_for_good(error: RemoteError) -> bool:
    """Return whether a bucket refuses this very object: only a person can mend that."""
    code, status = error.context.get("remote_code"), error.context.get("remote_status")
    return is_about_one_object(code or "", status or 0)
