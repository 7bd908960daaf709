"""Ask another node over HTTP: who it is, what it has, and for blocks as they arrive there.

A body is a row of messages, each with one byte before it: the peer is alive and has nothing yet, a
block or a document follows, or an error does. A peer that sends nothing for a second is given up.
"""

from __future__ import annotations

import http.client
import json
import ssl
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

from cachetier_client.io.digests import BLOCK_BYTES, to_hex

from cachetier.errors import (
    BackpressureError,
    CachetierError,
    ForbiddenError,
    IntegrityError,
    NotFoundError,
    ObjectMissingError,
    PreconditionFailedError,
    RemoteDigestError,
    RemoteError,
    RemoteRefusedError,
    SourceChangedError,
    TransientError,
    UploadGoneError,
)
from cachetier.remote.base import Body, Into, deliver, pieces_of, room_of, size_of
from cachetier.remote.stall_guard import SLICE_BYTES, connected, sent

SILENCE_SECONDS = 1.0
BLOCK_SECONDS = 10.0  # for one block, once it begins to come
KEEPER_SECONDS = 30.0  # for a peer that syncs what it was sent
PATIENCE_SECONDS = 60.0  # for a peer that is alive, and gets nothing from the bucket itself
ALIVE, BYTES, ERROR = b"\0", b"\1", b"\2"
PATH = "/peers/v1"
DOCUMENT_BYTES = 128 << 20
ERROR_BYTES = 4096
ANSWER_BYTES = 16 << 20
IDLE_AT_MOST = 32
CALL_LENGTH_BYTES = 4
_Call = tuple[Mapping[str, Any], Body]
ERROR_CODE = "Cachetier-Error"
# What a keeper answers with by the code of the error, as any store raises it.
_ERRORS: dict[str | None, type[CachetierError]] = {
    kind.code: kind
    for kind in (
        *(BackpressureError, IntegrityError, ObjectMissingError, PreconditionFailedError),
        *(RemoteDigestError, RemoteRefusedError, SourceChangedError, TransientError),
        UploadGoneError,
    )
}


@dataclass(frozen=True, slots=True)
class WantedBlocks:
    """Blocks of a shard that a peer is asked for; ``held``: only if they are on its disk."""

    run: str
    step: int
    save_id: str
    name: str
    digest: int
    first_block: int
    count: int
    held: bool = False


