"""Time the phases of one upload: looking, reading, compressing, sending, verifying.

Phases overlap, as parts go in parallel: of each is known when it first began, when it last ended,
and for how long threads were busy with it, all in seconds since the upload began.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from cachetier.remote.wrapped import Answer, Operation, WrappedObjectStore

Phases = dict[str, list[float]]

LOOK, READ, COMPRESS, SEND, VERIFY = "look", "read", "compress", "send", "verify"
_SENDING = frozenset({"put", "create_upload", "upload_part", "copy_part", "complete_upload"})


class Stopwatch:
    """Times the phases of one upload. Thread-safe."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._began_at = monotonic()
        self._phases: Phases = {}

    @property
    def seconds(self) -> float:
        """How long ago the upload began."""
        return self._monotonic() - self._began_at

    def phases(self) -> Phases:
        """Return begin, end and busy seconds of each phase so far."""
        with self._lock:
            return {name: [round(at, 4) for at in span] for name, span in self._phases.items()}

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Time what is done inside."""
        began = self.seconds
        try:
            yield
        finally:
            self.note(name, self.seconds - began)

    def note(self, name: str, seconds: float) -> None:
        """Count a phase that has lasted so long until now."""
        ended = self.seconds
        began = ended - seconds
        with self._lock:
            first, last, busy = self._phases.get(name, (began, ended, 0.0))
            self._phases[name] = [min(first, began), max(last, ended), busy + seconds]


_current: ContextVar[Stopwatch | None] = ContextVar("stopwatch", default=None)


@contextmanager
def timed() -> Iterator[Stopwatch]:
    """Time the upload that is done inside, on this thread and on those that get its context."""
    watch = Stopwatch()
    token = _current.set(watch)
    try:
        yield watch
    finally:
        _current.reset(token)


def elapsed() -> float:
    """Return how long ago began what this thread is at; 0 if nothing is timed."""
    watch = _current.get()
    return watch.seconds if watch is not None else 0.0


@contextmanager
def phase(name: str) -> Iterator[None]:
    """Time a phase of the upload that this thread is at, if it is timed."""
    watch = _current.get()
    if watch is None:
        yield
        return
    with watch.phase(name):
        yield


def note(name: str, seconds: float) -> None:
    """Count a phase of the upload that this thread is at, which another process timed."""
    if (watch := _current.get()) is not None:
        watch.note(name, seconds)


class TimedObjectStore(WrappedObjectStore):
    """Times the calls of uploads: what looks before anything is sent, and verifies afterwards.

    Put it outside of what retries and paces, as those take time.
    """

    def _around(self, operation: Operation, _size_bytes: int, call: Callable[[], Answer]) -> Answer:
        watch = _current.get()
        if watch is None:
            return call()
        name = SEND if operation in _SENDING else VERIFY if SEND in watch.phases() else LOOK
        with watch.phase(name):
            return call()
