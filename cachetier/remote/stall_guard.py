"""Bodies, moved slice by slice, and the stall guard: it ends calls that move too few bytes.

A socket's own time-out starts anew with every byte, so a peer that drips holds a thread for hours.
Here each call has to send a least number of bytes in each span of time, and once its body is sent
the answer has to come within one. The connection of a call that does not is shut down, which wakes
the thread wherever it waits: the call fails as on any broken connection, and is repeated.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from cachetier.errors import TransientError

SLICE_BYTES = 256 << 10
# Below this a body counts as stuck, however regularly it drips.
LEAST_BYTES_PER_SECOND = 32 << 10
LOOK_SECONDS = 1.0


class ReadableView:
    """A request body that is a file to botocore, and to us a view that nobody copies.

    urllib3 reads and sends it in pieces of 16 KiB. ``taken_bytes`` are those read so far.
    """

    def __init__(self, data: bytes | memoryview) -> None:
        self._view = memoryview(data).cast("B")
        self._position = 0
        self.taken_bytes = 0

    def __len__(self) -> int:
        return self._view.nbytes

    def read(self, size: int = -1) -> memoryview:
        start = self._position
        self._position = len(self) if size < 0 else min(start + size, len(self))
        self.taken_bytes += self._position - start
        return self._view[start : self._position]

    def seek(self, offset: int, whence: int = 0) -> int:
        base = (0, self._position, len(self))[whence]
        self._position = max(0, base + offset)
        return self._position

    def tell(self) -> int:
        return self._position


def read_slices(
    body: Any,
    size_bytes: int,
    patience_seconds: float,
    clock: Callable[[], float] = time.monotonic,
) -> Iterator[bytes]:
    """Yield the ``size_bytes`` of a botocore body, and give its connection back to the pool.

    Raises:
        TransientError: It ended early, or took longer than ``patience_seconds`` beyond what the
            slowest rate allows. The connection is closed.
    """
    give_up_at = clock() + patience_seconds + size_bytes / LEAST_BYTES_PER_SECOND
    missing = size_bytes
    with body as stream:
        while missing:
            piece = stream.read1(min(missing, SLICE_BYTES))
            if not piece:
                raise TransientError(f"the body broke off {missing} bytes before its end")
            if clock() > give_up_at:
                raise TransientError(f"the body came too slowly: {missing} bytes are missing")
            missing -= len(piece)
            yield piece
        stream.read(1)  # empty; only now does the connection count as free


def first_byte(content_range: str | None) -> int:
    """Return where ``bytes 5-9/20`` begins; an answer without a range begins at 0."""
    return int(content_range.split()[1].split("-")[0]) if content_range else 0


@dataclass(slots=True)
class CallProgress:
    """How far a call had come when it was looked at last: ``moved_bytes`` at ``since``."""

    since: float
    moved_bytes: int = 0

    def is_stalled(self, now: float, moved_bytes: int, patience_seconds: float) -> bool:
        """Judge a call once in each ``patience_seconds``, and remember how far it has come."""
        seconds = now - self.since
        if seconds < patience_seconds:
            return False
        enough = moved_bytes - self.moved_bytes >= LEAST_BYTES_PER_SECOND * seconds
        self.since, self.moved_bytes = now, moved_bytes
        return not enough


class _Call:
    """One call under way on one thread."""

    def __init__(self, body: ReadableView | None, patience_seconds: float, now: float) -> None:
        self.thread = threading.get_ident()
        self.connection: Any = None
        self._body = body
        self._patience_seconds = patience_seconds
        self._progress = CallProgress(now)
        self._sent = body is None

    def is_stalled(self, now: float) -> bool:
        moved = self._body.taken_bytes if self._body is not None else 0
        if not self._sent and self._body is not None and moved >= len(self._body):
            self._sent, self._progress = (
                True,
                CallProgress(now, moved),
            )  # the answer has its own time
        return self._progress.is_stalled(now, moved, self._patience_seconds)

    def cut(self) -> None:
        """Shut the connection down, under whoever waits for it."""
        sock = getattr(self.connection, "sock", None)
        if isinstance(sock, socket.socket):
            with suppress(OSError):
                socket.socket.shutdown(sock, socket.SHUT_RDWR)


def _start(watch: Callable[[], None]) -> None:
    threading.Thread(target=watch, name="remote-stalls", daemon=True).start()


class StallWatch:
    """Watches the calls of one store, from a thread that lives while there are any. Thread-safe."""

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        start: Callable[[Callable[[], None]], None] = _start,
    ) -> None:
        """A watch that ``start`` runs on a thread. ``cuts`` counts what was cut."""
        self.cuts = 0
        self._clock = clock
        self._start = start
        self._lock = threading.Lock()
        self._calls: set[_Call] = set()
        self._mine = threading.local()
        self._watching = False

    @contextmanager
    def call(self, body: ReadableView | None, patience_seconds: float) -> Iterator[None]:
        """Watch what this thread does inside; ``connected`` says on which connection."""
        call = _Call(body, patience_seconds, self._clock())
        self._mine.call = call
        with self._lock:
            self._calls.add(call)
            starts, self._watching = not self._watching, True
        if starts:
            self._start(self._watch)
        try:
            yield
        finally:
            self._mine.call = None
            with self._lock:
                self._calls.discard(call)

    def connected(self, connection: object) -> None:
        """This thread's call goes over ``connection``, which has a ``sock`` once it is open."""
        call = getattr(self._mine, "call", None)
        if call is not None:
            call.connection = connection

    def cut(self, thread: int) -> None:
        """Break off the call that ``thread`` is in, if any."""
        with self._lock:
            for call in self._calls:
                if call.thread == thread:
                    call.cut()

    def look(self) -> bool:
        """Cut what is stalled, and return whether there is anything left to watch."""
        now = self._clock()
        with self._lock:  # a call that ends waits: its connection may serve another one next
            for call in self._calls:
                if call.is_stalled(now):
                    self.cuts += 1
                    call.cut()
            self._watching = bool(self._calls)
            return self._watching

    def _watch(self) -> None:
        while True:
            time.sleep(LOOK_SECONDS)
            if not self.look():
                return