class HttpPeer:
    """Another node. Thread-safe; ``name`` and ``domain`` are what it said of itself.

    Args:
        host: As the settings list it, which its certificate is for.
        where: Its address and port.
        headers: What this node says of itself, and its token.
        tls: Returns how to know it, for each connection; None for clear text.
        source: The address to call from, which its list has.
    """

    def __init__(
        self,
        host: str,
        where: tuple[str, int],
        headers: Mapping[str, str],
        tls: Callable[[], ssl.SSLContext] | None = None,
        source: str = "",
    ) -> None:
        self.name = ""
        self.domain = ""
        self.where = where
        self._host = host
        self._headers = dict(headers)
        self._tls = tls
        self._source = (source, 0) if source else None
        self._lock = threading.Lock()
        self._idle: list[http.client.HTTPConnection] = []

    def close(self) -> None:
        """Hang up."""
        with self._lock:
            idle, self._idle = self._idle, []
        for each in idle:
            each.close()

    def hello(self) -> dict[str, Any]:
        """Return what the node says of itself."""
        found: dict[str, Any] = self._json("hello", {})
        return found

    def held_shards(self, run: str, step: int, save_id: str) -> Collection[str]:
        found: list[str] = self._json("held", {"run": run, "step": step, "save_id": save_id})
        return found

    def knows(self, run: str, step: int, save_id: str, rank: int) -> bool:
        """Return whether the node says that it brings a part on, or knows how its save ended."""
        query = {"run": run, "step": step, "save_id": save_id, "rank": rank}
        return bool(self._json("knows", query))

    def read_blocks(self, wanted: WantedBlocks, into: Into) -> None:
        names = {name: getattr(wanted, name) for name in WantedBlocks.__dataclass_fields__}
        query = {**names, "digest": to_hex(wanted.digest), "held": int(wanted.held)}
        with self._asked("blocks", query) as answer:
            deliver(_blocks(answer, room_of(into)), into)

    def document(self, key: str, digest: int) -> bytes:
        with self._asked("document", {"key": key, "digest": to_hex(digest)}) as answer:
            _await(answer)
            return _all(answer, DOCUMENT_BYTES)

    def keeper(
        self, operation: str, arguments: Mapping[str, Any], body: Body | None = None
    ) -> bytes:
        """Return the answer, as JSON, to an operation on the objects that this peer keeps.

        Raises:
            BackpressureError: It has no room.
            CachetierError: As ``ObjectStore``.
        """
        with self._asked(f"kept/{operation}", {}, (arguments, body or b"")) as answer:
            return _all(answer, ANSWER_BYTES)

    def read_kept(self, arguments: Mapping[str, Any], into: Into) -> None:
        """Fill ``into`` with a range of an object that this peer keeps; raises as ``keeper``."""
        with self._asked("kept/read", {}, (arguments, b"")) as answer:
            deliver(_pieces(answer, room_of(into)), into)

    def _json(self, what: str, query: Mapping[str, object]) -> Any:
        with self._asked(what, query) as answer:
            body = _all(answer, ANSWER_BYTES)
        try:
            return json.loads(body)
        except ValueError:
            raise TransientError(
                f"{self} uses another version of the protocol between nodes"
            ) from None

    def __str__(self) -> str:
        return f"the peer {self.name or self._host} at {self.where[0]}:{self.where[1]}"

    @contextmanager
    def _asked(
        self, what: str, query: Mapping[str, object], call: _Call | None = None
    ) -> Iterator[http.client.HTTPResponse]:
        """Ask, and lend the answer; all that goes wrong inside is an error of this peer.

        A ``call`` on what the peer keeps has arguments, and a body.

        Raises:
            ForbiddenError, NotFoundError: It refuses, or has no such thing.
            RemoteError: It could not read what was asked for.
            TransientError: It does not answer.
        """
        connection: http.client.HTTPConnection | None = None
        done = False
        try:
            connection, answer = self._sent(f"{PATH}/{what}?{urlencode(query)}", call)
            if answer.status != http.client.OK:
                kind = _ERRORS.get(answer.getheader(ERROR_CODE))
                if kind is not None:
                    text = _all(answer, ERROR_BYTES).decode(errors="replace")
                    done = answer.isclosed()
                    raise kind(f"{self}: {text}")
                raise _error(f"{answer.status} ".encode() + _all(answer, ERROR_BYTES), str(self))
            yield answer
            done = answer.isclosed()
        except (OSError, http.client.HTTPException) as error:
            raise TransientError(f"{self} does not answer: {error!r}") from error
        finally:
            with self._lock:
                done = done and len(self._idle) < IDLE_AT_MOST
                if done and connection is not None:
                    self._idle.append(connection)
            if not done and connection is not None:
                connection.close()

    def _sent(
        self, path: str, call: _Call | None = None
    ) -> tuple[http.client.HTTPConnection, http.client.HTTPResponse]:
        """Send a request; one that the peer hung up on meanwhile goes over another connection."""
        while True:
            with self._lock:
                idle = self._idle.pop() if self._idle else None
            connection = idle or _Connection(self._host, self.where, self._tls, self._source)
            try:
                connected(connection)
                if connection.sock is None:
                    connection.connect()
                connection.sock.settimeout(SILENCE_SECONDS if call is None else KEEPER_SECONDS)
                if call is None:
                    connection.request("GET", path, headers=self._headers)
                else:
                    head = json.dumps(call[0]).encode()
                    length = CALL_LENGTH_BYTES + len(head) + size_of(call[1])
                    headers = {**self._headers, "Content-Length": str(length)}
                    connection.request("POST", path, _counted(head, call[1]), headers)
                return connection, connection.getresponse()
            except BaseException as error:
                connection.close()
                if idle is None or not isinstance(error, ConnectionResetError | BrokenPipeError):
                    raise


