"""Failures in the background reach the program: at its next call, at close, or at its exit.

A drain that fails days after a put must not end as a line in a log. The service counts what
concerns a client in every reply; the client fetches it then and raises it at its next call, so that
the present call's result is not lost. What is still unraised when the interpreter exits is printed
and makes the exit status 1.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
import threading
import weakref
from collections.abc import Callable, Sequence

from cachetier_client.errors import BackgroundError
from cachetier_client.results import Incident

EXIT_SECONDS = 1.0
FAILED_STATUS = 1


class Background:
    """The incidents of one client that nobody has seen yet. Thread-safe.

    ``unraised`` are those; only ``take`` hands them out.

    Args:
        fetch: Asks the service for what is new, within so many seconds; raises nothing.
    """

    def __init__(self, fetch: Callable[[float], Sequence[Incident]]) -> None:
        self._fetch = fetch
        self._lock = threading.RLock()
        self.unraised: list[Incident] = []
        _live.add(self)

    def collect(self, timeout_seconds: float) -> None:
        """Fetch what is new."""
        found = self._fetch(timeout_seconds)
        with self._lock:
            self.unraised.extend(found)

    def take(self) -> BackgroundError | None:
        """Return what is unraised as an error for the caller to raise; None if there is nothing."""
        with self._lock:
            incidents, self.unraised = self.unraised, []
        return _error_of(incidents) if incidents else None

    def forget(self) -> None:
        """Look no more: the client is closed, or belongs to the parent process."""
        _live.discard(self)
        self._lock = threading.RLock()
        self.unraised = []


_live: weakref.WeakSet[Background] = weakref.WeakSet()


def _error_of(incidents: Sequence[Incident]) -> BackgroundError:
    causes = "; ".join(str(incident) for incident in incidents)
    error = BackgroundError(
        f"{len(incidents)} failed in the background: {causes}", incidents=incidents
    )
    if len(incidents) == 1:
        only = incidents[0]
        error.locate(run=only.run, step=only.step, rank=only.rank, name=only.name)
    return error


def last_words() -> str:
    """Fetch what the live clients have not seen, and return it as text."""
    errors = []
    for background in list(_live):
        background.collect(EXIT_SECONDS)
        error = background.take()
        if error is not None:
            errors.append(f"cachetier: {error}\n")
    return "".join(errors)


def _at_exit() -> None:
    words = last_words()
    if words:
        with contextlib.suppress(Exception):  # the streams may be closed by now
            sys.stdout.flush()
            sys.stderr.write(words)
            sys.stderr.flush()
        os._exit(FAILED_STATUS)  # what atexit raises would not change the status


atexit.register(_at_exit)  # registered at import, so that it runs after the program's own
