"""The local store: data files and the catalog, kept in step.

The order of a commit is the promise: the file is closed to writers and synced, its name is synced,
and only then does the catalog's transaction make the shard exist. Removal goes the other way round:
the row first, then the file. A crash between two steps leaves a file without a row, which start-up
clears away; never a row without its file.
"""

from __future__ import annotations

import errno
import logging
import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Concatenate, ParamSpec, Protocol, TypeVar

import apsw
from cachetier_client.bucket_format.stored import NO_FACTS, Content, ShardFacts
from cachetier_client.clock import Clock
from cachetier_client.identity.names import SaveIds

from cachetier.errors import (
    BackpressureError,
    CachetierError,
    CatalogDamagedError,
    DiskFullError,
    FencedError,
    SizeMismatchError,
    StagedIOError,
    machine_failure,
)
from cachetier.local.catalog import connection, copies, parts, shards
from cachetier.local.catalog.committer import Committer
from cachetier.local.catalog.parts import Committed
from cachetier.local.catalog.rows import NewShard
from cachetier.local.files.data_files import FULL, Files
from cachetier.local.files.space import Space
from cachetier.local.identity import FileMark, shard_mark
from cachetier.local.local_copy import LocalCopy
from cachetier.local.open_files import OpenFile, OpenFiles
from cachetier.model.policy import DRAIN_ALL, Policy
from cachetier.model.shard import Shard, in_memory
from cachetier.telemetry import events
from cachetier.telemetry.events import tell

log = logging.getLogger(__name__)

DISK_IS_FULL = "the disk under cache_dir is full, below its `capacity`"
READ_ONLY = "the filesystem of cache_dir is read-only"

OnDiskError = Callable[[str], None]
Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


@dataclass(slots=True)
class Staged:
    """A file being written.

    ``writer`` goes to the rank; ``file`` stays, to check and sync with. ``refused_by_disk`` returns
    the error of a put whose bytes the disk does not take. ``begun_at``: when it began, by the
    monotonic clock.
    """

    file: OpenFile
    writer: int | None
    refused_by_disk: Callable[[OSError], CachetierError]
    begun_at: float = 0.0

    @property
    def file_id(self) -> str:
        return self.file.file_id

    @property
    def reserved_bytes(self) -> int:
        return self.file.reserved_bytes

    def close_writer(self) -> None:
        if self.writer is not None:
            os.close(self.writer)
            self.writer = None


class CommitResult(Protocol):
    """The result of a commit of new bytes: see ``parts.Committed``."""

    @property
    def replaced(self) -> Sequence[Shard]:
        """The shards whose bytes nobody needs any more."""

    @property
    def repeated(self) -> bool:
        """Whether the same bytes were here before; the new ones go."""


Kept = TypeVar("Kept", bound=CommitResult)
Record = Callable[[apsw.Connection, float], Kept]  # takes the time too


