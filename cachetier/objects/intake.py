"""Bytes of objects on their way in: room, shares, the file, the commit, as shards have them.

What becomes of puts when only dirty bytes are left is ``when_full``'s to say, but that nothing of a
mount is streamed past the disk: how a mount is written through is its own mode.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TypeVar

from cachetier_client.bucket_format.stored import SHARD_LIMIT_BYTES, Content
from cachetier_client.clock import Clock

from cachetier.errors import InvalidRequestError, ReadOnlyMountError
from cachetier.ingest.admission import Admission
from cachetier.ingest.shares import Shares
from cachetier.local.catalog.objects import NewPiece
from cachetier.local.identity import FileMark
from cachetier.local.store import CommitResult, Record, Staged, Store
from cachetier.model.objects import RECORD_BYTES, Mode, Mount
from cachetier.model.shard import INLINE_BYTES
from cachetier.notifier import Changes
from cachetier.remote.store_clock import StoreClock

Kept = TypeVar("Kept", bound=CommitResult)
Checked = TypeVar("Checked")
Written = TypeVar("Written")


class ObjectIntake:
    """Takes in bytes for mounts, and promises nothing before they are synced. Thread-safe."""

    def __init__(
        self,
        store: Store,
        admission: Admission,
        shares: Shares,
        changes: Changes,
        clock: Clock,
        store_clock: StoreClock | None = None,
    ) -> None:
        """Take in bytes for ``store``; ``store_clock`` is that of the mounts' buckets."""
        self.store = store
        self.store_clock = store_clock or StoreClock()
        self.changes = changes
        self.clock = clock
        self._admission = admission
        self._shares = shares

    def begin(self, mount: Mount, size_bytes: int | None, timeout_seconds: float) -> Staged:
        """Reserve room and create a file, for an object or a part of one.

        Raises:
            ReadOnlyMountError, InvalidRequestError: Refused up front.
            BackpressureError: No room before the deadline; see ``NodeIngest.begin``.
            ShareAwaitedError: See ``Shares``.
        """
        refuse_read_only(mount)
        if size_bytes is not None and not 0 <= size_bytes <= SHARD_LIMIT_BYTES:
            raise InvalidRequestError(
                f"an object has 0 to {SHARD_LIMIT_BYTES} bytes, not {size_bytes}", run=mount.run
            )
        self._admission.refuse_who_has_too_much()

        def stage() -> Staged:
            staged = self._admission.stage(size_bytes, timeout_seconds)
            if staged is None:
                raise self._admission.full(size_bytes or 0)
            return staged

        return self._shares.begin(mount.run, size_bytes, timeout_seconds, stage)

    def extend(self, staged: Staged, total_bytes: int, timeout_seconds: float) -> int:
        extend = partial(self._admission.extend, staged, total_bytes, timeout_seconds)
        return self._shares.extend(staged, total_bytes, timeout_seconds, extend)

    def abort(self, staged: Staged) -> None:
        """Leave nothing behind."""
        self._shares.end(staged, partial(self.store.discard, staged), lambda _nothing: None)

    def commit(
        self,
        mount: Mount,
        bytes_of: Staged | bytes,
        content: Content,
        timeout_seconds: float,
        mark: Callable[[], FileMark],
        record: Record[Kept],
    ) -> Kept:
        """Make bytes safe, and ``record`` what they are; on error nothing is kept.

        Those of a file get a ``mark``. Up to 64 KiB go into the catalog: what comes together shares
        one sync.
        """
        if isinstance(bytes_of, bytes):
            committed = self._commit_body(mount, bytes_of, timeout_seconds, record)
        else:
            self.checked(bytes_of, content.checked)
            put = partial(self.store.commit_file, bytes_of, mark(), content, record)
            committed = self._shares.end(bytes_of, put, lambda _kept: content.size_bytes)
        self.changes.ring()
        return committed

    def checked(self, bytes_of: Staged | bytes, check: Callable[[], Checked]) -> Checked:
        """Return what ``check`` returns; where it refuses, nothing is kept."""
        try:
            return check()
        except BaseException:
            if not isinstance(bytes_of, bytes):
                self.abort(bytes_of)
            raise

    def _commit_body(
        self, mount: Mount, body: bytes, timeout_seconds: float, record: Record[Kept]
    ) -> Kept:
        refuse_read_only(mount)
        size_bytes = len(body)
        if size_bytes > INLINE_BYTES:
            raise InvalidRequestError(f"{size_bytes} bytes are too many for the catalog")

        def begin() -> Callable[[], Kept]:
            put = partial(self.store.commit_body, size_bytes, record)
            finish = self._admission.in_room(size_bytes, timeout_seconds, put)
            if finish is None:
                raise self._admission.full(size_bytes)
            return finish

        return self._shares.begin_inline(
            mount.run, size_bytes, timeout_seconds, begin, lambda _kept: size_bytes
        )()

    def recorded(
        self, mount: Mount, number: int, write: Callable[[], Written], more_bytes: int = 0
    ) -> Written:
        """``write`` so many records that stay until the bucket, or the client, is done with them.

        Raises:
            ShareFullError: A share has no room for them; nothing is written.
        """
        return self._shares.record(mount.run, number, number * RECORD_BYTES + more_bytes, write)

    def write(self, mount: Mount, record: Record[Kept]) -> Kept:
        """Record what brings no bytes."""
        refuse_read_only(mount)
        committed = self.store.write(record, self.clock.now())
        self.store.drop(committed.replaced)
        self.changes.ring()
        return committed


def piece_of(content: Content, bytes_of: Staged | bytes) -> NewPiece:
    """Return what the catalog is told of bytes, its own or a file's."""
    if isinstance(bytes_of, bytes):
        return NewPiece(content, body=bytes_of)
    return NewPiece(content, file_id=bytes_of.file_id)


def refuse_read_only(mount: Mount) -> None:
    if mount.mode is Mode.READ_ONLY:
        raise ReadOnlyMountError(f"the mount {mount.name} is read-only", run=mount.run)
