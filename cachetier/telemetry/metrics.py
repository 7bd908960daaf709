"""Every metric of the node, in one registry that the service owns; ``metric_table`` declares them.

What the snapshot of the node has is asked when somebody scrapes, so that it can never go stale; the
other counters and the histograms are driven by what happens. Where the catalog cannot be read, its
figures are left out, which is counted and told: whoever scrapes still gets all others, and so the
cause.
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

from cachetier.errors import CachetierError, error_codes
from cachetier.telemetry import events
from cachetier.telemetry.events import tell
from cachetier.telemetry.metric_table import PREFIX, SERIES, MetricKind

log = logging.getLogger(__name__)

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_SECONDS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60)
_LONG_SECONDS = (1, 2, 5, 10, 30, 60, 120, 300, 600, 1200, 1800, 3600)
_OPERATIONS = ("write", "sync", "catalog")
_REASONS = ("unreachable", "missing", "damaged")  # as `sources.Reason` says them

disable_created_metrics()  # type: ignore[no-untyped-call]  # a `_created` beside each counter, which nobody declared

Points = Iterable[tuple[tuple[str, ...], float]]
Asked = Callable[[], Mapping[str, Points]]


class Metrics:
    """The registry and what drives it. Thread-safe."""

    def __init__(
        self,
        sources: Mapping[str, Asked],
        remotes: Sequence[str] = ("durable",),
        *,
        version: str = "",
    ) -> None:
        """Make all metrics; each of ``sources`` is asked for its samples at each scrape.

        Those of a remote are labelled with its name, for each of ``remotes`` from the first scrape.
        """
        self.registry = CollectorRegistry(auto_describe=False)
        self.registry.register(_Snapshot(sources, self._unread))
        self._gauge("build_info").labels(version).set(1)
        self._add_flow()
        self._add_trouble(sources)
        self.durable_seconds = self._histogram("durable_seconds", _LONG_SECONDS)
        self.drain_seconds = self._histogram("drain_seconds", _LONG_SECONDS)
        for remote in remotes:
            self.drain_seconds.labels(remote)
            for reason in _REASONS:
                self._restore_fallbacks.labels(reason, remote)

    def _add_flow(self) -> None:
        self.put_seconds = self._histogram("put_seconds", _SECONDS)
        self.put_bytes = self._counter("put_bytes")
        self.get_seconds = self._histogram("get_seconds", _SECONDS)
        self.restored_bytes = self._counter("restored_bytes")
        self._restore_fallbacks = self._counter("restore_fallbacks")
        self.range_read_bytes = self._counter("range_read_bytes")
        self.evicted_bytes = self._counter("evicted_bytes")
        self.removed_local_only = self._counter("removed_local_only_steps")
        self.backpressure = self._counter("backpressure")
        self.fallback_shards = self._counter("fallback_shards")
        self.fallback_bytes = self._counter("fallback_bytes")

    def _add_trouble(self, sources: Iterable[str]) -> None:
        self._errors = self._counter("errors")
        self._s3_requests = self._counter("s3_requests")
        self._codes = error_codes()
        self._write_errors = self._counter("write_errors")
        for operation in _OPERATIONS:
            self._write_errors.labels(operation)
        self._scrape_errors = self._counter("scrape_errors")
        for source in sources:
            self._scrape_errors.labels(source)

    def write_failed(self, operation: str) -> None:
        """Count a failure of the cache's disk: of a ``write``, a ``sync`` or the ``catalog``."""
        self._write_errors.labels(operation).inc()

    def passed_over(self, reason: str, remote: str) -> None:
        """Count a copy at ``remote`` that a restore passed over for ``reason``."""
        self._restore_fallbacks.labels(reason, remote).inc()

    def answered_with_error(self, door: str, code: str) -> None:
        """Count a request that ``door`` answered with an error; an unknown code is ``internal``."""
        self._errors.labels(door, code if code in self._codes else "internal").inc()

    def s3_answered(self, operation: str, code: str) -> None:
        """Count a request at the S3 door; both are of finite lists."""
        self._s3_requests.labels(operation, code).inc()

    def _unread(self, source: str, error: Exception) -> None:
        self._scrape_errors.labels(source).inc()
        reason = error.message if isinstance(error, CachetierError) else str(error)
        tell(log, events.SCRAPE_FAILED, source=source, reason=reason, error=error)

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


class _Snapshot(Collector):
    """Turns what the node looks like into samples at the moment of a scrape.

    A source that cannot be read has none; ``on_unread`` is called.
    """

    def __init__(
        self,
        sources: Mapping[str, Asked],
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
