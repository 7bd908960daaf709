"""Packs over real S3 servers: a drain that is killed, a whole node, one that never saw the run."""

from __future__ import annotations

import os
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from cachetier_client import Client

from cachetier.restore.link import PIECE_BYTES
from cachetier.testing.http_wire import WireHead
from cachetier.testing.s3_endpoint import S3Endpoint
from cachetier.testing.s3proxy import S3Proxy
from cachetier.testing.troubles import Trouble, Troubles
from tests.integration.drain_node import shown
from tests.integration.packing import SHARDS, body_of, by_hand, packs_in, put_small
from tests.integration.serving import Caller, node_settings, running
from tests.integration.test_drain_process import (
    IDS,
    bucket,
    node_at,
    remote_of,
    server,
    supervised,
)

__all__ = ["bucket", "server"]  # fixtures

NAMES = [f"block.{number}" for number in range(SHARDS)]


class HoldsLooks(Troubles):
    """Lets a pack be put, and holds whoever looks whether it is there."""

    def __init__(self) -> None:
        super().__init__()
        self.holds, self._open = threading.Event(), threading.Event()
        self.puts: list[str] = []

    def open(self) -> None:
        self._open.set()

    def strike(self, request: WireHead) -> Trouble | None:
        target = request.first[1]
        if "/pack-" in target and request.method == "PUT":
            self.puts.append(target)
        elif "/pack-" in target and not self._open.is_set():
            self.holds.set()
            self._open.wait(60)
        return super().strike(request)


def test_a_drain_killed_between_put_and_record_leaves_the_same_pack_to_its_successor(
    tmp_path: Path, server: S3Endpoint, bucket: str
) -> None:
    troubles = HoldsLooks()
    with (
        S3Proxy(server.url, troubles=troubles) as proxy,
        node_at(tmp_path / "cache", remote_of(server, bucket), server) as node,
    ):
        bodies = put_small(node, IDS, 20)
        node.seal(IDS)
        with supervised(node, remote_of(server, bucket, proxy.url), packing=True) as supervisor:
            assert troubles.holds.wait(30)
            first = shown(supervisor)["pid"]
            os.kill(first, signal.SIGKILL)
            node.wait_until(lambda: shown(supervisor)["pid"] not in (first, None))
            assert node.state()["drained_shards"] == 0
            troubles.open()
            node.wait_durable(IDS, 60)

        assert len(troubles.puts) == 2
        assert len(set(troubles.puts)) == 1
        assert len(packs_in(node.bucket.objects)) == 1
        assert {name: by_hand(node, IDS, name) for name in bodies} == bodies


# --- a whole node ------------------------------------------------------------------------------


@pytest.fixture
def settings(
    tmp_path: Path, server: S3Endpoint, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> dict[str, Any]:
    remote = f"s3://{bucket}/ckpt"
    return {
        **node_settings(tmp_path, server, remote, monkeypatch),
        "capacity": "100 MB",
        "pack": True,
    }


def save(client: Client, step: int = 7) -> None:
    with client.checkpoint("run", step, rank=0, world_size=1) as checkpoint:
        for number, name in enumerate(NAMES):
            checkpoint.put(body_of(number), name)
    client.wait("run", step, timeout_seconds=100)


def test_a_rank_gets_its_small_shards_back_in_few_requests(
    settings: dict[str, Any], server: S3Endpoint, tmp_path: Path
) -> None:
    with running(settings) as service, Client(f"unix://{service.socket}") as client:
        save(client)
        assert client.status()["drain"]["drained_shards"] == SHARDS

    with S3Proxy(server.url) as proxy:
        elsewhere = {
            **settings,
            "cache_dir": tmp_path / "another",
            "remote_endpoint": proxy.url,
        }
        with (
            running(elsewhere) as service,
            Client(f"unix://{service.socket}") as client,
            ThreadPoolExecutor(4) as pool,
        ):
            assert client.get_shard("run", 7, NAMES[100]) == body_of(100)
            before = proxy.troubles.seen["GetObject"]
            found = pool.map(lambda name: client.get_shard("run", 7, name), NAMES)
            assert list(found) == [body_of(number) for number in range(SHARDS)]
            few = 5 + sum(len(body_of(number)) for number in range(SHARDS)) // PIECE_BYTES
            assert proxy.troubles.seen["GetObject"] - before <= few, proxy.troubles.seen


def test_packed_shards_are_evicted_and_read_by_ranges(settings: dict[str, Any]) -> None:
    with running(settings) as service, Client(f"unix://{service.socket}") as client:
        save(client)
        for name in NAMES:
            shard, _source = service.operations.restore.look("run", 7, name)
            assert service._housekeeping._evictor.evict(shard), name
        assert client.status()["clean_bytes"] == 0

        assert service.url is not None
        call = Caller(int(service.url.rsplit(":", 1)[1]))
        shard_url = f"/v1/runs/run/steps/7/shards/{NAMES[77]}"
        ranged = call("GET", shard_url, headers={"Range": "bytes=1000-1999"})
        assert (ranged.status, ranged.body) == (206, body_of(77)[1000:2000])
        assert call("GET", shard_url).body == body_of(77)
        assert bytes(client.get_shard("run", 7, NAMES[0])) == body_of(0)
