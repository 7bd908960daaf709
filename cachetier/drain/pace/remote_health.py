"""The health of a remote: how much work it gets, by a circuit breaker, and what is told of it.

Open: nothing but a probe goes out, once a second. Half-open: a single item goes first; if that
fails as well (a bucket that may be read but not written), probes get rarer.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from cachetier_client.circuit_breaker import BreakerState, CircuitBreaker
from cachetier_client.clock import Clock
from msgspec import Struct

from cachetier.errors import RemoteError
from cachetier.remote.answers import state_after

PROBE_SECONDS = 1.0
PROBE_LIMIT_SECONDS = 30.0
UNLIMITED = 1 << 30


class Health(Struct, frozen=True):
    """How the remote is; ``retry`` asks for work that was put off to be tried at once."""

    state: str
    reason: str = ""
    retry: bool = False


class RemoteHealth:
    """Decides how much work a remote gets. Thread-safe."""

    def __init__(
        self, probe: Callable[[], None], report: Callable[[Health], None], clock: Clock
    ) -> None:
        """Take the remote for well.

        Args:
            probe: Asks the remote once, and raises a RemoteError while it is not well.
            report: Hears of every change; at first also that the remote is well.
            clock: For the pause between probes.
        """
        self._probe = probe
        self._report = report
        self._clock = clock
        self._lock = threading.Lock()
        self._breaker = CircuitBreaker(PROBE_SECONDS, PROBE_LIMIT_SECONDS)
        self._health = Health("ok")
        self._probe_failed = False
        self._reported = False  # what a drain before this one told may not hold any more

    @property
    def allowed(self) -> int:
        """How many items may be under way."""
        return {BreakerState.CLOSED: UNLIMITED, BreakerState.HALF_OPEN: 1, BreakerState.OPEN: 0}[
            self._breaker.state
        ]

    @property
    def is_away(self) -> bool:
        """Whether nothing but probes goes out."""
        return self._breaker.state is BreakerState.OPEN

    def seconds_until_probe(self) -> float:
        return max(0.0, self._breaker.probe_at - self._clock.monotonic())

    def failed(self, error: RemoteError) -> None:
        """An item failed beyond what retrying could mend."""
        state = state_after(error)
        if state is None:
            return
        with self._lock:
            if self._breaker.failed(self._clock.monotonic()):
                self._probe_failed = False
            self._health = Health(state, error.message)
        self._report(self._health)

    def succeeded(self) -> None:
        """An item was done: the remote is well."""
        if self._breaker.state is BreakerState.CLOSED and self._reported:
            return
        with self._lock:
            self._reported = True
            self._health = Health("ok", retry=self._breaker.succeeded())
        self._report(self._health)

    def probe(self) -> None:
        """Ask the remote, if it is time to."""
        with self._lock:
            if not self._breaker.takes_probe(self._clock.monotonic()):
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
            self._breaker.probe_failed(self._clock.monotonic())
            known = self._health
            self._health = Health(state_after(error) or known.state, error.message)
        if self._health != known:
            self._report(self._health)

    def _try_one(self) -> None:
        with self._lock:
            mended = self._breaker.probe_passed() and self._probe_failed
        if mended:
            self._report(Health(self._health.state, self._health.reason, retry=True))
