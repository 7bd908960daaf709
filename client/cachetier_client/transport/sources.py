"""Shards on their way out over the socket door: every block is checked before it is used.

A local copy that proves damaged is reported, so that the service takes it out of use, and the shard
opened once more: from the remote if there is a copy, else with an error.

A shard that is only remote may stay so while parts of it are read: then the service fetches block
by block, until it finds that so much is read that it brings the shard back and hands out its file.

A shard that is on its way to this node is read along: the blocks that are there, while others come.

Source: docs/protocol.md, "Get".
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from cachetier_client.deadline import Deadline
from cachetier_client.errors import (
    IntegrityError,
    NotFoundError,
    ProtocolMismatchError,
    SizeMismatchError,
)
from cachetier_client.identity.names import ShardIds
from cachetier_client.io import digests
from cachetier_client.io.aligned import aligned_memory
from cachetier_client.io.block_file import BlockFile, io_errors
from cachetier_client.io.digests import BLOCK_BYTES, digest_of
from cachetier_client.io.workers import Workers
from cachetier_client.transport.base import Reply
from cachetier_client.transport.wire import Frame, Header

_SMALL_BYTES = 65536


class Opener(Protocol):
    """Where shards are opened: the socket transport."""

    def request(self, op: str, fields: Header, deadline: Deadline) -> Frame:
        """Do an operation; the descriptor that comes, if any, is the caller's to close."""

    def block_file(self, descriptor: int, *, buffered: bool = False) -> BlockFile:
        """Return the file behind a descriptor, which is its own from now on; see ``BlockFile``."""

    def call(self, op: str, fields: Header, deadline: Deadline) -> Reply:
        """Do an operation whose reply is a header."""


@dataclass(frozen=True, slots=True)
class _Copy:
    """The source that the service gave to read from.

    A file, the bytes themselves, or digests (remote).

    ``arriving`` is the version of a shard whose file is not complete yet.
    """

    size_bytes: int
    digest: int
    block_digests: tuple[int, ...]
    body: memoryview
    file: BlockFile | None
    is_remote: bool
    arriving: int | None = None


