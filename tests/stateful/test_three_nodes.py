"""Three nodes that keep copies for each other, of which one is lost.

What was acknowledged at ``replicated`` is restored from the others while the bucket is away, with
the bytes that were put, and published without the node that saved it. What is published is one
save's acknowledged bytes, and never changes. Copies go once their step is published.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.counting import count
from tests.faults.slices import everything, share_of
from tests.stateful.lives import lived
from tests.stateful.peer_machine import small_uploads
from tests.stateful.three_nodes import ThreeNodes
from tests.stateful.unsynced import unsynced

LIVES_OF_A_SEED = 10
SEEDS = range(100)


@pytest.fixture(scope="module")
def vfs() -> Iterator[str]:
    with unsynced() as name, small_uploads():
        yield name


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS if everything() else share_of(SEEDS)[:3])
def test_copies_at_peers_outlive_any_one_node(
    tmp_path: Path, vfs: str, seed: int, request: pytest.FixtureRequest
) -> None:
    met: Counter[str] = Counter()
    for number in range(seed * LIVES_OF_A_SEED, (seed + 1) * LIVES_OF_A_SEED):
        met += played(tmp_path / str(number), number, vfs)
    count(request, "lives of three peers", LIVES_OF_A_SEED, seed)
    for kind, times in met.items():
        count(request, kind, times)
    assert met["nodes that died for good"], "a fault did not take place"


def played(top: Path, seed: int, vfs: str) -> Counter[str]:
    """Play a life, and return the faults that it met."""
    top.mkdir()
    with lived(ThreeNodes(top, seed, vfs), seed) as world:
        return world.met
