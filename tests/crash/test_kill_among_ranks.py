"""kill -9 among small puts, and while a rank reads what is restored: nothing is lost or left."""

from __future__ import annotations

import random
import shutil
import threading
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from cachetier_client import Client
from cachetier_client.errors import CachetierClientError
from cachetier_client.io.digests import digest_of

from cachetier.testing.s3_endpoint import S3Endpoint
from tests.crash.killing import Tier
from tests.faults.counting import count
from tests.integration.two_remotes import until

RUN = "among-ranks"
RANKS = 12
KILLS = 3
ATTEMPTS = 12
LARGE_BYTES = 48 << 20
ARRIVED_BYTES = 1 << 20


class SmallPuts(threading.Thread):
    """Puts one small shard after the other until the service is gone."""

    def __init__(self, url: str, rank: int, step: int, acked: dict[tuple[int, str], int]) -> None:
        super().__init__(daemon=True)
        self._url, self._rank, self._step, self._acked = url, rank, step, acked
        self._dice = random.Random(step * RANKS + rank)
        self.refused = False

    def run(self) -> None:
        ids: dict[str, Any] = {"run": RUN, "step": self._step, "save_id": "s", "rank": self._rank}
        with Client(self._url, fallback="fail") as client:
            for number in range(100_000):
                data = self._dice.randbytes(self._dice.choice((1, 4096, 65_536)))
                name = f"{self._rank}/{number}"
                try:
                    client.put_shard(data, name=name, world_size=RANKS, **ids)
                except CachetierClientError:
                    self.refused = True
                    return
                self._acked[self._step, name] = digest_of(data)


def all_are_acknowledged(acked: dict[tuple[int, str], int], step: int) -> bool:
    """Return whether each rank has had an acknowledgement for a step."""
    return len({name.partition("/")[0] for at, name in list(acked) if at == step}) == RANKS


def test_small_puts_of_many_ranks_are_there_after_a_kill_if_they_were_acknowledged(
    slow_s3: S3Endpoint, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    acked: dict[tuple[int, str], int] = {}
    with Tier(tmp_path, slow_s3) as tier:
        for step in range(1, KILLS + 1):
            tier.start()
            ranks = [SmallPuts(tier.url, rank, step, acked) for rank in range(RANKS)]
            for rank in ranks:
                rank.start()
            until(partial(all_are_acknowledged, acked, step))
            time.sleep(random.Random(step).uniform(0.0, 0.3))
            tier.kill()
            for rank in ranks:
                rank.join(60)
            assert all(rank.refused for rank in ranks)
        tier.start()
        with Client(tier.url, fallback="fail") as client:
            found = {
                (step, name): digest_of(client.get_shard(RUN, step, name)) for step, name in acked
            }
        tier.stop()

    assert found == acked
    count(request, "kills among small puts", KILLS)


@pytest.mark.parametrize("keep", ["on", "off"])
def test_a_restore_that_was_killed_leaves_nothing_and_comes_whole_the_next_time(
    slow_s3: S3Endpoint, tmp_path: Path, keep: str, request: pytest.FixtureRequest
) -> None:
    data, run = random.Random(keep).randbytes(LARGE_BYTES), f"{RUN}-{keep}"
    with Tier(tmp_path, slow_s3) as tier:
        tier.start()
        with Client(tier.url) as client:
            client.put_shard(data, run=run, step=1, name="large", rank=0, world_size=1)
            client.seal(run, 1, rank=0, world_size=1)
            client.wait(run, 1, "durable", timeout_seconds=60)
        tier.stop()
        tier.environment["CACHETIER_RESTORE_KEEP"] = keep
        for _ in range(ATTEMPTS):
            shutil.rmtree(tier.cache_dir)
            tier.cache_dir.mkdir(mode=0o700)
            if _killed_while_it_arrives(tier, run):
                break
        else:
            pytest.fail(f"no kill of {ATTEMPTS} came before the shard did")
        tier.start()
        assert _stored_bytes(tier) < ARRIVED_BYTES
        with Client(tier.url, fallback="fail") as client:
            assert digest_of(client.get_shard(run, 1, "large")) == digest_of(data)
        tier.stop()
    count(request, "kills of a restore", 1)


def _killed_while_it_arrives(tier: Tier, run: str) -> bool:
    """Have a rank read a shard that is remote, and kill the service once some of it is here."""
    failed = threading.Event()

    def get() -> None:
        try:
            with Client(tier.url, fallback="fail") as client:
                client.get_shard(run, 1, "large")
        except CachetierClientError:
            failed.set()

    tier.start()
    rank = threading.Thread(target=get, daemon=True)
    rank.start()
    while rank.is_alive() and _stored_bytes(tier) < ARRIVED_BYTES:
        time.sleep(0.001)
    tier.kill()
    rank.join(60)
    return failed.is_set()


def _stored_bytes(tier: Tier) -> int:
    """Return how much of the disk data files take."""
    total = 0
    for path in (tier.cache_dir / "data").rglob("*"):
        try:
            total += path.stat().st_blocks * 512
        except FileNotFoundError:
            continue
    return total
