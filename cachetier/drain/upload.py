"""Bring one shard to the remote and make sure that it is there, whatever lies there already.

Small shards go in one conditional put, larger ones in parts. Nothing is sent that fails its digest
here, nothing is overwritten but an older version from this very store, and nothing counts as sent
before a read-side call has confirmed it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import FIRST_COMPLETED, Executor, Future, wait
from dataclasses import dataclass
from typing import Protocol

from cachetier.drain.buffers import Buffers
from cachetier.drain.source import Source
from cachetier.drain.verified import is_verified
from cachetier.errors import (
    PreconditionFailedError,
    RemoteDigestError,
    StoppingError,
    UploadGoneError,
)
from cachetier.model.uploads import (
    SAVE_KEY,
    SINGLE_PUT_BYTES,
    STORE_KEY,
    VERSION_KEY,
    Existing,
    PartRange,
    judge_existing,
    part_bytes_for,
    part_ranges,
)
from cachetier.remote.base import (
    IF_ABSENT,
    Condition,
    Metadata,
    ObjectInfo,
    ObjectStore,
    UploadedPart,
    if_match,
)

ROUNDS = 3
PARTS_AT_ONCE = 8


class ConflictError(Exception):
    """An object lies under our key that we may not overwrite."""


@dataclass(frozen=True, slots=True)
class Target:
    """What is to lie where."""

    key: str
    metadata: Metadata
    size_bytes: int
    digest: int

    def wrote(self, info: ObjectInfo) -> bool:
        """Return whether ``info`` is an object that this very shard's upload wrote."""
        names = (SAVE_KEY, STORE_KEY, VERSION_KEY)
        return all(info.metadata.get(name) == self.metadata[name] for name in names)


class Progress(Protocol):
    """Where a multipart upload is remembered, synced.

    Any of them may raise NotFoundError: the shard was replaced or deleted.
    """

    @property
    def upload_id(self) -> str | None:
        """The upload begun before, if any."""

    @property
    def part_bytes(self) -> int | None:
        """The size of its parts."""

    def parts(self) -> list[UploadedPart]:
        """Return its parts that were finished."""

    def begun(self, upload_id: str, part_bytes: int) -> None:
        """Remember a new upload."""

    def part_done(self, part: UploadedPart) -> None:
        """Remember a finished part, soon; called by many threads."""

    def flush(self) -> None:
        """Remember the finished parts now."""

    def gone(self) -> None:
        """Forget the upload."""


