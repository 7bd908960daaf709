"""One frozen moment, told twice: what status says and what Prometheus scrapes are the same."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import pytest
from cachetier_client.clock import SystemClock
from cachetier_client.io.digests import digest_of
from prometheus_client.parser import text_string_to_metric_families

from cachetier.local.catalog import objects
from cachetier.local.catalog.objects import UNCONDITIONAL, NewObject, NewPiece
from cachetier.local.catalog.rows import IncidentRecord
from cachetier.local.store import Store
from cachetier.model.names import DURABLE
from cachetier.model.objects import Head
from cachetier.service.service import Service
from cachetier.telemetry.metric_table import PREFIX, REMOTE_STATES, SERIES, MetricKind, Series
from cachetier.testing.s3_endpoint import S3Endpoint
from tests.integration.two_remotes import RUN, Node, running, site, until
from tests.stateful.node import content_of

Points = dict[tuple[tuple[str, str], ...], float]
LARGE = 300_000
TENANTS = [{"name": "tenant", "runs": [RUN], "bytes": "10 MB"}]


class Standing(SystemClock):
    """The system's clock, which a test may stop."""

    stopped_at: tuple[float, float] | None = None

    def stop(self) -> None:
        self.stopped_at = super().now(), super().monotonic()

    def now(self) -> float:
        return self.stopped_at[0] if self.stopped_at is not None else super().now()

    def monotonic(self) -> float:
        return self.stopped_at[1] if self.stopped_at is not None else super().monotonic()


def scraped(service: Service) -> dict[str, Points]:
    """Return every sample of /metrics by the name of its series, then by its labels."""
    found: dict[str, Points] = {name: {} for name in SERIES}
    for family in text_string_to_metric_families(service.metrics.exposition().decode()):
        points = found[family.name.removeprefix(PREFIX)]
        for sample in family.samples:
            points[tuple(sorted(sample.labels.items()))] = sample.value
    return found


def said(series: Series, status: dict[str, Any]) -> Points:
    """Return what status says of a series, as samples; what is null there has none."""
    if series.status.startswith("exposure[]."):
        return present({("run", each["run"]): field(each, series) for each in status["exposure"]})
    if series.labels == ("mount",):
        return present({("mount", each["mount"]): field(each, series) for each in status["mounts"]})
    if series.status == "remotes[].state":
        return {
            (("remote", each["name"]), ("state", state)): float(each["state"] == state)
            for each in status["remotes"]
            for state in REMOTE_STATES
        }
    if series.labels == ("principal",):
        shares = status["principals"]
        return present({("principal", each["name"]): field(each, series) for each in shares})
    if series.labels == ("remote",):
        return present(
            {
                ("remote", each["name"]): of_remote(series, each, status)
                for each in status["remotes"]
            }
        )
    return {(): value_of(field(status, series))}


def of_remote(series: Series, remote: dict[str, Any], status: dict[str, Any]) -> Any:
    if series.status.startswith("remotes[]."):
        value = field(remote, series)
        unlimited = series.name == "drain_writes_per_second" and value is None
        return math.inf if unlimited else value
    of_drain = status["drain"] if remote["name"] == DURABLE else remote["drain"]
    return of_drain[series.status.removeprefix("drain.")]


def field(described: Any, series: Series) -> Any:
    for name in series.status.split("[].")[-1].split("."):
        described = described[name]
    return described


def present(points: dict[tuple[str, str], Any]) -> Points:
    return {(label,): value_of(value) for label, value in points.items() if value is not None}


def value_of(value: Any) -> float:
    """Return a figure of status as a number: `fenced` is a text, or null; of a list, how many."""
    if isinstance(value, list):
        return float(len(value))
    return float(value) if isinstance(value, int | float) else float(value is not None)


@pytest.fixture
def frozen(moto_s3: S3Endpoint, monkeypatch: pytest.MonkeyPatch) -> Iterator[Node]:
    """A node with a replica, a step drained, another under way and a third kept: time stands."""
    for name, value in moto_s3.environment().items():
        monkeypatch.setenv(name, value)
    clock = Standing()
    monkeypatch.setattr("tests.integration.serving.Service", lambda it: Service(it, clock=clock))
    with site(moto_s3) as place:
        with running(
            place.settings(compression="zstd:1", durable_every=2, principal=TENANTS)
        ) as node:
            node.save(1, {"kept": b"k" * LARGE})
            node.save(2, {"weights": b"x" * LARGE})
            node.client.wait(RUN, 2, "durable", 60)
            node.client.pin(RUN, 2)
            until(lambda: node.remote("near")["pending_shards"] == 0)
            place.far.stop()
            node.save(4, {"weights": b"y" * LARGE})
            until(lambda: node.remote(DURABLE)["state"] == "unreachable")
            until(lambda: node.remote("near")["pending_shards"] == 0)
            put_object_in_conflict(node.service.store)
            until(lambda: without_anything(node) <= MAY_BE_EMPTY)  # the drain reports in its time
            clock.stop()
            yield node


def put_object_in_conflict(store: Store) -> None:
    """Put an object where no settings name the mount: it waits, and for a person."""
    body = b"object"
    new = NewObject("key", Head(), 0, "etag", len(body), digest_of(body))
    piece = NewPiece(content_of(body), body=body)
    made = store.write(objects.commit_object, "s3:mount", new, piece, UNCONDITIONAL, 1.0)
    incident = IncidentRecord("conflict", "somebody else changed it", "decide", "s3:mount", 0)
    store.write(objects.record_conflict, made.version, incident, 1.0)


TOLD = [series for series in SERIES.values() if series.status]
MAY_BE_EMPTY = {
    *("fenced", "quarantined_shards", "unwanted_bytes", "waiting_puts_bytes"),
    *("incomplete_steps", "oldest_incomplete_seconds", "copied_bytes", "drain_restarts"),
    "waiting_markers",
    *("throttled", "drain_last_progress_seconds", "evicted_bytes", "restored_bytes"),
    *("lent_bytes", "memory_bytes", "kept_for_peers_bytes", "objects_superseded"),
    *("restore_wanted_bytes", "restore_done_bytes", "restore_eta_seconds"),  # no restore runs
    *("drained_objects", "object_conflicts"),  # no mount of the settings
    "drain_eta_seconds",  # nobody can tell, and the replica has all
}


def without_anything(node: Node) -> set[str]:
    """Return the series of which status has nothing but zeros."""
    status = node.service.operations.status()
    return {each.name for each in TOLD if not any(said(each, status).values())}


def test_status_and_metrics_agree_on_every_figure(frozen: Node) -> None:
    until(lambda: disagreements(frozen) == {})


def disagreements(node: Node) -> dict[str, tuple[Points, Points]]:
    """Return the series that are told in two ways, with both; a report may come in between."""
    status, metrics = node.service.operations.status(), scraped(node.service)
    pairs = {each.name: (said(each, status), metrics[each.name]) for each in TOLD}
    return {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}


def test_the_frozen_node_has_something_of_everything_to_agree_on(frozen: Node) -> None:
    assert without_anything(frozen) <= MAY_BE_EMPTY


def test_every_figure_of_status_that_is_a_series_says_so() -> None:
    assert len(TOLD) >= 30
    assert {series.kind for series in TOLD} == {MetricKind.GAUGE, MetricKind.COUNTER}
