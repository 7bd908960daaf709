"""Two tenants on one node: who has filled a share hears so, and the other goes on."""

from __future__ import annotations

import json
import os
import socket
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from cachetier_client import BackpressureError, Client
from cachetier_client.deadline import Deadline
from cachetier_client.transport.wire import PROTOCOL, receive_frame, send_frame

from tests.integration.serving import Answer, Served, serving, shard_path

LARGE = 100_000
SHARE = {"bytes": "300 kB", "shards": 5, "open_puts": 4, "connections": 6}


class Tenants:
    """A node with two tenants: ``a`` has the run ``r``, ``b`` the run ``b``."""

    def __init__(self, served: Served, folder: str) -> None:
        self.served = served
        self.folder = folder
        made = served.service.operations.access.create_token
        self.tokens = {name: made(name, None)["token"] for name in "ab"}

    def http(self, tenant: str, method: str, path: str, body: bytes | None = None) -> Answer:
        headers = {"Authorization": f"Bearer {self.tokens[tenant]}"}
        return self.served.call(method, path, body, headers)

    def put(self, tenant: str, name: str, size_bytes: int, patience: float = 0.0) -> Answer:
        path = shard_path(name) if tenant == "a" else f"/v1/runs/b/steps/1/shards/{name}"
        body = name.encode()[:1] * size_bytes
        return self.http(tenant, "PUT", f"{path}?timeout_seconds={patience}", body)

    def client(self, tenant: str, **options: Any) -> Client:
        return Client(f"unix://{self.folder}/{tenant}.sock", fallback="fail", **options)

    def share(self, tenant: str) -> dict[str, int]:
        shares = {
            each["name"]: each for each in self.served.service.operations.status()["principals"]
        }
        return {kind: each["used"] for kind, each in shares[tenant].items() if kind != "name"}

    @contextmanager
    def rank(self, tenant: str) -> Iterator[Callable[..., dict[str, Any]]]:
        """Lend a connection to a tenant's socket, which asks one thing after the other."""
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(f"{self.folder}/{tenant}.sock")

            def ask(op: str, **fields: Any) -> dict[str, Any]:
                send_frame(connection, {"op": op, **fields})
                frame = receive_frame(connection)
                if frame.descriptor is not None:
                    os.close(frame.descriptor)
                return dict(frame.header)

            ask("hello", protocol=PROTOCOL)
            yield ask

    def begin(self, ask: Callable[..., dict[str, Any]], name: str, **fields: Any) -> dict[str, Any]:
        ids = {"run": "r", "step": 1, "save_id": "s", "rank": 0, "world_size": 1, "name": name}
        return ask("begin", **{**ids, "size_bytes": 1, "timeout_seconds": 0, **fields})


@contextmanager
def tenants(cache_dir: Path | None = None, **settings: Any) -> Iterator[Tenants]:
    with tempfile.TemporaryDirectory(prefix="ct-") as folder:
        principals = [
            {"name": name, "runs": [run], "socket": f"{folder}/{name}.sock", **SHARE}
            for name, run in (("a", "r"), ("b", "b"))
        ]
        with serving(cache_dir, principal=principals, **settings) as served:
            yield Tenants(served, folder)


@pytest.fixture
def node() -> Iterator[Tenants]:
    with tenants() as found:
        yield found


def until(reached: Callable[[], bool]) -> None:
    ends_at = time.monotonic() + 60
    while not reached():
        assert time.monotonic() < ends_at
        time.sleep(0.01)


def test_a_share_of_bytes_is_full_until_the_drain_has_made_room(node: Tenants) -> None:
    for name in "xyz":
        assert node.put("a", name, LARGE).status == 201
    refused = node.put("a", "w", LARGE)
    assert (refused.status, refused.code) == (507, "backpressure")
    figures = "300 kB of 300 kB, 3 of 5 shards, 0 of 4 open puts, 1 of 6 connections"
    assert refused.json["detail"] == f"no room for 100 kB in the share of a: {figures}"
    assert int(refused.headers["retry-after"]) > 0
    assert node.put("b", "x", LARGE).status == 201

    node.served.drained("x", b"x" * LARGE)
    assert node.put("a", "w", LARGE).status == 201
    assert node.share("a")["size_bytes"] == 3 * LARGE


def test_a_share_of_shards_is_full_however_small_they_are(node: Tenants) -> None:
    for name in "vwxyz":
        assert node.put("a", name, 10).status == 201
    assert "5 of 5 shards" in node.put("a", "u", 10).json["detail"]
    assert node.put("b", "x", 10).status == 201
    node.served.drained("x", b"x" * 10)
    until(lambda: node.put("a", "u", 10).status == 201)  # the catalog is looked at now and then


def test_open_puts_are_returned_by_whoever_hangs_up(node: Tenants) -> None:
    with node.rank("a") as ask, node.rank("b") as other:
        assert all(node.begin(ask, name)["ok"] for name in "wxyz")
        refused = node.begin(ask, "v")["error"]
        assert refused["code"] == "backpressure"
        assert "4 of 4 open puts" in refused["message"]
        assert refused["retry_after_seconds"] > 0
        assert node.begin(other, "x", run="b")["ok"]
    until(lambda: node.share("a")["open_puts"] == node.share("b")["open_puts"] == 0)
    assert node.share("a")["size_bytes"] == node.share("a")["shards"] == 0


