"""A remote that is away, or comes and goes: puts go on, nothing is lost, nobody storms it."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from cachetier_client.identity.names import SaveIds

from cachetier.drain.pace import remote_health
from cachetier.remote.call_policy import CallPolicy, Retries, RetryPolicy
from cachetier.testing.s3_endpoint import S3Endpoint
from cachetier.testing.s3proxy import S3Proxy
from tests.integration.drain_node import Node, patterned

PROBE_SECONDS = 0.2
POLICY = RetryPolicy(attempts=3, base_seconds=0.01, cap_seconds=0.05)


class Calls:
    """Counts what was tried at the remote, arrived or not."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self.counts = Counter[bool]()  # by whether it was answered well

    def __call__(self, _operation: str, _seconds: float, _size_bytes: int, outcome: str) -> None:
        with self._changed:
            self.counts[outcome == "ok"] += 1
            self._changed.notify_all()

    def wait_for_one_more(self, *, answered: bool) -> None:
        with self._changed:
            before = self.counts[answered]
            assert self._changed.wait_for(lambda: self.counts[answered] > before, 60.0)


@pytest.fixture(autouse=True)
def frequent_probes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_health, "PROBE_SECONDS", PROBE_SECONDS)


@pytest.fixture
def calls() -> Calls:
    return Calls()


@pytest.fixture
def proxy(moto_s3: S3Endpoint) -> Iterator[S3Proxy]:
    with S3Proxy(moto_s3.url) as started:
        yield started


@pytest.fixture
def node(tmp_path: Path, moto_s3: S3Endpoint, proxy: S3Proxy, calls: Calls) -> Iterator[Node]:
    store = moto_s3.behind(proxy.url).store()
    policy = CallPolicy(store, retries=Retries(POLICY), observe=calls)
    node = Node(tmp_path / "cache", policy, fraction=lambda: 0.01)
    node.probe = CallPolicy(store, observe=calls).check  # as the drain process does
    yield node
    node.close()


def save(node: Node, run: str, step: int) -> dict[str, bytes]:
    ids = SaveIds(run, step, "save-1")
    bodies = {"small": b"hello %d" % step, "large": patterned(17 << 20, step)}
    for name, body in bodies.items():
        node.put(ids, name, body)
    node.seal(ids)
    return {node.key(ids, name): body for name, body in bodies.items()}


def test_puts_go_on_in_an_outage_and_everything_drains_after_it(
    node: Node, proxy: S3Proxy, calls: Calls, moto_s3: S3Endpoint
) -> None:
    saved = save(node, "outage", 1)
    probes = node.watched_probes(calls.counts.total)
    with node.draining():
        node.wait_durable(SaveIds("outage", 1, "save-1"))
        proxy.stop()
        for step in range(2, 5):
            saved |= save(node, "outage", step)
        node.wait_until(lambda: node.state()["remotes"][0]["state"] == "unreachable")
        node.wait_for_probes_alone(probes, PROBE_SECONDS)
        assert node.state()["remotes"][0]["state"] == "unreachable"

        proxy.come_back()
        for step in range(2, 5):
            node.wait_durable(SaveIds("outage", step, "save-1"))

    direct = moto_s3.store()
    assert all(direct.get(key) == body for key, body in saved.items())
    assert node.told() == []


def test_a_remote_that_comes_and_goes_gets_everything(
    node: Node, proxy: S3Proxy, calls: Calls, moto_s3: S3Endpoint
) -> None:
    saved: dict[str, bytes] = {}
    steps, direct = range(1, 7), moto_s3.store()
    with node.draining():
        for step in steps[::2]:
            saved |= save(node, "flapping", step)  # which may be cut, or drained already
            proxy.stop()
            saved |= save(node, "flapping", step + 1)  # there is something to send
            calls.wait_for_one_more(answered=False)
            proxy.come_back()
            calls.wait_for_one_more(answered=True)
        for step in steps:
            node.wait_durable(SaveIds("flapping", step, "save-1"))
        node.wait_until(lambda: not list(direct.list_uploads("ckpt/flapping/")))  # swept later

    assert all(direct.get(key) == body for key, body in saved.items())
    assert sorted(node.seen.steps) == list(steps)
    assert node.told() == []
