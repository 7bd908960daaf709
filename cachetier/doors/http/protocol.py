"""uvicorn's HTTP/1.1 connection with the deadlines and bounds that it lacks.

uvicorn waits for ever for the end of a head and for a reader that does not read, takes any number
of headers, and accepts a length beside chunks. One watch for each connection ends what does not
move on.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import httptools
from uvicorn._types import HTTPScope
from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from cachetier.callers import is_gone
from cachetier.doors.http.body import TAP, Feed, Tap
from cachetier.doors.http.direct import LEND, DirectStream, Lend
from cachetier.doors.http.front import CONNECTION, Describe, Failed
from cachetier.doors.http.limits import RequestLimits
from cachetier.doors.http.problems import problem_response
from cachetier.errors import InvalidRequestError
from cachetier.parsers import network_of
from cachetier.tls import name_of

READ_BYTES = 256 << 10
READ_BYTES_UNASKED = 16 << 10  # until an application wants a large body
PIPELINED = 16
TLS = "tls"  # as the ASGI extension is called


class BadHeadError(Exception):
    """The head breaks a bound; the parser turns it into a 400 and closes."""


class WatchedProtocol(HttpToolsProtocol):
    """One connection; see ``protocol_with`` for its limits."""

    limits = RequestLimits()
    door = "http"
    failed: Failed = staticmethod(lambda _door, _code: None)
    describe: Describe = staticmethod(problem_response)
    read_buffer = memoryview(bytearray(READ_BYTES))  # of all connections of a loop
    crowd: Crowd

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self.host = ""
        self._in_head = False
        self._head_bytes = 0
        self._has_body = False
        self._feed: Feed | None = None
        self._left_bytes: int | None = None
        self._served: RequestResponseCycle | None = None
        self.resting_since = self.loop.time()
        self._unsent_bytes = 0
        self._stuck_since = self.resting_since
        self._watch: asyncio.TimerHandle | None = None

    # --- connection ----------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._peer = _peer_of(transport.get_extra_info("peercert"))
        self.host = network_of(self.client[0]) if self.client else ""
        self.crowd.enter(self)
        if len(self.connections) > self.limits.connections:
            self.crowd.make_place_for(self).transport.abort()
        if not self.transport.is_closing():
            self._look_again()

    @property
    def rests(self) -> bool:
        """Whether no request is being served."""
        cycle: RequestResponseCycle | None = self.cycle
        return cycle is None or cycle.response_complete

    def connection_lost(self, exc: Exception | None) -> None:
        self.crowd.leave(self)
        if self._watch is not None:
            self._watch.cancel()
        if self._served is not None:  # uvicorn tells the last that came alone
            self._served.disconnected = True
            self._served.message_event.set()
        super().connection_lost(exc)

    @property
    def reads_bytes(self) -> int:
        """How much may come at a time: little, but of a body, which somebody asked for."""
        return READ_BYTES if self._has_body and not self.rests else READ_BYTES_UNASKED

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self._in_head and not self.transport.is_closing():
            self._head_bytes += len(data)
            if self._head_bytes > self.limits.head_bytes:
                self.send_400_response("the head of the request is too large")

    def send_400_response(self, msg: str) -> None:
        error = InvalidRequestError(msg)
        self.failed(self.door, error.code)
        answer = self.describe(error, close=True)
        head = b"".join(b"%b: %b\r\n" % header for header in answer.raw_headers)
        self.transport.write(b"HTTP/1.1 400 Bad Request\r\n%b\r\n%b" % (head, bytes(answer.body)))
        self.transport.close()

    # --- parser --------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._in_head = True
        self._head_bytes = 0
        self._has_body = False
        self._feed = None
        self._left_bytes = None
        connection = self.transport.get_extra_info("socket")
        self.scope["extensions"] = {
            TAP: {"tap": self._tap_for(self.scope)},
            LEND: {"lend": self._lend_for(self.scope)},
            CONNECTION: {
                "socket": connection,
                "unsent_bytes": self.transport.get_write_buffer_size,
                "abort": self.transport.abort,
                "go_on": self._go_on_for(self.scope),
            },
            **self._peer,
        }

    def on_header(self, name: bytes, value: bytes) -> None:
        super().on_header(name, value)
        if len(self.headers) > self.limits.headers:
            raise BadHeadError("too many headers")

    def on_headers_complete(self) -> None:
        named = dict(self.headers)
        names = named.keys()
        if b"content-length" in names and b"transfer-encoding" in names:
            raise BadHeadError("both Content-Length and Transfer-Encoding")
        if len(self.pipeline) >= PIPELINED:
            raise BadHeadError("too many requests at once")
        super().on_headers_complete()
        self.crowd.look_at(self)
        self._in_head = False
        self._has_body = bool(names & {b"content-length", b"transfer-encoding"})
        if b"content-length" in names:
            self._left_bytes = int(named[b"content-length"])
        if self._has_body:
            self.flow.pause_reading()  # until the application asks, or has answered without

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._served = cycle
        super()._start_asgi_task(cycle, app)

    def on_body(self, body: bytes) -> None:
        if self._left_bytes is not None:
            self._left_bytes -= len(body)
        if self._feed is None or self.cycle.response_complete:
            super().on_body(body)
        elif self._feed(body):
            self.flow.pause_reading()
            self.cycle.message_event.set()

    def _tap_for(self, scope: HTTPScope) -> Tap:
        """Return how the application of one request may take its body as it is parsed."""

        def tap(feed: Feed) -> bytes | None:
            cycle = self.cycle
            if cycle.scope is not scope or cycle.disconnected:
                return None  # another request was pipelined behind it
            self._feed = feed
            earlier, cycle.body = bytes(cycle.body), bytearray()
            return earlier

        return tap

    def _go_on_for(self, scope: HTTPScope) -> Callable[[], None]:
        """Return how the application has a client go on that waits to be asked for its body.

        ``receive`` does the same, when it is wanted; asked earlier a small body comes meanwhile.
        """

        def go_on() -> None:
            cycle = self.cycle
            if cycle.scope is scope and cycle.waiting_for_100_continue:
                self._continue(cycle)
                self.flow.resume_reading()

        return go_on

    def _continue(self, cycle: RequestResponseCycle) -> None:
        self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        cycle.waiting_for_100_continue = False

    def _lend_for(self, scope: HTTPScope) -> Lend:
        """Return how a thread may receive the rest of one request's body from the socket itself."""

        def lend() -> DirectStream | None:
            cycle, left_bytes = self.cycle, self._left_bytes
            ours = cycle.scope is scope and not cycle.disconnected
            if not ours or not left_bytes or self.transport.get_extra_info("ssl_object"):
                return None
            if cycle.waiting_for_100_continue:
                self._continue(cycle)
            self.flow.pause_reading()
            earlier, cycle.body = bytes(cycle.body), bytearray()
            connection = self.transport.get_extra_info("socket").fileno()
            return DirectStream(connection, earlier, left_bytes, self._taken_back)

        return lend

    def _taken_back(self, whole: bool) -> None:
        """Go on behind a body that was read past the parser, or let this be the last request."""
        if whole:
            self.parser = httptools.HttpRequestParser(self)
            self._left_bytes = 0
            self.on_message_complete()
        else:
            self.cycle.keep_alive = False

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.rests:
            self.cycle.body = bytearray()
        self.resting_since = self.loop.time()
        self.crowd.look_at(self)

    # --- the watch -----------------------------------------------------------------------------

    def _look_again(self) -> None:
        seconds = min(self.limits.header_seconds, self.limits.progress_seconds) / 4
        self._watch = self.loop.call_later(seconds, self._look)

    def _look(self) -> None:
        """End a connection that rests too long, whose reader takes next to nothing, or is gone."""
        now = self.loop.time()
        if self._reader_is_stuck(now) or self._left_its_queue():
            self.transport.abort()
        elif self.rests and now - self.resting_since > self.limits.header_seconds:
            self.transport.close()
            self._look_again()
        else:
            self._look_again()

    def _left_its_queue(self) -> bool:
        """Whether the peer has hung up; nothing is read, and its end not seen, while some wait."""
        return bool(self.pipeline) and is_gone(self.transport.get_extra_info("socket"))

    def _reader_is_stuck(self, now: float) -> bool:
        unsent_bytes = self.transport.get_write_buffer_size()
        taken_bytes = self._unsent_bytes - unsent_bytes
        if unsent_bytes == 0 or not 0 <= taken_bytes < self.limits.progress_bytes:
            self._unsent_bytes, self._stuck_since = unsent_bytes, now
        return now - self._stuck_since > self.limits.progress_seconds

    def resume_writing(self) -> None:
        """Go on: the reader took all but a little, and what is unsent counts again."""
        self._unsent_bytes = 0
        super().resume_writing()


