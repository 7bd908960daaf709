"""One drain at the other end of a channel: its requests go to the dispatcher, wake-ups go to it."""

from __future__ import annotations

import logging
import socket
import threading
from concurrent.futures import ThreadPoolExecutor

from cachetier.drain.channel import AnsweringEnd
from cachetier.drain.serve.dispatcher import Dispatcher
from cachetier.notifier import Changes
from cachetier.telemetry import events
from cachetier.telemetry.events import tell

log = logging.getLogger(__name__)

ANSWER_THREADS = 8
# Between two wake-ups: thousands of puts a second must not each cost a switch of threads.
QUIET_SECONDS = 0.1
LOOK_SECONDS = 5.0


class DrainLink:
    """Serves one drain from ``start`` until it hangs up or ``close``."""

    def __init__(self, sock: socket.socket, dispatcher: Dispatcher, changes: Changes) -> None:
        self._channel = AnsweringEnd(sock)
        self._dispatcher = dispatcher
        self._changes = changes
        self._closed = threading.Event()
        self._pool = ThreadPoolExecutor(ANSWER_THREADS, thread_name_prefix="drain-answer")
        self._threads = [
            threading.Thread(target=self._receive, name="drain-requests", daemon=True),
            threading.Thread(target=self._wake, name="drain-wake", daemon=True),
        ]

    def start(self) -> None:
        """Begin to answer.

        Raises:
            RuntimeError: No thread is left; ``close`` ends what was begun.
        """
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        """Hang up; returns when no request is being answered any more."""
        self._closed.set()
        self._channel.close()
        self._changes.ring()  # the waking thread waits there
        for thread in self._threads:
            if thread.ident is not None:
                thread.join()
        self._pool.shutdown()

    def _receive(self) -> None:
        while (request := self._channel.receive()) is not None:
            try:
                self._pool.submit(self._channel.reply, request, self._dispatcher.answer)
            except RuntimeError as error:  # no thread is left, and nobody knows if it was taken
                tell(log, events.DRAIN_REQUEST_FAILED, operation=str(request["op"]), error=error)
                self._channel.close()  # the drain ends with it, and the next one asks again

    def _wake(self) -> None:
        seen = 0
        while not self._closed.wait(QUIET_SECONDS):
            rings = self._changes.next_ring(seen, LOOK_SECONDS)
            if rings != seen:
                seen = rings
                self._channel.wake()
