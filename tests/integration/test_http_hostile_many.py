"""Hostile requests made by chance: none harms the service, or reaches what it does not own."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from cachetier.doors.http.limits import RequestLimits
from tests.faults.counting import count
from tests.faults.slices import share_of
from tests.integration.hostile import answered, hostile, listing, operations_of
from tests.integration.serving import Caller, Served, serving

SEEDS = range(24)
# A deadline that has passed, room or time that is lacking: what docs/http.md says of them.
DOCUMENTED = (503, 504, 507)
QUICK = RequestLimits(header_seconds=2.0, progress_seconds=1.0, request_seconds=1.0)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("root")


@pytest.fixture(scope="module")
def shared(root: Path) -> Iterator[Served]:
    for name in ("beside", "deep/er/beside"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text("of somebody else")
    with serving(root / "deep" / "er" / "cache") as served:
        yield served


@pytest.fixture(scope="module")
def quick(shared: Served) -> Iterator[Caller]:
    """Lend a second door to the same node, which lets no request wait for long."""
    with shared.second_door(QUICK) as (_door, caller):
        yield caller


@pytest.mark.parametrize("seed", share_of(SEEDS))
def test_no_hostile_request_harms_the_service_or_leaves_its_root(
    shared: Served, quick: Caller, root: Path, seed: int, request: pytest.FixtureRequest
) -> None:
    cache_dir = root / "deep" / "er" / "cache"
    before, inside = list(listing(root, cache_dir)), sorted(cache_dir.iterdir())
    assert len(before) == 2
    chance, operations = random.Random(seed), operations_of(shared)
    for operation in operations:
        sent = hostile(operation, chance)
        status, answer = answered(quick, sent)
        assert status < 500 or status in DOCUMENTED, (sent, answer[:2000])
        assert b"of somebody else" not in answer
    assert list(listing(root, cache_dir)) == before
    assert sorted(cache_dir.iterdir()) == inside
    after = f"/v1/runs/after/steps/{seed}/shards/x"  # some of the requests are obeyed, in run r
    assert shared.call("PUT", after, b"after").status == 201
    assert shared.call("GET", after).body == b"after"
    count(request, "hostile requests of HTTP", len(operations), seed)
