"""A job that moves to another node before its steps are durable is told of them."""

from __future__ import annotations

import logging
import tempfile
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from cachetier_client import Client, NotFoundError, UnflushedStepsError
from cachetier_client.torch import latest_common_step

from cachetier.testing import troubles as faults
from cachetier.testing.http_wire import WireHead
from cachetier.testing.s3_endpoint import S3Endpoint
from cachetier.testing.s3proxy import S3Proxy
from cachetier.testing.troubles import Fault, Trouble, Troubles
from tests.integration.fallbacks import Node as Process
from tests.integration.two_remotes import until

MANY = 10**6  # requests: more than any test sends
NOTES = "/.cachetier/unflushed/"


class Held(Troubles):
    """Lets nothing of a step become durable while it is ``held``; notes come through."""

    held = False
    kept_back = 0

    def strike(self, request: WireHead) -> Trouble | None:
        path = unquote(urlsplit(request.first[1]).path)
        if self.held and request.method in ("PUT", "POST") and NOTES not in path:
            self.kept_back += 1
            return Trouble.SLOW_DOWN
        return super().strike(request)


@dataclass
class Site:
    """Two nodes on one bucket, each behind a proxy of its own."""

    endpoint: S3Endpoint
    scratch: Path
    bucket: str = field(default_factory=lambda: f"moves-{uuid.uuid4().hex[:12]}")

    def __post_init__(self) -> None:
        self.endpoint.create_bucket(self.bucket)
        self.troubles = Held(), Held()
        self.proxies = [S3Proxy(self.endpoint.url, troubles=each).start() for each in self.troubles]
        self.nodes = [
            Process(
                self.scratch,
                f"n{number}",
                {
                    **self.endpoint.environment(),
                    "CACHETIER_REMOTE": f"s3://{self.bucket}/p",
                    "CACHETIER_REMOTE_ENDPOINT": proxy.url,
                    "CACHETIER_REMOTE_ASSUME": self.endpoint.verify,
                },
            ).start()
            for number, proxy in enumerate(self.proxies)
        ]
        self.clients = [Client(f"unix://{node.socket}", fallback="fail") for node in self.nodes]

    def notes(self, run: str) -> list[str]:
        store = self.endpoint.store(bucket=self.bucket)
        return list(store.list(f"p{NOTES}{run}/").keys)

    def close(self) -> None:
        for client, node in zip(self.clients, self.nodes, strict=True):
            client.close()
            node.close()
        for proxy in self.proxies:
            proxy.__exit__()


@pytest.fixture(scope="module")
def nodes(moto_s3: S3Endpoint) -> Iterator[Site]:
    with tempfile.TemporaryDirectory(prefix="ct-") as scratch:
        made = Site(moto_s3, Path(scratch))
        yield made
        made.close()


@pytest.fixture
def site(nodes: Site) -> Iterator[Site]:
    yield nodes
    for troubles in nodes.troubles:
        troubles.held = False
        troubles.clear()


@pytest.fixture
def run() -> str:
    return f"run-{uuid.uuid4().hex[:8]}"


def save(client: Client, run: str, step: int, rank: int = 0, world_size: int = 1) -> None:
    with client.checkpoint(
        run, step, rank=rank, world_size=world_size, save_id=f"of-{step}"
    ) as part:
        part.put(f"step {step}".encode(), f"rank-{rank}")


def held_step(site: Site, run: str, step: int = 12, **part: int) -> str:
    """Have the first node hold a step that is noted, not durable; return that node's store id."""
    troubles = site.troubles[0]
    troubles.held, troubles.kept_back = True, 0
    save(site.clients[0], run, step, **part)
    until(lambda: bool(site.notes(run)))
    until(lambda: bool(troubles.kept_back))  # the drain may wait after what was held before
    return str(site.clients[0].status()["store_id"])


