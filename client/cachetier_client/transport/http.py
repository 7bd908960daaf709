"""The HTTP door, for where the socket is not: the same operations, the bytes in the bodies.

Standard library only. Bodies go out of and into the caller's memory in pieces, uncopied.

Source: docs/http.md.
"""

from __future__ import annotations

import http.client
import ssl
from collections.abc import Sequence
from typing import Any

from cachetier_client.deadline import Deadline
from cachetier_client.errors import (
    DigestMismatchError,
    IntegrityError,
    ProtocolMismatchError,
)
from cachetier_client.identity.names import ShardIds
from cachetier_client.io import digests
from cachetier_client.io.aligned import Block
from cachetier_client.io.buffers import Gathered
from cachetier_client.io.digests import BLOCK_BYTES, digest_of
from cachetier_client.trace_context import brought_along
from cachetier_client.transport.base import PutRequest, Reply
from cachetier_client.transport.http_connection import PIECE_BYTES, HttpConnection
from cachetier_client.transport.http_routes import (
    DIGEST_HEADER,
    INCIDENTS_HEADER,
    put_target,
    reply_of,
    request_for,
    shard_target,
)
from cachetier_client.transport.pool import ConnectionPool
from cachetier_client.transport.sources import memory_for


class HttpTransport:
    """A service reached by HTTP. Thread-safe and fork-safe."""

    def __init__(
        self,
        host: str,
        port: int,
        *,
        prefix: str = "",
        token: str = "",
        client_id: str = "",
        tls: ssl.SSLContext | None = None,
    ) -> None:
        """A transport that connects when it is first used; with ``tls`` it speaks HTTPS."""
        self.url = f"{'http' if tls is None else 'https'}://{host}:{port}{prefix}"
        self.connections = ConnectionPool(
            lambda deadline: HttpConnection(host, port, deadline, tls)
        )
        self.forget_idle = self.connections.forget_idle
        self.close = self.connections.close
        self._client_id = client_id
        self._prefix = prefix
        self._authorization = {"Authorization": f"Bearer {token}"} if token else {}
        self._noticed_incidents = False

    def put(self, request: PutRequest, data: Gathered, deadline: Deadline) -> Reply:
        described = {DIGEST_HEADER: digests.to_hex(data.digest())}
        with self.connections.lend(deadline) as connection:
            self.start_put(connection, request, described, deadline)
            for block in data.blocks():
                connection.send(block.joined(), deadline=deadline)
            return self.document("put", connection, deadline)

    def get(self, shard: ShardIds, out: memoryview | None, deadline: Deadline) -> memoryview:
        with self.connections.lend(deadline) as connection:
            self.start(connection, "GET", shard_target(*shard), {}, deadline)
            answer = self.answer(connection, deadline)
            size_bytes, expected = content_of(answer)
            into = memory_for(out, size_bytes)
            whole = 0
            for at in range(0, size_bytes, PIECE_BYTES):
                piece = into[at : at + PIECE_BYTES]
                connection.read_into(answer, piece, deadline)
                whole = digest_of(piece, whole)
            connection.finish(answer, deadline)
        if whole != expected:
            raise IntegrityError("the bytes changed on their way from the service")
        return into

    def call(self, op: str, fields: dict[str, Any], deadline: Deadline) -> Reply:
        request = request_for(op, {"client_id": self._client_id, **fields})
        headers = {}
        if request.document is not None:
            headers["Content-Type"] = "application/json"
            headers["Content-Length"] = str(len(request.document))
        with self.connections.lend(deadline) as connection:
            self.start(connection, request.method, request.target, headers, deadline)
            connection.send(request.document or b"", deadline=deadline)
            return self.document(op, connection, deadline)

    def open_sink(self, request: PutRequest, deadline: Deadline) -> HttpSink:
        return HttpSink(self, request, deadline)

    def open_source(
        self,
        shard: ShardIds,
        deadline: Deadline,
        *,
        restore: bool,
        blocks: int | None = None,  # the service counts them itself, unless none is to count
    ) -> HttpSource:
        target = shard_target(*shard)
        if restore or blocks == 0:
            target = f"{target}?restore={str(restore).lower()}"
        return HttpSource(self, target, deadline)

    def noticed_incidents(self) -> bool:
        noticed, self._noticed_incidents = self._noticed_incidents, False
        return noticed

    # --- exchanges -------------------------------------------------------------------------------

    def start(
        self,
        connection: HttpConnection,
        method: str,
        target: str,
        headers: dict[str, str],
        deadline: Deadline,
    ) -> None:
        """Send a request's head."""
        all_headers = {**self._authorization, **headers, **brought_along()}
        connection.start(method, f"{self._prefix}{target}", all_headers, deadline)

    def start_put(
        self,
        connection: HttpConnection,
        request: PutRequest,
        described: dict[str, str],
        deadline: Deadline,
    ) -> None:
        """Send the head of a request that stores a shard."""
        headers = {
            "Content-Type": "application/octet-stream",
            **described,
            **request.facts.headers(),
        }
        if request.size_bytes is None:
            headers["Transfer-Encoding"] = "chunked"
        else:
            headers["Content-Length"] = str(request.size_bytes)
        target = put_target(request, self._client_id, deadline.for_service())
        self.start(connection, "PUT", target, headers, deadline)

    def answer(self, connection: HttpConnection, deadline: Deadline) -> http.client.HTTPResponse:
        """Return the answer's head; raise if the answer is an error."""
        answer = connection.response(deadline)
        if answer.headers.get(INCIDENTS_HEADER, "0") != "0":
            self._noticed_incidents = True
        return answer

    def document(self, op: str, connection: HttpConnection, deadline: Deadline) -> Reply:
        """Return the answer as a reply; raise if the answer is an error."""
        body = connection.finish(self.answer(connection, deadline), deadline)
        try:
            return reply_of(op, body)
        except (TypeError, ValueError, RecursionError) as error:
            hint = "Check that CACHETIER_URL is the address of a cachetier service."
            raise ProtocolMismatchError(f"{self.url} does not answer in JSON", hint=hint) from error


