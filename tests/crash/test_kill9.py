"""kill -9 of the real service at random instants under load; nothing acknowledged may be lost."""

from __future__ import annotations

import random
import shutil
import time
from pathlib import Path

import pytest
from cachetier_client import Client

from cachetier.testing.s3_endpoint import S3Endpoint
from tests.crash.killing import RANKS, History, Rank, Tier, judge
from tests.faults.counting import count
from tests.faults.slices import share_of

KILLS = 5
ATTEMPTS = 15


@pytest.mark.parametrize("seed", share_of(range(20)))
def test_nothing_acknowledged_is_lost_when_the_service_is_killed(
    slow_s3: S3Endpoint,
    seaweed_s3: S3Endpoint,
    tmp_path: Path,
    seed: int,
    request: pytest.FixtureRequest,
) -> None:
    dice, history, run = random.Random(seed), History(), f"seed-{seed}"
    with Tier(tmp_path, slow_s3) as tier:
        counted = attempts = 0
        while counted < KILLS:
            attempts += 1
            assert attempts <= ATTEMPTS, f"{counted} of {ATTEMPTS} kills hit dirty shards"
            counted += _killed_under_load(tier, history, run, dice)
        tier.start()
        with Client(tier.url) as client:
            client.flush(run, timeout_seconds=120)
            for step in history.steps_sealed_by_all():
                client.wait(run, step, "durable", timeout_seconds=60)
        tier.stop()
    shutil.rmtree(tier.cache_dir)
    judge(seaweed_s3, run, history)
    count(request, "kills that counted", counted, seed)


def _killed_under_load(tier: Tier, history: History, run: str, dice: random.Random) -> bool:
    """Load, kill, and say whether it counts: acknowledged shards were dirty, ranks cut off."""
    tier.start()
    first_step = 1 + max((step for step, _ in history.tried), default=0)
    ranks = [
        Rank(tier.url, run, rank, dice.randrange(1 << 30), first_step, history)
        for rank in range(RANKS)
    ]
    for rank in ranks:
        rank.start()
    time.sleep(dice.uniform(0.05, 0.8))
    tier.kill()
    for rank in ranks:
        rank.join(30)
    dirty = tier.dirty()
    cut_off = all(rank.refusal is not None for rank in ranks)
    return cut_off and any(shard in dirty for shard in history.acked)
