"""Peers as processes: a fetcher that is killed half-way costs nobody a byte that is wrong."""

from __future__ import annotations

import random
import time
import uuid
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import replace

import pytest
from cachetier_client.io.digests import BLOCK_BYTES

from cachetier.testing.s3_endpoint import S3Endpoint
from examples.peers.cluster import Cluster, restored
from tests.faults.counting import count
from tests.faults.slices import share_of
from tests.integration.namespaces import namespaces
from tests.integration.needs import needs_weed

DATA = random.Random(4).randbytes(8 * BLOCK_BYTES + 5)
SHARDS = {"a": DATA}
NODES = 3
HOSTS = 4


@needs_weed
@pytest.mark.parametrize("part", share_of([0.1, 0.3, 0.5, 0.7, 0.9]))
def test_a_fetcher_that_is_killed_costs_nobody_a_wrong_byte(
    part: float,
    request: pytest.FixtureRequest,
    seaweed_s3: S3Endpoint,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    bucket = f"peers-{uuid.uuid4().hex[:12]}"
    seaweed_s3.create_bucket(bucket)
    endpoint = replace(seaweed_s3, bucket=bucket)
    cluster = Cluster(tmp_path_factory.mktemp("p"), endpoint, NODES, 20e6)
    cluster.save(SHARDS)
    with cluster.nodes(NODES, peers=True) as nodes:
        victim, *others = nodes
        with cluster.killing(victim, round(2 * part * len(DATA))):
            restored(others)
        assert all(node.has(SHARDS) for node in others)
    cluster.store.close()
    count(request, "fetchers that were killed", 1)


@needs_weed
@pytest.mark.parametrize("trouble", share_of(["cut", "cut late", "slow"]))
def test_a_network_that_is_cut_or_slow_costs_nobody_a_wrong_byte(
    trouble: str,
    request: pytest.FixtureRequest,
    seaweed_s3: S3Endpoint,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    bucket = f"peers-{uuid.uuid4().hex[:12]}"
    seaweed_s3.create_bucket(bucket)
    endpoint = replace(seaweed_s3, bucket=bucket)
    with namespaces(HOSTS) as network:
        cluster = Cluster(tmp_path_factory.mktemp("p"), endpoint, HOSTS, 20e6, network=network)
        cluster.save(SHARDS)
        with cluster.nodes(HOSTS, peers=True) as nodes, ThreadPoolExecutor(HOSTS) as threads:
            bad, *others = nodes
            if trouble == "slow":
                network.slow(0, "2mbit")
            before = cluster.store.sent_bytes
            begun = [threads.submit(node.restore) for node in nodes]
            share = {"cut": 0.1, "cut late": 0.6, "slow": 0.0}[trouble]
            while cluster.store.sent_bytes - before < share * len(DATA) and not begun[1].done():
                time.sleep(0.02)
            if trouble != "slow":
                network.cut(0)
            for each in begun[1:]:
                each.result()
            assert all(node.has(SHARDS) for node in others)
            if trouble != "slow":
                network.mend(0)
                wait(begun)  # it may have given up meanwhile
                assert bad.has(SHARDS)
        cluster.store.close()
    count(request, "networks that were cut or slow", 1)
