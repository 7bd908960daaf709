"""How many requests a checkpoint costs: no more than it needs, and little more when throttled."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from cachetier_client.bucket_format.uploads import PART_BYTES, upload_part_bytes_for
from cachetier_client.identity.names import SaveIds

from cachetier.model.levels import Level
from cachetier.remote.call_policy import CallPolicy, Retries, RetryPolicy
from cachetier.testing.s3_endpoint import S3Endpoint
from cachetier.testing.s3proxy import S3Proxy
from cachetier.testing.troubles import Fault, Trouble, Troubles, share
from tests.fakes.waiting import waited
from tests.faults.slices import share_of
from tests.integration.drain_node import Node, patterned
from tests.integration.packing import put_small

SMALL, LARGE, LARGE_BYTES = 40, 2, 2 * PART_BYTES + 1
CLEAN_LIMIT = 1.05
# Each request is made until it passes: 1 / (1 - share) of the least, and room for chance.
LIMIT_OF_SHARE = {0.2: 1.5, 0.6: 3.5}
PACKED_LIMIT = 9
READ_BACK = 1
START = len(("look at the claim on the store id", "claim it"))
# So many attempts that no request is given up where most are refused: what a drain does after that
# is another test's.
POLICY = RetryPolicy(attempts=24, base_seconds=0.005, cap_seconds=0.05)


def least_requests() -> int:
    """Return what the checkpoint needs: nothing overwritten blindly, nothing believed unseen."""
    parts = -(-LARGE_BYTES // upload_part_bytes_for(LARGE_BYTES))
    claim = len(("look at the manifest", "claim it"))
    each_small = len(("put", "verify", "there before the part is written"))
    each_large = len(("look", "create", "look", "complete", "verify", "there")) + parts
    publish = len(("write the part", "claim the store id again", "publish"))
    sweep = len(("list unfinished uploads",))
    return START + claim + SMALL * each_small + LARGE * each_large + publish + sweep


@pytest.fixture
def proxy(seaweed_s3: S3Endpoint) -> Iterator[S3Proxy]:
    with S3Proxy(seaweed_s3.url) as started:
        yield started


def requests_of_drain(folder: Path, server: S3Endpoint, proxy: S3Proxy, run: str) -> int:
    """Drain one checkpoint; return what it cost, from its first request to its last."""
    objects = CallPolicy(server.behind(proxy.url).store(), retries=Retries(POLICY))
    node = Node(folder / "cache", objects, fraction=lambda: 0.01)
    ids = SaveIds(run, 7, "save-1")
    for number in range(SMALL):
        node.put(ids, f"small-{number}", b"hello")
    for number in range(LARGE):
        node.put(ids, f"large-{number}", patterned(LARGE_BYTES, number))
    return _requests_of(node, ids, proxy)


def _requests_of(node: Node, ids: SaveIds, proxy: S3Proxy) -> int:
    node.seal(ids)
    before, sweeps = proxy.requests, proxy.troubles.seen["ListMultipartUploads"]
    with node.draining():
        waited(node.checkpoints, ids.run, ids.step, None, Level.DURABLE, 60)
        node.wait_until(lambda: proxy.troubles.seen["ListMultipartUploads"] > sweeps)
    node.close()
    return proxy.requests - before


def test_a_clean_drain_makes_the_requests_it_needs(
    tmp_path: Path, seaweed_s3: S3Endpoint, proxy: S3Proxy
) -> None:
    made = requests_of_drain(tmp_path, seaweed_s3, proxy, "clean")

    assert least_requests() <= made <= CLEAN_LIMIT * least_requests(), proxy.troubles.seen


@pytest.mark.parametrize("kind", ["moto_s3", "seaweed_s3"])
def test_small_shards_in_a_pack_cost_nine_requests(
    tmp_path: Path, request: pytest.FixtureRequest, kind: str
) -> None:
    server: S3Endpoint = request.getfixturevalue(kind)
    with S3Proxy(server.url) as proxy:
        objects = CallPolicy(server.behind(proxy.url).store(), retries=Retries(POLICY))
        node = Node(tmp_path / "cache", objects, packing=True)
        ids = SaveIds("packed", 7, "save-1")
        bodies = put_small(node, ids)
        made = _requests_of(node, ids, proxy)

    # A store without digests has the pack read back.
    read_back = 0 if objects.keeps_digests else READ_BACK
    assert made == START + PACKED_LIMIT + read_back, proxy.troubles.seen
    assert len(bodies) == 140


@pytest.mark.parametrize("seed", share_of(range(10)))
@pytest.mark.parametrize(("refused", "limit"), LIMIT_OF_SHARE.items())
def test_slow_downs_cost_little_more_than_what_they_refuse(
    tmp_path: Path, seaweed_s3: S3Endpoint, proxy: S3Proxy, refused: float, limit: float, seed: int
) -> None:
    proxy.troubles = Troubles([Fault(Trouble.SLOW_DOWN, when=share(refused))], seed=seed)
    made = requests_of_drain(tmp_path, seaweed_s3, proxy, f"throttled-{refused:g}-{seed}")

    assert proxy.troubles.fired[Trouble.SLOW_DOWN] >= 0.5 * refused * made
    assert made <= limit * least_requests(), proxy.troubles.seen
