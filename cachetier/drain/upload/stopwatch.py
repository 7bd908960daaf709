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

from cachetier_client.bucket_format.uploads import UploadPartRange

from cachetier.drain.upload.source import ShardSource
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
            self._note(name, began, self.seconds)

    def of_call(self, operation: Operation) -> str:
        """Return the phase that a call of the store belongs to: what is sent is verified later."""
        if operation in _SENDING:
            return SEND
        return VERIFY if SEND in self._phases else LOOK

    def _note(self, name: str, began: float, ended: float) -> None:
        with self._lock:
            first, last, busy = self._phases.get(name, (began, ended, 0.0))
            self._phases[name] = [min(first, began), max(last, ended), busy + ended - began]


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


class TimedSource:
    """A ``Source`` whose reads are timed, on whatever thread."""

    def __init__(self, source: ShardSource, watch: Stopwatch) -> None:
        self._source = source
        self._watch = watch

    def read(self, part: UploadPartRange, buffer: memoryview) -> tuple[memoryview, int]:
        with self._watch.phase(READ):
            return self._source.read(part, buffer)


class TimedObjectStore(WrappedObjectStore):
    """Times the calls of uploads; put it outside of what retries and paces, as those take time."""

    def _around(self, operation: Operation, _size_bytes: int, call: Callable[[], Answer]) -> Answer:
        watch = _current.get()
        if watch is None:
            return call()
        with watch.phase(watch.of_call(operation)):
            return call()
