"""A service that comes and goes at random under two ranks: what was sealed is published, whole."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from cachetier.testing.s3_endpoint import S3Endpoint
from tests.integration.fallbacks import RUN, Node, Place, place, until

STEPS = 6
RANKS = 2


@pytest.fixture
def past(moto_s3: S3Endpoint, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    monkeypatch.setattr("cachetier_client.fallback.service_health.PROBE_SECONDS", 0.3)
    with place(moto_s3, monkeypatch) as made:
        yield made


class Flaky:
    """A node whose service ends and starts again between calls of its ranks."""

    def __init__(self, node: Node, chance: random.Random) -> None:
        self._node = node
        self._chance = chance
        self.runs = True
        self.kills = 0

    def perhaps(self) -> None:
        if self.runs and self._chance.random() < 0.25:
            self._node.kill()
            self.runs, self.kills = False, self.kills + 1
        elif not self.runs and self._chance.random() < 0.35:
            self.come_back()

    def come_back(self) -> None:
        if not self.runs:
            self._node.start()
            self.runs = True


@pytest.mark.soak
def test_every_step_that_was_sealed_is_published_bit_for_bit(past: Place) -> None:
    chance = random.Random(1)
    expected: dict[int, dict[str, bytes]] = {}
    with past.node() as node, past.client() as client:
        flaky = Flaky(node, chance)
        for step in range(STEPS):
            bodies = expected[step] = {}
            parts = [
                client.checkpoint(RUN, step, rank=rank, world_size=RANKS, save_id=f"save-{step}")
                for rank in range(RANKS)
            ]
            for number in range(3):
                for rank, part in enumerate(parts):
                    flaky.perhaps()
                    name, size = f"{rank}-{number}", chance.choice([0, 1000, 70_000, 5_000_000])
                    bodies[name] = chance.randbytes(size)
                    part.put(bodies[name], name)
            for part in parts:
                flaky.perhaps()
                part.seal()
        assert flaky.kills >= 3, "the service never went away: this proves nothing"
        assert client.fallback_shards > 0
        flaky.come_back()
        until(lambda: all(past.is_published(step) for step in expected), 150)
        for step, bodies in expected.items():
            manifest = past.manifest(step)
            assert manifest is not None
            assert sorted(shard.name for shard in manifest.shards) == sorted(bodies)
            for name, body in bodies.items():
                assert bytes(client.get_shard(RUN, step, name)) == body, (step, name)
