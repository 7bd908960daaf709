"""Connections to one service that nobody is using, kept for the next call."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Generic, Protocol, TypeVar

from cachetier_client import forks
from cachetier_client.deadline import Deadline

IDLE_LIMIT = 32


class KeptConnection(Protocol):
    """A connection that may serve several calls, one after another."""

    was_idle: bool
    reusable: bool

    def close(self) -> None:
        """Hang up."""


_Connection = TypeVar("_Connection", bound=KeptConnection)


class ConnectionPool(Generic[_Connection]):
    """Idle connections to one service, newest first. Thread-safe and fork-safe.

    Args:
        connect: Opens a connection.
    """

    def __init__(self, connect: Callable[[Deadline], _Connection]) -> None:
        self._connect = connect
        self._lock = threading.RLock()
        self._idle: list[_Connection] = []
        self._closed = False
        forks.own(self)

    def take(self, deadline: Deadline) -> _Connection:
        """Return an idle connection, or a new one."""
        with self._lock:
            if self._idle:
                return self._idle.pop()
        return self._connect(deadline)

    def give_back(self, connection: _Connection) -> None:
        """Keep a connection for the next call, unless its last exchange is not whole."""
        connection.was_idle = True
        with self._lock:
            if connection.reusable and not self._closed and len(self._idle) < IDLE_LIMIT:
                self._idle.append(connection)
                return
        connection.close()

    @contextlib.contextmanager
    def lend(self, deadline: Deadline) -> Iterator[_Connection]:
        """Lend a connection for one exchange."""
        connection = self.take(deadline)
        try:
            yield connection
        finally:
            self.give_back(connection)

    def forget_idle(self) -> None:
        """Close the idle connections."""
        with self._lock:
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()

    def close(self) -> None:
        """Close, now the idle connections, and the others as they are given back."""
        self._closed = True
        forks.disown(self)
        self.forget_idle()

    def abandon(self) -> None:
        """Start again in a child; the connections abandon themselves."""
        self._lock = threading.RLock()
        self._idle = []
        forks.own(self)
