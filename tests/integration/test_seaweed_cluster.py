"""The cluster of SeaweedFS that tests and examples use: what it bears, and what it does not."""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from cachetier_client.io.digests import digest_of

from cachetier.errors import TransientError
from cachetier.remote.base import ObjectStore
from cachetier.remote.stall_guard import Timeouts
from cachetier.testing.seaweed_cluster import SeaweedCluster, seaweed_cluster
from tests.integration.needs import needs_weed

MIB = 1 << 20
BODY = random.Random(1).randbytes(6 * MIB)
QUICK = Timeouts(read_seconds=5.0)

pytestmark = [needs_weed, pytest.mark.slow]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[SeaweedCluster]:
    with seaweed_cluster(tmp_path) as cluster:
        yield cluster
    shutil.rmtree(tmp_path)


def put(store: ObjectStore, *keys: str) -> None:
    for key in keys:
        store.put(key, BODY, digest=digest_of(BODY))


def readable(store: ObjectStore, *keys: str) -> bool:
    return all(store.get(key) == BODY for key in keys)


def test_any_one_server_may_be_lost_and_after_mending_another_one(cluster: SeaweedCluster) -> None:
    store = cluster.endpoint.store(timeouts=QUICK)
    before = [f"before/{number}" for number in range(8)]
    put(store, *before)
    assert sum(cluster.stored_bytes(number) for number in range(3)) >= 2 * 8 * len(BODY)

    upload = store.create_upload("begun")
    parts = [store.upload_part("begun", upload, 1, BODY, digest=digest_of(BODY))]
    lost = max(range(3), key=cluster.stored_bytes)
    assert cluster.stored_bytes(lost) > len(BODY)
    cluster.kill(lost)
    parts.append(store.upload_part("begun", upload, 2, BODY, digest=digest_of(BODY)))
    store.complete_upload("begun", upload, parts, digest=digest_of(BODY + BODY))
    after = [f"after/{number}" for number in range(8)]
    put(store, *after)

    assert cluster.known_servers() == 2
    assert store.get("begun") == BODY + BODY
    assert readable(store, *before, *after)

    cluster.mend()
    another = (lost + 1) % 3
    cluster.kill(another)
    assert store.get("begun") == BODY + BODY
    assert readable(store, *before, *after)
    with pytest.raises(TransientError):  # a byte with one copy is not taken
        put(store, "one-copy")

    cluster.restart(another)
    cluster.restart(lost)
    cluster.wait_for_servers(3)
    put(store, "back")
    assert readable(store, *before, *after, "back")


def test_two_copies_need_three_servers(tmp_path: Path) -> None:
    with (
        pytest.raises(ValueError, match="two servers"),
        seaweed_cluster(tmp_path, volume_servers=2),
    ):
        pass


def test_a_cluster_that_cannot_start_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cachetier.testing.seaweed_cluster.VOLUME_LIMIT_MB", "nonsense")
    with pytest.raises(RuntimeError, match="--- master"), seaweed_cluster(tmp_path):
        pass
