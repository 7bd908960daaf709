"""Every panel and every rule asks a real Prometheus about a node under load, and is answered."""

from __future__ import annotations

import math
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest
from cachetier_client import NotFoundError

from cachetier.testing.moto_server import moto_server
from cachetier.testing.troubles import Fault, Trouble, first
from tests.fakes.bodies import noise
from tests.integration.test_http_shards import LARGE
from tests.integration.two_remotes import RUN, Node, Site, published_at_near, until
from tests.operate.nodes import eventually, instance_of, node_at, place_for, watching
from tests.operate.prometheus import Prometheus, Sample, needs_prometheus, promtool
from tests.operate.rules import dashboards, panels, rules, selectors, substituted

pytestmark = [needs_prometheus, pytest.mark.xdist_group("prometheus")]

# What may say nothing about a healthy node, by dashboard and panel, and why.
QUIET = {
    ("fleet.json", "Alerts"): "nothing is wrong",
    ("node.json", "Pace"): "+Inf, no limit, is not drawn; a lone refusal sets none",
    ("node.json", "Everything durable in"): "nobody can tell before enough was sent",
    ("fleet.json", "Everything durable in"): "nobody can tell before enough was sent",
}
# What may be undefined (NaN) on a healthy node: nothing of the kind happened in the last seconds.
IDLE = {("node.json", "Get"): "no get in the last seconds"}


@dataclass(frozen=True)
class Watched:
    """A node under load, and who watches it."""

    node: Node
    instance: str
    prometheus: Prometheus

    def answers(self, expr: str, interval: str = "15s") -> list[Sample]:
        """Return what a panel's query brings, its variables filled in."""
        values = {"instance": self.instance, "run": ".*", "__rate_interval": interval}
        return self.prometheus.query(substituted(expr, values))

    def answers_eventually(self, expr: str) -> list[Sample]:
        found: list[Sample] = eventually(lambda: self.answers(expr), lambda: expr)
        return found


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    folder = tmp_path_factory.mktemp("prometheus")
    with moto_server() as endpoint, place_for(endpoint) as place, node_at(place) as node:
        instance = instance_of(node)
        with watching(folder, instance) as prometheus:
            eventually(lambda: prometheus.query("cachetier_put_bytes_total"))
            live_through_everything(place, node)
            with load(node):
                yield Watched(node, instance, prometheus)


def live_through_everything(place: Site, node: Node) -> None:
    """Throttle, publish, evict, restore, read a range, pass a copy over, and fail a request."""
    place.far.troubles.add(Fault(Trouble.SLOW_DOWN, when=first(3)))
    node.save(1, {"large": noise(LARGE), "small": b"small"})
    node.client.wait(RUN, 1, "durable", 60)
    until(lambda: published_at_near(place, 1) and not node.remote("near")["pending_shards"])
    assert place.far.troubles.fired[Trouble.SLOW_DOWN] == 3
    assert node.evict_all() == 2
    with node.client.open_shard(RUN, 1, "large", "rb") as reader:
        reader.read(1000)
    place.near.stop()
    assert bytes(node.client.get_shard(RUN, 1, "large")) == noise(LARGE)
    place.near.come_back()
    with pytest.raises(NotFoundError):
        node.client.get_shard(RUN, 77, "large")


@contextmanager
def load(node: Node) -> Iterator[None]:
    """Save small steps and read them until the block ends."""
    stopping = threading.Event()

    def save() -> None:
        step = 100
        while not stopping.wait(0.3):
            node.save(step, {"a": noise(70_000), "b": b"b"})
            node.client.get_shard(RUN, step, "a")
            with pytest.raises(NotFoundError):
                node.client.get_shard(RUN, step, "c")
            step += 1

    thread = threading.Thread(target=save, name="load")
    thread.start()
    try:
        yield
    finally:
        stopping.set()
        thread.join()


def has_numbers(samples: list[Sample]) -> bool:
    return any(not math.isnan(float(sample["value"][1])) for sample in samples)


@pytest.mark.parametrize("name", dashboards())
def test_every_panel_is_answered(watched: Watched, name: str) -> None:
    queries = [
        (panel["title"], target["expr"])
        for panel in panels(dashboards()[name])
        for target in panel["targets"]
        if (name, panel["title"]) not in QUIET
    ]

    def unanswered() -> list[tuple[str, str]]:
        return [
            (title, expr)
            for title, expr in queries
            if not (samples := watched.answers(expr))
            or not (has_numbers(samples) or (name, title) in IDLE)
        ]

    assert len(queries) > 20
    eventually(lambda: not unanswered(), unanswered)


@pytest.mark.parametrize(("name", "title"), QUIET)
def test_what_may_be_empty_asks_for_something_that_exists(
    watched: Watched, name: str, title: str
) -> None:
    (panel,) = (panel for panel in panels(dashboards()[name]) if panel["title"] == title)

    for target in panel["targets"]:
        watched.answers(target["expr"])  # understood, at least
        metrics = {re.split(r"\{", each)[0] for each in selectors(target["expr"])} - {"ALERTS"}
        exposed = watched.node.service.metrics.exposition().decode()
        assert all(f"# TYPE {metric} " in exposed for metric in metrics)


@pytest.mark.parametrize("name", dashboards())
def test_every_variable_has_values(watched: Watched, name: str) -> None:
    wanted = {"instance": watched.instance, "run": RUN}
    variables = dashboards()[name]["templating"]["list"]
    asked = {each["name"]: each["query"]["query"] for each in variables if each["type"] == "query"}

    assert asked.keys() == wanted.keys()
    for label, query in asked.items():
        match = re.fullmatch(r"label_values\((.+), (\w+)\)", query)
        assert match is not None
        assert match[2] == label
        found = watched.answers_eventually(match[1])
        assert wanted[label] in {each["metric"][label] for each in found}


def test_every_rule_asks_for_what_the_node_exposes(watched: Watched) -> None:
    wanted = {selector for rule in rules() for selector in selectors(rule["expr"])}

    def missing() -> list[str]:
        return [selector for selector in wanted if not watched.prometheus.query(selector)]

    assert len(wanted) > 20
    eventually(lambda: not missing(), missing)


def test_prometheus_evaluates_every_rule_without_error(watched: Watched) -> None:
    def evaluated() -> list[dict[str, Any]]:
        groups = watched.prometheus.ask("rules")["groups"]
        return [rule for group in groups for rule in group["rules"]]

    eventually(lambda: all(rule["health"] == "ok" for rule in evaluated()), evaluated)
    assert len(evaluated()) == len(rules())


def test_a_healthy_node_alarms_nobody(watched: Watched) -> None:
    eventually(lambda: watched.answers("cachetier_published_total >= 3"))

    assert watched.prometheus.query('ALERTS{alertstate="firing"}') == []


def test_prometheus_and_status_agree(watched: Watched) -> None:
    def agree() -> bool:
        status = watched.node.client.status()
        figures = {
            "cachetier_capacity_bytes": status["capacity_bytes"],
            "cachetier_exposure_objective_seconds": status["exposure_objective_seconds"],
            "cachetier_start_time_seconds": status["started_at"],
            "cachetier_quarantined_shards": status["quarantined_shards"],
        }
        return all(
            math.isclose(watched.prometheus.value(name), value) for name, value in figures.items()
        )

    eventually(agree)


def test_the_exposition_is_as_prometheus_likes_it(watched: Watched) -> None:
    promtool("check", "metrics", given=watched.node.service.metrics.exposition())
