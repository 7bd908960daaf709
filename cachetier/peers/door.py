"""The door for peers: a thread for each connection, which sends blocks from memory as they come.

The web framework of the other doors is left out: all that is asked are five plain questions, and
the calls of an ``ObjectStore`` on the objects that this node keeps, by nodes that are in a list.
Blocking calls answer them. Nobody else gets as far as a handshake.
"""

from __future__ import annotations

import hmac
import json
import logging
import socket
import socketserver
import threading
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from io import BufferedIOBase
from typing import Any, get_type_hints
from urllib.parse import parse_qsl, urlsplit

import msgspec
from cachetier_client.io.digests import from_hex

from cachetier.errors import CachetierError, ForbiddenError, NotFoundError
from cachetier.peers.answers import Bytes, PeerAnswers
from cachetier.peers.keeper import KeptObjects
from cachetier.remote.neighbours.client import (
    ALIVE,
    BYTES,
    CALL_LENGTH_BYTES,
    ERROR,
    ERROR_CODE,
    PATH,
    WantedBlocks,
)
from cachetier.remote.neighbours.membership import (
    BUCKET,
    STORE,
    VERSION,
    Membership,
    NodeIdentity,
)
from cachetier.remote.stall_guard import SLICE_BYTES
from cachetier.telemetry import events
from cachetier.telemetry.events import tell
from cachetier.tls import Tls

log = logging.getLogger(__name__)

IDLE_SECONDS = 30.0
CONNECTIONS = 4096  # a thousand nodes begin with the same ranges
_STRANGER = "{} is not among `peers.nodes`: list it on every node, if it is one"
KEPT = f"{PATH}/kept/"
# What a peer may do with the objects that are kept here, each by the arguments of its method.
OPERATIONS = {
    name: get_type_hints(getattr(KeptObjects, name))
    for name in (
        *("head", "put", "delete", "listed", "create_upload", "upload_part"),
        *("list_parts", "complete_upload", "abort_upload", "list_uploads"),
    )
}


@dataclass(frozen=True, slots=True)
class _Door:
    membership: Membership
    answers: PeerAnswers
    token: str
    tls: Tls | None
    keeper: KeptObjects | None


class PeerDoor(socketserver.ThreadingTCPServer):
    """Answers peers on ``listener``; ``token`` is empty where certificates say who calls."""

    daemon_threads = True
    block_on_close = False

    def __init__(
        self,
        listener: socket.socket,
        membership: Membership,
        answers: PeerAnswers,
        *,
        token: str = "",
        tls: Tls | None = None,
        keeper: KeptObjects | None = None,
    ) -> None:
        super().__init__(listener.getsockname()[:2], _PeerRequest, bind_and_activate=False)
        self.socket.close()
        self.socket = listener
        self.door = _Door(membership, answers, token, tls, keeper)
        self._places = threading.Semaphore(CONNECTIONS)
        self._open: set[socket.socket] = set()
        self._thread = threading.Thread(target=self.serve_forever, name="peers-door", daemon=True)

    def start(self) -> None:
        """Answer from now on."""
        self._thread.start()

    def stop(self) -> None:
        """Stop answering; peers that read here go on elsewhere."""
        self.shutdown()
        self.server_close()
        for connection in list(self._open):
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        self.door.answers.close()

    def verify_request(self, _request: Any, client_address: Any) -> bool:
        """Return whether the caller is in the list, and there is a place."""
        address = str(client_address[0])
        if not self.door.membership.lists(address):
            tell(log, events.PEERS_TROUBLE, problem=_STRANGER.format(address))
            return False
        return self._places.acquire(blocking=False)

    def finish_request(self, request: Any, client_address: Any) -> None:
        """Serve one connection."""
        try:
            request.settimeout(IDLE_SECONDS)
            if self.door.tls is not None:
                request = self.door.tls.context().wrap_socket(request, server_side=True)
            self._open.add(request)
            super().finish_request(request, client_address)
        finally:
            self._open.discard(request)
            request.close()
            self._places.release()

    def handle_error(self, _request: Any, _client_address: Any) -> None:
        """Say nothing of a caller who hung up."""


class _SentBody:
    """The body of a request, which can be read once: a call, its length before it, and bytes."""

    def __init__(self, file: BufferedIOBase, size_bytes: int) -> None:
        self.size_bytes = self._left = size_bytes
        self._file = file

    def call(self) -> bytes:
        """Return the call; the bytes behind it are left."""
        length = int.from_bytes(self._file.read(CALL_LENGTH_BYTES))
        if CALL_LENGTH_BYTES + length > self._left:
            raise ValueError("the call is longer than the body")
        call = self._file.read(length)
        self.size_bytes = self._left = self._left - CALL_LENGTH_BYTES - length
        return call

    def __iter__(self) -> Iterator[memoryview]:
        buffer = memoryview(bytearray(min(self._left, SLICE_BYTES)))
        while self._left:
            count = self._file.readinto(buffer[: self._left])
            if not count:
                raise ConnectionResetError("the body broke off")
            self._left -= count
            yield buffer[:count]


