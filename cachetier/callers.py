"""Whoever the work at hand is done for: a wait on their behalf ends when they hang up.

A door says around each request by which connection it came and whose it is; that stays known in the
threads that go on with the request. Work that nobody asked for has no caller, and waits as long as
it was told.
"""

from __future__ import annotations

import select
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Protocol

from cachetier.errors import CallerGoneError

LOOK_SECONDS = 0.5


class Connection(Protocol):
    """A socket, or what asyncio shows of one; closed, its number is negative."""

    def fileno(self) -> int: ...


_connection: ContextVar[Connection | None] = ContextVar("connection", default=None)
_principal: ContextVar[str | None] = ContextVar("principal", default=None)


@contextmanager
def working_for(connection: Connection | None, principal: str | None = None) -> Iterator[None]:
    """Do inside what the peer of ``connection`` asked for, who is ``principal``."""
    token, named = _connection.set(connection), _principal.set(principal)
    try:
        yield
    finally:
        _connection.reset(token)
        _principal.reset(named)


def principal() -> str | None:
    """Return the name of whoever the work at hand is done for."""
    return _principal.get()


def refuse_if_gone() -> None:
    """Go no further for a caller who is not there.

    Raises:
        CallerGoneError: They have hung up.
    """
    if _is_gone(_connection.get()):
        raise CallerGoneError("the caller hung up while the service waited for them")


def wait_for(
    changed: threading.Condition, reached: Callable[[], bool], timeout_seconds: float
) -> bool:
    """Wait as ``changed.wait_for`` does, which the caller holds, but only while the peer is there.

    Raises:
        CallerGoneError: They have hung up.
    """
    while timeout_seconds > LOOK_SECONDS:
        if changed.wait_for(reached, LOOK_SECONDS):
            return True
        refuse_if_gone()
        timeout_seconds -= LOOK_SECONDS
    return changed.wait_for(reached, timeout_seconds)


def _is_gone(connection: Connection | None) -> bool:
    if connection is None:
        return False
    descriptor = connection.fileno()
    if descriptor < 0:
        return True
    poll = select.poll()
    poll.register(descriptor, select.POLLRDHUP)
    return bool(poll.poll(0))
