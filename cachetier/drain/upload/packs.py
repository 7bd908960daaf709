"""Build packs: small shards of a rank sent as one object, each of them checked first.

A pack is built in one borrowed buffer and goes in one conditional put. Its key holds its digest, so
whatever is repeated writes the same object.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from itertools import accumulate

from cachetier_client.bucket_format.layout import Layout, pack_name
from cachetier_client.bucket_format.stored import Content, InPack
from cachetier_client.bucket_format.uploads import UploadPartRange, object_metadata
from cachetier_client.io import digests

from cachetier.carriers.checked_file import DamagedError
from cachetier.drain.priority.gates import ComputeSlots
from cachetier.drain.schedule.tasks import Task
from cachetier.drain.serve.service import DrainService
from cachetier.drain.upload.source import InlineSource, ShardSource, opened_source
from cachetier.drain.upload.target import UploadTarget, abort_replaced
from cachetier.drain.upload.uploader import Span, Upload, UploadContext
from cachetier.errors import NotFoundError
from cachetier.model.packs import PACKED_UP_TO_BYTES, Member


class _LeftOutError(Exception):
    """Only the members that it names are sound: it is another pack."""


@dataclass(frozen=True, slots=True)
class PackSender:
    """Sends packs of store ``identity``; reads data files in slots of ``reads``. Thread-safe."""

    serve: DrainService
    context: UploadContext
    layout: Layout
    identity: Callable[[], str]
    reads: ComputeSlots | None = None

    def send(self, task: Task) -> Sequence[Member]:
        """Send and report the next pack of a rank; return a member that is to go by itself.

        Raises:
            ConflictError: Something else lies under the key of the pack.
            RemoteError: Try again later.
        """
        began_at, save = time.monotonic(), task.claimant
        members: Sequence[Member] = self.serve.pack_members(task.save, task.rank)
        while len(members) > 1:
            digest = digests.joined((member.digest, member.size_bytes) for member in members)
            starts = [0, *accumulate(member.size_bytes for member in members)]
            whole = Content(starts.pop(), digest, ())
            name = pack_name(task.rank, digest)
            key = self.layout.pack_key(save.run, task.place, name)
            metadata = object_metadata(save.save_id, self.identity(), 0, whole)
            span = Span(whole.size_bytes, partial(self._filled, task, members, whole))
            try:
                Upload(self.context, UploadTarget(key, metadata, whole), [span]).put()
            except _LeftOutError as error:
                (members,) = error.args
                continue
            placed = {
                member.version: InPack(name, start, whole.size_bytes, digest)
                for member, start in zip(members, starts, strict=True)
            }
            seconds = time.monotonic() - began_at
            self.serve.pack_verified(task.save, placed, whole.size_bytes, seconds)
            return []
        return members

    @contextmanager
    def _filled(
        self, task: Task, members: Sequence[Member], whole: Content
    ) -> Iterator[ShardSource]:
        """Lend the bytes of a pack; report the members that are damaged.

        Raises:
            _LeftOutError: Some are, or are not here any more.
        """
        page_bytes = os.sysconf("SC_PAGE_SIZE")
        room_bytes = -(-whole.size_bytes // page_bytes) * page_bytes
        with self.context.buffers.lend(room_bytes + PACKED_UP_TO_BYTES) as buffer:
            scratch, rest, sound = buffer[-PACKED_UP_TO_BYTES:], buffer, []
            for member in members:
                with suppress(NotFoundError):  # replaced, deleted, or found to be missing
                    if self._read(task, member, scratch, rest[: member.size_bytes]):
                        sound.append(member)
                rest = rest[member.size_bytes :]
            if sound != members:
                raise _LeftOutError(sound)
            yield InlineSource(buffer[: whole.size_bytes], whole.digest)

    def _read(self, task: Task, member: Member, scratch: memoryview, into: memoryview) -> bool:
        """Fill ``into`` with a member's bytes; False if they are damaged, which is reported.

        A data file is read by way of ``scratch``, which begins at a page.
        """
        whole = UploadPartRange(1, 0, member.size_bytes)
        opened = self.serve.open_shard(member.version)
        try:
            with opened_source(opened, member.digest, self.reads) as source:
                key = self.layout.shard_key(task.claimant.run, task.place, member.name)
                abort_replaced(self.context.store, key, opened.replaced.uploads)
                view, _ = source.read(whole, scratch)
        except DamagedError as error:
            self.serve.shard_damaged(member.version, str(error))
            return False
        into[:] = view
        return True
