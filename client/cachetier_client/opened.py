"""Shards on their way out over the socket door: every block is checked before it is used.

A local copy that proves damaged is reported, so that the service takes it out of use, and the shard
opened once more: from the remote if there is a copy, else with an error.

A shard that is only remote may stay so while parts of it are read: then the service fetches block
by block, until it finds that so much is read that it brings the shard back and hands out its file.

Source: docs/protocol.md, "Get".
"""

from __future__ import annotations

from typing import Protocol

from cachetier_client import digests
from cachetier_client.aligned import address_of, aligned_memory
from cachetier_client.blockfile import BlockFile
from cachetier_client.deadline import Deadline
from cachetier_client.digests import BLOCK_BYTES, digest_of
from cachetier_client.errors import IntegrityError, ProtocolMismatchError, SizeMismatchError
from cachetier_client.staged import OwnedDescriptor, io_errors
from cachetier_client.transfer import DamagedBlockError, read_block, read_shard
from cachetier_client.transport import Reply
from cachetier_client.wire import Frame, Header
from cachetier_client.workers import Workers

_SMALL_BYTES = 65536


class Opener(Protocol):
    """Where shards are opened: the socket transport."""

    def open_file(
        self, op: str, fields: Header, deadline: Deadline
    ) -> tuple[Frame, OwnedDescriptor | None]:
        """Ask for a shard, or a block; the descriptor, if any, is the caller's to close."""

    def block_file(self, descriptor: OwnedDescriptor) -> BlockFile:
        """Return the file behind a descriptor."""

    def call(self, op: str, fields: Header, deadline: Deadline) -> Reply:
        """Do another operation."""


class OpenedShard:
    """A shard opened for reading: from its descriptor, from the bytes that came along, or remotely.

    Args:
        opener: Where.
        ids: Its ``run``, ``step`` and ``name``.
        deadline: For opening it.
        restore: Have it brought back whole if it is only remote.
    """

    def __init__(
        self, opener: Opener, ids: Header, deadline: Deadline, *, restore: bool = True
    ) -> None:
        self._opener = opener
        self._ids = ids
        self._restore = restore
        self._is_remote = False
        self._descriptor: OwnedDescriptor | None = None
        self._file: BlockFile | None = None
        self._body = memoryview(b"")
        self._digests: tuple[int, ...] = ()
        self._retried = False
        self.size_bytes = 0
        self.digest = 0
        self._open(deadline)

    def read_whole(self, into: memoryview, workers: Workers, deadline: Deadline) -> None:
        """Fill ``into``, which has the shard's size, with several threads."""
        while True:
            try:
                if self._file is None:
                    into[:] = self._body
                else:
                    with io_errors("read"):
                        read_shard(self._file, into, self._digests, workers, deadline)
                return
            except DamagedBlockError as error:
                self._open_again(error, deadline)

    def read_block(self, number: int, into: memoryview, deadline: Deadline) -> None:
        """Fill ``into``, which has the block's size, with one block."""
        start = number * BLOCK_BYTES
        if self._is_remote and self._read_remote(number, into, deadline):
            return
        while True:
            try:
                if self._file is None:
                    into[:] = self._body[start : start + len(into)]
                else:
                    deadline.require("reading the shard")
                    with io_errors("read"):
                        read_block(self._file, into, address_of(into), start, self._digests[number])
                return
            except DamagedBlockError as error:
                self._open_again(error, deadline)

    def close(self) -> None:
        """Close the descriptor; may be called twice."""
        if self._descriptor is not None:
            self._descriptor.close()
        self._file = None
        self._body = memoryview(b"")

    def _open(self, deadline: Deadline) -> None:
        fields = {**self._ids, "restore": self._restore}
        self._take(*self._opener.open_file("open", fields, deadline))

    def _take(self, frame: Frame, descriptor: OwnedDescriptor | None) -> None:
        """Read from what the service sent from now on."""
        self._descriptor = descriptor
        self._is_remote = descriptor is None and frame.header.get("inline") is False
        self._body = memoryview(frame.body)
        try:
            if self._descriptor is not None:
                self._file = self._opener.block_file(self._descriptor)
            self._digests = self._read_reply(frame)
        except (KeyError, TypeError, ValueError) as error:
            self.close()
            raise ProtocolMismatchError("the service opened the shard in an unknown way") from error
        except BaseException:
            self.close()
            raise

    def _read_reply(self, frame: Frame) -> tuple[int, ...]:
        self.size_bytes = int(frame.header["size_bytes"])
        self.digest = digests.from_hex(frame.header["digest"])
        if self._file is None and not self._is_remote:
            whole = (len(frame.body), digest_of(frame.body))
            if whole != (self.size_bytes, self.digest):
                raise IntegrityError("the bytes changed on their way from the service")
            return ()
        taken = digests.unpack(frame.body)
        if digests.combine(taken, self.size_bytes) != self.digest:
            raise IntegrityError("the block digests do not combine to the shard's digest")
        return taken

    def _read_remote(self, number: int, into: memoryview, deadline: Deadline) -> bool:
        """Fill ``into`` with a block that the service fetches; False once it has the whole shard.

        Raises:
            IntegrityError: The shard was replaced since it was opened, or the bytes changed.
        """
        fields = {**self._ids, "block": number}
        frame, descriptor = self._opener.open_file("read_block", fields, deadline)
        if descriptor is not None or frame.header.get("inline") is not False:
            before = (self.size_bytes, self.digest)
            self._restore = True
            self._take(frame, descriptor)
            self._refuse_another(before, "the shard was brought back")
            return False
        if frame.header.get("digest") != digests.to_hex(self.digest):
            raise IntegrityError("the shard was replaced while it was read")
        if len(frame.body) != len(into) or digest_of(frame.body) != self._digests[number]:
            raise IntegrityError("the bytes changed on their way from the service")
        into[:] = frame.body
        return True

    def _refuse_another(self, before: tuple[int, int], what: str) -> None:
        if (self.size_bytes, self.digest) != before:
            self.close()
            raise IntegrityError(f"{what}, and the shard was replaced meanwhile")

    def _open_again(self, error: DamagedBlockError, deadline: Deadline) -> None:
        """Report the damage and open what there is instead; once."""
        self.close()
        if self._retried:
            raise IntegrityError(f"the stored bytes are damaged: {error}")
        self._retried = True
        self._restore = True
        before = (self.size_bytes, self.digest)
        self._opener.call("verify", self._ids, deadline)
        self._open(deadline)
        self._refuse_another(before, str(error))


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
