"""One connection of the socket protocol.

Source: docs/protocol.md, "Frames" and "Versions".
"""

from __future__ import annotations

import os
import socket
import struct
from dataclasses import dataclass
from typing import NoReturn

from cachetier_client import forks
from cachetier_client.deadline import Deadline
from cachetier_client.errors import (
    CachetierClientError,
    DeadlineError,
    ForbiddenError,
    ProtocolMismatchError,
    error_from,
    inherited,
    machine_failure,
)
from cachetier_client.io.digests import BLOCK_BYTES
from cachetier_client.trace_context import brought_along
from cachetier_client.transport import wire
from cachetier_client.transport.base import ConnectionLostError
from cachetier_client.transport.wire import ConnectionClosedError, Frame, FrameError, Header

_REPLY_BYTES = 4096  # most replies are shorter, and are read in one call
INLINE_BYTES = 65536  # until a service says otherwise
SOCKET_PATH_LIMIT_BYTES = 107
SERVICE_UID_VARIABLE = "CACHETIER_SERVICE_UID"
_PEER = struct.Struct("iII")


@dataclass(slots=True)
class Peer:
    """A service, and what it last said on any connection.

    Attributes:
        path: Its socket.
        greeting: What each connection begins with.
        uid: Whose it must be, if that matters.
        inline_bytes: Up to which size a shard travels in one frame.
        remote: Where the service drains to, in its words.
        has_incidents: Whether it spoke of incidents.
    """

    path: str
    greeting: Header
    uid: int | None = None
    inline_bytes: int = INLINE_BYTES
    remote: object = None
    has_incidents: bool = False


class Connection:
    """Sends a request and reads its reply; used by one thread at a time.

    After any failure to exchange whole frames it is good for nothing but closing, and not
    ``reusable``.
    """

    def __init__(self, sock: socket.socket, service: Peer) -> None:
        self._sock = sock
        self._peer = f"unix://{service.path}"
        self._service = service
        self._inherited = False
        self.reusable = True
        self.was_idle = False
        forks.own(self)

    @classmethod
    def open(cls, service: Peer, deadline: Deadline) -> Connection:
        """Connect and greet.

        Raises:
            ConnectionLostError: Nobody answers there.
            ForbiddenError: The socket, or the service, does not let this user in; or it is not
                served by whom it should be.
            ProtocolMismatchError: It speaks another protocol.
        """
        connection = cls(_connected(service, deadline), service)
        try:
            hello = connection.request({"op": "hello", **service.greeting}, deadline).header
            service.inline_bytes, service.remote = _checked_hello(hello), hello.get("remote")
        except BaseException:
            connection.close()
            raise
        return connection

    def request(self, header: Header, deadline: Deadline, body: wire.Buffer = b"") -> Frame:
        """Send a request and return its reply, whose descriptor, if any, is the caller's to close.

        Raises:
            CachetierClientError: The service refused, in its own words.
            ConnectionLostError: The connection broke.
            DeadlineError: No answer in time; the connection is broken then.
        """
        if self._inherited:
            raise inherited()
        try:
            try:
                named = {**header, **brought_along()}
                wire.send_frame(self._sock, named, body, deadline=deadline)
            except ConnectionError:
                self.reusable = False  # it hung up; perhaps it said why before
            frame = wire.receive_frame(
                self._sock,
                wire.REPLY_HEADER_LIMIT_BYTES,
                deadline=deadline,
                first_bytes=_REPLY_BYTES,
            )
        except (OSError, FrameError, DeadlineError) as error:
            self._raise_broken(error, deadline)
        except BaseException:
            self.reusable = False  # interrupted between request and reply
            raise
        waiting = frame.header.get("incidents")
        if isinstance(waiting, int) and waiting > 0:
            self._service.has_incidents = True
        if frame.header.get("ok") is True:
            return frame
        if frame.descriptor is not None:
            os.close(frame.descriptor)
        described = frame.header.get("error")
        raise error_from(described if isinstance(described, dict) else {})

    def send(self, header: Header, deadline: Deadline, body: wire.Buffer = b"") -> None:
        """Send a request that has no reply."""
        if self._inherited:
            raise inherited()
        try:
            wire.send_frame(self._sock, header, body, deadline=deadline)
        except (OSError, FrameError, DeadlineError) as error:
            self._raise_broken(error, deadline)
        except BaseException:
            self.reusable = False
            raise

    def close(self) -> None:
        """Close; the service then removes what was staged here and not committed."""
        forks.disown(self)
        self.reusable = False
        self._sock.close()

    def __del__(self) -> None:
        self._sock.close()  # of a client that was dropped, not closed

    def abandon(self) -> None:
        """Close the child's copy; the parent's connection lives on."""
        self._inherited, self.reusable = True, False
        self._sock.close()

    def _raise_broken(self, error: Exception, deadline: Deadline) -> NoReturn:
        """Note that the connection is lost, and tell the caller in this library's words."""
        self.reusable = False
        if machine_failure(error, "") is not None:
            raise error
        if isinstance(error, TimeoutError | DeadlineError):
            raise deadline.passed(f"the exchange with {self._peer}") from None
        if isinstance(error, OSError | ConnectionClosedError):
            message = f"lost the connection to {self._peer}"
            raise ConnectionLostError(message, was_idle=self.was_idle) from error
        raise ProtocolMismatchError(f"{self._peer} does not speak this protocol") from error


def _connected(service: Peer, deadline: Deadline) -> socket.socket:
    path = service.path
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.settimeout(deadline.require(f"connecting to unix://{path}"))
        sock.connect(path)
        _check_server(sock, service)
    except TimeoutError:
        sock.close()
        raise deadline.passed(f"connecting to unix://{path}") from None
    except PermissionError as error:
        sock.close()
        raise ForbiddenError(
            f"user {os.geteuid()} may not connect to {path}",
            hint="Run as the service's user, or let this one in by `allowed_uids`.",
        ) from error
    except OSError as error:
        sock.close()
        raise ConnectionLostError(f"cannot connect to unix://{path}") from error
    except CachetierClientError:
        sock.close()
        raise
    return sock


def _checked_hello(hello: Header) -> int:
    """Return the service's ``inline_bytes``; refuse a service this client cannot talk to."""
    inline_bytes = hello.get("inline_bytes")
    spoken = (hello.get("protocol"), hello.get("block_bytes"))
    if spoken != (wire.PROTOCOL, BLOCK_BYTES) or not isinstance(inline_bytes, int):
        raise ProtocolMismatchError(
            f"the service speaks protocol {spoken[0]!r} with blocks of {spoken[1]!r} bytes, "
            f"this client {wire.PROTOCOL} and {BLOCK_BYTES}"
        )
    return inline_bytes


def _check_server(sock: socket.socket, service: Peer) -> None:
    """Refuse a socket of another user: anybody who can write its directory could listen there."""
    credentials = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size)
    _pid, uid, _gid = _PEER.unpack(credentials)
    if service.uid is not None and uid != service.uid:
        raise ForbiddenError(
            f"unix://{service.path} is served by user {uid}, not by {service.uid}",
            hint=f"Nothing was sent. Find out who listens there, or mend {SERVICE_UID_VARIABLE}.",
        )