class Store:
    """Commits, reads and removes shards on this node. Thread-safe.

    The first of ``readers`` is for ``read``, the other for ``look``. ``on_disk_error`` hears which
    operation of the disk failed: a ``write`` or a ``sync``.
    """

    def __init__(
        self,
        store_id: str,
        files: Files,
        committer: Committer,
        readers: tuple[apsw.Connection, apsw.Connection],
        space: Space,
        clock: Clock,
        policy: Policy = DRAIN_ALL,
        on_disk_error: OnDiskError = lambda _operation: None,
    ) -> None:
        self.store_id = store_id
        self.space = space
        self.files = files
        self.memory = Space(0)
        # Versions of shards in memory, oldest first: those to be copied to the disk, and those that
        # stay while there is room.
        self.in_memory: deque[int] = deque()
        self.kept_in_memory: deque[int] = deque()
        self.open_files = OpenFiles(files, self.space_of, clock, self._remove)
        self.policy = policy
        self.reserve = committer.reserve
        self._committer = committer
        self._reader, self._looker = readers
        self._reader_lock = threading.Lock()
        self._looker_lock = threading.Lock()
        self._clock = clock
        self._on_disk_error = on_disk_error

    @property
    def fenced(self) -> str | None:
        """Why no more writes are taken, or None."""
        return self._committer.fenced

    def read(
        self,
        query: Callable[Concatenate[apsw.Connection, Arguments], Result],
        *args: Arguments.args,
        **kwargs: Arguments.kwargs,
    ) -> Result:
        """Run ``query`` with ``args`` on the reading connection.

        Raises:
            CatalogDamagedError: The disk does not give back what was written.
            StagedIOError, ExhaustedError: It gives nothing back at all, or no file can be opened.
        """
        with self._reader_lock:
            try:
                return query(self._reader, *args, **kwargs)
            except connection.UNREADABLE as error:
                raise _unreadable(error, self._reader) from error

    def look(
        self,
        query: Callable[Concatenate[apsw.Connection, Arguments], Result],
        *args: Arguments.args,
        **kwargs: Arguments.kwargs,
    ) -> Result:
        """Do as ``read`` on a connection of its own: no reader waits for a look that takes long."""
        with self._looker_lock:
            try:
                return query(self._looker, *args, **kwargs)
            except connection.UNREADABLE as error:
                raise _unreadable(error, self._looker) from error

    def write(
        self,
        operation: Callable[Concatenate[apsw.Connection, Arguments], Result],
        *args: Arguments.args,
        **kwargs: Arguments.kwargs,
    ) -> Result:
        """Run ``operation`` with ``args`` in a transaction of the catalog.

        Those that arrive together share one; when this returns, it is synced.

        Raises:
            FencedError: A sync failed, now or before.
        """
        return self._committer.run(operation, *args, **kwargs)

    def configure_replicas(self, replicas: Mapping[str, bool]) -> None:
        """Take ``replicas`` for those of the settings; nothing is written if they are already."""
        if self.read(shards.configured_replicas) != dict(replicas):
            self.write(copies.configure_replicas, replicas)

    # --- room ------------------------------------------------------------------------------------

    def space_of(self, file_id: str) -> Space:
        """Return where the bytes of a data file are counted."""
        return self.memory if in_memory(file_id) else self.space

    def in_room(
        self,
        size_bytes: int,
        timeout_seconds: float,
        make_room: Callable[[], None],
        put: Callable[[], Result],
    ) -> Result | None:
        """Reserve ``size_bytes`` and run ``put``, which gives them back if it fails.

        A disk that has less room than the capacity is made room on first, like a full cache.

        Returns:
            What ``put`` returned; None when there was no room in time.
        """
        ends_at = self._clock.monotonic() + timeout_seconds
        if self.space.disk_is_full:
            self.look_at_disk()
        while True:
            left = max(0.0, ends_at - self._clock.monotonic())
            if not self.space.reserve(size_bytes, left, make_room):
                return None
            with suppress(DiskFullError):
                return put()

    def bring_to_disk(self) -> None:
        """Have everything that may stay in memory copied, too: somebody waits for it."""
        self.in_memory.extend(self.kept_in_memory.copy())

    def look_at_disk(self) -> None:
        """Fill the catalog's reserve up, then learn whether a disk that was full has room now."""
        if self.reserve is not None:
            self.reserve.fill()
        if (free_bytes := self.files.free_bytes()) == 0 or self.space.disk_is_full:
            self.space.look(free_bytes)

    def takes_records(self) -> bool:
        """Return whether the catalog has room for what puts add to it: its reserve is not low."""
        return self.reserve is None or not self.reserve.is_low or self.reserve.fill()

    # --- writing ---------------------------------------------------------------------------------

    def stage(self, size_bytes: int) -> Staged:
        """Create a file for ``size_bytes`` that the caller has reserved in ``space``.

        Without the file they are given back.

        Raises:
            FencedError: The disk failed a sync before, or is read-only.
            DiskFullError: The disk is full; see ``in_room``.
            BackpressureError: The disk refuses.
        """
        try:
            return self._created(size_bytes)
        except OSError as error:
            raise self._not_allocated(size_bytes, error) from error
        except BaseException:
            self.space.release(size_bytes)
            raise

    def stage_in_memory(self, size_bytes: int) -> Staged | None:
        """Create a file for ``size_bytes`` in memory; return None if there is no room for it there.

        Raises:
            FencedError: The disk failed a sync before, or is read-only.
        """
        if not self.memory.try_reserve(size_bytes):
            return None
        staged = None
        try:
            with suppress(OSError):  # others fill the tmpfs, or took the folder away
                staged = self._created(size_bytes, memory=True)
        finally:
            if staged is None:
                self.memory.release(size_bytes)
        return staged

    def _created(self, size_bytes: int, *, memory: bool = False) -> Staged:
        self._refuse_if_fenced()
        file_id, writer = self.files.create(size_bytes, memory=memory)
        try:
            return Staged(self._measured(file_id, size_bytes), writer, self.refused_by_disk)
        except BaseException:
            os.close(writer)
            self.files.remove(file_id)
            raise

    def _measured(self, file_id: str, size_bytes: int) -> OpenFile:
        reader = self.files.open(file_id)
        try:
            return self.open_files.written(file_id, reader, size_bytes)
        except BaseException:
            os.close(reader)
            raise

    def extend(self, staged: Staged, size_bytes: int) -> int:
        """Make room on the disk for ``size_bytes`` in all, and return them.

        The caller has reserved the difference; it is given back if this fails.

        Raises:
            SizeMismatchError: More than was reserved is written already; the put is refused.
            DiskFullError: The disk is full; see ``in_room``.
            FencedError, BackpressureError: The disk is read-only, or refuses.
        """
        reserved_bytes = staged.reserved_bytes
        if not self.open_files.grow(staged.file, size_bytes):
            self.space.release(size_bytes - reserved_bytes)
            raise _overrun(staged)
        try:
            self.files.preallocate(staged.file_id, size_bytes)
        except OSError as error:
            if not self.open_files.grow(staged.file, reserved_bytes):
                raise _overrun(staged) from error
            raise self._not_allocated(size_bytes - reserved_bytes, error) from error
        return size_bytes

    def commit(
        self,
        staged: Staged,
        ids: SaveIds,
        name: str,
        content: Content,
        facts: ShardFacts = NO_FACTS,
    ) -> Committed:
        """Make a staged shard safe on this node; raises as ``commit_file``."""
        new = NewShard(name, ids.rank, content, file_id=staged.file_id, facts=facts)
        mark = shard_mark(self.store_id, ids, new, ids.world_size)
        committed = self.commit_file(
            staged,
            mark,
            content,
            lambda sql, now: parts.commit_shard(sql, self.policy, ids, new, now),
        )
        if in_memory(staged.file_id):
            kept = self.policy.keeps_in_memory(ids.step)
            (self.kept_in_memory if kept else self.in_memory).append(committed.shard.version)
        return committed

    def commit_file(
        self, staged: Staged, mark: FileMark, content: Content, record: Record[Kept]
    ) -> Kept:
        """Make a staged file safe on this node, and ``record`` whose it is; on error keep nothing.

        Raises:
            SizeMismatchError, OpenForWritingError: The file is not what was declared, or reserved.
            StagedIOError: The file has been removed from the directory by another hand.
            FencedError: A sync failed. Nothing is acknowledged by this store any more.
        """
        try:
            self._refuse_if_fenced()
            self._sync(staged, mark, content)
            committed = self.write(record, self._clock.now())
        except BaseException:
            self.discard(staged)
            raise
        if committed.repeated:
            self.discard(staged)
        else:
            self._keep(staged, content)
        self.drop(committed.replaced)
        return committed

    def commit_inline(
        self,
        ids: SaveIds,
        name: str,
        content: Content,
        body: bytes,
        facts: ShardFacts = NO_FACTS,
    ) -> Callable[[], Committed]:
        """Begin to make a small shard safe inside the catalog; see ``commit_body``."""
        new = NewShard(name, ids.rank, content, body=body, facts=facts)
        return self.commit_body(
            content.size_bytes,
            lambda sql, now: parts.commit_shard(sql, self.policy, ids, new, now),
        )

    def commit_body(self, size_bytes: int, record: Record[Kept]) -> Callable[[], Kept]:
        """Begin to ``record`` bytes inside the catalog; the caller has reserved their size.

        They are safe once what is returned has returned: those that were begun together share a
        sync.

        Raises:
            DiskFullError: What is left of the catalog's reserve is not for puts; see ``in_room``.
        """
        if not self.takes_records():
            self.space.refuse(size_bytes, 0)
            raise DiskFullError(DISK_IS_FULL)
        pending = self._committer.submit(record, self._clock.now())

        def outcome() -> Kept:
            try:
                committed = self._committer.outcome(pending)
            except BaseException:
                self.space.release(size_bytes)
                raise
            if committed.repeated:
                self.space.release(size_bytes)
            self.drop(committed.replaced)
            return committed

        return outcome

    def mark(self, file_id: str, mark: FileMark) -> None:
        """Mark a committed file again, and sync that.

        Raises:
            FencedError: The sync failed.
            BackpressureError: The disk has no room for it.
        """
        descriptor = self.files.open(file_id)
        try:
            self.files.seal(descriptor, mark.identity)
        except FencedError as error:
            self._on_disk_error("sync")
            self.fence(error.message)
            raise
        except OSError as error:
            raise self.refused_by_disk(error) from error
        finally:
            os.close(descriptor)

    def restored(
        self,
        staged: Staged,
        shard: Shard,
        attach: Callable[[apsw.Connection, int, str], Shard] = shards.attach,
    ) -> None:
        """Give a shard the staged file that now holds its bytes again; damaged ones go.

        ``attach`` records it, and returns the shard as it was.

        Raises:
            DiskFullError: The disk has no room to mark it; see ``in_room``.
        """
        of_any_world = 0  # how many ranks there are is not known here
        try:
            mark = shard_mark(self.store_id, shard, shard, of_any_world)
            self._sync(staged, mark, shard.content)
            before = self.write(attach, shard.version, staged.file_id)
        except BaseException:
            self.discard(staged)
            raise
        self._keep(staged, shard.content)
        self.drop([before])

    def hand_out(self, staged: Staged, shard: Shard) -> None:
        """Let readers alone have the staged file with a shard's bytes; nothing of it is kept.

        It has no name from now on, and goes with the last of them; see ``local_copy``.
        """
        staged.close_writer()
        if not self.open_files.take_back(staged.file):
            raise _overrun(staged)
        if self._remove(staged.file_id):
            size_bytes = shard.content.size_bytes
            file_id, descriptor = staged.file_id, staged.file.descriptor
            self.open_files.hold(file_id, descriptor, size_bytes, shard.version)
        else:  # its bytes are still there, and still counted
            os.close(staged.file.descriptor)

    def discard(self, staged: Staged) -> None:
        """Forget a staged file and give its room back.

        Once fenced, the file stays for the next start-up to judge: its row may have been committed.
        """
        staged.close_writer()
        if not self.open_files.take_back(staged.file):
            return  # its bytes are counted until no writer is left
        if self.fenced is None and self._remove(staged.file_id):
            self.open_files.dismiss(staged.file)
        else:  # its bytes are still there, and still counted
            os.close(staged.file.descriptor)

    # --- reading and removing --------------------------------------------------------------------

    def local_copy(self, shard: Shard) -> LocalCopy | None:
        """Return the local bytes of ``shard``, kept or handed out; None when it has none here.

        Raises:
            FileNotFoundError: The file was removed meanwhile, or is lost: look the shard up again.
        """
        if shard.inline:
            body = self.read(shards.body_of, shard.version)
            return LocalCopy(shard, None, body) if body is not None else None
        if shard.file_id is None:
            handed_out = self.open_files.reopened(shard.version)
            return LocalCopy(shard, handed_out, None) if handed_out is not None else None
        descriptor = self.files.open(shard.file_id)
        self.open_files.opened(shard)
        return LocalCopy(shard, descriptor, None)

    def evict(self, shard: Shard, *, though_read: bool = True) -> bool:
        """Drop the local bytes of a clean shard; return whether they went.

        Those that somebody reads stay for a grace; then they are lent, ``though_read``: ``drop``.
        """
        unread = shard.file_id is None or self.files.unread(shard.file_id)
        if not unread and not (self.open_files.may_go(shard) and though_read):
            return False
        self.drop([self.write(shards.evict, shard.version)])
        return unread

    def drop(self, shards: Iterable[Shard]) -> None:
        """Remove the local bytes of shards whose rows are gone or no longer name them.

        What somebody has open is gone by name only: it is counted until they are done.
        """
        for shard in shards:
            if shard.file_id is not None:
                self._drop_file(shard.file_id, shard.content.size_bytes)
            elif shard.inline:
                self.space.release(shard.content.size_bytes)

    def _drop_file(self, file_id: str, size_bytes: int) -> None:
        descriptor = None
        with suppress(OSError):  # it is missing, or no descriptor is left to see who reads it
            descriptor = self.files.open(file_id)
        removed = self._remove(file_id)  # else its bytes are still there, and still counted
        if descriptor is not None and removed:
            self.open_files.lend(file_id, descriptor, size_bytes)
        elif descriptor is not None:
            os.close(descriptor)
        elif removed:
            self.space_of(file_id).release(size_bytes)

    def _remove(self, file_id: str) -> bool:
        """Remove a file that no row names; start-up takes what cannot be removed now."""
        try:
            self.files.remove(file_id)
        except OSError as error:
            tell(log, events.FILE_STUCK, file_id=file_id, reason=str(error))
            return False
        return True

    def _keep(self, staged: Staged, content: Content) -> None:
        """The staged file is a shard's now: count what it really takes."""
        os.close(staged.file.descriptor)
        self.space_of(staged.file_id).release(staged.reserved_bytes - content.size_bytes)

    def close(self) -> None:
        """Close the catalog: a clean stop only saves the next start some time."""
        self.open_files.stop()
        with self._reader_lock:
            self._reader.close()
        with self._looker_lock:
            self._looker.close()
        self._committer.close()  # last, as only who may write can put the log into the database

    # --- failing ---------------------------------------------------------------------------------

    def fence(self, reason: str) -> None:
        """Take no more writes: a sync failed, and a later success would prove nothing."""
        self._committer.fence(reason)

    def refused_by_disk(self, error: OSError) -> CachetierError:
        """Count that the disk did not take bytes, and return what the put says."""
        self._on_disk_error("write")
        if error.errno in FULL:
            return DiskFullError(DISK_IS_FULL)
        if error.errno == errno.EROFS:
            self.fence(READ_ONLY)
            return FencedError(READ_ONLY)
        failure = machine_failure(error, "the service")
        return BackpressureError(
            f"the disk refused to stage a file: {error.strerror}",
            hint=failure.hint if failure else "Look at the disk and at the kernel log.",
        )

    def _not_allocated(self, size_bytes: int, error: OSError) -> CachetierError:
        """Give back what was reserved for a file, and return what the put says."""
        if error.errno in FULL:
            self.space.refuse(size_bytes, self.files.free_bytes())
        else:
            self.space.release(size_bytes)
        return self.refused_by_disk(error)

    def _refuse_if_fenced(self) -> None:
        reason = self._committer.fenced
        if reason is not None:
            raise FencedError(reason)

    def _sync(self, staged: Staged, mark: FileMark, content: Content) -> None:
        staged.close_writer()
        if not self.open_files.take_back(staged.file):
            raise _overrun(staged)
        _check_size(staged, mark, content)
        try:
            self.files.seal(staged.file.descriptor, mark.identity)
            self.files.sync_name(staged.file_id)
        except FencedError as error:
            self._on_disk_error("sync")
            self.fence(error.message)
            raise
        except OSError as error:
            raise self._not_allocated(0, error) from error
        _check_size(staged, mark, content)  # again, as nobody can write any more


