"""Every metric of the node, in one registry that the service owns; ``series`` declares them.

Counters and histograms are driven by what happens; gauges are asked of the node when somebody
scrapes, so that they can never go stale. Where the catalog cannot be read, its figures are left
out, which is counted and told: whoever scrapes still gets all others, and so the cause.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from cachetier.errors import error_codes
from cachetier.telemetry import events
from cachetier.telemetry.events import tell
from cachetier.telemetry.metric_table import PREFIX, REMOTE_STATES, SERIES, MetricKind
from cachetier.telemetry.node_snapshot import Levels, ServiceSnapshot

log = logging.getLogger(__name__)

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_SECONDS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60)
_LONG_SECONDS = (1, 2, 5, 10, 30, 60, 120, 300, 600, 1200, 1800, 3600)
_OPERATIONS = ("write", "sync", "catalog")
_SOURCES = ("service", "catalog")  # of gauges
_REASONS = ("unreachable", "missing", "damaged")  # as `sources.Reason` says them

disable_created_metrics()  # type: ignore[no-untyped-call]  # a `_created` beside each counter, which nobody declared

Points = Iterable[tuple[tuple[str, ...], float]]


class Metrics:
    """The registry and what drives it. Thread-safe."""

    def __init__(
        self,
        standing: Callable[[], ServiceSnapshot],
        levels: Callable[[], Levels],
        remotes: Sequence[str] = ("durable",),
        *,
        version: str = "",
    ) -> None:
        """Make all metrics; ``standing`` and ``levels`` are asked at each scrape.

        Those of a remote are labelled with its name, for each of ``remotes`` from the first scrape.
        """
        self.registry = CollectorRegistry(auto_describe=False)
        asked = (lambda: _points_of_standing(standing()), lambda: _points_of_levels(levels()))
        self.registry.register(_Gauges(dict(zip(_SOURCES, asked, strict=True)), self._unread))
        self._gauge("build_info").labels(version).set(1)
        self._add_flow()
        self._add_drain()
        self._add_trouble()
        of_remotes: tuple[Counter | Gauge | Histogram, ...] = (
            *(self.drained_bytes, self.drained_shards, self.saved_bytes, self.copied_bytes),
            *(self.throttled, self.drain_failures, self.drain_seconds),
            *(self.drain_concurrency, self.drain_writes_per_second),
        )
        for metric in of_remotes:
            for remote in remotes:
                metric.labels(remote)
        for remote in remotes:
            self.drain_writes_per_second.labels(remote).set(float("inf"))  # until its drain reports
            for reason in _REASONS:
                self.restore_fallbacks.labels(reason, remote)

    def _add_flow(self) -> None:
        self.put_seconds = self._histogram("put_seconds", _SECONDS)
        self.put_bytes = self._counter("put_bytes")
        self.get_seconds = self._histogram("get_seconds", _SECONDS)
        self.restored_bytes = self._counter("restored_bytes")
        self.restore_fallbacks = self._counter("restore_fallbacks")
        self.range_read_bytes = self._counter("range_read_bytes")
        self.evicted_bytes = self._counter("evicted_bytes")
        self.removed_local_only = self._counter("removed_local_only_steps")
        self.backpressure = self._counter("backpressure")
        self.fallback_shards = self._counter("fallback_shards")
        self.fallback_bytes = self._counter("fallback_bytes")

    def _add_drain(self) -> None:
        self.durable_seconds = self._histogram("durable_seconds", _LONG_SECONDS)
        self.drain_seconds = self._histogram("drain_seconds", _LONG_SECONDS)
        self.drained_bytes = self._counter("drained_bytes")
        self.drained_shards = self._counter("drained_shards")
        self.saved_bytes = self._counter("saved_bytes")
        self.copied_bytes = self._counter("copied_bytes")
        self.published = self._counter("published")
        self.throttled = self._counter("throttled")
        self.drain_concurrency = self._gauge("drain_concurrency")
        self.drain_writes_per_second = self._gauge("drain_writes_per_second")
        self.drain_slowed_seconds = self._counter("drain_slowed_seconds")
        self.drain_failures = self._counter("drain_failures")
        self.drain_restarts = self._counter("drain_restarts")

    def _add_trouble(self) -> None:
        self._errors = self._counter("errors")
        self._codes = error_codes()
        self._write_errors = self._counter("write_errors")
        for operation in _OPERATIONS:
            self._write_errors.labels(operation)
        self._scrape_errors = self._counter("scrape_errors")
        for source in _SOURCES:
            self._scrape_errors.labels(source)

    def write_failed(self, operation: str) -> None:
        """Count a failure of the cache's disk: of a ``write``, a ``sync`` or the ``catalog``."""
        self._write_errors.labels(operation).inc()

    def answered_with_error(self, door: str, code: str) -> None:
        """Count a request that ``door`` answered with an error; an unknown code is ``internal``."""
        self._errors.labels(door, code if code in self._codes else "internal").inc()

    def _unread(self, source: str, error: Exception) -> None:
        self._scrape_errors.labels(source).inc()
        tell(log, events.SCRAPE_FAILED, source=source, reason=str(error), error=error)

    def flow(self) -> dict[str, int]:
        """Return what went through since the start, as status shows it."""
        counters = {
            "put_bytes": self.put_bytes,
            "restored_bytes": self.restored_bytes,
            "evicted_bytes": self.evicted_bytes,
        }
        return {name: int(_total(counter)) for name, counter in counters.items()}

    def exposition(self) -> bytes:
        """Return everything in the text format of Prometheus (``CONTENT_TYPE``)."""
        return generate_latest(self.registry)

    def _counter(self, name: str) -> Counter:
        series = SERIES[name]
        return Counter(series.full_name, series.meaning, series.labels, registry=self.registry)

    def _gauge(self, name: str) -> Gauge:
        series = SERIES[name]
        return Gauge(series.full_name, series.meaning, series.labels, registry=self.registry)

    def _histogram(self, name: str, buckets: Sequence[float]) -> Histogram:
        series = SERIES[name]
        return Histogram(
            *(series.full_name, series.meaning, series.labels),
            registry=self.registry,
            buckets=buckets,
        )


