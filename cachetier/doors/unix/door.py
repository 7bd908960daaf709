"""The socket door: listens, checks who comes in, and gives each connection a thread.

A node has few ranks and each blocks on its one request, so a thread for each connection is the
simplest thing that never lets one rank's slow sync hold up another's commit. Their number is
bounded. Small puts, of which there are many, are served together: ``small_puts``.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import socket
import stat
import struct
import threading
import time
from array import array
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from cachetier_client.transport.wire import send_frame

from cachetier.access.principals import Caller
from cachetier.doors.operations import Operations
from cachetier.doors.unix.frames import FrameRoom, Frames
from cachetier.doors.unix.session import Session
from cachetier.doors.unix.small_puts import SmallPuts
from cachetier.errors import (
    BusyError,
    CachetierError,
    ConfigError,
    ForbiddenError,
    machine_failure,
)
from cachetier.telemetry import events
from cachetier.telemetry.events import tell

log = logging.getLogger(__name__)

CONNECTION_LIMIT = 512
OWN_CONNECTIONS = 8  # of them are for the service's own user: whoever looks after it gets in
SOCKET_PATH_LIMIT_BYTES = 107
_CREDENTIALS = struct.Struct("iII")
_SO_PEERGROUPS = 59  # which Python has no name for
_GROUPS_BYTES = 4096


@dataclass(eq=False, slots=True)
class _Visitor:
    """A connection, who is at its other end, and the thread that serves it."""

    connection: socket.socket
    caller: Caller
    frames: Frames
    thread: threading.Thread = field(init=False)


class UnixDoor:
    """Serves the socket protocol at ``path``."""

    def __init__(
        self,
        path: Path,
        operations: Operations,
        *,
        mode: int = 0o600,
        own: Path | None = None,
    ) -> None:
        """Prepare the door at ``path``; ``own`` is the same if it is for some principals alone."""
        self._path = path
        self._operations = operations
        self._mode = mode
        self._own = own
        self._quotas = operations.access.quotas
        self._lock = threading.RLock()
        self._visitors: list[_Visitor] = []
        self._room = FrameRoom()
        self._small_puts = SmallPuts()
        self._listener: socket.socket | None = None
        self._accepting: threading.Thread | None = None

    @property
    def connections(self) -> int:
        """How many connections are open now."""
        return len(self._visitors)

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
        self._small_puts.start()
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
            open_now = list(self._visitors)
        for visitor in open_now:
            with contextlib.suppress(OSError):
                visitor.connection.shutdown(socket.SHUT_RD)  # the reply in flight still goes out
        deadline = time.monotonic() + grace_seconds
        for visitor in open_now:
            visitor.thread.join(max(0.0, deadline - time.monotonic()))
        self._small_puts.stop(max(0.0, deadline - time.monotonic()))

    def _bound(self) -> socket.socket:
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        umask = os.umask(0o177)  # nobody else connects between bind and chmod
        try:
            self._path.unlink(missing_ok=True)
            listener.bind(os.fspath(self._path))
        except OSError as error:
            listener.close()
            raise ConfigError(
                f"cannot listen on {self._path}: {error.strerror}",
                hint="Set `socket` to a path in a directory the service may write.",
            ) from error
        finally:
            os.umask(umask)
        _chmod(self._path, self._mode)
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
        try:
            caller = self._operations.access.peer(self._own, *peer_of(connection))
        except ForbiddenError as error:
            self._turn_away(connection, error)
            return
        is_own = caller.uid == os.getuid()
        visitor = _Visitor(connection, caller, Frames(connection, self._room, is_own=is_own))
        visitor.thread = threading.Thread(
            target=self._serve, args=(visitor,), name="unix-session", daemon=True
        )
        try:
            self._let_in(visitor)
        except BusyError as error:
            self._turn_away(connection, error)
            return
        try:
            visitor.thread.start()
        except RuntimeError as error:  # no thread is left: this connection goes, accepting goes on
            self._forget(visitor)
            self._turn_away(connection, machine_failure(error, "the service") or BusyError("busy"))

    def _let_in(self, visitor: _Visitor) -> None:
        """Take a connection, if there is a place, or one rests that can give it up.

        Raises:
            BusyError: All are busy, or its principal has its share.
        """
        principal = visitor.caller.principal.name
        with self._lock:
            try:
                self._quotas.connect(principal)
            except BusyError:
                own = [each for each in self._visitors if each.caller.principal.name == principal]
                if not self._hang_up_on_rest(own):
                    raise
                self._quotas.connect(principal)
            limit = CONNECTION_LIMIT - (0 if visitor.caller.uid == os.getuid() else OWN_CONNECTIONS)
            if len(self._visitors) >= limit and not self._make_place(visitor.caller):
                self._quotas.disconnect(principal)
                raise BusyError(f"{CONNECTION_LIMIT} connections are busy already")
            self._visitors.append(visitor)

    def _make_place(self, newcomer: Caller) -> bool:
        """Hang up on the longest rest of the user who holds most, and return whether there is one.

        A client whose connection rested just connects again. One by which puts are under way goes
        only where no other rests: else who begins one on each would shut the door.
        """
        held = Counter(each.caller.uid for each in self._visitors)
        held[newcomer.uid] += 1
        most = max(held.values())
        greedy = [each for each in self._visitors if held[each.caller.uid] == most]
        return self._hang_up_on_rest(greedy) or self._hang_up_on_rest(greedy, though_putting=True)

    def _hang_up_on_rest(
        self, visitors: Iterable[_Visitor], *, though_putting: bool = False
    ) -> bool:
        resting = [
            (since, number, each)
            for number, each in enumerate(visitors)
            if (since := each.frames.resting_since) is not None
            and (though_putting or not each.frames.putting)
        ]
        if not resting:
            return False
        visitor = min(resting)[2]
        self._forget(visitor)
        with contextlib.suppress(OSError):
            visitor.connection.shutdown(socket.SHUT_RDWR)
        return True

    def _forget(self, visitor: _Visitor) -> None:
        with self._lock:
            if visitor in self._visitors:
                self._visitors.remove(visitor)
                self._quotas.disconnect(visitor.caller.principal.name)

    def _serve(self, visitor: _Visitor) -> None:
        try:
            Session(
                visitor.connection,
                self._operations,
                visitor.frames,
                visitor.caller,
                self._small_puts,
            ).serve()
        except Exception as error:
            tell(log, events.SESSION_FAILED, error=error)
        finally:
            self._forget(visitor)

    def _turn_away(self, connection: socket.socket, error: CachetierError) -> None:
        """Answer the request that is coming with ``error``, and hang up."""
        self._operations.failed("unix", error.code)
        described = {"code": error.code, "message": error.message, "hint": error.hint}
        with contextlib.suppress(OSError):
            send_frame(connection, {"ok": False, "error": described})
        connection.close()


def _chmod(path: Path, mode: int) -> None:
    """Change the mode of a socket, and of nothing that somebody put in its place."""
    descriptor = os.open(path, os.O_PATH | os.O_NOFOLLOW)
    try:
        if not stat.S_ISSOCK(os.fstat(descriptor).st_mode):
            raise ConfigError(
                f"{path} was replaced while it was opened",
                hint="Set `socket` to a path in a directory that only the service may write.",
            )
        os.chmod(f"/proc/self/fd/{descriptor}", mode)
    finally:
        os.close(descriptor)


def peer_of(connection: socket.socket) -> tuple[int, frozenset[int], int]:
    """Return user, groups and process of who connected: what the kernel says, not the peer.

    Others may have the connection since.
    """
    found = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid, uid, gid = _CREDENTIALS.unpack(found)
    groups = array("I")
    with contextlib.suppress(OSError):  # of more groups than fit none but the first counts
        groups.frombytes(connection.getsockopt(socket.SOL_SOCKET, _SO_PEERGROUPS, _GROUPS_BYTES))
    return uid, frozenset((gid, *groups)), pid