class HttpSink:
    """A shard sent block by block as it comes. The door ends a body that pauses long."""

    parallel = False

    def __init__(self, transport: HttpTransport, request: PutRequest, deadline: Deadline) -> None:
        self._transport = transport
        self._target = shard_target(request.ids.run, request.ids.step, request.name)
        self._chunked = request.size_bytes is None
        self._connection: HttpConnection | None = transport.connections.take(deadline)
        try:
            transport.start_put(self._connection, request, {}, deadline)
        except BaseException:
            self.abort(deadline)
            raise

    def reserve(self, total_bytes: int, deadline: Deadline) -> None:
        """Nothing is reserved ahead: the door does that as bytes come."""

    def write(self, block: Block, size_bytes: int, offset: int, deadline: Deadline) -> None:  # noqa: ARG002 - blocks come in order
        data = block.view[:size_bytes]
        if self._connection is None or not size_bytes:
            return
        if self._chunked:
            head = f"{size_bytes:x}\r\n".encode()
            self._connection.send(head, data, b"\r\n", deadline=deadline)
        else:
            self._connection.send(data, deadline=deadline)

    def commit(self, size_bytes: int, block_digests: Sequence[int], deadline: Deadline) -> Reply:
        """End the body; what the door then says it received must be what was sent."""
        connection, self._connection = self._connection, None
        assert connection is not None
        try:
            if self._chunked:
                connection.send(b"0\r\n\r\n", deadline=deadline)
            receipt = self._transport.document("put", connection, deadline)
        finally:
            self._transport.connections.give_back(connection)
        if receipt.get("digest") != digests.to_hex(digests.combine(block_digests, size_bytes)):
            self._take_back(deadline)
            raise DigestMismatchError("the bytes changed on their way to the service")
        return receipt

    def abort(self, deadline: Deadline) -> None:  # noqa: ARG002 - hanging up takes no time
        """Hang up: a body cut short keeps nothing."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _take_back(self, deadline: Deadline) -> None:
        with self._transport.connections.lend(deadline) as connection:
            self._transport.start(connection, "DELETE", self._target, {}, deadline)
            self._transport.document("delete", connection, deadline)


class HttpSource:
    """A shard read in ranges, each verified by the service before it leaves there."""

    is_remote = False  # nothing says so

    def __init__(self, transport: HttpTransport, target: str, deadline: Deadline) -> None:
        self._transport = transport
        self._target = target
        with transport.connections.lend(deadline) as connection:
            transport.start(connection, "HEAD", target, {}, deadline)
            answer = transport.answer(connection, deadline)
            self.size_bytes, self.digest = content_of(answer)
            connection.finish(answer, deadline)

    def read_block(self, number: int, into: memoryview, deadline: Deadline) -> None:
        """Fill ``into`` with a block.

        Raises:
            IntegrityError: The shard was replaced since it was opened.
        """
        start = number * BLOCK_BYTES
        wanted = {"Range": f"bytes={start}-{start + len(into) - 1}"}
        with self._transport.connections.lend(deadline) as connection:
            self._transport.start(connection, "GET", self._target, wanted, deadline)
            answer = self._transport.answer(connection, deadline)
            if answer.headers.get(DIGEST_HEADER) != digests.to_hex(self.digest):
                raise IntegrityError("the shard was replaced while it was read")
            if answer.headers.get("Content-Length") != str(len(into)):
                raise ProtocolMismatchError(f"{self._transport.url} does not answer ranges")
            connection.read_into(answer, into, deadline)
            connection.finish(answer, deadline)

    def close(self) -> None:
        """Nothing is held between reads."""


def content_of(answer: http.client.HTTPResponse) -> tuple[int, int]:
    """Return size and digest that an answer's head tells."""
    try:
        size_bytes = int(answer.headers["Content-Length"])
        return size_bytes, digests.from_hex(answer.headers[DIGEST_HEADER])
    except (KeyError, TypeError, ValueError) as error:
        raise ProtocolMismatchError("the answer lacks a shard's size and digest") from error