def _check_size(staged: Staged, mark: FileMark, content: Content) -> None:
    status = os.fstat(staged.file.descriptor)
    if status.st_nlink == 0:  # by a row nobody would find its bytes
        raise StagedIOError(
            f"somebody removed the staged file {staged.file_id}",
            hint="Let nothing but cachetier touch its cache_dir, and put the shard again.",
            **mark.context,
        )
    size_bytes = status.st_size
    declared, reserved = content.size_bytes, staged.reserved_bytes
    if size_bytes != declared or size_bytes > reserved:
        raise SizeMismatchError(
            f"{declared} bytes declared and {reserved} reserved, but the file has {size_bytes}",
            **mark.context,
        )
    if (allocated := staged.file.overrun()) is not None:
        raise SizeMismatchError(
            f"{reserved} bytes were reserved, but the file takes {allocated} of the disk",
            **mark.context,
        )


def _overrun(staged: Staged) -> SizeMismatchError:
    """Return what a put says that was refused while it was written."""
    return SizeMismatchError(
        f"more bytes were written than reserved: {staged.file.refusal}; the put is refused",
        hint="Declare the size at `begin`, or `extend` before writing on, and put the shard again.",
    )


def _unreadable(error: Exception, sql: apsw.Connection) -> CachetierError:
    """Return what to say of a catalog that cannot be read: whether it, or the machine, is hurt."""
    number = sql.system_errno if isinstance(error, apsw.IOError | apsw.CantOpenError) else 0
    if failure := machine_failure(OSError(number, os.strerror(number)), "the catalog"):
        return failure
    tell(log, events.CATALOG_UNREADABLE, reason=str(error))
    return CatalogDamagedError(f"the catalog cannot be read: {error}")
