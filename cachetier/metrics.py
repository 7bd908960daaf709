"""Every metric of the node, in one registry that the service owns.

Counters and histograms are driven by what happens; gauges are asked of the node when somebody
scrapes, so that they can never go stale.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_REMOTE = ("remote",)
_SECONDS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60)


@dataclass(frozen=True, slots=True)
class Levels:
    """What the node looks like at one instant."""

    dirty_bytes: int = 0
    dirty_shards: int = 0
    oldest_dirty_seconds: float = 0.0
    used_bytes: int = 0
    capacity_bytes: int = 0
    quarantined_shards: int = 0
    local_only_bytes: int = 0
    local_only_steps: int = 0
    fenced: bool = False
    remote_refused: bool = False
    open_connections: int = 0
    waiting_puts_bytes: int = 0
    busy_ranks: int = 0
    pending_bytes: Mapping[str, int] = field(default_factory=dict)  # by remote


class Metrics:
    """The registry and what drives it. Thread-safe."""

    def __init__(self, levels: Callable[[], Levels], remotes: Sequence[str] = ("durable",)) -> None:
        """Make all metrics; ``levels`` is asked at each scrape.

        Those of a remote are labelled with its name, for each of ``remotes`` from the first scrape.
        """
        self.registry = CollectorRegistry(auto_describe=False)
        self.registry.register(_LevelsCollector(levels))
        self.put_seconds = self._histogram(
            "put_seconds", "From the admission of a shard to its acknowledgement."
        )
        self.put_bytes = self._counter("put_bytes", "Bytes acknowledged.")
        self.get_seconds = self._histogram(
            "get_seconds", "From the request for a shard until its first byte can be read."
        )
        self.restored_bytes = self._counter(
            "restored_bytes", "Bytes brought back from a remote to this node."
        )
        self.restore_fallbacks = self._counter(
            "restore_fallbacks",
            "Remote copies passed over at a restore, as another could be tried.",
            ("reason", "remote"),
        )
        self.range_read_bytes = self._counter(
            "range_read_bytes", "Bytes of remote shards read in parts, and not kept here."
        )
        self.evicted_bytes = self._counter("evicted_bytes", "Bytes of clean shards evicted.")
        self.removed_local_only = self._counter(
            "removed_local_only_steps", "Local-only steps removed: by `keep_local`, or for room."
        )
        self.backpressure = self._counter("backpressure", "Puts turned away for want of room.")
        self.fallback_shards = self._counter(
            "fallback_shards", "Shards that clients put straight to S3 while this was away."
        )
        self.fallback_bytes = self._counter("fallback_bytes", "Bytes of those shards.")
        self._add_drain(remotes)

    def _add_drain(self, remotes: Sequence[str]) -> None:
        self.drained_bytes = self._counter(
            "drained_bytes", "Bytes verified at the remote.", _REMOTE
        )
        self.drained_shards = self._counter(
            "drained_shards", "Shards verified at the remote.", _REMOTE
        )
        self.saved_bytes = self._counter(
            "saved_bytes", "Bytes of drained shards that compression kept from being sent.", _REMOTE
        )
        self.copied_bytes = self._counter(
            "copied_bytes", "Bytes that were copied inside the bucket, not sent.", _REMOTE
        )
        self.published = self._counter("published", "Steps published by this node.")
        self.throttled = self._counter("throttled", "Requests that the remote throttled.", _REMOTE)
        self.drain_concurrency = self._gauge(
            "drain_concurrency", "Requests that the drain may have under way at once.", _REMOTE
        )
        self.drain_writes_per_second = self._gauge(
            "drain_writes_per_second",
            "Writes that the drain allows itself; +Inf: no limit.",
            _REMOTE,
        )
        self.drain_slowed_seconds = self._counter(
            "drain_slowed_seconds", "Seconds that threads of the drain held back for training."
        )
        self.drain_failures = self._counter(
            "drain_failures", "Attempts to drain that failed.", _REMOTE
        )
        self.drain_restarts = self._counter("drain_restarts", "Times the drain was restarted.")

        of_remotes: tuple[Counter | Gauge, ...] = (
            *(self.drained_bytes, self.drained_shards, self.saved_bytes, self.throttled),
            self.copied_bytes,
            *(self.drain_failures, self.drain_concurrency, self.drain_writes_per_second),
        )
        for metric in of_remotes:
            for remote in remotes:
                metric.labels(remote)

    def exposition(self) -> bytes:
        """Return everything in the text format of Prometheus (``CONTENT_TYPE``)."""
        return generate_latest(self.registry)

    def _counter(self, name: str, help_text: str, labels: Sequence[str] = ()) -> Counter:
        return Counter(f"cachetier_{name}_total", help_text, labels, registry=self.registry)

    def _gauge(self, name: str, help_text: str, labels: Sequence[str] = ()) -> Gauge:
        return Gauge(f"cachetier_{name}", help_text, labels, registry=self.registry)

    def _histogram(self, name: str, help_text: str) -> Histogram:
        return Histogram(f"cachetier_{name}", help_text, registry=self.registry, buckets=_SECONDS)


class _LevelsCollector(Collector):
    """Turns ``Levels`` into gauges at the moment of a scrape."""

    def __init__(self, levels: Callable[[], Levels]) -> None:
        self._levels = levels

    def collect(self) -> Iterable[Metric]:
        now = self._levels()
        for name, help_text, value in (
            ("dirty_bytes", "Bytes not yet at every required remote.", now.dirty_bytes),
            ("dirty_shards", "Shards not yet at every required remote.", now.dirty_shards),
            (
                "oldest_dirty_seconds",
                "Age of the oldest shard not yet at every required remote.",
                now.oldest_dirty_seconds,
            ),
            ("local_only_bytes", "Bytes that a policy keeps here.", now.local_only_bytes),
            ("used_bytes", "Bytes accounted to the cache, reservations included.", now.used_bytes),
            ("capacity_bytes", "Hard budget of the cache.", now.capacity_bytes),
            ("fenced", "1 once a sync failed and no more writes are taken.", now.fenced),
            ("remote_refused", "1 while the durable remote refuses the drain.", now.remote_refused),
            ("open_connections", "Connections open at the doors.", now.open_connections),
            ("waiting_puts_bytes", "Bytes that puts wait for room for.", now.waiting_puts_bytes),
            ("training_busy", "Ranks that say they are in a training step.", now.busy_ranks),
        ):
            yield GaugeMetricFamily(f"cachetier_{name}", help_text, value=float(value))
        pending = GaugeMetricFamily(
            "cachetier_remote_pending_bytes",
            "Bytes on this node that a remote does not have yet, and is to get.",
            labels=_REMOTE,
        )
        for remote, size_bytes in now.pending_bytes.items():
            pending.add_metric((remote,), float(size_bytes))
        yield pending
        yield CounterMetricFamily(
            "cachetier_local_only_steps",
            "Steps that a policy declared local-only, since the cache was made.",
            value=now.local_only_steps,
        )
        yield CounterMetricFamily(
            "cachetier_quarantined",
            "Shards whose local bytes failed their digest before they were durable.",
            value=now.quarantined_shards,
        )
