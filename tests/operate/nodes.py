"""A node with two remotes, watched by a real Prometheus, and time that can jump ahead."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from cachetier_client import Client
from cachetier_client.clock import SystemClock

from cachetier.service.service import Service
from cachetier.testing.s3_endpoint import S3Endpoint
from tests.fakes.small_node import small_node
from tests.integration.two_remotes import Node, Site, site
from tests.operate.prometheus import Prometheus, adapted, prometheus

TOKEN = "t" * 40
SECONDS = 60.0


class JumpingClock(SystemClock):
    """The machine's clocks, and a step ahead of them."""

    def __init__(self) -> None:
        self.ahead_seconds = 0.0

    def now(self) -> float:
        return time.time() + self.ahead_seconds

    def monotonic(self) -> float:
        return time.monotonic() + self.ahead_seconds


@contextmanager
def place_for(endpoint: S3Endpoint) -> Iterator[Site]:
    """Lend two remotes, with credentials in the environment."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in endpoint.environment().items():
            patch.setenv(name, value)
        with site(endpoint) as made:
            yield made


@contextmanager
def node_at(place: Site, *, clock: JumpingClock | None = None, **settings: Any) -> Iterator[Node]:
    """Run a node whose HTTP door wants a token, as the one in docker-compose.yml does."""
    service = Service(small_node(place.settings(token=TOKEN, **settings)), clock=clock)
    service.start()
    try:
        with Client(f"unix://{service.socket}") as client:
            yield Node(service, client)
    finally:
        service.stop()


def instance_of(node: Node) -> str:
    """Return what Prometheus calls the node."""
    assert node.service.url is not None
    return node.service.url.removeprefix("http://")


@contextmanager
def watching(folder: Path, *instances: str) -> Iterator[Prometheus]:
    """Scrape nodes every second, with the rules of deploy/."""
    with prometheus(folder, adapted(folder, list(instances), TOKEN)) as running:
        yield running


def eventually(found: Callable[[], Any], what: Callable[[], object] = lambda: "") -> Any:
    """Return what ``found`` returns as soon as that is something; ``what`` tells why it was not."""
    deadline = time.monotonic() + SECONDS
    while not (result := found()):
        assert time.monotonic() < deadline, f"it does not come about: {what()}"
        time.sleep(0.2)
    return result


def alerted(watch: Prometheus) -> dict[str, dict[str, str]]:
    """Return the alerts that fire, or will if it goes on, with their labels."""
    return {each["metric"]["alertname"]: each["metric"] for each in watch.query("ALERTS")}


def until_alerted(watch: Prometheus, alert: str) -> dict[str, str]:
    """Return the labels of an alert as soon as Prometheus finds its condition met."""
    labels: dict[str, str] = eventually(
        lambda: alerted(watch).get(alert), lambda: f"{alert}, but {alerted(watch)}"
    )
    return labels


def until_quiet(watch: Prometheus, alert: str) -> None:
    """Wait until an alert's condition is not met any more, by the rule's own expression."""
    eventually(lambda: alert not in alerted(watch), lambda: f"{alert} goes on")
