"""The socket door: listens, checks who comes in, and gives each connection a thread.

A node has few ranks and each blocks on its one request, so a thread for each connection is the
simplest thing that never lets one rank's slow sync hold up another's commit. Their number is
bounded.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import socket
import struct
import threading
import time
from collections.abc import Collection
from pathlib import Path

from cachetier_client.transport.wire import send_frame

from cachetier.doors.operations import Operations
from cachetier.doors.unix.session import Session
from cachetier.errors import ConfigError, ForbiddenError, StoppingError
from cachetier.telemetry import events
from cachetier.telemetry.events import tell

log = logging.getLogger(__name__)

CONNECTION_LIMIT = 512
SOCKET_PATH_LIMIT_BYTES = 107
_PEER = struct.Struct("3i")


class UnixDoor:
    """Serves the socket protocol at ``path``."""

    def __init__(
        self, path: Path, operations: Operations, *, mode: int = 0o600, uids: Collection[int] = ()
    ) -> None:
        self._path = path
        self._operations = operations
        self._mode = mode
        self._uids = {os.getuid(), *uids}
        self._lock = threading.Lock()
        self._connections: dict[socket.socket, threading.Thread] = {}
        self._listener: socket.socket | None = None
        self._accepting: threading.Thread | None = None

    @property
    def connections(self) -> int:
        """How many connections are open now."""
        return len(self._connections)

    def start(self) -> None:
        """Listen. The caller holds the cache directory's lock, so a socket left there is dead.

        Raises:
            ConfigError: The path is too long, or cannot be bound.
        """
        if len(os.fsencode(self._path)) > SOCKET_PATH_LIMIT_BYTES:
            raise ConfigError(
                f"socket path {self._path} is longer than {SOCKET_PATH_LIMIT_BYTES} bytes",
                hint="Choose a shorter `socket`.",
            )
        self._listener = self._bound()
        self._listener.listen(CONNECTION_LIMIT)
        self._accepting = threading.Thread(target=self._accept, name="unix-door", daemon=True)
        self._accepting.start()

    def stop(self, grace_seconds: float) -> None:
        """Take no new connections, give requests in flight ``grace_seconds``, then close."""
        if self._listener is None:
            return
        self._path.unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        with self._lock:
            open_now = list(self._connections.items())
        for connection, _thread in open_now:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RD)  # the reply in flight still goes out
        deadline = time.monotonic() + grace_seconds
        for _connection, thread in open_now:
            thread.join(max(0.0, deadline - time.monotonic()))

    def _bound(self) -> socket.socket:
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._path.unlink(missing_ok=True)
        umask = os.umask(0o177)  # nobody else connects between bind and chmod
        try:
            listener.bind(os.fspath(self._path))
        except OSError as error:
            listener.close()
            raise ConfigError(
                f"cannot listen on {self._path}: {error.strerror}",
                hint="Set `socket` to a path in a directory the service may write.",
            ) from error
        finally:
            os.umask(umask)
        self._path.chmod(self._mode)
        return listener

    def _accept(self) -> None:
        assert self._listener is not None
        while True:
            try:
                connection, _address = self._listener.accept()
            except OSError as error:
                if self._listener.fileno() < 0 or error.errno == errno.EINVAL:
                    return  # `stop` shut it down
                tell(log, events.ACCEPT_FAILED, error=error)
                threading.Event().wait(0.1)  # out of descriptors: let some close
                continue
            self._admit(connection)

    def _admit(self, connection: socket.socket) -> None:
        thread = threading.Thread(
            target=self._serve, args=(connection,), name="unix-session", daemon=True
        )
        with self._lock:
            full = len(self._connections) >= CONNECTION_LIMIT
            if not full:
                self._connections[connection] = thread
        if full:
            message = f"{CONNECTION_LIMIT} connections are open already"
            self._turn_away(connection, StoppingError(message))
            return
        try:
            thread.start()
        except RuntimeError:  # no thread is left: this connection goes, accepting goes on
            with self._lock:
                self._connections.pop(connection, None)
            message = "no thread is left to serve the connection"
            self._turn_away(connection, StoppingError(message))

    def _serve(self, connection: socket.socket) -> None:
        try:
            uid = _peer_uid(connection)
            if uid not in self._uids:
                message = f"user {uid} may not use this service"
                self._turn_away(connection, ForbiddenError(message))
                return
            Session(connection, self._operations).serve()
        except Exception as error:
            tell(log, events.SESSION_FAILED, error=error)
        finally:
            with self._lock:
                self._connections.pop(connection, None)

    def _turn_away(self, connection: socket.socket, error: ForbiddenError | StoppingError) -> None:
        """Answer the request that is coming with ``error``, and hang up."""
        self._operations.failed("unix", error.code)
        described = {"code": error.code, "message": error.message, "hint": error.hint}
        with contextlib.suppress(OSError):
            send_frame(connection, {"ok": False, "error": described})
        connection.close()


def _peer_uid(connection: socket.socket) -> int:
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size)
    _pid, uid, _gid = _PEER.unpack(credentials)
    return int(uid)
