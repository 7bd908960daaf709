"""Small puts of all connections: one thread takes in what is ready and commits it together.

A thread of its own for each small put costs more than the put: to wake it, and to have it fight
the others for the interpreter. So connections rest here between requests. Puts that are ready are
begun one after another, share one sync, and are answered; those that come meanwhile are the next
round. Whatever is no small put, or would have to wait, is left unread for the thread of its
connection. While a sync takes long, a second thread sees to that.
"""

from __future__ import annotations

import logging
import os
import select
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from contextvars import Context, copy_context
from dataclasses import dataclass, field

from cachetier_client.transport.wire import PREFIX, TOGETHER_BYTES, Frame, FrameError, whole_frame

from cachetier.doors.unix.frames import Frames
from cachetier.ingest.admission import MustWaitError
from cachetier.libc import untaken_bytes
from cachetier.telemetry import events
from cachetier.telemetry.events import tell

log = logging.getLogger(__name__)

ROUND_LIMIT = 64
RELIEF_SECONDS = 0.1
_PEEK = socket.MSG_PEEK | socket.MSG_DONTWAIT

End = Callable[[], None]


@dataclass(eq=False, slots=True)
class Resting:
    """A connection between two requests.

    ``begin`` takes a small put in and returns what commits and answers it. It is called in the
    context of whoever makes this.
    """

    connection: socket.socket
    frames: Frames
    begin: Callable[[Frame], End]
    context: Context = field(default_factory=copy_context)
    woken: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        self.woken.acquire()


class SmallPuts:
    """Serves the small puts of connections that rest. Thread-safe."""

    def __init__(self) -> None:
        self._poll = select.epoll()
        self._stop = os.eventfd(0, os.EFD_CLOEXEC)
        self._poll.register(self._stop, select.EPOLLIN)
        self._resting: dict[int, Resting] = {}
        self._lock = threading.Lock()
        self._stopped = False
        self._rounds = 0
        self._ending: set[Resting] = set()  # whose puts are committed and answered now
        self._relieving = False
        self._woken = threading.Semaphore(0)
        self._ended = threading.Event()
        self._relief = threading.Thread(target=self._relieve, name="unix-relief", daemon=True)
        self._buffer = memoryview(bytearray(PREFIX.size + TOGETHER_BYTES))
        self._thread = threading.Thread(target=self._run, name="unix-small-puts", daemon=True)

    def start(self) -> None:
        self._thread.start()
        self._relief.start()

    def stop(self, timeout_seconds: float) -> None:
        """End the round in progress, and leave all else to the threads of the connections."""
        if self._poll.closed:
            return
        os.eventfd_write(self._stop, 1)
        self._thread.join(timeout_seconds)
        self._ended.set()
        self._woken.release()
        self._relief.join(timeout_seconds)
        if not self._thread.is_alive():
            self._poll.close()
            os.close(self._stop)

    def rest(self, resting: Resting) -> None:
        """Serve the small puts of a connection until something else comes by it."""
        with self._lock:
            if self._stopped:
                return
            self._resting[resting.connection.fileno()] = resting
            self._poll.register(resting.connection, select.EPOLLIN)
        resting.woken.acquire()

    # --- the thread ------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while True:
                ready = self._poll.poll(maxevents=ROUND_LIMIT)
                if any(descriptor == self._stop for descriptor, _ in ready):
                    break
                self._serve([self._resting[descriptor] for descriptor, _ in ready])
        finally:
            with self._lock:
                self._stopped = True
            for each in list(self._resting.values()):
                self._hand_over(each)

    def _serve(self, ready: list[Resting]) -> None:
        begun = [(each, end) for each in ready if (end := self._begun(each)) is not None]
        if not begun:
            return
        self._round_of({each for each, _ in begun})
        for each, end in begun:
            try:
                each.context.run(end)
            except Exception as error:
                if not isinstance(error, OSError):  # else the peer is gone
                    tell(log, events.SESSION_FAILED, error=error)
                self._hang_up(each)
            else:
                each.frames.rests()
        self._round_of(set())

    def _round_of(self, ending: set[Resting]) -> None:
        with self._lock:
            self._ending = ending
            self._rounds += 1
            wakes = bool(ending) and not self._relieving
            self._relieving = self._relieving or wakes
        if wakes:
            self._woken.release()

    # --- the other thread, which runs as long as there are puts ----------------------------------

    def _relieve(self) -> None:
        while self._woken.acquire() and not self._ended.is_set():
            before = -1
            while self._relieving:
                with self._lock:
                    if self._rounds == before and self._ending:
                        self._hand_over_others()
                    elif self._rounds == before:
                        self._relieving = False
                    before = self._rounds
                self._ended.wait(RELIEF_SECONDS)

    def _hand_over_others(self) -> None:
        """Let go of what is ready and no put, as the round takes long."""
        for descriptor, _ in self._poll.poll(0, max(1, len(self._resting))):
            each = self._resting.get(descriptor)
            if each is None or each in self._ending:
                continue
            try:
                self._small_put(each.connection, memoryview(bytearray(len(self._buffer))))
            except (OSError, FrameError, MustWaitError):
                self._hand_over(each)

    # --- one connection --------------------------------------------------------------------------

    def _begun(self, each: Resting) -> End | None:
        """Begin the put that is ready; None: it is for the connection's own thread."""
        try:
            frame, size_bytes = self._small_put(each.connection, self._buffer)
            end = each.context.run(each.begin, frame)
        except (OSError, FrameError, MustWaitError):
            self._hand_over(each)
            return None
        each.frames.resting_since = None
        with suppress(OSError):  # they are gone, and will not hear of it
            each.connection.recv_into(self._buffer, size_bytes, socket.MSG_DONTWAIT)
        return end

    def _small_put(self, connection: socket.socket, into: memoryview) -> tuple[Frame, int]:
        """Return the put that is ready, and its size as a frame; it stays unread."""
        count = connection.recv_into(into, 0, _PEEK)
        frame, size_bytes = whole_frame(into[:count])
        # A peer that has not read its last answer might not take the next: that would block.
        if frame.header.get("op") != "put" or untaken_bytes(connection):
            raise MustWaitError
        return frame, size_bytes

    def _hand_over(self, each: Resting) -> None:
        """Let the connection's own thread go on."""
        self._poll.unregister(each.connection)
        del self._resting[each.connection.fileno()]
        each.woken.release()

    def _hang_up(self, each: Resting) -> None:
        with suppress(OSError):  # they hung up first
            each.connection.shutdown(socket.SHUT_RDWR)
        self._hand_over(each)
