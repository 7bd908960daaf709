"""A replica on a cluster that loses a server, for a node that is lost, while S3 is cut off."""

from __future__ import annotations

import json
import os
import random
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from cachetier_client import Client
from cachetier_client.bucket_format.documents import ManifestState
from cachetier_client.bucket_format.layout import Layout
from cachetier_client.results import Level

from cachetier.remote.bucket import Bucket
from cachetier.testing.moto_server import moto_server
from cachetier.testing.s3_endpoint import S3Endpoint
from cachetier.testing.s3proxy import S3Proxy
from cachetier.testing.seaweed_cluster import SeaweedCluster, seaweed_cluster
from tests.integration.needs import needs_weed

pytestmark = [
    needs_weed,
    pytest.mark.slow,
]

MIB = 1 << 20
RUN = "run"
SECONDS = 90.0  # a courteous drain waits for the other tests
PROPER, LARGE = 1, 2  # steps: one that everybody has, and one that S3 never sees


def bodies(step: int, size_bytes: int) -> dict[str, bytes]:
    source = random.Random(step)
    return {
        "config": b'{"step": %d}' % step,
        **{f"model/{number}": source.randbytes(size_bytes + number) for number in range(3)},
    }


class Tiers:
    """The far store and the near one, each behind a proxy that counts, and can be cut off."""

    def __init__(self, far: S3Endpoint, cluster: SeaweedCluster, prefix: str) -> None:
        self.far, self.cluster, self.prefix = far, cluster, prefix
        self.far_proxy = S3Proxy(far.url)
        self.near_proxy = S3Proxy(cluster.endpoint.url)
        self.near = cluster.endpoint.store()

    def settings(self, cache_dir: Path) -> dict[str, str]:
        replicas = {
            "near": {
                "url": f"s3://{self.cluster.endpoint.bucket}/{self.prefix}",
                "endpoint": self.near_proxy.url,
            }
        }
        return {
            "cache_dir": str(cache_dir),
            "socket": str(cache_dir.with_suffix(".sock")),
            "http": "",
            "capacity": "1 GB",
            "remote": f"s3://{self.far.bucket}/{self.prefix}",
            "remote_endpoint": self.far_proxy.url,
            "remote_assume": self.far.verify,
            "replicas": json.dumps(replicas),
            "grace": "5s",
        }

    def key(self, step: int, name: str) -> str:
        return f"{self.prefix}/{RUN}/{step}/{name}"

    def asked_near(self, operation: str) -> int:
        return self.near_proxy.troubles.seen[operation]

    def has_near(self, step: int) -> bool:
        """Return whether the near store has published a step."""
        seen = Bucket(self.near, Layout(self.prefix)).manifest(RUN, step)
        return seen is not None and seen.manifest.state is ManifestState.PUBLISHED

    def uploading(self, step: int) -> list[str]:
        """Return the keys of a step whose upload to the near store has begun and not ended."""
        return [key for key, _ in self.near.list_uploads(self.key(step, ""))]


@pytest.fixture
def tiers(tmp_path: Path) -> Iterator[Tiers]:
    with moto_server() as far, seaweed_cluster(tmp_path / "cluster") as cluster:
        tiers = Tiers(far, cluster, tmp_path.name)
        with tiers.far_proxy, tiers.near_proxy:
            yield tiers
    shutil.rmtree(tmp_path)


@contextmanager
def node(tiers: Tiers, cache_dir: Path) -> Iterator[tuple[Client, subprocess.Popen[str]]]:
    """Run a node in processes of its own until the block ends, unless the block killed it."""
    chosen = tiers.settings(cache_dir)
    variables = {f"CACHETIER_{name.upper()}": value for name, value in chosen.items()}
    with cache_dir.with_suffix(".log").open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "cachetier", "serve", "--json"],
            env={**os.environ, **tiers.cluster.endpoint.environment(), **variables},
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )
    assert process.stdout is not None
    with process, Client(f"unix://{chosen['socket']}") as client:
        try:
            line = process.stdout.readline()
            assert line, cache_dir.with_suffix(".log").read_text()
            yield client, process
        finally:
            process.terminate()


def until(holds: Callable[[], Any], what: Callable[[], Any] = lambda: None) -> None:
    deadline = time.monotonic() + SECONDS
    while not holds():
        assert time.monotonic() < deadline, what()
        time.sleep(0.02)


