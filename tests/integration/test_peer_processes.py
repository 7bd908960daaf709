"""Peers as processes: a fetcher that is killed half-way costs nobody a byte that is wrong."""

from __future__ import annotations

import random
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from cachetier_client.io.digests import BLOCK_BYTES

from cachetier.testing.s3_endpoint import S3Endpoint
from tests.faults.counting import count
from tests.faults.slices import share_of
from tests.integration.needs import needs_weed
from tests.integration.peer_processes import HeldStore, PeerProcesses

DATA = random.Random(4).randbytes(8 * BLOCK_BYTES + 5)
NODES = 3


@needs_weed
@pytest.mark.parametrize("part", share_of([0.1, 0.3, 0.5, 0.7, 0.9]))
def test_a_fetcher_that_is_killed_costs_nobody_a_wrong_byte(
    part: float,
    request: pytest.FixtureRequest,
    seaweed_s3: S3Endpoint,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    scratch = tmp_path_factory.mktemp("p")
    lab = PeerProcesses(scratch, seaweed_s3, NODES, DATA)
    store = HeldStore(seaweed_s3.url, 20e6)
    with (
        lab.nodes(scratch, store, NODES, peers=True) as nodes,
        ThreadPoolExecutor(NODES) as threads,
    ):
        victim, *others = nodes
        before = store.sent_bytes
        killed = threads.submit(lab.right, victim)
        asked = [threads.submit(lab.right, node) for node in others]
        while store.sent_bytes - before < part * len(DATA) and not all(
            each.done() for each in asked
        ):
            time.sleep(0.02)
        victim.kill()
        assert [each.result() for each in asked] == [True, True]
        assert killed.exception() is not None or killed.result()
    store.close()
    count(request, "fetchers that were killed", 1)