class OpenedShard:
    """A shard opened for reading: from its descriptor, from the bytes that came along, or remotely.

    Blocks may be read from several threads at once.

    Args:
        opener: Where.
        shard: Which.
        deadline: For opening it.
        restore: Have it brought back whole if it is only remote.
        blocks: How many blocks will be read, if that is known: with a quarter it is brought back.
    """

    def __init__(
        self,
        opener: Opener,
        shard: ShardIds,
        deadline: Deadline,
        *,
        restore: bool = True,
        blocks: int | None = None,
    ) -> None:
        self._opener = opener
        self._ids = shard._asdict()
        self._restore = restore
        self._blocks = blocks
        self._follow = True  # until something is wrong with it
        self._there: frozenset[int] = frozenset()  # of what arrives
        self._lock = threading.RLock()
        self._reported = False
        self._retried = False
        self._files: list[BlockFile] = []  # of earlier copies too: threads may read
        self._copy = self._open(deadline)
        self.size_bytes = self._copy.size_bytes
        self.digest = self._copy.digest
        self.is_remote = self._copy.is_remote

    def read_whole(self, into: memoryview, workers: Workers, deadline: Deadline) -> None:
        """Fill ``into``, which has the shard's size, with several threads."""
        left = set(range(-(-self.size_bytes // BLOCK_BYTES)))
        while (copy := self._copy).arriving is not None and left:
            self._hear_of_more(copy.arriving, deadline)
            self._read_blocks(sorted(left & self._there), into, workers, deadline)
            left -= self._there
        self._read_blocks(sorted(left), into, workers, deadline)

    def _read_blocks(
        self, numbers: Sequence[int], into: memoryview, workers: Workers, deadline: Deadline
    ) -> None:
        def read(which: int) -> None:
            start = numbers[which] * BLOCK_BYTES
            self.read_block(numbers[which], into[start : start + BLOCK_BYTES], deadline)

        workers.for_each(len(numbers), read)

    def read_block(self, number: int, into: memoryview, deadline: Deadline) -> None:
        """Fill ``into``, which has the block's size, with one block."""
        start = number * BLOCK_BYTES
        while True:
            copy = self._copy
            if copy.is_remote:
                if self._read_remote(copy, number, into, deadline):
                    return
                continue
            if copy.file is None:
                into[:] = copy.body[start : start + len(into)]
                return
            if copy.arriving is not None and number not in self._there:
                self._hear_of_more(copy.arriving, deadline)
                continue
            deadline.require("reading the shard")
            try:
                with io_errors("read"):
                    copy.file.read(into, start)
                if digest_of(into) == copy.block_digests[number]:
                    return
                damage = f"the block at byte {start} does not match its digest"
            except EOFError as error:
                damage = f"the file is cut off: {error}"
            self._open_again(copy, damage, deadline)

    def close(self) -> None:
        """Close the files, once no thread reads; may be called twice."""
        copy = self._copy
        if self._files and copy.file is not None and copy.arriving is None:
            copy.file.forget()  # of what arrives still: who writes it does
        while self._files:
            self._files.pop().close()

    def _hear_of_more(self, version: int, deadline: Deadline) -> None:
        """Wait until more blocks are there than were known; open again what arrives no longer."""
        deadline.require("waiting for the shard")
        known = len(self._there)
        fields = {
            **self._ids,
            "version": version,
            "known": known,
            "timeout_seconds": deadline.for_service(),
        }
        try:
            bits = int.from_bytes(self._opener.request("arrived", fields, deadline).body, "little")
        except NotFoundError:
            with self._lock:
                if self._copy.arriving == version:
                    self._follow = False
                    self._copy = self._same(self._open(deadline), "the shard arrives no longer")
            return
        there = frozenset(number for number in range(bits.bit_length()) if bits >> number & 1)
        with self._lock:
            self._there |= there  # another thread may have heard of more

    def _open(self, deadline: Deadline) -> _Copy:
        fields = {
            **self._ids,
            "restore": self._restore,
            "blocks": self._blocks or 0,
            **({"follow": True} if self._follow else {}),
            "timeout_seconds": deadline.for_service(),
        }
        return self._take(self._opener.request("open", fields, deadline))

    def _take(self, frame: Frame) -> _Copy:
        """Return what the service sent as something to read from, once its digests agree."""
        arriving = frame.header.get("arriving")
        file = None
        if frame.descriptor is not None:
            file = self._opener.block_file(frame.descriptor, buffered=arriving is not None)
        try:
            is_remote = file is None and frame.header.get("inline") is False
            size_bytes = int(frame.header["size_bytes"])
            digest = digests.from_hex(frame.header["digest"])
            has_body = file is None and not is_remote
            copy = _Copy(
                size_bytes=size_bytes,
                digest=digest,
                block_digests=() if has_body else digests.unpack(frame.body),
                body=memoryview(frame.body),
                file=file,
                is_remote=is_remote,
                arriving=arriving,
            )
            if has_body:
                if (len(frame.body), digest_of(frame.body)) != (size_bytes, digest):
                    raise IntegrityError("the bytes changed on their way from the service")
            elif digests.combine(copy.block_digests, size_bytes) != digest:
                raise IntegrityError("the block digests do not combine to the shard's digest")
        except BaseException as error:
            if file is not None:
                file.close()
            if isinstance(error, KeyError | TypeError | ValueError):
                raise ProtocolMismatchError(
                    "the service opened the shard in an unknown way"
                ) from error
            raise
        if file is not None:
            self._files.append(file)
        return copy

    def _read_remote(self, copy: _Copy, number: int, into: memoryview, deadline: Deadline) -> bool:
        """Fill ``into`` with a block that the service fetches; False once it has the whole shard.

        Raises:
            IntegrityError: The shard was replaced since it was opened, or the bytes changed.
        """
        counted = 1 if self._blocks is None else 0  # not once more what was told at the beginning
        fields = {
            **self._ids,
            "block": number,
            "blocks": counted,
            "timeout_seconds": deadline.for_service(),
        }
        frame = self._opener.request("read_block", fields, deadline)
        if frame.descriptor is not None or frame.header.get("inline") is not False:
            brought_back = self._same(self._take(frame), "the shard was brought back")
            with self._lock:
                if self._copy is copy:
                    self._copy = brought_back
            return False
        if frame.header.get("digest") != digests.to_hex(self.digest):
            raise IntegrityError("the shard was replaced while it was read")
        if len(frame.body) != len(into) or digest_of(frame.body) != copy.block_digests[number]:
            raise IntegrityError("the bytes changed on their way from the service")
        into[:] = frame.body
        return True

    def _same(self, copy: _Copy, what: str) -> _Copy:
        """Return ``copy`` if it is of the shard that was opened first."""
        if (copy.size_bytes, copy.digest) != (self.size_bytes, self.digest):
            raise IntegrityError(f"{what}, and the shard was replaced meanwhile")
        return copy

    def _open_again(self, damaged: _Copy, damage: str, deadline: Deadline) -> None:
        """Report the damage and open what there is instead.

        Once, by the thread that finds it first.
        """
        with self._lock:
            if self._copy is not damaged:
                return
            if self._retried:
                raise IntegrityError(f"the stored bytes are damaged: {damage}")
            self._follow = False
            if not self._reported:
                self._opener.call("verify", self._ids, deadline)
                self._reported = True
            self._copy = self._same(self._open(deadline), damage)
            self._retried = True


def memory_for(out: memoryview | None, size_bytes: int) -> memoryview:
    """Return where a shard of ``size_bytes`` goes: ``out``, or fresh memory, page-aligned if large.

    Raises:
        SizeMismatchError: ``out`` has another size; nothing was written to it.
    """
    if out is None:
        if size_bytes <= _SMALL_BYTES:
            return memoryview(bytearray(size_bytes))
        return aligned_memory(size_bytes)[:size_bytes]
    if len(out) != size_bytes:
        raise SizeMismatchError(
            f"the shard has {size_bytes} bytes, the buffer {len(out)}",
            hint="Pass a buffer of exactly the shard's size as out=, or none.",
        )
    return out