class Crowd:
    """The connections of a door by address; those that rest are at hand, the longest rest first.

    Who makes place is found without a look at each: as many may come as a machine can open.
    """

    def __init__(self) -> None:
        self._there: defaultdict[str, dict[WatchedProtocol, None]] = defaultdict(dict)
        self._resting: defaultdict[str, dict[WatchedProtocol, None]] = defaultdict(dict)

    def enter(self, one: WatchedProtocol) -> None:
        self._there[one.host][one] = None
        self._resting[one.host][one] = None

    def leave(self, one: WatchedProtocol) -> None:
        for by_host in (self._there, self._resting):
            of_host = by_host.get(one.host, {})
            of_host.pop(one, None)
            if not of_host:
                by_host.pop(one.host, None)

    def look_at(self, one: WatchedProtocol) -> None:
        """Note whether a connection rests now, after a request or an answer of it."""
        self._resting.get(one.host, {}).pop(one, None)
        if one.rests and one in self._there.get(one.host, {}):
            self._resting[one.host][one] = None

    def make_place_for(self, newcomer: WatchedProtocol) -> WatchedProtocol:
        """Return who goes: the longest rest, of the address that has most if any of its rests.

        Of the busy ones the newest of the address that has most, but not for one who has as many.
        A client whose connection rested connects again.
        """
        most = max(map(len, self._there.values()))
        greedy = [host for host, there in self._there.items() if len(there) == most]
        for hosts in (greedy, list(self._there)):
            rests = (self._resting.get(host, {}) for host in hosts)
            firsts = (next((each for each in of if each is not newcomer), None) for of in rests)
            if longest := [each for each in firsts if each is not None]:
                goes = min(longest, key=lambda each: each.resting_since)
                self.leave(goes)
                return goes
        if len(self._there[newcomer.host]) == most:
            return newcomer
        busy = [each for host in greedy for each in self._there[host]]
        return max(busy, key=lambda each: each.resting_since)


