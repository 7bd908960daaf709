"""A proxy that puts distance and trouble between a client and an S3 server.

::

    python -m cachetier.testing.s3proxy --upstream http://127.0.0.1:8333 --latency-ms 35

Each request waits ``latency`` before it is passed on, on a connection kept alive too; then head and
body pass through a buffer of fixed size, in both directions, with nothing changed: signatures hold.
A thread for each connection keeps this as fast as loopback, far beyond the servers behind it.

The troubles that a ``Troubles`` holds strike requests as its rules say, and are counted when they
do. tests/README.md shows how to use it, from a shell and from tests.
"""

from __future__ import annotations

import argparse
import signal
import socket
import threading
from typing import Self
from urllib.parse import urlsplit

from cachetier.testing.http_wire import Wire, WireError
from cachetier.testing.s3_relay import Relay
from cachetier.testing.troubles import Fault, Trouble, Troubles, When, first, share

BACKLOG = 128


class S3Proxy:
    """Serves on a free port of loopback between ``start`` and ``stop``, or as a context manager.

    ``requests`` counts the requests that came, ``connections`` the connections they came on.
    """

    def __init__(
        self,
        upstream: str,
        *,
        latency_seconds: float = 0.0,
        trickle_seconds: float = 1.0,
        late_seconds: float = 5.0,
        troubles: Troubles | None = None,
        port: int = 0,
    ) -> None:
        parts = urlsplit(upstream)
        if parts.scheme != "http" or parts.hostname is None:
            raise ValueError(f"upstream is an http:// address with a host, not {upstream!r}")
        self.upstream = (parts.hostname, parts.port or 80)
        self.latency_seconds = latency_seconds
        self.trickle_seconds = trickle_seconds
        self.late_seconds = late_seconds
        self.troubles = troubles or Troubles()
        self.requests = 0
        self.connections = 0
        self._lock = threading.Lock()
        self._open: set[socket.socket] = set()
        self._listener = _bound(port)
        self._listener.listen(BACKLOG)
        self.port: int = self._listener.getsockname()[1]
        self._acceptor = self._new_acceptor()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> Self:
        self._acceptor.start()
        return self

    def stop(self) -> None:
        """Stop accepting, and cut every connection; the port stays taken until the block ends."""
        if not self._acceptor.is_alive():
            return
        # `shutdown` wakes the thread in `accept`; `close` alone would not.
        self._listener.shutdown(socket.SHUT_RDWR)
        self._acceptor.join()
        self._listener.close()
        self._listener = _bound(self.port)
        with self._lock:
            for connection in self._open:
                _shut(connection)

    def come_back(self) -> None:
        """Serve again on the same port after ``stop``: the end of an outage."""
        self._listener.listen(BACKLOG)
        self._acceptor = self._new_acceptor()
        self._acceptor.start()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()
        self._listener.close()

    def count_request(self) -> None:
        with self._lock:
            self.requests += 1

    def _new_acceptor(self) -> threading.Thread:
        return threading.Thread(target=self._accept, name="s3proxy-accept", daemon=True)

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            with self._lock:
                self.connections += 1
                self._open.add(connection)
            threading.Thread(
                target=self._serve, args=(connection,), name="s3proxy-connection", daemon=True
            ).start()

    def _serve(self, connection: socket.socket) -> None:
        relay = Relay(self, Wire(connection))
        try:
            while relay.pass_one():
                pass
        except (OSError, WireError):
            pass  # either side may go away at any time; the other one is told by the close below
        finally:
            with self._lock:
                self._open.discard(connection)
            relay.close()


def _bound(port: int) -> socket.socket:
    """Return a socket that has ``port`` and does not listen: who connects to it is refused."""
    bound = socket.socket()
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    bound.bind(("127.0.0.1", port))
    return bound


def _shut(connection: socket.socket) -> None:
    try:
        connection.shutdown(socket.SHUT_RDWR)
    except OSError:
        pass  # closed already


# --- the command ----------------------------------------------------------------------------------

