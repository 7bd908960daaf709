"""The socket door: small shards in one frame, large ones through a descriptor.

Source: docs/protocol.md, "Put" and "Get".
"""

from __future__ import annotations

import os
from typing import Any

from cachetier_client.deadline import Deadline
from cachetier_client.errors import ProtocolMismatchError
from cachetier_client.identity.names import ShardIds
from cachetier_client.io import digests
from cachetier_client.io.block_file import BlockFile, BlockFiles, SystemFiles
from cachetier_client.io.buffers import Gathered
from cachetier_client.io.workers import Workers
from cachetier_client.transport.base import PutRequest, Reply
from cachetier_client.transport.connection import Connection, Peer
from cachetier_client.transport.pool import ConnectionPool
from cachetier_client.transport.sinks import DescriptorSink, StreamSink
from cachetier_client.transport.sources import OpenedShard, memory_for
from cachetier_client.transport.wire import Frame, Header


class UnixTransport:
    """A service on this node, reached by its socket. Thread-safe and fork-safe."""

    def __init__(
        self,
        path: str,
        greeting: Header,
        workers: Workers,
        files: BlockFiles | None = None,
        *,
        uid: int | None = None,
    ) -> None:
        self.url = f"unix://{path}"
        self._service = service = Peer(path, greeting, uid)
        self._connections = ConnectionPool(lambda deadline: Connection.open(service, deadline))
        self.forget_idle = self._connections.forget_idle
        self.close = self._connections.close
        self._workers = workers
        self._files = files or SystemFiles()

    @property
    def remote(self) -> object:
        """Where the service drains to, in its words."""
        return self._service.remote

    # --- in --------------------------------------------------------------------------------------

    def put(self, request: PutRequest, data: Gathered, deadline: Deadline) -> Reply:
        if len(data) <= self._service.inline_bytes:
            fields = {
                **request.fields(),
                "digest": digests.to_hex(data.digest()),
                "timeout_seconds": deadline.for_service(),
            }
            return self.call("put", fields, deadline, data.joined())
        sink = self.open_sink(request, deadline)
        try:
            taken = sink.write_whole(data, self._workers, deadline)
            return sink.commit(len(data), taken, deadline)
        except BaseException:
            sink.abort(deadline)
            raise

    def open_sink(self, request: PutRequest, deadline: Deadline) -> DescriptorSink | StreamSink:
        timed = {"op": "begin", **request.fields(), "timeout_seconds": deadline.for_service()}
        connection = self._connections.take(deadline)
        try:
            begun = connection.request(timed, deadline)
        except BaseException:
            self._connections.give_back(connection)
            raise
        file: BlockFile | None = None
        try:
            if begun.descriptor is not None:
                file = self.block_file(begun.descriptor)
            plane = begun.header.get("plane")
            known = plane == ("stream" if file is None else "descriptor")
            if not known or "staging" not in begun.header:
                raise ProtocolMismatchError(f"the service began a put on plane {plane!r}")
            staged = (connection, begun.header["staging"], self._connections.give_back)
            if file is None:
                return StreamSink(*staged)
            return DescriptorSink(*staged, file, int(begun.header["reserved_bytes"]))
        except BaseException:
            connection.close()  # which ends what it staged
            if file is not None:
                file.close()
            raise

    # --- out -------------------------------------------------------------------------------------

    def get(self, shard: ShardIds, out: memoryview | None, deadline: Deadline) -> memoryview:
        source = OpenedShard(self, shard, deadline)
        try:
            into = memory_for(out, source.size_bytes)
            source.read_whole(into, self._workers, deadline)
            return into
        finally:
            source.close()

    def open_source(
        self, shard: ShardIds, deadline: Deadline, *, restore: bool, blocks: int | None = None
    ) -> OpenedShard:
        return OpenedShard(self, shard, deadline, restore=restore, blocks=blocks)

    def block_file(self, descriptor: int, *, buffered: bool = False) -> BlockFile:
        return BlockFile(descriptor, self._workers.blocks, self._files, buffered=buffered)

    # --- the rest --------------------------------------------------------------------------------

    def call(
        self, op: str, fields: dict[str, Any], deadline: Deadline, body: memoryview | bytes = b""
    ) -> Reply:
        frame = self.request(op, fields, deadline, body)
        if frame.descriptor is not None:
            os.close(frame.descriptor)  # nobody asked for one
        return frame.header

    def noticed_incidents(self) -> bool:
        noticed, self._service.has_incidents = self._service.has_incidents, False
        return noticed

    def request(
        self, op: str, fields: Header, deadline: Deadline, body: memoryview | bytes = b""
    ) -> Frame:
        connection = self._connections.take(deadline)
        try:
            return connection.request({"op": op, **fields}, deadline, body)
        finally:
            self._connections.give_back(connection)
