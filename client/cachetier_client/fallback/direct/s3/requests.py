"""Signed requests to one bucket, a single attempt each, over connections that are kept."""

from __future__ import annotations

import contextlib
import http.client
import os
import ssl
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import quote, urlencode, urlsplit

from cachetier_client import forks
from cachetier_client.bucket_format.documents import check_size
from cachetier_client.deadline import Deadline
from cachetier_client.fallback.direct.s3.credentials import Signer
from cachetier_client.identity.remote_url import DEFAULT_REGION

if TYPE_CHECKING:
    from cachetier_client.fallback.direct.s3.address import S3Address

STALLED_SECONDS = 30.0  # without a byte, while the call has time left
CONNECT_SECONDS = 10.0
PIECE_BYTES = 1 << 20
IDLE_LIMIT = 16
_ERROR_LIMIT_BYTES = 1 << 20

Piece = bytes | memoryview


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to a request; header names are in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class Requests:
    """Makes requests to a bucket. Thread-safe and fork-safe.

    What it raises besides ``DeadlineError`` and ``RemoteRefusedError`` is the network's: OSError or
    ``http.client.HTTPException``.
    """

    def __init__(self, address: S3Address) -> None:
        region = address.region or os.environ.get("AWS_REGION")
        region = region or os.environ.get("AWS_DEFAULT_REGION") or DEFAULT_REGION
        parts = urlsplit(address.endpoint or _aws_url(region))
        virtual = address.addressing_style == "virtual" or address.endpoint is None
        in_host = virtual and address.addressing_style != "path" and "." not in address.bucket
        before = f"{address.bucket}." if in_host else ""
        self._secure = parts.scheme == "https"
        self._host = before + (parts.hostname or "")
        self._port = parts.port or (443 if self._secure else 80)
        self._netloc = before + parts.netloc.rpartition("@")[2]
        self._root = parts.path.rstrip("/") + ("" if in_host else f"/{address.bucket}")
        self._signer = Signer(region)
        self._lock = threading.RLock()
        self._idle: list[http.client.HTTPConnection] = []
        forks.own(self)

    def send(
        self,
        method: str,
        key: str,
        deadline: Deadline,
        *,
        query: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
        body: Sequence[Piece] = (),
        on_data: Callable[[bytes], None] | None = None,
    ) -> Answer:
        """Make a request about ``key`` (empty: the bucket) and return the whole answer.

        Args:
            on_data: Takes the body of a good answer piece by piece, so that it may be long.
        """
        target = f"{self._root}/{quote(key, safe='/-_.~')}"
        if query:
            target = f"{target}?{urlencode(sorted(query.items()), quote_via=quote, safe='-_.~')}"
        described = {"Host": self._netloc, **(headers or {})}
        described["Content-Length"] = str(sum(len(piece) for piece in body))
        signed = self._signer.signed(method, target, described, deadline)
        with self._connection(deadline) as connection:
            connection.putrequest(method, target, skip_host=True, skip_accept_encoding=True)
            for name, value in signed:
                connection.putheader(name, value)
            connection.endheaders()
            self._send_body(connection, body, deadline)
            return self._receive(connection, key, deadline, on_data)

    def close(self) -> None:
        """Close what is idle; what is under way closes as it ends."""
        with self._lock:
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()

    def abandon(self) -> None:
        """Let the parent's connections be, in a forked child."""
        self._lock = threading.RLock()
        idle, self._idle = self._idle, []
        for connection in idle:
            with contextlib.suppress(OSError):
                connection.close()
        forks.own(self)

    # --- one exchange ----------------------------------------------------------------------------

    def _send_body(
        self, connection: http.client.HTTPConnection, body: Sequence[Piece], deadline: Deadline
    ) -> None:
        for piece in body:
            for at in range(0, len(piece), PIECE_BYTES):
                _arm(connection, deadline)
                connection.send(piece[at : at + PIECE_BYTES])

    def _receive(
        self,
        connection: http.client.HTTPConnection,
        key: str,
        deadline: Deadline,
        on_data: Callable[[bytes], None] | None,
    ) -> Answer:
        _arm(connection, deadline)
        with contextlib.closing(connection.getresponse()) as response:
            headers = {name.lower(): value for name, value in response.getheaders()}
            good = response.status < 300
            collected = bytearray()
            if good and on_data is None:
                check_size(key, response.length or 0)
            while True:
                _arm(connection, deadline)
                data = response.read(PIECE_BYTES)
                if not data:
                    break
                if good and on_data is not None:
                    on_data(data)
                elif good or len(collected) < _ERROR_LIMIT_BYTES:
                    collected += data
                    check_size(key, len(collected))
        if response.will_close:
            connection.close()
        return Answer(response.status, headers, bytes(collected))

    @contextlib.contextmanager
    def _connection(self, deadline: Deadline) -> Iterator[http.client.HTTPConnection]:
        """Lend a connection; one that an exchange broke off on is closed."""
        with self._lock:
            connection = self._idle.pop() if self._idle else None
        connection = connection or self._new_connection()
        connection.timeout = min(CONNECT_SECONDS, deadline.require("connecting to S3"))
        try:
            yield connection
        except BaseException:
            connection.close()
            raise
        if connection.sock is None:
            return
        with self._lock:
            if len(self._idle) < IDLE_LIMIT:
                self._idle.append(connection)
                return
        connection.close()

    def _new_connection(self) -> http.client.HTTPConnection:
        if self._secure:
            context = ssl.create_default_context(cafile=os.environ.get("AWS_CA_BUNDLE") or None)
            return http.client.HTTPSConnection(self._host, self._port, context=context)
        return http.client.HTTPConnection(self._host, self._port)


def _arm(connection: http.client.HTTPConnection, deadline: Deadline) -> None:
    left = min(STALLED_SECONDS, deadline.require("the exchange with S3"))
    if connection.sock is not None:
        connection.sock.settimeout(left)


def _aws_url(region: str) -> str:
    suffix = "amazonaws.com.cn" if region.startswith("cn-") else "amazonaws.com"
    return f"https://s3.{region}.{suffix}"