class Uploader:
    """Uploads shards to one store. Thread-safe."""

    def __init__(
        self,
        store: ObjectStore,
        buffers: Buffers,
        parts: Executor,
        *,
        stopping: Callable[[], bool] = lambda: False,
    ) -> None:
        """Make one; ``parts`` runs the parts of all its uploads."""
        self._store = store
        self._buffers = buffers
        self._parts = parts
        self._stopping = stopping

    def upload(self, target: Target, source: Source, progress: Progress) -> None:
        """Return once the shard is verified at the remote.

        Raises:
            DamagedError: The local bytes are not what was committed; none of the damage was sent.
            ConflictError: Something else lies there; it was left alone.
            NotFoundError: The shard was replaced or deleted: ``clear_away`` is next.
            StoppingError: The drain stops; a multipart upload can go on later.
            RemoteError: Try again later.
        """
        if target.size_bytes <= SINGLE_PUT_BYTES:
            self.put(target, source)
        else:
            self._send(target, source, progress)

    def complete_streamed(
        self, target: Target, upload_id: str, parts: Sequence[UploadedPart]
    ) -> None:
        """Finish an upload whose digest nobody knew when it began; return once it is verified.

        Raises:
            ConflictError: Something else lies there; it was left alone.
            RemoteDigestError: The object is not what it should be.
        """
        self.overwrites(target)
        try:
            self._store.complete_upload(target.key, upload_id, parts, digest=target.digest)
        except UploadGoneError:
            pass  # perhaps completed by a call whose reply was lost
        info = self._store.head(target.key)
        if info is None or not target.wrote(info) or not self.is_verified(target, info):
            raise RemoteDigestError(f"{target.key} does not keep what was sent", key=target.key)

    def clear_away(self, target: Target, upload_id: str | None) -> None:
        """Remove what was sent of a shard that is not wanted any more."""
        if upload_id is not None:
            self._store.abort_upload(target.key, upload_id)
        info = self._store.head(target.key)
        if info is not None and target.wrote(info):
            self._store.delete(target.key)

    # --- what lies there -------------------------------------------------------------------------

    def overwrites(self, target: Target) -> Condition | None:
        """Return under which condition to write ``target``, or None if it is there, verified.

        Raises:
            ConflictError: It may not be written.
        """
        info = self._store.head(target.key)
        if info is None:
            return IF_ABSENT
        verdict = judge_existing(info.metadata, info.size_bytes, target.metadata, target.size_bytes)
        if verdict is Existing.FOREIGN:
            raise ConflictError(f"{target.key} holds an object that is not of this save")
        if verdict is Existing.NEWER:
            raise ConflictError(f"{target.key} holds a newer version of this shard")
        if verdict is Existing.OURS and self.is_verified(target, info):
            return None
        return if_match(info.etag)

    def is_verified(self, target: Target, info: ObjectInfo) -> bool:
        """Return whether ``info`` describes exactly the bytes of ``target``."""
        return is_verified(self._store, info, target.size_bytes, target.digest, self._buffers.lend)

    # --- in one put ------------------------------------------------------------------------------

    def put(self, target: Target, source: Source) -> None:
        """Return once a shard of at most one part is verified; raises as ``upload`` does."""
        condition: Condition | None = IF_ABSENT
        for _ in range(ROUNDS):
            if condition is None:
                return
            try:
                self._put_once(target, source, condition)
            except (PreconditionFailedError, RemoteDigestError):
                pass  # perhaps our own success whose reply was lost; else the next round mends it
            condition = self.overwrites(target)
        if condition is not None:
            raise RemoteDigestError(f"{target.key} does not keep what was sent", key=target.key)

    def _put_once(self, target: Target, source: Source, condition: Condition) -> None:
        whole = PartRange(1, 0, target.size_bytes)
        with self._buffers.lend(target.size_bytes) as buffer:
            view, digest = source.read(whole, buffer)
            self._store.put(
                target.key, view, digest=digest, metadata=target.metadata, condition=condition
            )

    # --- in parts --------------------------------------------------------------------------------

    def _send(self, target: Target, source: Source, progress: Progress) -> None:
        if self._is_there_already(target, progress):
            return
        for _ in range(ROUNDS):
            upload_id, part_bytes, done = self._resume(target, progress) or self._begin(
                target, progress
            )
            try:
                parts = self._send_missing(target, source, progress, upload_id, part_bytes, done)
            except UploadGoneError:
                progress.gone()
                continue
            if self._complete(target, upload_id, parts):
                return
            progress.gone()
        raise RemoteDigestError(f"{target.key} does not keep what was sent", key=target.key)

    def _is_there_already(self, target: Target, progress: Progress) -> bool:
        """Look before any byte is sent: no condition protects a multipart upload."""
        if self.overwrites(target) is not None:
            return False
        if progress.upload_id is not None:
            self._store.abort_upload(target.key, progress.upload_id)
        return True

    def _resume(
        self, target: Target, progress: Progress
    ) -> tuple[str, int, list[UploadedPart]] | None:
        """Return the upload begun before with the parts the store really has, if it is there."""
        upload_id, part_bytes = progress.upload_id, progress.part_bytes
        if upload_id is None or part_bytes is None:
            return None
        try:
            listed = self._store.list_parts(target.key, upload_id)
        except UploadGoneError:
            progress.gone()
            return None
        done = [part for part in progress.parts() if _is_listed(part, listed)]
        return upload_id, part_bytes, done

    def _begin(self, target: Target, progress: Progress) -> tuple[str, int, list[UploadedPart]]:
        part_bytes = part_bytes_for(target.size_bytes)
        upload_id = self._store.create_upload(target.key, target.metadata)
        try:
            progress.begun(upload_id, part_bytes)
        except BaseException:
            self._store.abort_upload(target.key, upload_id)
            raise
        return upload_id, part_bytes, []

    def _send_missing(
        self,
        target: Target,
        source: Source,
        progress: Progress,
        upload_id: str,
        part_bytes: int,
        done: Sequence[UploadedPart],
    ) -> list[UploadedPart]:
        finished = {part.number for part in done}

        def send(part: PartRange) -> UploadedPart:
            sent = self._send_part(target, upload_id, source, part)
            progress.part_done(sent)
            return sent

        ranges = part_ranges(target.size_bytes, part_bytes)
        missing = (part for part in ranges if part.number not in finished)
        try:
            return [*done, *self._in_parallel(send, missing)]
        finally:
            progress.flush()

    def _in_parallel(
        self, send: Callable[[PartRange], UploadedPart], parts: Iterable[PartRange]
    ) -> list[UploadedPart]:
        """Send ``parts``, some at once; after the first error the others end, and it is raised."""
        running: set[Future[UploadedPart]] = set()
        ended: list[Future[UploadedPart]] = []
        try:
            for part in parts:
                if self._stopping():
                    raise StoppingError("the drain stops")
                running.add(self._parts.submit(send, part))
                if len(running) >= PARTS_AT_ONCE:
                    now, running = wait(running, return_when=FIRST_COMPLETED)
                    ended += now
                    if any(future.exception() is not None for future in now):
                        break
        finally:
            ended += wait(running).done
        return [future.result() for future in ended]

    def _send_part(
        self, target: Target, upload_id: str, source: Source, part: PartRange
    ) -> UploadedPart:
        rounds = ROUNDS
        while True:
            rounds -= 1
            with self._buffers.lend(part.size_bytes) as buffer:
                view, digest = source.read(part, buffer)
                try:
                    return self._store.upload_part(
                        target.key, upload_id, part.number, view, digest=digest
                    )
                except RemoteDigestError:
                    if not rounds:
                        raise  # the bytes are sound here, as the next read would have told

    def _complete(self, target: Target, upload_id: str, parts: list[UploadedPart]) -> bool:
        """Make the parts an object; return whether it is there, verified."""
        if self.overwrites(target) is None:
            self._store.abort_upload(target.key, upload_id)
            return True
        try:
            self._store.complete_upload(target.key, upload_id, parts, digest=target.digest)
        except UploadGoneError:
            pass  # perhaps completed by a call whose reply was lost
        except RemoteDigestError:
            self._store.abort_upload(target.key, upload_id)
        return self.overwrites(target) is None


def _is_listed(part: UploadedPart, listed: dict[int, tuple[str, int]]) -> bool:
    etag, size_bytes = listed.get(part.number, ("", -1))
    return etag.strip('"') == part.etag.strip('"') and size_bytes == part.size_bytes
