"""Bodies, moved piece by piece, and the stall guard: it ends calls that move too few bytes.

A socket's own time-out starts again with every byte, so a peer that drips holds a thread for hours.
Here each call has to send a least number of bytes in each span of time, and once its body is sent
the answer has to come within one. The connection of a call that does not is shut down, which wakes
the thread wherever it waits: the call fails as on any broken connection, and is repeated.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from io import UnsupportedOperation
from typing import Any

from cachetier.errors import TransientError
from cachetier.libc import untaken_bytes
from cachetier.remote.base import Body, pieces_of, size_of

SLICE_BYTES = 256 << 10
RECEIVE_BYTES = 1 << 20  # a GiB in pieces of 256 KiB takes a third more of a processor
# Below this a body counts as stuck, however regularly it drips.
LEAST_BYTES_PER_SECOND = 32 << 10
LOOK_SECONDS = 1.0


class ReadableBody:
    """A request body that is a file to botocore, and to us pieces that nobody copies.

    It can be wound back to its begin alone. What its pieces raise is kept, as urllib3 and botocore
    make an error of their own of it.
    """

    def __init__(self, body: Body) -> None:
        self._body = body
        self._size_bytes = size_of(body)
        self._failure: Exception | None = None
        self._pieces = pieces_of(body)
        self._piece = memoryview(b"")
        self._position = 0

    def __len__(self) -> int:
        return self._size_bytes

    def read(self, size: int = -1) -> memoryview:
        """Return the next bytes, as many as are at hand; they last until the next call."""
        if not self._piece:
            try:
                self._piece = next(self._pieces, self._piece)
            except Exception as error:
                self._failure = error
                raise
        taken = self._piece if size < 0 else self._piece[:size]
        self._piece = self._piece[len(taken) :]
        self._position += len(taken)
        return taken

    def seek(self, offset: int, whence: int = 0) -> int:
        position = (0, self._position, len(self))[whence] + offset
        if position == 0:
            self.close()
            self._pieces, self._position = pieces_of(self._body), 0
        elif position != self._position:
            raise UnsupportedOperation("a body that is read as it is sent begins at its begin")
        return self._position

    def tell(self) -> int:
        return self._position

    def close(self) -> None:
        """Let the pieces go, and what they hold."""
        self._piece = memoryview(b"")
        if isinstance(self._pieces, Generator):
            self._pieces.close()

    def raise_failure(self) -> None:
        """Raise what the pieces have raised, if anything."""
        failure, self._failure = self._failure, None
        try:
            if failure is not None:
                raise failure
        finally:
            del failure  # its traceback leads here


def read_slices(
    body: Any,
    size_bytes: int,
    patience_seconds: float,
    clock: Callable[[], float] = time.monotonic,
) -> Iterator[bytes | memoryview]:
    """Yield the ``size_bytes`` of a botocore body, and give its connection back to the pool.

    A piece lasts until the next one is asked for.

    Raises:
        TransientError: It ended early, or took longer than ``patience_seconds`` beyond what the
            slowest rate allows. The connection is closed.
    """
    give_up_at = clock() + patience_seconds + size_bytes / LEAST_BYTES_PER_SECOND
    missing = size_bytes
    with body as stream:
        while missing:
            piece = stream.read1(min(missing, RECEIVE_BYTES))
            if not piece:
                raise TransientError(f"the body broke off {missing} bytes before its end")
            if clock() > give_up_at:
                raise TransientError(f"the body came too slowly: {missing} bytes are missing")
            missing -= len(piece)
            yield piece
        stream.read(1)  # empty; only now does the connection count as free


def range_of(content_range: str | None) -> tuple[int, int | None]:
    """Return where ``bytes 5-9/20`` begins, and its length: 0 and None for an answer without."""
    if not content_range:
        return 0, None
    first, last = content_range.split()[1].split("/")[0].split("-")
    return int(first), int(last) + 1 - int(first)


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

    def __init__(self, size_bytes: int, patience_seconds: float, now: float) -> None:
        self.thread = threading.get_ident()
        self.connection: Any = None  # has a ``sock`` once it is open
        self.sent_bytes = 0
        self._size_bytes = size_bytes
        self._patience_seconds = patience_seconds
        self._progress = CallProgress(now)
        self._arrived = not size_bytes

    @property
    def arrived_bytes(self) -> int:
        """The bytes of the body that the other side has: not those still in the socket's buffer."""
        sock = getattr(self.connection, "sock", None)
        return max(0, self.sent_bytes - (_unsent_bytes(sock) if sock is not None else 0))

    def is_stalled(self, now: float) -> bool:
        moved = self.arrived_bytes
        if not self._arrived and moved >= self._size_bytes:  # the answer has its own time
            self._arrived, self._progress = True, CallProgress(now, moved)
        return self._progress.is_stalled(now, moved, self._patience_seconds)