class _PeerRequest(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = 1 << 16  # small writes go together, and at once:
    disable_nagle_algorithm = True  # else each answer waits 40 ms for the caller's kernel
    timeout = IDLE_SECONDS
    server: PeerDoor

    def log_message(self, *_arguments: Any) -> None:
        """Write no log."""

    def do_GET(self) -> None:
        """Answer one question."""
        try:
            self._refuse_strangers()
            parts = urlsplit(self.path)
            query = dict(parse_qsl(parts.query))
            answer = {
                f"{PATH}/hello": self._hello,
                f"{PATH}/held": self._held,
                f"{PATH}/knows": self._knows,
                f"{PATH}/blocks": self._blocks,
                f"{PATH}/document": self._document,
            }.get(parts.path)
            if answer is None:
                raise NotFoundError("there is no such route")
            answer(query)
        except (KeyError, ValueError):
            self._say(HTTPStatus.BAD_REQUEST, b"the question is not understood")
        except CachetierError as error:
            self._say(error.http_status, error.message.encode())

    def do_POST(self) -> None:
        """Do one operation on the objects that are kept here."""
        body = _SentBody(self.rfile, int(self.headers.get("Content-Length", "0")))
        try:
            self._refuse_strangers()
            parts = urlsplit(self.path)
            if not parts.path.startswith(KEPT):
                raise NotFoundError("there is no such route")
            self._keep(parts.path.removeprefix(KEPT), json.loads(body.call()), body)
        except CachetierError as error:
            self._refuse(body, error.http_status, error.message, error.code)
        except (KeyError, TypeError, ValueError):
            self._refuse(body, HTTPStatus.BAD_REQUEST, "the question is not understood")

    def _keep(self, operation: str, call: dict[str, Any], body: _SentBody) -> None:
        keeper = self.server.door.keeper
        if keeper is None:
            raise NotFoundError("this node keeps no copies for others")
        if operation == "read":
            self._send_kept(call["size_bytes"], keeper.pieces(**call))
            return
        types = OPERATIONS[operation]
        arguments = {name: msgspec.convert(value, types[name]) for name, value in call.items()}
        if "body" in types:
            arguments["body"] = body
        found = getattr(keeper, operation)(**arguments)
        self._say(
            HTTPStatus.OK, msgspec.json.encode([*found] if isinstance(found, Iterator) else found)
        )

    def _send_kept(self, size_bytes: int, pieces: Iterator[memoryview]) -> None:
        """Send a range; an error before its first byte is a status, one later ends it early."""
        first = next(pieces, memoryview(b""))
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Length", str(size_bytes))
        self.end_headers()
        self.wfile.write(first)
        self.close_connection = True
        with suppress(CachetierError):
            for each in pieces:
                self.wfile.write(each)
            self.close_connection = False

    def _refuse(self, body: _SentBody, status: int, message: str, code: str = "") -> None:
        """Answer with an error, once the caller has sent all: it would not read it before."""
        with suppress(OSError):
            for _ in body:
                pass
        self._say(status, message.encode(), {ERROR_CODE: code})

    def _refuse_strangers(self) -> None:
        door, where = self.server.door, str(self.client_address[0])
        given = self.headers.get("Authorization", "").encode()
        if door.token and not hmac.compare_digest(given, f"Bearer {door.token}".encode()):
            raise ForbiddenError(f"the node at {where} has another `peers.trust`")
        version = self.headers.get(VERSION, "")
        other = NodeIdentity(
            self.headers.get(STORE, "unknown"),
            self.headers.get(BUCKET, ""),
            version=int(version) if version.isdigit() else 0,
        )
        door.membership.own.refuse_unless_alike(other, where)
        door.membership.heard_from(other.store, where)

    def _hello(self, _query: Mapping[str, str]) -> None:
        self._say(HTTPStatus.OK, json.dumps(asdict(self.server.door.membership.own)).encode())

    def _held(self, query: Mapping[str, str]) -> None:
        names = self.server.door.answers.held_shards(
            query["run"], int(query["step"]), query["save_id"]
        )
        self._say(HTTPStatus.OK, json.dumps(names).encode())

    def _knows(self, query: Mapping[str, str]) -> None:
        step, rank = int(query["step"]), int(query["rank"])
        knows = self.server.door.answers.knows(query["run"], step, query["save_id"], rank)
        self._say(HTTPStatus.OK, json.dumps(knows).encode())

    def _blocks(self, query: Mapping[str, str]) -> None:
        run, save_id, name = (query[each] for each in ("run", "save_id", "name"))
        first, count, held = (int(query[each]) for each in ("first_block", "count", "held"))
        ids = run, int(query["step"]), save_id, name, from_hex(query["digest"])
        self._stream(self.server.door.answers.blocks(WantedBlocks(*ids, first, count, bool(held))))

    def _document(self, query: Mapping[str, str]) -> None:
        self._stream(self.server.door.answers.document(query["key"], from_hex(query["digest"])))

    def _stream(self, found: Iterator[Bytes | None]) -> None:
        """Send what comes; an error before it comes is a status, and one later a message."""
        first = next(found, None)
        self.send_response(HTTPStatus.OK)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        try:
            self._send_block(first)
            for each in found:
                self._send_block(each)
        except CachetierError as error:
            self._send_chunk(ERROR + f"{error.http_status} {error.message}".encode())
        self._send_chunk(b"")

    def _send_block(self, block: Bytes | None) -> None:
        for piece in (ALIVE,) if block is None else (BYTES, block):
            if len(piece):  # an empty chunk ends the answer
                self._send_chunk(piece)
        self.wfile.flush()

    def _send_chunk(self, data: Bytes) -> None:
        self.wfile.writelines((b"%x\r\n" % len(data), data, b"\r\n"))

    def _say(self, status: int, body: bytes, headers: Mapping[str, str] = {}) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