FAULT_HELP = """\
a rule, repeatable: TROUBLE[:OPERATION[:WHEN]]. OPERATION as S3 names it (UploadPart), empty for
any. WHEN is made of start=N every=N times=N chance=P, joined by commas; without it the first
request is struck, once. Example: --fault stall:UploadPart:every=10
"""


def parsed_fault(text: str) -> Fault:
    """Read a rule as the command line has it.

    Raises:
        ValueError: It is none; the message says what is wrong with it.
    """
    trouble, _, rest = text.partition(":")
    operation, _, when = rest.partition(":")
    fields = dict(pair.partition("=")[::2] for pair in when.split(",") if pair)
    if unknown := fields.keys() - {"start", "every", "times", "chance"}:
        raise ValueError(f"{text!r}: WHEN knows start, every, times and chance, not {min(unknown)}")
    times = fields.get("times", "inf" if fields.keys() & {"every", "chance"} else "1")
    return Fault(
        Trouble(trouble),
        operation or None,
        When(
            start=int(fields.get("start", fields.get("every", "1"))),
            every=int(fields.get("every", "1")),
            times=None if times == "inf" else int(times),
            chance=float(fields.get("chance", "1")),
        ),
    )


def _fault(text: str) -> Fault:
    try:
        return parsed_fault(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m cachetier.testing.s3proxy",
        description="Put distance and trouble between a client and an S3 server. Prints its port.",
        epilog=f"Troubles: {', '.join(Trouble)}.",
    )
    add = parser.add_argument
    add("--upstream", required=True, metavar="URL", help="http://host:port of the S3 server")
    add("--port", type=int, default=0, help="port of loopback to serve on; a free one if 0")
    add("--latency-ms", type=float, default=0.0, metavar="MS", help="wait before each request")
    add(
        "--slowdown-rate",
        type=float,
        default=0.0,
        metavar="R",
        help="requests a second that pass; what comes faster gets 503 SlowDown",
    )
    add(
        "--slowdown-share",
        type=float,
        default=0.0,
        metavar="P",
        help="share of all requests, 0 to 1, that get 503 SlowDown",
    )
    add("--retry-after", type=float, metavar="SECONDS", help="what 503 and 429 ask to wait")
    for name, what in (
        ("--lose-replies", "lose the replies to the next N requests that change something"),
        ("--resets", "reset the next N requests in the middle of their body"),
        ("--stalls", "let the next N requests hang without an answer"),
        ("--trickles", "answer the next N requests at one byte a second"),
    ):
        add(name, type=int, default=0, metavar="N", help=what)
    add("--fault", type=_fault, action="append", default=[], metavar="RULE", help=FAULT_HELP)
    add("--seed", type=int, default=0, metavar="N", help="for whatever is left to chance")
    return parser


def _troubles(options: argparse.Namespace) -> Troubles:
    counted = {
        Trouble.LOST_REPLY: options.lose_replies,
        Trouble.RESET: options.resets,
        Trouble.STALL: options.stalls,
        Trouble.TRICKLE: options.trickles,
    }
    faults = [Fault(trouble, when=first(times)) for trouble, times in counted.items() if times]
    if options.slowdown_share:
        faults.append(Fault(Trouble.SLOW_DOWN, when=share(options.slowdown_share)))
    return Troubles(
        [*faults, *options.fault],
        slowdown_rate=options.slowdown_rate,
        retry_after_seconds=options.retry_after,
        seed=options.seed,
    )


def main() -> None:
    """Print the port, then serve until SIGTERM or SIGINT; print what has struck at the end."""
    options = _parser().parse_args()
    # Blocked before any thread starts, so that the signal waits for `sigwait` below.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT})
    proxy = S3Proxy(
        options.upstream,
        latency_seconds=options.latency_ms / 1000,
        troubles=_troubles(options),
        port=options.port,
    )
    with proxy:
        print(proxy.port, flush=True)  # noqa: T201
        signal.sigwait({signal.SIGTERM, signal.SIGINT})
    struck = ", ".join(f"{trouble} {times}" for trouble, times in proxy.troubles.fired.items())
    print(f"{proxy.requests} requests; struck: {struck or 'none'}", flush=True)  # noqa: T201


if __name__ == "__main__":
    main()