def _total(counter: Counter) -> float:
    samples = (sample for family in counter.collect() for sample in family.samples)
    return next(sample.value for sample in samples if sample.name.endswith("_total"))


class _Gauges(Collector):
    """Turns what the node looks like into samples at the moment of a scrape.

    A source that cannot be read has none; ``on_unread`` is told.
    """

    def __init__(
        self,
        sources: Mapping[str, Callable[[], Mapping[str, Points]]],
        on_unread: Callable[[str, Exception], None],
    ) -> None:
        self._sources = sources
        self._on_unread = on_unread

    def collect(self) -> Iterator[Metric]:
        for source, points_of in self._sources.items():
            try:
                found = points_of()
            except Exception as error:
                self._on_unread(source, error)
            else:
                yield from (_family(name, points) for name, points in found.items())


def _family(name: str, points: Points) -> Metric:
    series = SERIES[name]
    family = GaugeMetricFamily if series.kind is MetricKind.GAUGE else CounterMetricFamily
    metric = family(f"{PREFIX}{name}", series.meaning, labels=series.labels)
    for labels, value in points:
        metric.add_metric(labels, float(value))
    return metric


def _points_of_standing(now: ServiceSnapshot) -> Mapping[str, Points]:
    plain: dict[str, float] = {
        "fenced": now.fenced,
        "used_bytes": now.used_bytes,
        "capacity_bytes": now.capacity_bytes,
        "waiting_puts_bytes": now.waiting_puts_bytes,
        "open_connections": now.open_connections,
        "training_busy": now.busy_ranks,
        "exposure_objective_seconds": now.exposure_objective_seconds,
        "start_time_seconds": now.started_at,
        "remote_refused": any(state == "refused" for _, state in now.remote_states[:1]),
    }
    states = [
        ((name, state), float(state == present))
        for name, present in now.remote_states
        for state in REMOTE_STATES
    ]
    return {**_plain(plain), "remote_state": states}


def _points_of_levels(now: Levels) -> Mapping[str, Points]:
    plain: dict[str, float] = {
        "dirty_bytes": now.dirty_bytes,
        "dirty_shards": now.dirty_shards,
        "oldest_dirty_seconds": now.oldest_dirty_seconds,
        "incomplete_steps": now.incomplete_steps,
        "oldest_incomplete_seconds": now.oldest_incomplete_seconds,
        "local_only_bytes": now.local_only_bytes,
        "local_only_steps": now.local_only_total,
        "clean_bytes": now.clean_bytes,
        "evictable_bytes": now.evictable_bytes,
        "unwanted_bytes": now.unwanted_bytes,
        "pinned_steps": now.pinned_steps,
        "pinned_bytes": now.pinned_bytes,
        "quarantined_shards": now.quarantined_shards,
        "quarantined": now.quarantined_total,
    }
    return {
        **_plain(plain),
        "run_exposure_seconds": [((each.run,), each.exposure_seconds) for each in now.runs],
        "run_durable_age_seconds": [
            ((each.run,), each.durable_age_seconds)
            for each in now.runs
            if each.durable_age_seconds is not None
        ],
        "run_dirty_bytes": [((each.run,), each.dirty_bytes) for each in now.runs],
        "remote_pending_bytes": [((each.name,), each.pending_bytes) for each in now.remotes],
        "drain_eta_seconds": [
            ((each.name,), each.eta_seconds) for each in now.remotes if each.eta_seconds is not None
        ],
        "drain_last_progress_seconds": [
            ((each.name,), each.last_progress_seconds) for each in now.remotes
        ],
    }


def _plain(figures: Mapping[str, float]) -> dict[str, Points]:
    """Return the figures that are one for the node, as samples without a label."""
    return {name: [((), value)] for name, value in figures.items()}
