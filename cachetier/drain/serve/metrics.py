"""Count what the drain reports."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from cachetier.drain.serve.stats import DrainObserver
from cachetier.telemetry.metrics import Metrics


class DrainMetrics(DrainObserver):
    """Turns reports into metrics."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    def drained(self, remote: str, size_bytes: int, _seconds: float) -> None:
        self._metrics.drained_bytes.labels(remote).inc(size_bytes)
        self._metrics.drained_shards.labels(remote).inc()

    def reached(self, remote: str, age_seconds: float) -> None:
        self._metrics.drain_seconds.labels(remote).observe(age_seconds)

    def saved(self, remote: str, size_bytes: int) -> None:
        self._metrics.saved_bytes.labels(remote).inc(size_bytes)

    def copied(self, remote: str, size_bytes: int) -> None:
        self._metrics.copied_bytes.labels(remote).inc(size_bytes)

    def paced(self, remote: str, pace: Mapping[str, Any]) -> None:
        rate = pace["writes_per_second"]
        self._metrics.drain_concurrency.labels(remote).set(pace["concurrency"])
        per_second = math.inf if rate is None else rate
        self._metrics.drain_writes_per_second.labels(remote).set(per_second)

    def slowed(self, seconds: float) -> None:
        self._metrics.drain_slowed_seconds.inc(seconds)

    def throttled(self, remote: str, times: int) -> None:
        self._metrics.throttled.labels(remote).inc(times)

    def failed(self, remote: str, _kind: str, _code: str) -> None:
        self._metrics.drain_failures.labels(remote).inc()

    def published(self, _run: str, _step: int, age_seconds: float) -> None:
        self._metrics.published.inc()
        self._metrics.durable_seconds.observe(age_seconds)

    def restarted(self) -> None:
        self._metrics.drain_restarts.inc()