_mine = threading.local()  # the call that a thread is in: watches share connections


def _shut_down(connection: Any) -> None:
    """End the waits for ``connection``."""
    sock = getattr(connection, "sock", None)
    if isinstance(sock, socket.socket):
        with suppress(OSError):
            socket.socket.shutdown(sock, socket.SHUT_RDWR)


def connected(connection: object) -> None:
    """Say that the call of this thread goes over ``connection``."""
    _mine.connection = connection
    call = getattr(_mine, "call", None)
    if call is not None:
        call.connection = connection


def sent(size_bytes: int) -> None:
    """Say that the system took so much more of the body that this thread sends."""
    call = getattr(_mine, "call", None)
    if call is not None:
        call.sent_bytes += size_bytes


def _unsent_bytes(sock: socket.socket) -> int:
    """Return how much the socket was given that its peer has not acknowledged."""
    try:
        return untaken_bytes(sock)
    except (OSError, ValueError):  # closed meanwhile, or no such socket
        return 0


def keep_looking(look: Callable[[], bool], pause_seconds: float = LOOK_SECONDS) -> None:
    """Call ``look`` at intervals, from a thread of its own, until it returns False."""

    def watch() -> None:
        while True:
            time.sleep(pause_seconds)
            if not look():
                return

    threading.Thread(target=watch, name="remote-looks", daemon=True).start()


class StallWatch:
    """Watches the calls of one store, from a thread that lives while there are any. Thread-safe."""

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        start: Callable[[Callable[[], bool]], None] = keep_looking,
    ) -> None:
        """A watch whose looks ``start`` begins. ``cuts`` counts what was cut."""
        self.cuts = 0
        self._moved_bytes = 0  # both ways; what is sent, once its call has ended
        self._clock = clock
        self._start = start
        self._lock = threading.Lock()
        self._calls: set[_Call] = set()
        self._reading: dict[int, tuple[Any, int]] = {}  # by thread: connection, bytes to come
        self._watching = False

    @contextmanager
    def call(self, size_bytes: int, patience_seconds: float) -> Iterator[None]:
        """Watch what this thread does inside, sending a body of ``size_bytes``.

        ``connected`` says on which connection, ``sent`` how far it is.
        """
        call = _Call(size_bytes, patience_seconds, self._clock())
        _mine.call = call
        with self._lock:
            self._calls.add(call)
            starts, self._watching = not self._watching, True
        if starts:
            self._start(self.look)
        try:
            yield
        finally:
            _mine.call = None
            with self._lock:
                self._calls.discard(call)
                self._moved_bytes += call.sent_bytes

    @contextmanager
    def reading(self, size_bytes: int) -> Iterator[None]:
        """Read the answer inside that this thread has just got: ``cut`` breaks that off, too."""
        thread = threading.get_ident()
        self._reading[thread] = getattr(_mine, "connection", None), size_bytes
        try:
            yield
        finally:
            with self._lock:
                self._reading.pop(thread, None)

    def received(self, size_bytes: int) -> None:
        """So much more of an answer is here; after the last of it others get its connection."""
        thread = threading.get_ident()
        with self._lock:
            self._moved_bytes += size_bytes
            connection, left = self._reading.pop(thread, (None, 0))
            if left > size_bytes:
                self._reading[thread] = connection, left - size_bytes

    def moved_bytes(self) -> int:
        """Return how many bytes of bodies have arrived so far, at the other side or here."""
        with self._lock:
            return self._moved_bytes + sum(call.arrived_bytes for call in self._calls)

    def cut(self, thread: int) -> None:
        """Break off the call that ``thread`` is in, if any."""
        with self._lock:
            _shut_down(self._reading.get(thread, (None, 0))[0])
            for call in self._calls:
                if call.thread == thread:
                    _shut_down(call.connection)

    def look(self) -> bool:
        """Cut what is stalled, and return whether there is anything left to watch."""
        now = self._clock()
        with self._lock:  # a call that ends waits: its connection may serve another one next
            for call in self._calls:
                if call.is_stalled(now):
                    self.cuts += 1
                    _shut_down(call.connection)
            self._watching = bool(self._calls)
            return self._watching


@dataclass(frozen=True, slots=True)
class Timeouts:
    """How long to wait for a connection, and for a call that ``stalls`` sees not get on."""

    connect_seconds: float = 10.0
    read_seconds: float = 30.0
    stalls: StallWatch = field(default_factory=StallWatch, compare=False)
