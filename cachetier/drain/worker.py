"""Do one task and report how it went; what fails is handed out again, for ever."""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Iterator
from contextlib import closing, suppress

from cachetier_client import digests

from cachetier.drain.channel import AskingEnd, ChannelClosedError, RefusedReportError
from cachetier.drain.circuit import Circuit
from cachetier.drain.publisher import Ended, Located, LostShardsError, Publisher
from cachetier.drain.source import DamagedError, FileSource, InlineSource
from cachetier.drain.upload import ConflictError, Target, Uploader
from cachetier.drain.work import CONFLICT, Kind, Task
from cachetier.errors import (
    CachetierError,
    IntegrityError,
    NotFoundError,
    RemoteError,
    StoppingError,
)
from cachetier.model.documents import ShardEntry
from cachetier.model.layout import Layout
from cachetier.model.shard import Content
from cachetier.model.uploads import object_metadata
from cachetier.remote.base import UploadedPart

log = logging.getLogger(__name__)

PARTS_AT_ONCE = 8
FLUSH_SECONDS = 2.0


class Worker:
    """Performs tasks, on any number of threads."""

    def __init__(
        self,
        channel: AskingEnd,
        layout: Layout,
        publisher: Publisher,
        uploader: Uploader,
        circuit: Circuit,
        store_id: str,
    ) -> None:
        self._channel = channel
        self._layout = layout
        self._publisher = publisher
        self._uploader = uploader
        self._circuit = circuit
        self._store_id = store_id
        self._tasks = {
            Kind.CLAIM: self._claim,
            Kind.UPLOAD: self._upload,
            Kind.WRITE_PART: self._write_part,
            Kind.PUBLISH: self._publish,
            Kind.DELETE: self._delete,
        }

    def perform(self, task: Task) -> None:
        """Do ``task``, or report why not, and hand it back.

        Raises:
            ChannelClosedError: ``serve`` is gone.
        """
        done = self._attempt(task)
        self._channel.ask("finish", task=task.number, done=done)

    def hand_back(self, task: Task) -> None:
        """Return ``task`` untried."""
        self._channel.ask("finish", task=task.number, done=False)

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
        self._circuit.succeeded()
        return True

    def _report_failure(self, task: Task, error: Exception) -> None:
        code, message = _described(error)
        if code == CachetierError.code:
            log.error("task %s failed", task, exc_info=error)
        # Recording it may fail as well, when the disk of the catalog does: nothing is lost by that.
        with suppress(NotFoundError, RefusedReportError):
            self._channel.ask("failed", task=task.number, code=code, message=message)
        if isinstance(error, RemoteError):
            self._circuit.failed(error)

    # --- shards ----------------------------------------------------------------------------------

    def _upload(self, task: Task) -> None:
        began_at = time.monotonic()
        opened = self._channel.ask("open", version=task.version)
        target = self._target(task)
        progress = _Reported(self._channel, task.version, opened.fields)
        try:
            if opened.descriptor is None:
                source = InlineSource(opened.body, task.digest)
                self._uploader.upload(target, source, progress)
            else:
                blocks = digests.unpack(opened.body)
                with closing(FileSource(opened.descriptor, blocks)) as file:
                    self._uploader.upload(target, file, progress)
            seconds = time.monotonic() - began_at
            self._channel.ask("verified", version=task.version, seconds=seconds)
        except NotFoundError:
            self._uploader.clear_away(target, progress.upload_id)
        except DamagedError as error:
            self._channel.ask("damaged", version=task.version, message=str(error))

    def _target(self, task: Task) -> Target:
        save = task.claimant
        content = Content(task.size_bytes, task.digest, ())
        return Target(
            self._layout.shard_key(save.run, _location(task), task.name),
            object_metadata(save.save_id, self._store_id, task.version, content),
            task.size_bytes,
            task.digest,
        )

    # --- saves -----------------------------------------------------------------------------------

    def _claim(self, task: Task) -> None:
        match self._publisher.claim(task.claimant):
            case Located(location):
                self._channel.ask("located", save=task.save, location=location)
            case Ended() as ended:
                self._report_end(task, ended)

    def _write_part(self, task: Task) -> None:
        versions: dict[str, int] = {}
        entries: list[ShardEntry] = []
        for version, entry in self._entries(task):
            versions[entry.name] = version
            entries.append(entry)
        try:
            self._publisher.write_part(task.claimant, _location(task), task.rank, entries)
        except LostShardsError as error:
            for name in error.names:
                message = f"{_location(task)}/{name} is not in the bucket as it was verified"
                self._channel.ask("lost", version=versions[name], message=message)
            raise
        self._channel.ask("part_written", save=task.save, rank=task.rank)

    def _entries(self, task: Task) -> Iterator[tuple[int, ShardEntry]]:
        """Yield (version, entry) of each shard of the rank's part, page by page."""
        after, more = 0, True
        while more:
            page = self._channel.ask("entries", save=task.save, rank=task.rank, after=after)
            for version, name, size_bytes, digest, blocks in json.loads(page.body):
                content = Content(size_bytes, digest, digests.unpack(bytes.fromhex(blocks)))
                yield version, ShardEntry.of(name, task.rank, content)
                after = version
            more = page.fields["more"]

    def _publish(self, task: Task) -> None:
        ended = self._publisher.publish(task.claimant, _location(task))
        if ended is None:
            self._channel.ask("not_yet", save=task.save)
        else:
            self._report_end(task, ended)

    def _delete(self, task: Task) -> None:
        self._publisher.delete(task.claimant, _location(task))
        self._channel.ask("removed", save=task.save)

    def _report_end(self, task: Task, ended: Ended) -> None:
        self._channel.ask("ended", save=task.save, state=ended.state, message=ended.message)


