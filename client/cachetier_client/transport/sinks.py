"""Shards on their way in over the socket door: through a descriptor, or as blocks.

A sink owns its connection until the shard is committed or aborted, because what a connection staged
dies with it.

Source: docs/protocol.md, "Put".
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from cachetier_client.deadline import Deadline
from cachetier_client.errors import (
    BackpressureError,
    CachetierClientError,
    InvalidRequestError,
)
from cachetier_client.io import digests
from cachetier_client.io.aligned import Block
from cachetier_client.io.block_file import BlockFile, io_errors
from cachetier_client.io.buffers import Gathered
from cachetier_client.io.digests import BLOCK_BYTES
from cachetier_client.io.workers import Workers
from cachetier_client.transport.base import ConnectionLostError, Reply
from cachetier_client.transport.connection import Connection
from cachetier_client.transport.wire import Header

_GROWTH_LIMIT_BYTES = 1 << 30
_ABORT_SECONDS = 1.0


@dataclass(slots=True, eq=False)
class _StagedSink:
    """The common part of both planes.

    The staging's requests, and giving the connection back at the end.
    """

    _connection: Connection
    _staging: int
    _give_back: Callable[[Connection], None] | None

    def commit(self, size_bytes: int, block_digests: Sequence[int], deadline: Deadline) -> Reply:
        """Make the shard safe; on any error nothing is kept."""
        try:
            self._finish(size_bytes)
            fields: Header = {
                "size_bytes": size_bytes,
                "digest": digests.to_hex(digests.combine(block_digests, size_bytes)),
            }
            reply = self._request("commit", fields, deadline, digests.pack(block_digests))
        except BaseException:
            self.abort(deadline)
            raise
        self._release()
        return reply

    def abort(self, deadline: Deadline) -> None:
        """Leave nothing behind: by saying so while there is time, else by hanging up."""
        self._let_go()
        if self._give_back is None:
            return
        try:
            if deadline.remaining() and self._connection.reusable:
                self._request("abort", {}, deadline.at_most(_ABORT_SECONDS))
        except (CachetierClientError, ConnectionLostError):
            self._connection.reusable = False
        finally:
            self._release()

    def _finish(self, size_bytes: int) -> None:
        """Bring what was written into its final form; nothing is written after."""

    def _let_go(self) -> None:
        """Close what the service would count as a writer."""

    def _request(self, op: str, fields: Header, deadline: Deadline, body: bytes = b"") -> Reply:
        request = {"op": op, "staging": self._staging, **fields}
        return self._connection.request(request, deadline, body).header

    def _release(self) -> None:
        give_back, self._give_back = self._give_back, None
        if give_back is not None:
            give_back(self._connection)


@dataclass(slots=True, eq=False)
class DescriptorSink(_StagedSink):
    """A shard whose file this process writes itself."""

    _file: BlockFile
    _reserved_bytes: int
    parallel: ClassVar = True

    def reserve(self, total_bytes: int, deadline: Deadline) -> None:
        """Have room for ``total_bytes``: more if there is room at once, else just that."""
        if total_bytes <= self._reserved_bytes:
            return
        more = min(self._reserved_bytes // 2, _GROWTH_LIMIT_BYTES)
        try:
            self._extend(max(total_bytes, self._reserved_bytes + more), 0.0, deadline)
        except BackpressureError:
            self._extend(total_bytes, deadline.for_service(), deadline)

    def write(self, block: Block, size_bytes: int, offset: int, deadline: Deadline) -> None:
        deadline.require("writing the shard")
        with io_errors("written"):
            self._file.write_block(block, size_bytes, offset)

    def write_whole(self, data: Gathered, workers: Workers, deadline: Deadline) -> list[int]:
        """Write all blocks of ``data`` in several threads; return their digests.

        A digest comes from the caller's memory, before anything else touches the bytes.
        """
        taken = [0] * data.block_count

        def write(number: int) -> None:
            deadline.require("writing the shard")
            block = data.block(number)
            taken[number] = block.digest()
            self._file.write(block, number * BLOCK_BYTES)

        with io_errors("written"):
            workers.for_each(len(taken), write)
        return taken

    def _extend(self, total_bytes: int, patience_seconds: float, deadline: Deadline) -> None:
        fields = {"reserved_bytes": total_bytes, "timeout_seconds": patience_seconds}
        self._reserved_bytes = int(self._request("extend", fields, deadline)["reserved_bytes"])

    def _finish(self, size_bytes: int) -> None:
        with io_errors("written"):
            self._file.finish(size_bytes)
        self._file.close()

    def _let_go(self) -> None:
        self._file.close()


@dataclass(slots=True, eq=False)
class StreamSink(_StagedSink):
    """A shard that the service sends straight to the remote, because the cache is full."""

    _next_offset: int = 0
    parallel: ClassVar = False

    def reserve(self, total_bytes: int, deadline: Deadline) -> None:
        """Nothing is reserved: the bytes do not stay here."""

    def write(self, block: Block, size_bytes: int, offset: int, deadline: Deadline) -> None:
        if offset != self._next_offset:
            raise InvalidRequestError("blocks of a streamed shard must come in order")
        self._send(block.view[:size_bytes], deadline)

    def write_whole(self, data: Gathered, workers: Workers, deadline: Deadline) -> list[int]:  # noqa: ARG002
        """Send all blocks of ``data``; return their digests."""
        taken = []
        for block in data.blocks():
            taken.append(block.digest())
            self._send(block.joined(), deadline)
        return taken

    def _send(self, block: memoryview, deadline: Deadline) -> None:
        self._connection.send({"op": "block", "staging": self._staging}, deadline, block)
        self._next_offset += len(block)
