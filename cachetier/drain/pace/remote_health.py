"""The circuit breaker of a remote: once it refuses or is away, only one probe a second goes out.

Closed: work flows. Open: nothing but a probe, once a second. Half-open: the probe passed, and a
single item goes first; if that fails as well (a bucket that may be read but not written), probes
get rarer.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from enum import Enum, auto

from cachetier_client.clock import Clock

from cachetier.drain.messages import ReportHealth
from cachetier.errors import (
    RemoteError,
    RemoteRefusedError,
    ThrottledError,
    TransientError,
)

PROBE_SECONDS = 1.0
PROBE_LIMIT_SECONDS = 30.0
UNLIMITED = 1 << 30


class _State(Enum):
    CLOSED = auto()
    OPEN = auto()
    HALF_OPEN = auto()


class RemoteHealth:
    """Decides how much work a remote gets. Thread-safe."""

    def __init__(
        self, probe: Callable[[], None], report: Callable[[ReportHealth], None], clock: Clock
    ) -> None:
        """Make a closed one.

        Args:
            probe: Asks the remote once, and raises a RemoteError while it is not well.
            report: Hears of every change; at first also that the remote is well.
            clock: For the pause between probes.
        """
        self._probe = probe
        self._report = report
        self._clock = clock
        self._lock = threading.Lock()
        self._state = _State.CLOSED
        self._health = ReportHealth("ok")
        self._probe_at = 0.0
        self._pause_seconds = PROBE_SECONDS
        self._probe_failed = False
        self._reported = False  # what a drain before this one told may not hold any more

    @property
    def allowed(self) -> int:
        """How many items may be under way."""
        return {_State.CLOSED: UNLIMITED, _State.HALF_OPEN: 1, _State.OPEN: 0}[self._state]

    @property
    def is_open(self) -> bool:
        return self._state is _State.OPEN

    def seconds_until_probe(self) -> float:
        return max(0.0, self._probe_at - self._clock.monotonic())

    def failed(self, error: RemoteError) -> None:
        """An item failed beyond what retrying could mend."""
        state = _name(error)
        if state is None:
            return
        with self._lock:
            if self._state is _State.HALF_OPEN:
                self._pause_seconds = min(PROBE_LIMIT_SECONDS, 2 * self._pause_seconds)
            if self._state is not _State.OPEN:
                self._probe_failed = False
                self._probe_at = self._clock.monotonic() + self._pause_seconds
            self._state = _State.OPEN
            self._health = ReportHealth(state, error.message)
        self._report(self._health)

    def succeeded(self) -> None:
        """An item was done: the remote is well."""
        if self._state is _State.CLOSED and self._reported:
            return
        with self._lock:
            was_away = self._state is not _State.CLOSED
            self._reported = True
            self._state = _State.CLOSED
            self._health = ReportHealth("ok", retry=was_away)
            self._pause_seconds = PROBE_SECONDS
        self._report(self._health)

    def probe(self) -> None:
        """Ask the remote, if it is time to."""
        if not self.is_open or self.seconds_until_probe() > 0:
            return
        try:
            self._probe()
        except RemoteError as error:
            self._probe_again(error)
        else:
            self._try_one()

    def _probe_again(self, error: RemoteError) -> None:
        with self._lock:
            self._probe_failed = True
            self._probe_at = self._clock.monotonic() + PROBE_SECONDS
            known = self._health
            self._health = ReportHealth(_name(error) or known.state, error.message)
        if self._health != known:
            self._report(self._health)

    def _try_one(self) -> None:
        with self._lock:
            if self._state is not _State.OPEN:
                return
            self._state = _State.HALF_OPEN
            mended = self._probe_failed
        if mended:
            self._report(ReportHealth(self._health.state, self._health.reason, retry=True))


def _name(error: RemoteError) -> str | None:
    """Return the state of a remote that answers so, or None if the answer was about one object."""
    if isinstance(error, RemoteRefusedError):
        return "refused"
    if isinstance(error, ThrottledError):
        return "throttled"
    return "unreachable" if isinstance(error, TransientError) else None
