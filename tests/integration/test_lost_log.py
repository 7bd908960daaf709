"""A service is killed and loses the log of its catalog: no start until a person has repaired."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from cachetier_client import Client

from cachetier.testing.s3_endpoint import S3Endpoint
from tests.crash.killing import Tier

BODY = bytes(range(256)) * 1000


@pytest.fixture
def tier(tmp_path: Path, moto_s3: S3Endpoint) -> Iterator[Tier]:
    with Tier(tmp_path, moto_s3) as tier:
        yield tier


def cachetier(tier: Tier, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "cachetier", *words],
        env=tier.environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_a_node_that_lost_its_log_says_which_verb_to_run_and_starts_after_it(tier: Tier) -> None:
    tier.start()
    tier.stop()
    tier.start()
    with Client(tier.url) as client:
        for step in (1, 2, 3):  # unsealed: nothing of them is drained
            client.put_shard(
                BODY, run="run", step=step, name="large", rank=0, world_size=2, save_id="s"
            )
            client.put_shard(
                b"inside", run="run", step=step, name="small", rank=0, world_size=2, save_id="s"
            )
    tier.kill()
    (tier.cache_dir / "catalog.db-wal").unlink()

    refused = cachetier(tier, "serve")
    assert refused.returncode == 1
    assert "acknowledged commits are lost with it" in refused.stderr
    assert "run `cachetier fsck --repair`" in refused.stderr

    repaired = cachetier(tier, "fsck", "--repair")
    assert repaired.returncode == 0, repaired.stdout
    assert "seals, of steps that were not durable may be lost" in repaired.stdout

    tier.start()
    with Client(tier.url) as client:
        for step in (1, 2, 3):
            assert bytes(client.get_shard("run", step, "large")) == BODY
        warnings = client.status()["warnings"]
    assert [text for text in warnings if "lost its catalog's log" in text]
    tier.stop()