class Entrance(asyncio.BufferedProtocol):
    """The protocol of a transport: passes what it reads on to uvicorn's, in small pieces."""

    def __init__(
        self, config: Config, server_state: ServerState, app_state: dict[str, Any]
    ) -> None:
        inner = config.http_protocol_class(config, server_state, app_state)  # type: ignore[call-arg]
        assert isinstance(inner, WatchedProtocol)
        self._inner = inner
        self.connection_made = inner.connection_made  # type: ignore[assignment]
        self.connection_lost = inner.connection_lost  # type: ignore[method-assign]
        self.pause_writing = inner.pause_writing  # type: ignore[method-assign]
        self.resume_writing = inner.resume_writing  # type: ignore[method-assign]

    def get_buffer(self, _sizehint: int) -> memoryview:
        return self._inner.read_buffer[: self._inner.reads_bytes]

    def buffer_updated(self, nbytes: int) -> None:
        self._inner.data_received(bytes(self._inner.read_buffer[:nbytes]))


def _peer_of(certificate: dict[str, Any] | None) -> dict[str, Any]:
    """Return the extension of the scope that names a client whose certificate was verified."""
    if not certificate:
        return {}
    others = [f"{kind}:{name}" for kind, name in certificate.get("subjectAltName", ())]
    subject = name_of(certificate["subject"])
    return {TLS: {"client_cert_name": subject, "client_cert_alt_names": others}}


def protocol_with(
    door: str, limits: RequestLimits, failed: Failed, describe: Describe
) -> type[WatchedProtocol]:
    """Return the protocol bounded by ``limits``; uvicorn makes one instance for each connection.

    Args:
        door: As ``failed`` calls it.
        failed: See ``Operations``.
        describe: Says what is wrong with a head.
    """
    chosen = {
        "limits": limits,
        "door": door,
        "failed": staticmethod(failed),
        "describe": staticmethod(describe),
        "read_buffer": memoryview(bytearray(READ_BYTES)),
        "crowd": Crowd(),
    }
    return type("LimitedProtocol", (WatchedProtocol,), chosen)
