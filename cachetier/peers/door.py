"""The door for peers: a thread for each connection, which sends blocks from memory as they come.

The web framework of the other doors is left out: all that is asked are four plain questions, by
nodes that are in a list, and blocking calls answer them. Nobody else gets as far as a handshake.
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
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from cachetier_client.io.digests import from_hex

from cachetier.errors import CachetierError, ForbiddenError, NotFoundError
from cachetier.peers.answers import Bytes, PeerAnswers
from cachetier.peers.client import ALIVE, BYTES, ERROR, PATH
from cachetier.peers.membership import Membership, NodeIdentity
from cachetier.restore.one_fetch import WantedBlocks
from cachetier.telemetry import events
from cachetier.telemetry.events import tell
from cachetier.tls import Tls

log = logging.getLogger(__name__)

IDLE_SECONDS = 30.0
CONNECTIONS = 512
STORE, BUCKET, VERSION = "Cachetier-Store", "Cachetier-Bucket", "Cachetier-Version"


def headers_of(own: NodeIdentity, token: str) -> dict[str, str]:
    """Return what each request to a peer says."""
    names = {STORE: own.store, BUCKET: own.bucket, VERSION: str(own.version)}
    return {**names, "Authorization": f"Bearer {token}"} if token else names


@dataclass(frozen=True, slots=True)
class _Door:
    membership: Membership
    answers: PeerAnswers
    token: str
    tls: Tls | None


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
    ) -> None:
        super().__init__(listener.getsockname()[:2], _PeerRequest, bind_and_activate=False)
        self.socket.close()
        self.socket = listener
        self.door = _Door(membership, answers, token, tls)
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
            tell(log, events.PEERS_TROUBLE, problem=f"{address} is not among `peers.nodes`")
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


class _PeerRequest(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
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
                f"{PATH}/blocks": self._blocks,
                f"{PATH}/document": self._document,
            }.get(parts.path)
            if answer is None:
                raise NotFoundError("there is no such route")
            answer(query)
        except (KeyError, ValueError):
            self._say(HTTPStatus.BAD_REQUEST, b"the question is no such question")
        except CachetierError as error:
            self._say(error.http_status, error.message.encode())

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
        save = query["run"], int(query["step"]), query["save_id"]
        names = self.server.door.answers.held_shards(*save)
        self._say(HTTPStatus.OK, json.dumps(names).encode())

    def _blocks(self, query: Mapping[str, str]) -> None:
        texts = (query[name] for name in ("run", "save_id", "name"))
        run, save_id, name = texts
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
        if block is None:
            self._send_chunk(ALIVE)
        else:
            self._send_chunk(BYTES)
            if len(block):
                self._send_chunk(block)

    def _send_chunk(self, data: Bytes) -> None:
        self.wfile.write(b"%x\r\n" % len(data))
        self.wfile.write(data)
        self.wfile.write(b"\r\n")

    def _say(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