def test_a_job_that_moves_is_warned_refused_and_starts_once_the_step_is_flushed(
    site: Site, run: str, caplog: pytest.LogCaptureFixture
) -> None:
    first, second = site.clients
    store_id = held_step(site, run)

    with caplog.at_level(logging.WARNING, "cachetier_client"):
        assert second.latest(run) is None
        assert latest_common_step(run, client=second) is None
    assert caplog.text.count(f"step 12 of run {run} (all of it) is on ") == 1  # of two calls
    assert f"cachetier flush {run} 12" in caplog.text
    (waiting,) = second.unflushed(run)
    assert (waiting.step, waiting.stores, waiting.ranks) == (12, (store_id,), (0,))
    for level in ("any", "durable", "local"):
        with pytest.raises(UnflushedStepsError) as refusal:
            latest_common_step(run, client=second, level=level, strict=True)
        assert (refusal.value.run, refusal.value.step) == (run, 12)
    with pytest.raises(UnflushedStepsError):
        second.latest(run, strict=True)
    # The node that has it needs nothing.
    assert latest_common_step(run, client=first, strict=True) == 12

    site.troubles[0].held = False
    first.flush(run, 12)
    assert latest_common_step(run, client=second, strict=True) == 12
    found = second.latest(run, strict=True)
    assert found is not None
    assert found.step == 12
    until(lambda: not site.notes(run))


def test_a_step_that_is_whole_nowhere_only_warns(
    site: Site, run: str, caplog: pytest.LogCaptureFixture
) -> None:
    held_step(site, run, rank=0, world_size=2)

    assert latest_common_step(run, client=site.clients[1], strict=True) is None
    assert f"step 12 of run {run} (1 of 2 ranks) is on " in caplog.text


def test_one_job_starts_past_a_step_if_it_is_told_to(
    site: Site, run: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    held_step(site, run)
    monkeypatch.setenv("CACHETIER_IGNORE_UNFLUSHED", "1")

    assert latest_common_step(run, client=site.clients[1], strict=True) is None
    assert site.clients[1].latest(run, strict=True) is None
    assert "CACHETIER_IGNORE_UNFLUSHED is set: going on without step 12" in caplog.text


@pytest.mark.parametrize("by", ["host", "store"])
def test_a_node_that_will_not_return_is_forgotten(
    site: Site, run: str, by: str, request: pytest.FixtureRequest
) -> None:
    store_id = held_step(site, run)
    site.nodes[0].kill()
    request.addfinalizer(site.nodes[0].start)
    second = site.clients[1]
    with pytest.raises(UnflushedStepsError):
        second.latest(run, strict=True)
    (waiting,) = second.unflushed(run)
    node = store_id if by == "store" else waiting.nodes[0]
    with pytest.raises(NotFoundError):
        second.forget(node, "another")

    (given_up,) = second.forget(node, run)
    assert (given_up.run, given_up.step) == (run, 12)
    assert second.latest(run, strict=True) is None
    assert site.notes(run) == []


def test_a_node_that_was_killed_takes_its_note_away_once_it_is_back(site: Site, run: str) -> None:
    held_step(site, run)
    site.nodes[0].kill()
    site.troubles[0].held = False
    with pytest.raises(UnflushedStepsError):
        site.clients[1].latest(run, strict=True)

    site.nodes[0].start()
    site.clients[0].flush(run, 12)
    until(lambda: not site.notes(run))
    assert site.clients[1].latest(run, strict=True) is not None


def test_while_the_bucket_is_away_the_node_says_what_nobody_is_told(site: Site, run: str) -> None:
    first, second = site.clients
    save(second, run, 1)
    second.flush(run, 1)
    for troubles in site.troubles:
        troubles.add(Fault(Trouble.CLOSED, when=faults.first(MANY)))
    save(first, run, 12)
    store_id = first.status()["store_id"]

    def warned() -> bool:
        return any(
            f"1 step of {run} could not be announced" in w for w in first.status()["warnings"]
        )

    until(warned)
    assert not any(key.endswith(f"/{store_id}.json") for key in site.notes(run))
    # A job that finds a step goes on; nothing local waits for the bucket.
    assert latest_common_step(run, client=second, strict=True) == 1
    assert second.latest(run, "local", strict=True) is not None
    for troubles in site.troubles:
        troubles.clear()
    until(lambda: not warned())
