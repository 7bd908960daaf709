"""Nodes as processes that keep copies for each other, of which one is killed and never returns."""

from __future__ import annotations

import random
import uuid
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import pytest
from cachetier_client.errors import CachetierClientError
from rich.console import Console

from cachetier.testing.s3_endpoint import S3Endpoint
from cachetier.testing.s3proxy import S3Proxy
from examples.demo.narrate import Narrator
from examples.peers.cluster import RUN, SECONDS, Cluster, Node
from tests.faults.counting import count
from tests.faults.slices import everything, share_of
from tests.integration.needs import needs_weed
from tests.integration.two_remotes import until

NODES = 3
CLUSTERS = 10
LIVES = 6 if everything() else 1  # of each cluster
OBJECTIVE = {"CACHETIER_EXPOSURE_OBJECTIVE": "15s"}  # peers finish after a third
PATIENCE_SECONDS = 150.0
SIZES = (100, 70_000, 3_000_000, 20_000_000)  # in the catalog, in one request, in parts
RATE = 1e9
SAVE_SECONDS = 3.0  # within which most are killed


@dataclass(frozen=True)
class Life:
    """A step that one of the nodes saves, and when that node dies: None once it is replicated."""

    step: int
    owner: int
    shards: dict[str, bytes]
    dies_after_seconds: float | None

    @classmethod
    def drawn(cls, dice: random.Random, step: int) -> Life:
        shards = {
            f"shard-{number}": dice.randbytes(dice.choice(SIZES))
            for number in range(dice.randint(1, 4))
        }
        dies_after_seconds = dice.choice([None, None, dice.uniform(0.0, SAVE_SECONDS)])
        return cls(step, dice.randrange(NODES), shards, dies_after_seconds)

    def is_lived(self, nodes: Sequence[Node], proxy: S3Proxy) -> bool:
        """Save, die and be replaced; return whether the step was replicated before.

        Raises:
            AssertionError: It was, and did not outlive its node.
        """
        owner, *others = [nodes[(self.owner + number) % NODES] for number in range(NODES)]
        proxy.stop()
        with ThreadPoolExecutor(1) as threads:
            saved = threads.submit(self._is_saved, owner)
            wait([saved], self.dies_after_seconds)
            is_replicated = saved.done() and saved.result()
            owner.kill()
            owner.lose()
        if is_replicated:
            for each in others:
                until(partial(self._is_whole_at, each), PATIENCE_SECONDS)
        proxy.come_back()
        if is_replicated:
            until(partial(self._is_published_at, others[0]), PATIENCE_SECONDS)
        owner.start(Narrator(Console(quiet=True)))
        if is_replicated:
            until(partial(self._is_whole_at, owner), PATIENCE_SECONDS)
        else:
            self._is_whole_at(owner)  # as it was put, or not at all
        return is_replicated

    def _is_saved(self, node: Node) -> bool:
        with suppress(CachetierClientError), node.client() as client:
            for name, body in self.shards.items():
                client.put_shard(body, run=RUN, step=self.step, name=name, ack="replicated")
            client.seal(RUN, self.step)
            client.wait(RUN, self.step, "replicated", timeout_seconds=PATIENCE_SECONDS)
            return True
        return False

    def _is_whole_at(self, node: Node) -> bool:
        """Return whether a node gives back every byte; False if it says that it cannot now."""
        with node.client() as client:
            for name, body in self.shards.items():
                try:
                    found = client.get_shard(RUN, self.step, name, timeout_seconds=SECONDS)
                except CachetierClientError:
                    return False
                assert bytes(found) == body
        return True

    def _is_published_at(self, node: Node) -> bool:
        with suppress(CachetierClientError), node.client() as client:
            return any(
                "durable" in each.levels for each in client.steps(RUN) if each.step == self.step
            )
        return False


@needs_weed
@pytest.mark.parametrize("seed", share_of(range(CLUSTERS)))
def test_what_was_acknowledged_at_replicated_outlives_any_one_node(
    seed: int, request: pytest.FixtureRequest, seaweed_s3: S3Endpoint, tmp_path: Path
) -> None:
    dice, bucket = random.Random(seed), f"lost-{uuid.uuid4().hex[:12]}"
    seaweed_s3.create_bucket(bucket)
    with ExitStack() as stack:
        proxy = stack.enter_context(S3Proxy(seaweed_s3.url))
        endpoint = replace(seaweed_s3, bucket=bucket).behind(proxy.url)
        cluster = Cluster(tmp_path, endpoint, NODES, RATE)
        stack.callback(cluster.store.close)
        nodes = stack.enter_context(cluster.nodes(NODES, peers=True, copies=1, **OBJECTIVE))
        lives = [Life.drawn(dice, step).is_lived(nodes, proxy) for step in range(1, LIVES + 1)]
    count(request, "nodes that were lost for good", LIVES, seed)
    count(request, "steps at replicated that outlived their node", sum(lives))
