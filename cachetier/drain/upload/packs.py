"""Build packs: small shards of a rank sent as one object, each of them checked first.

A pack is built in one borrowed buffer and goes in one conditional put. Its key holds its digest, so
whatever is repeated writes the same object; it counts once a read-side call has confirmed it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from cachetier_client.bucket_format.layout import pack_name
from cachetier_client.bucket_format.stored import Content, InPack, Stored
from cachetier_client.bucket_format.uploads import UploadPartRange, object_metadata
from cachetier_client.io import digests

from cachetier.drain.priority.gates import ComputeSlots
from cachetier.drain.schedule.tasks import Task
from cachetier.drain.serve.service import DrainService
from cachetier.drain.upload.buffers import Buffers
from cachetier.drain.upload.source import DamagedError, opened_source
from cachetier.drain.upload.target import UploadTarget, abort_replaced, look
from cachetier.errors import NotFoundError, PreconditionFailedError, RemoteDigestError
from cachetier.model.packs import PACKED_UP_TO_BYTES, Member
from cachetier.remote.base import IF_ABSENT, Condition
from cachetier.remote.bucket import Bucket

ROUNDS = 3

SendAlone = Callable[[Task, Member], None]


@dataclass(frozen=True, slots=True)
class _Pack:
    """The members in a row, where each begins, and what the whole is."""

    rank: int
    size_bytes: int
    digest: int
    starts: tuple[tuple[Member, int], ...]

    @property
    def name(self) -> str:
        return pack_name(self.rank, self.digest)

    @property
    def content(self) -> Content:
        return Content(self.size_bytes, self.digest, ())

    def members(self) -> dict[int, InPack]:
        """Return where each member lies, by its version."""
        return {
            member.version: InPack(self.name, start, self.size_bytes, self.digest)
            for member, start in self.starts
        }


class PackSender:
    """Sends packs. Thread-safe."""

    def __init__(
        self,
        serve: DrainService,
        bucket: Bucket,
        buffers: Buffers,
        identity: Callable[[], str],
        reads: ComputeSlots | None = None,
    ) -> None:
        """A sender of packs of store ``identity`` that reads data files in slots of ``reads``."""
        self._serve = serve
        self._layout = bucket.layout
        self._store = bucket.objects
        self._buffers = buffers
        self._identity = identity
        self._reads = reads

    def send(self, task: Task, send_alone: SendAlone) -> None:
        """Send the next pack of a rank, and report its members; a single one goes by itself.

        Raises:
            ConflictError: Something else lies under the key of the pack.
            RemoteError: Try again later.
        """
        began_at = time.monotonic()
        members = self._serve.pack_members(task.save, task.rank)
        if len(members) > 1:
            members = self._send_together(task, members, began_at)
        for member in members:
            send_alone(task, member)

    def _send_together(
        self, task: Task, members: Sequence[Member], began_at: float
    ) -> list[Member]:
        """Send and report a pack; return the members that turned out to be alone."""
        before: _Pack | None = None
        condition: Condition = IF_ABSENT
        for _ in range(ROUNDS):
            pack = self._put(task, members, before, condition)
            if len(pack.starts) < 2:
                return [member for member, _ in pack.starts]
            sent, target = Stored.raw(pack.content), self._target(task, pack)
            found = look(self._store, target, self._buffers.lend, sent)
            if isinstance(found, Stored):
                seconds = time.monotonic() - began_at
                self._serve.pack_verified(task.save, pack.members(), pack.size_bytes, seconds)
                return []
            before, condition = pack, found
        raise RemoteDigestError(f"rank {task.rank}: a pack does not keep what was sent")

    def _put(
        self, task: Task, members: Sequence[Member], before: _Pack | None, condition: Condition
    ) -> _Pack:
        """Build the pack and put it, unless fewer than two members are sound; return what it is.

        ``condition`` is that of the pack ``before``: of another, as a member went bad since then,
        nothing is known yet.
        """
        with self._buffers.lend(_room_for(members)) as buffer:
            pack = self._filled(task, members, buffer)
            if len(pack.starts) > 1:
                target = self._target(task, pack)
                # Perhaps our own success whose reply was lost; else the next round mends it.
                with suppress(PreconditionFailedError, RemoteDigestError):
                    self._store.put(
                        target.key,
                        buffer[: pack.size_bytes],
                        digest=pack.digest,
                        metadata=target.metadata,
                        condition=condition if pack == before else IF_ABSENT,
                    )
        return pack

    def _filled(self, task: Task, members: Sequence[Member], buffer: memoryview) -> _Pack:
        """Read the members that are sound into ``buffer``; report the others."""
        scratch = buffer[-PACKED_UP_TO_BYTES:]
        end, starts = 0, []
        for member in members:
            with suppress(NotFoundError):  # replaced, deleted, or found to be missing
                if self._read(task, member, scratch, buffer[end : end + member.size_bytes]):
                    starts.append((member, end))
                    end += member.size_bytes
        digest = digests.joined((member.digest, member.size_bytes) for member, _ in starts)
        return _Pack(task.rank, end, digest, tuple(starts))

    def _read(self, task: Task, member: Member, scratch: memoryview, into: memoryview) -> bool:
        """Fill ``into`` with a member's bytes; False if they are damaged, which is reported.

        A data file is read by way of ``scratch``, which begins at a page.
        """
        whole = UploadPartRange(1, 0, member.size_bytes)
        opened = self._serve.open_shard(member.version)
        try:
            with opened_source(opened, member.digest, self._reads) as source:
                key = self._layout.shard_key(task.claimant.run, task.place, member.name)
                abort_replaced(self._store, key, opened.replaced.uploads)
                view, _ = source.read(whole, scratch)
        except DamagedError as error:
            self._serve.shard_damaged(member.version, str(error))
            return False
        into[:] = view
        return True

    def _target(self, task: Task, pack: _Pack) -> UploadTarget:
        save = task.claimant
        key = self._layout.pack_key(save.run, task.place, pack.name)
        metadata = object_metadata(save.save_id, self._identity(), 0, pack.content)
        return UploadTarget(key, metadata, pack.content)


def _room_for(members: Sequence[Member]) -> int:
    """Return the room for a pack, in whole pages, and behind it the room to read a member into."""
    size_bytes = sum(member.size_bytes for member in members)
    pages = -(-size_bytes // os.sysconf("SC_PAGE_SIZE"))
    return pages * os.sysconf("SC_PAGE_SIZE") + PACKED_UP_TO_BYTES
