"""A whole node with ``compression = zstd:3``: to the bucket, away from the disk, and back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from cachetier_client import Client

from cachetier.testing.s3_endpoint import S3Endpoint
from tests.fakes.bodies import compressible
from tests.integration.serving import Caller, node_settings, running
from tests.integration.test_drain_process import bucket, server

__all__ = ["bucket", "server"]  # fixtures

LARGE = 30_000_001
SHARD = "/v1/runs/run/steps/7/shards/large"


@pytest.fixture
def settings(
    tmp_path: Path, server: S3Endpoint, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> dict[str, Any]:
    remote = f"s3://{bucket}/ckpt"
    return {
        **node_settings(tmp_path, server, remote, monkeypatch),
        "capacity": "50 MB",
        "compression": "zstd:3",
    }


def test_a_compressed_shard_comes_back_by_every_door(
    settings: dict[str, Any], tmp_path: Path
) -> None:
    large = compressible(LARGE)
    with running(settings) as service, Client(f"unix://{service.socket}") as client:
        with client.checkpoint("run", 7, rank=0, world_size=1) as checkpoint:
            checkpoint.put(large, "large")
        client.wait("run", 7, timeout_seconds=100)
        zstd = client.status()["drain"]["codecs"]["zstd"]
        assert (zstd["shards"], zstd["size_bytes"]) == (1, LARGE)
        assert zstd["stored_bytes"] < 0.7 * LARGE

        # There is room for one: the clean shard goes, once the remote said that it has it.
        client.put_shard(compressible(LARGE, 1), run="run", step=8, name="other")
        assert client.status()["clean_bytes"] == 0
        out = bytearray(LARGE)
        client.flush(timeout_seconds=100)
        assert client.get_shard("run", 7, "large", out=out) is not None
        assert out == large

    with running({**settings, "cache_dir": tmp_path / "another"}) as service:
        assert service.url is not None
        call = Caller(int(service.url.rsplit(":", 1)[1]))
        ranged = call("GET", SHARD, headers={"Range": "bytes=5000000-20000000"})
        assert (ranged.status, ranged.body) == (206, large[5_000_000:20_000_001])
        assert call("GET", SHARD).body == large


def test_planes_come_back_by_every_door_and_status_shows_them(
    settings: dict[str, Any], tmp_path: Path
) -> None:
    large = compressible(LARGE - 1)
    ruled = {**settings, "compression": {"run/*": "planes:1"}}
    with running(ruled) as service, Client(f"unix://{service.socket}") as client:
        with client.checkpoint("run", 7, rank=0, world_size=1) as checkpoint:
            checkpoint.put(large, "large", element_size=4)
        client.wait("run", 7, timeout_seconds=100)
        made = client.status()["drain"]["codecs"]["zstd-planes-1"]
        assert (made["shards"], made["size_bytes"]) == (1, LARGE - 1)

    with running({**settings, "cache_dir": tmp_path / "another"}) as service:
        assert service.url is not None
        call = Caller(int(service.url.rsplit(":", 1)[1]))
        ranged = call("GET", SHARD, headers={"Range": "bytes=5000000-20000000"})
        assert (ranged.status, ranged.body) == (206, large[5_000_000:20_000_001])
        assert call("GET", SHARD).body == large