def test_connections_of_a_share_are_refused_and_those_of_others_are_not(node: Tenants) -> None:
    with ExitStack() as held:
        busy = [held.enter_context(node.rank("a")) for _ in range(6)]
        assert len(busy) == 6
        answer = node.http("a", "GET", "/v1/runs")
        assert (answer.status, answer.code) == (503, "busy")
        assert "6 of 6 connections" in answer.json["detail"]
        assert node.http("b", "GET", "/v1/runs").status == 200
        with node.rank("b") as other:
            assert other("runs")["ok"]
        with node.rank("a") as newcomer:  # one that rested made place
            assert newcomer("runs")["ok"]
    until(lambda: node.share("a")["connections"] == 0)
    assert node.http("a", "GET", "/v1/runs").status == 200


def test_a_put_that_waits_for_its_share_goes_on_when_there_is_room(node: Tenants) -> None:
    for name in "xyz":
        node.put("a", name, LARGE)
    with ThreadPoolExecutor(2) as pool, node.client("a") as client:
        waiting = pool.submit(node.put, "a", "w", LARGE, 600.0)
        put = partial(client.put_shard, run="r", step=1, name="v", timeout_seconds=600)
        also = pool.submit(put, b"v" * 10, save_id="http")
        until(lambda: node.served.service._waits.callers == 2)
        assert node.put("b", "x", LARGE).status == 201
        assert not waiting.done()
        node.served.drained("x", b"x" * LARGE)
        node.served.drained("y", b"y" * LARGE)
        assert waiting.result().status == 201
        assert also.result().size_bytes == 10


def test_a_put_hears_at_its_deadline_what_it_waited_for(
    node: Tenants, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in "xyz":
        node.put("a", name, LARGE)
    # The client's own deadline is far behind the service's: the answer may take its time.
    monkeypatch.setattr(Deadline, "for_service", lambda _deadline: 0.3)
    with node.client("a") as client, pytest.raises(BackpressureError, match="300 kB of 300 kB"):
        client.put_shard(b"w" * LARGE, run="r", step=1, name="w", timeout_seconds=60)
    assert node.put("a", "w", LARGE, 0.2).code == "backpressure"
    assert (
        node.served.service.metrics.registry.get_sample_value("cachetier_backpressure_total") == 2
    )


def test_puts_that_wait_take_no_place_from_others_and_are_forgotten_when_they_hang_up() -> None:
    with tenants() as node, ExitStack() as held:
        for name in "xyz":
            node.put("a", name, LARGE)
        node.served.service._access.quotas._shares["a"].now["connections"] -= (
            100  # as if it had no limit
        )
        bearer = f"Authorization: Bearer {node.tokens['a']}\r\n"
        for number in range(80):
            connection = held.enter_context(node.served.call.raw())
            path = f"{shard_path(f'w{number}')}?timeout_seconds=600"
            head = f"PUT {path} HTTP/1.1\r\nHost: x\r\n{bearer}Content-Length: {LARGE}\r\n\r\n"
            connection.sendall(head.encode())
        until(lambda: node.served.service._waits.callers == 80)
        assert node.put("b", "x", LARGE, 5.0).status == 201
        held.close()
        until(lambda: not node.served.service._waits._callers or asked_once(node))


def asked_once(node: Tenants) -> bool:
    node.served.service._changes.ring()
    return node.served.service._waits.callers == 0


def test_what_never_fits_is_refused_at_once(node: Tenants) -> None:
    answer = node.put("a", "x", 400_000, 20.0)
    assert answer.code == "backpressure"
    assert "400 kB are more than fits in the share of a" in answer.json["detail"]


def test_who_does_not_wait_is_refused_at_once_and_gets_no_stream_to_the_remote() -> None:
    with tenants(when_full="write_through") as node:
        for name in "xyz":
            node.put("a", name, LARGE)
        assert node.put("a", "w", LARGE, 20.0).code == "backpressure"


def test_a_restart_counts_what_is_here(tmp_path: Path) -> None:
    with tenants(tmp_path / "cache") as node:
        node.put("a", "x", LARGE)
        node.put("a", "y", LARGE)
        node.put("b", "x", 10)
        node.served.drained("y", b"y" * LARGE)
    with tenants(tmp_path / "cache") as node:
        assert node.share("a")["size_bytes"] == LARGE
        assert node.share("b")["shards"] == 1
        assert node.put("a", "w", 250_000).code == "backpressure"


def test_each_is_shown_their_own_share_alone(node: Tenants) -> None:
    node.put("a", "x", LARGE)
    caller = node.http("a", "GET", "/v1/whoami").json["caller"]
    assert caller["share"]["size_bytes"] == {"used": LARGE, "limit": 300_000}
    assert caller["share"]["connections"] == {"used": 1, "limit": 6}
    assert node.http("b", "GET", "/v1/whoami").json["caller"]["share"]["size_bytes"]["used"] == 0
    with node.rank("a") as ask:
        assert ask("whoami")["caller"]["share"]["shards"] == {"used": 1, "limit": 5}
    assert "share" not in node.served.call("GET", "/v1/whoami").json["caller"]
    assert json.dumps(node.http("a", "GET", "/v1/status").json).count('"b"') == 0


def test_the_drain_is_told_whose_unsealed_shards_make_room(node: Tenants) -> None:
    starved = node.served.drain.queue.situation(wants_room=False).starved
    for name in "xyz":
        node.put("a", name, LARGE)
    assert not starved("r")
    node.put("a", "w", LARGE)
    assert starved("r")
    assert not starved("b")


def test_a_node_without_quotas_has_nothing_between() -> None:
    with serving() as served:
        assert type(served.service.operations.ingest._ingest).__name__ == "NodeIngest"  # type: ignore[attr-defined]
        assert served.service.operations.status()["principals"] == []
