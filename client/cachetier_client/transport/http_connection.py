"""HTTP connections: a request at a time, every wait bounded, failures in our own words."""

from __future__ import annotations

import contextlib
import http.client
import socket
import ssl
from collections.abc import Iterator

from cachetier_client import forks
from cachetier_client.deadline import Deadline
from cachetier_client.errors import inherited, machine_failure
from cachetier_client.transport.base import ConnectionLostError
from cachetier_client.transport.http_routes import error_of
from cachetier_client.transport.tls import CERTIFICATE_VARIABLE, refusal_of

PIECE_BYTES = 1 << 20
_DOCUMENT_LIMIT_BYTES = 64 << 20


class HttpConnection:
    """One connection, used by one thread at a time; ``reusable`` between whole exchanges only."""

    def __init__(
        self, host: str, port: int, deadline: Deadline, tls: ssl.SSLContext | None = None
    ) -> None:
        self._peer = f"{'http' if tls is None else 'https'}://{host}:{port}"
        self._http = (
            http.client.HTTPConnection(host, port)
            if tls is None
            else http.client.HTTPSConnection(host, port, context=tls)
        )
        self._is_private = tls is not None
        self._inherited = False
        self.was_idle = False
        self.reusable = False
        with self._translated(deadline):
            self._http.timeout = deadline.require(f"connecting to {self._peer}")
            self._http.connect()
        self._http.auto_open = 0  # a lost connection is lost, not silently another one
        forks.own(self)

    def start(self, method: str, target: str, headers: dict[str, str], deadline: Deadline) -> None:
        """Send a request's head."""
        self.reusable = False
        with self._translated(deadline):
            self._http.putrequest(method, target, skip_accept_encoding=True)
            for name, value in headers.items():
                self._http.putheader(name, value)
            self._http.endheaders()

    def send(self, *pieces: memoryview | bytes, deadline: Deadline) -> None:
        """Send pieces of the body.

        Raises:
            CachetierClientError: The service answered with an error before the body's end.
        """
        try:
            for piece in pieces:
                with self._translated(deadline):
                    self._http.send(piece)
        except ConnectionLostError:
            self._raise_farewell(deadline)
            raise

    def response(self, deadline: Deadline) -> http.client.HTTPResponse:
        """Return the answer's head; its body is still to be read.

        Raises:
            CachetierClientError: The answer is an error.
        """
        with self._translated(deadline):
            answer = self._http.getresponse()
        if answer.status < 300:
            return answer
        body = self.finish(answer, deadline)
        raise error_of(answer.status, answer.reason, answer.headers, body)

    def read_into(
        self, answer: http.client.HTTPResponse, into: memoryview, deadline: Deadline
    ) -> None:
        """Fill ``into`` from the answer's body."""
        done = 0
        while done < len(into):
            with self._translated(deadline):
                count = answer.readinto(into[done : done + PIECE_BYTES])
                if not count:
                    raise http.client.IncompleteRead(b"", len(into) - done)
            done += count

    def finish(self, answer: http.client.HTTPResponse, deadline: Deadline) -> bytes:
        """Return the rest of the answer's body; the exchange is whole then."""
        with self._translated(deadline):
            body = answer.read(_DOCUMENT_LIMIT_BYTES)
        if not answer.isclosed():
            with self._translated(deadline):
                answer.read(1)  # the end of what was read to its length shows only now
        self.reusable = answer.isclosed() and not answer.will_close
        return body

    def close(self) -> None:
        """Close; a body that is not complete then keeps nothing."""
        forks.disown(self)
        self.reusable = False
        self._http.close()

    def __del__(self) -> None:
        self._http.close()  # of a client that was dropped, not closed

    def abandon(self) -> None:
        """Close the child's copy."""
        self._inherited = True
        self.reusable = False
        self._http.close()

    def _raise_farewell(self, deadline: Deadline) -> None:
        """Raise what the service said before it hung up, if it said something."""
        with contextlib.suppress(ConnectionLostError):
            self.response(deadline)

    @contextlib.contextmanager
    def _translated(self, deadline: Deadline) -> Iterator[None]:
        """Bound what happens inside by the deadline, and name its failures."""
        if self._inherited:
            raise inherited()
        left = deadline.require(f"the exchange with {self._peer}")
        if self._http.sock is not None:
            self._http.sock.settimeout(left)
        try:
            yield
        except TimeoutError:
            raise deadline.passed(f"the exchange with {self._peer}") from None
        except ssl.SSLError as error:
            lost = ConnectionLostError(
                f"lost the connection to {self._peer}", was_idle=self.was_idle
            )
            raise refusal_of(error, self._peer) or lost from error
        except (OSError, http.client.HTTPException) as error:
            if machine_failure(error, "") is not None:
                raise
            never = isinstance(error, ConnectionRefusedError | socket.gaierror)
            verb = "cannot connect to" if never else "lost the connection to"
            message = f"{verb} {self._peer}"
            if self._is_private and isinstance(
                error, ConnectionResetError
            ):  # or RemoteDisconnected
                message += f"; if it wants the certificate of a client, set {CERTIFICATE_VARIABLE}"
            raise ConnectionLostError(message, was_idle=self.was_idle) from error