class _Reported:
    """The progress of one upload, remembered by ``serve``.

    Finished parts are reported in bundles: each report costs a sync, and what a crash forgets is
    only sent again.
    """

    def __init__(self, channel: AskingEnd, version: int, opened: dict[str, object]) -> None:
        self._channel = channel
        self._version = version
        upload_id, part_bytes = opened["upload_id"], opened["part_bytes"]
        self.upload_id = str(upload_id) if upload_id is not None else None
        self.part_bytes = part_bytes if isinstance(part_bytes, int) else None
        self._lock = threading.Lock()
        self._finished: list[UploadedPart] = []
        self._flush_at = 0.0

    def parts(self) -> list[UploadedPart]:
        reply = self._channel.ask("parts", version=self._version)
        return [UploadedPart(*part) for part in json.loads(reply.body)]

    def begun(self, upload_id: str, part_bytes: int) -> None:
        self._channel.ask(
            "upload_begun", version=self._version, upload_id=upload_id, part_bytes=part_bytes
        )
        self.upload_id, self.part_bytes = upload_id, part_bytes

    def part_done(self, part: UploadedPart) -> None:
        with self._lock:
            self._finished.append(part)
            due = len(self._finished) >= PARTS_AT_ONCE or time.monotonic() >= self._flush_at
        if due:
            self.flush()

    def flush(self) -> None:
        with self._lock:
            finished, self._finished = self._finished, []
            self._flush_at = time.monotonic() + FLUSH_SECONDS
        if finished:
            parts = [(part.number, part.etag, part.size_bytes, part.digest) for part in finished]
            self._channel.ask("parts_done", version=self._version, parts=parts)

    def gone(self) -> None:
        self.upload_id = self.part_bytes = None
        self._channel.ask("upload_gone", version=self._version)


def _location(task: Task) -> str:
    assert task.location is not None  # serve claims before anything else
    return task.location


def _described(error: Exception) -> tuple[str, str]:
    """Return the code and the text of a failure; ``internal`` means a defect of ours."""
    match error:
        case ConflictError() | IntegrityError():
            return CONFLICT, str(error)
        case LostShardsError():
            return "lost", str(error)
        case CachetierError():
            return error.code, error.message
        case RefusedReportError():
            return "refused_report", str(error)
        case OSError():
            return "disk", str(error)
    return CachetierError.code, repr(error)
