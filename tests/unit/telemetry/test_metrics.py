"""The registry has what ``series`` declares and nothing else, and its labels are bounded."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

from cachetier.drain.serve.stats import DrainSnapshot, RemoteSnapshot
from cachetier.errors import error_codes
from cachetier.local.catalog.copies import Lag
from cachetier.status.exposure import RunExposure
from cachetier.status.prometheus import points_of_catalog, points_of_service
from cachetier.status.snapshot import NodeSnapshot, RemoteProgress, ServiceSnapshot
from cachetier.telemetry.metric_table import PREFIX, SECTIONS, SERIES, MetricKind
from cachetier.telemetry.metrics import Metrics

RUN = RunExposure("run", 7, 12.0, 30.0, 100)
NEAR = RemoteProgress("near", Lag(1, 2, 300, 0), 4.5, 6.0)
DRAINS = {
    "durable": DrainSnapshot(RemoteSnapshot("durable")),
    "near": DrainSnapshot(RemoteSnapshot("near", "throttled", pace={"writes_per_second": None})),
}
SERVICE = ServiceSnapshot(fenced=True, drains=DRAINS)
NODE = NodeSnapshot(
    SERVICE, runs=(RUN,), remotes=(RemoteProgress("durable", eta_seconds=0.0), NEAR)
)
REMOTES = ("durable", "near")


def metrics_of(
    service: Callable[[], ServiceSnapshot] = lambda: SERVICE,
    node: Callable[[], NodeSnapshot] = lambda: NODE,
) -> Metrics:
    sources = {
        "service": lambda: points_of_service(service()),
        "catalog": lambda: points_of_catalog(node()),
    }
    return Metrics(sources, REMOTES, version="1")


def families(metrics: Metrics) -> dict[str, Metric]:
    text = metrics.exposition().decode()
    return {each.name: each for each in text_string_to_metric_families(text)}


def value_of(metrics: Metrics, name: str, **labels: str) -> float | None:
    return metrics.registry.get_sample_value(f"{PREFIX}{name}", labels)


def test_the_first_scrape_has_every_declared_series_and_no_other() -> None:
    found = families(metrics_of())

    assert found.keys() == {f"{PREFIX}{name}" for name in SERIES}
    for name, series in SERIES.items():
        family = found[f"{PREFIX}{name}"]
        assert (family.type, family.documentation) == (series.kind, series.meaning)


def test_every_sample_has_the_labels_that_are_declared() -> None:
    metrics = metrics_of()
    metrics.answered_with_error("unix", "backpressure")

    for name, family in families(metrics).items():
        declared = set(SERIES[name.removeprefix(PREFIX)].labels)
        for sample in family.samples:
            assert sample.labels.keys() - {"le"} == declared, sample


def test_what_nobody_can_tell_has_no_sample() -> None:
    new = RunExposure("new", None, None, 5.0, 1)
    unknown = NodeSnapshot(runs=(new,), remotes=(RemoteProgress("durable"),))
    metrics = metrics_of(node=lambda: unknown)

    assert value_of(metrics, "run_durable_age_seconds", run="new") is None
    assert value_of(metrics, "drain_eta_seconds", remote="durable") is None
    assert value_of(metrics, "run_exposure_seconds", run="new") == 5.0


def test_a_remote_is_in_one_state_at_a_time() -> None:
    metrics = metrics_of()

    states = {
        state: value_of(metrics, "remote_state", remote="near", state=state)
        for state in ("ok", "throttled", "unreachable", "refused")
    }
    assert states == {"ok": 0.0, "throttled": 1.0, "unreachable": 0.0, "refused": 0.0}


def test_codes_that_nobody_declared_are_internal() -> None:
    metrics = metrics_of()
    for number in range(1000):
        metrics.answered_with_error("http", f"made-up-{number}")
    for code in error_codes():
        metrics.answered_with_error("http", code)

    codes = {sample.labels["code"] for sample in families(metrics)[f"{PREFIX}errors"].samples}
    assert codes == error_codes()
    assert value_of(metrics, "errors_total", door="http", code="internal") == 1001


def test_counters_begin_at_zero_and_no_limit_is_infinite() -> None:
    metrics = metrics_of()
    assert value_of(metrics, "write_errors_total", operation="sync") == 0.0
    assert value_of(metrics, "drained_bytes_total", remote="near") == 0.0
    assert value_of(metrics, "drain_writes_per_second", remote="near") == math.inf


def unreadable() -> Any:
    raise OSError("disk I/O error")


def test_a_catalog_that_cannot_be_read_takes_its_own_gauges_along_and_no_others(
    caplog: pytest.LogCaptureFixture,
) -> None:
    metrics = metrics_of(node=unreadable)
    metrics.put_bytes.inc(7)

    found = families(metrics)
    missing = {name for name in SERIES if f"{PREFIX}{name}" not in found}

    assert {"dirty_bytes", "run_exposure_seconds", "quarantined_shards"} <= missing
    assert not missing & {"fenced", "remote_state", "used_bytes", "put_bytes", "scrape_errors"}
    assert value_of(metrics, "fenced") == 1.0
    assert value_of(metrics, "put_bytes_total") == 7.0
    assert value_of(metrics, "scrape_errors_total", source="service") == 0.0
    (told, *_) = caplog.records
    assert told.getMessage() == "a scrape has no gauges of the catalog: disk I/O error"


def test_the_scrape_that_fails_counts_itself_and_the_next_that_does_not_is_whole() -> None:
    answers: list[Callable[[], NodeSnapshot]] = [unreadable, lambda: NODE]

    def node() -> NodeSnapshot:
        return answers.pop(0)()

    metrics = metrics_of(node=node)

    failed, whole = families(metrics), families(metrics)

    assert f"{PREFIX}dirty_bytes" not in failed
    assert [sample.value for sample in failed[f"{PREFIX}scrape_errors"].samples] == [0.0, 1.0]
    assert whole.keys() == {f"{PREFIX}{name}" for name in SERIES}


def test_a_service_that_cannot_be_asked_leaves_the_figures_of_the_catalog() -> None:
    metrics = metrics_of(service=unreadable)

    assert value_of(metrics, "run_exposure_seconds", run="run") == 30.0
    assert value_of(metrics, "fenced") is None
    assert value_of(metrics, "scrape_errors_total", source="service")


def test_names_say_the_unit_and_are_declared_once() -> None:
    declared = [series.name for _, section in SECTIONS for series in section]

    assert len(declared) == len(set(declared))
    for series in SERIES.values():
        assert series.meaning.endswith((".", "`"))
        assert series.full_name.endswith("_total") == (series.kind is MetricKind.COUNTER)
    assert SERIES["put_bytes"].unit == "bytes"
    assert SERIES["drain_writes_per_second"].unit == "per second"
    assert SERIES["dirty_shards"].unit == ""
