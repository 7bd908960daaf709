"""The caller that the current work is done for: a wait on its behalf ends when it hangs up.

A door says around each request by which connection it came, and for whom; it stays known in the
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
NOBODY = "unknown"


class OpenSocket(Protocol):
    """A socket, or what asyncio shows of one; closed, its number is negative."""

    def fileno(self) -> int: ...


class DoorCaller(Protocol):
    """Somebody whom a door let in."""

    @property
    def principal_name(self) -> str: ...

    @property
    def holder(self) -> str:
        """Whom limits count against: one user of a principal, or one token at one address."""

    @property
    def shown(self) -> str:
        """The caller as a person reads it."""


_connection: ContextVar[OpenSocket | None] = ContextVar("connection", default=None)
_caller: ContextVar[DoorCaller | None] = ContextVar("caller", default=None)


@contextmanager
def working_for(connection: OpenSocket | None, caller: DoorCaller | None = None) -> Iterator[None]:
    """Do inside what ``caller`` asked for by ``connection``."""
    tokens = _connection.set(connection), _caller.set(caller)
    try:
        yield
    finally:
        _connection.reset(tokens[0])
        _caller.reset(tokens[1])


def principal() -> str | None:
    """Return the name of the principal for whom the work at hand is done."""
    found = _caller.get()
    return None if found is None else found.principal_name


def holder() -> str:
    """Return whom limits count against; empty where nobody is known."""
    found = _caller.get()
    return "" if found is None else found.holder


def described() -> str:
    """Return the caller as a person reads it."""
    found = _caller.get()
    return NOBODY if found is None else found.shown


def refuse_if_gone() -> None:
    """Go no further for a caller who is not there.

    Raises:
        CallerGoneError: They have hung up.
    """
    if is_gone(_connection.get()):
        raise CallerGoneError(
            "the caller closed the connection while the service waited on its behalf"
        )


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


def is_gone(connection: OpenSocket | None) -> bool:
    """Return whether the peer has hung up, by the kernel's word."""
    if connection is None:
        return False
    descriptor = connection.fileno()
    if descriptor < 0:
        return True
    poll = select.poll()
    poll.register(descriptor, select.POLLRDHUP)
    return bool(poll.poll(0))