class _Connection(http.client.HTTPConnection):
    def __init__(
        self,
        host: str,
        where: tuple[str, int],
        tls: Callable[[], ssl.SSLContext] | None,
        source: tuple[str, int] | None,
    ) -> None:
        super().__init__(*where, timeout=SILENCE_SECONDS, source_address=source)
        self._shown_host = host
        self._tls = tls

    def connect(self) -> None:
        super().connect()
        if self._tls is not None:
            self.sock = self._tls().wrap_socket(self.sock, server_hostname=self._shown_host)


def _counted(head: bytes, body: Body) -> Iterator[bytes | memoryview]:
    """Yield what is sent: the arguments, and the body in slices, which count as sent."""
    yield len(head).to_bytes(CALL_LENGTH_BYTES) + head
    for piece in pieces_of(body):
        for at in range(0, len(piece), SLICE_BYTES):
            yield piece[at : at + SLICE_BYTES]
            sent(len(piece[at : at + SLICE_BYTES]))


def _pieces(answer: http.client.HTTPResponse, size_bytes: int) -> Iterator[memoryview]:
    """Yield exactly so many bytes, as they come."""
    buffer = memoryview(bytearray(min(size_bytes, SLICE_BYTES)))
    while size_bytes:
        count = answer.readinto(buffer[:size_bytes])
        if not count:
            raise http.client.HTTPException("it breaks off")
        yield buffer[:count]
        size_bytes -= count
    if answer.read(1):
        raise http.client.HTTPException("more than was asked for")


def _blocks(answer: http.client.HTTPResponse, size_bytes: int) -> Iterator[memoryview]:
    """Yield so many bytes, block by block; each comes within its time, however it drips.

    A block lasts until the next one.
    """
    buffer = memoryview(bytearray(min(size_bytes, BLOCK_BYTES)))
    while size_bytes:
        _await(answer)
        came, wanted = 0, min(size_bytes, BLOCK_BYTES)
        slow_at = time.monotonic() + BLOCK_SECONDS
        while came < wanted:
            piece = answer.read1(min(wanted - came, SLICE_BYTES))  # what is there by now
            if not piece or time.monotonic() > slow_at:
                raise http.client.HTTPException("it breaks off, or is very slow")
            buffer[came : came + len(piece)] = piece
            came += len(piece)
        yield buffer[:wanted]
        size_bytes -= wanted
    if answer.read(1):
        raise http.client.HTTPException("more than was asked for")


def _await(answer: http.client.HTTPResponse) -> None:
    """Return once bytes follow."""
    late_at = time.monotonic() + PATIENCE_SECONDS
    while (kind := answer.read(1)) != BYTES:
        if kind == ERROR:
            raise _error(_all(answer, ERROR_BYTES))
        if kind != ALIVE or time.monotonic() > late_at:
            raise http.client.HTTPException("it breaks off, or gets nothing")


def _error(sent: bytes, peer: str = "the peer") -> CachetierError:
    """Return what a peer says is wrong: a status of HTTP, and a text."""
    status, _, text = sent.decode(errors="replace").partition(" ")
    kind = {"403": ForbiddenError, "404": NotFoundError}.get(status, RemoteError)
    return kind(f"{peer} says: {text}")


def _all(answer: http.client.HTTPResponse, limit_bytes: int) -> bytes:
    body = answer.read(limit_bytes + 1)
    if len(body) > limit_bytes:
        raise http.client.HTTPException("an answer is too large")
    return body
