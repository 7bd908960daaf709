"""Whether the service counts as away, so that nobody waits for it again and again.

It opens when a put gave the service up, and closes when the service answers a probe. The probe is
what tells the service of the shards that went without it.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from cachetier_client import forks
from cachetier_client.circuit_breaker import BreakerState, CircuitBreaker
from cachetier_client.clock import Clock
from cachetier_client.units import counted, shown_size

log = logging.getLogger("cachetier_client")

PROBE_SECONDS = 5.0

Tell = Callable[[int, int], bool]


class ServiceHealth:
    """Counts what goes without the service, and knows whether it has to. Thread-safe, fork-safe.

    Args:
        url: The service, for the log.
        tell: Tells the service of so many shards and bytes; returns whether it answered.
        clock: Times the probes.

    Attributes:
        shards, size_bytes: What went without the service, in all.
    """

    def __init__(self, url: str, tell: Tell, clock: Clock) -> None:
        self.shards = 0
        self.size_bytes = 0
        self._url = url
        self._tell = tell
        self._clock = clock
        self._lock = threading.RLock()
        self._breaker = CircuitBreaker(PROBE_SECONDS, PROBE_SECONDS)
        self._away_since = 0.0
        self._unannounced: tuple[str, Exception] | None = None
        self._is_announced = False
        self._reported = (0, 0)
        forks.own(self)

    def abandon(self) -> None:
        """Begin again in a forked child, which tells of its own shards alone."""
        self._lock = threading.RLock()
        self.shards = self.size_bytes = 0
        self._reported = (0, 0)
        forks.own(self)

    def is_away(self) -> bool:
        """Return whether the service is away; now and then that is found out first."""
        with self._lock:
            if self._breaker.state is BreakerState.CLOSED:
                return False
            if not self._breaker.takes_probe(self._clock.monotonic()):
                return True
        return not self.probe()

    def failed(self, where: str, because: Exception) -> None:
        """Note that the service is away; it is said once something went to ``where`` instead."""
        with self._lock:
            now = self._clock.monotonic()
            if self._breaker.failed(now):
                self._away_since = now
                self._unannounced = (where, because)

    def used(self) -> None:
        """Note that something went another way; the first time it is logged."""
        with self._lock:
            news, self._unannounced = self._unannounced, None
            self._is_announced = self._is_announced or news is not None
        if news is not None:
            where, because = news
            log.warning("%s is away: shards go straight to %s (%s)", self._url, where, because)

    def probe(self) -> bool:
        """Tell the service of what it has not heard of; return whether it is back."""
        with self._lock:
            shards, size_bytes = self.shards, self.size_bytes
            news = (shards - self._reported[0], size_bytes - self._reported[1])
        if not self._tell(*news):
            return False
        with self._lock:
            was_away = self._breaker.succeeded()
            announced, self._is_announced = self._is_announced, False
            self._unannounced = None
            self._reported = (shards, size_bytes)
        if was_away and announced:
            seconds = self._clock.monotonic() - self._away_since
            log.warning(
                "%s is back after %.0f s: %s, %s, went straight to S3 so far",
                *(self._url, seconds, counted(shards, "shard"), shown_size(size_bytes)),
            )
        return True

    def count(self, size_bytes: int) -> None:
        """Count a shard that went without the service."""
        with self._lock:
            self.shards += 1
            self.size_bytes += size_bytes
        self.used()

    @property
    def has_news(self) -> bool:
        """Whether the service has not heard of everything."""
        return self._reported != (self.shards, self.size_bytes)
