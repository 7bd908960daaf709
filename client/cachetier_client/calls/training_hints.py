"""Tell the service when this rank computes, so that the drain then holds back.

A hint is worth nothing if it costs training anything. So the rank only notes it; a thread sends the
latest, a few times a second at most. What cannot be sent is dropped and counted, never raised.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from cachetier_client import forks
from cachetier_client.clock import Clock
from cachetier_client.deadline import Deadline
from cachetier_client.transport.base import Transport

QUIET_SECONDS = 0.1  # between two hints
AGAIN_SECONDS = 20.0  # the service forgets a hint after 60
AWAY_SECONDS = 5.0  # after one that could not be sent
IDLE_SECONDS = 60.0  # without any, the thread ends
ANSWER_SECONDS = 1.0


class TrainingPhases:
    """This rank's phase, for a ``with`` around each step. Thread-safe and fork-safe.

    Steps may be nested or overlap on several threads: the rank is busy while any goes on.
    """

    def __init__(
        self,
        transport: Transport,
        clock: Clock,
        wait: Callable[[threading.Event, float], object] = threading.Event.wait,
    ) -> None:
        """The hints of one client; ``wait`` is the seam for tests."""
        self.lost = 0
        self._transport = transport
        self._clock = clock
        self._wait = wait
        self._start_anew()
        forks.own(self)

    def _start_anew(self) -> None:
        self._changed = threading.Condition()
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None
        self._steps: int = 0
        self._began = 0  # how many times the rank became busy
        self._sent: tuple[bool, int] = (False, 0)
        self._sent_at = 0.0

    def __enter__(self) -> None:
        with self._changed:
            self._steps += 1
            if self._steps == 1:
                self._began += 1
                self._note()

    def __exit__(self, *_: object) -> None:
        with self._changed:
            self._steps = max(0, self._steps - 1)  # a child may leave a step it never began
            if not self._steps:
                self._note()

    def close(self) -> None:
        """Send nothing more; the hint ends with the connections of the client."""
        forks.disown(self)
        with self._changed:
            self._closed.set()
            self._changed.notify()
            thread = self._thread
        if thread is not None:
            thread.join(ANSWER_SECONDS)

    def abandon(self) -> None:
        """Start again in a forked child, which has not the thread and is in no step."""
        self._start_anew()
        forks.own(self)

    # --- on the rank's threads -------------------------------------------------------------------

    def _note(self) -> None:
        if self._thread is None and not self._closed.is_set():
            thread = threading.Thread(target=self._send, name="cachetier-phase", daemon=True)
            try:
                thread.start()
            except RuntimeError:  # no thread can be had, as while the interpreter exits
                self.lost += 1
                return
            self._thread = thread
        self._changed.notify()

    # --- on the thread that sends ----------------------------------------------------------------

    def _send(self) -> None:
        while (busy := self._next()) is not None:
            pause_seconds = QUIET_SECONDS
            try:
                deadline = Deadline(ANSWER_SECONDS, self._clock)
                self._transport.call("phase", {"busy": busy}, deadline)
            except Exception:  # whatever it is, training must not feel it
                pause_seconds = AWAY_SECONDS
                self._forget_sent()
            self._wait(self._closed, pause_seconds)

    def _forget_sent(self) -> None:
        with self._changed:
            self.lost += 1
            self._sent = (False, self._began)  # a busy rank tells again, an idle one need not
        self._transport.forget_idle()  # to a service that has restarted they lead no more

    def _next(self) -> bool | None:
        """Wait for something to tell, and return it; None once closed, or long without."""
        with self._changed:
            news = self._changed.wait_for(
                lambda: self._closed.is_set() or self._has_news(), IDLE_SECONDS
            )
            if self._closed.is_set() or not news:
                self._thread = None
                return None
            self._sent = self._now()
            self._sent_at = self._clock.monotonic()
            return self._sent[0]

    def _now(self) -> tuple[bool, int]:
        return self._steps > 0, self._began

    def _has_news(self) -> bool:
        """Whether the service believes something else, or would soon forget what it believes."""
        now = self._now()
        if now[0] != self._sent[0]:
            return True
        late = self._clock.monotonic() - self._sent_at >= AGAIN_SECONDS
        return now[1] != self._sent[1] and late