def stored(cluster: SeaweedCluster) -> list[int]:
    return [cluster.stored_bytes(number) for number in range(3)]


def levels(client: Client, step: int) -> tuple[str, ...]:
    return next(each.levels for each in client.steps(RUN) if each.step == step)


def save(client: Client, step: int, shards: dict[str, bytes]) -> None:
    with client.checkpoint(RUN, step, rank=0, world_size=1) as checkpoint:
        for name, body in shards.items():
            checkpoint.put(body, name)


def put_replicated(client: Client, step: int, name: str, body: bytes) -> str:
    receipt = client.put_shard(
        body,
        run=RUN,
        step=step,
        name=name,
        rank=0,
        world_size=1,
        ack="replicated",
        timeout_seconds=SECONDS,
    )
    return receipt.level


def put_while_a_server_is_killed(tiers: Tiers, client: Client, shards: dict[str, bytes]) -> None:
    """Put the shards of the large step, and kill the server that has most of them meanwhile."""
    before = stored(tiers.cluster)
    tiers.near_proxy.latency_seconds = 2.0  # nothing is completed between the looks below
    with ThreadPoolExecutor(len(shards)) as ranks:
        puts = [ranks.submit(put_replicated, client, LARGE, *shard) for shard in shards.items()]
        until(lambda: tiers.asked_near("UploadPart") >= 4, client.status)
        until(lambda: sum(stored(tiers.cluster)) > sum(before) + MIB)
        grown = [now - then for now, then in zip(stored(tiers.cluster), before, strict=True)]
        victim = grown.index(max(grown))
        tiers.cluster.kill(victim)
        completed, in_flight = tiers.asked_near("CompleteMultipartUpload"), tiers.uploading(LARGE)
        assert grown[victim] > 0  # it had taken bytes of this step,
        assert in_flight  # some shards were not whole yet,
        assert not all(put.done() for put in puts)  # nor acknowledged,
        tiers.near_proxy.latency_seconds = 0.0
        assert {put.result() for put in puts} == {"replicated"}
    assert tiers.asked_near("CompleteMultipartUpload") > completed  # and went on.
    assert tiers.cluster.known_servers() == 2


def assert_restored(client: Client, step: int, shards: dict[str, bytes]) -> None:
    for name, body in shards.items():
        assert client.get_shard(RUN, step, name) == body, name


def newest(client: Client, level: Level) -> int | None:
    found = client.latest(RUN, level=level)
    return None if found is None else found.step


def test_a_step_survives_its_node_and_a_server_of_the_cluster_while_the_far_store_is_cut_off(
    tiers: Tiers, tmp_path: Path
) -> None:
    proper, large = bodies(PROPER, 100_000), bodies(LARGE, 40 * MIB)
    with node(tiers, tmp_path / "lost") as (client, process):
        save(client, PROPER, proper)
        client.wait(RUN, PROPER, level="durable", timeout_seconds=SECONDS)
        until(lambda: tiers.has_near(PROPER))
        tiers.far_proxy.stop()
        put_while_a_server_is_killed(tiers, client, large)
        client.seal(RUN, LARGE, rank=0, world_size=1)
        client.wait(RUN, LARGE, level="replicated", timeout_seconds=SECONDS)
        assert "durable" not in levels(client, LARGE)
        process.kill()
        process.wait()
    shutil.rmtree(tmp_path / "lost")

    with node(tiers, tmp_path / "new") as (client, _):
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", tiers.far_proxy.port))
        assert newest(client, "local") is None
        found = client.latest(RUN, level="replicated")
        assert found is not None
        assert (found.step, "durable" in found.levels) == (LARGE, False)
        fetched = tiers.asked_near("GetObject")
        assert_restored(client, LARGE, large)
        assert_restored(client, PROPER, proper)
        assert tiers.asked_near("GetObject") > fetched
        assert tiers.cluster.known_servers() == 2

        tiers.far_proxy.come_back()
        until(lambda: newest(client, "durable") == PROPER)
        far = tiers.far.store()
        assert all(far.get(tiers.key(PROPER, name)) == body for name, body in proper.items())
        assert newest(client, "replicated") == LARGE
        assert_restored(client, LARGE, large)

        # The job resumes from it, and what it saves next is durable again.
        save(client, LARGE + 1, proper)
        client.wait(RUN, LARGE + 1, level="durable", timeout_seconds=SECONDS)
