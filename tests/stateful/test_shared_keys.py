"""Three nodes that put and delete the same keys: nothing older replaces what is newer.

Nothing that was deleted comes back, nothing is lost in silence, nothing waits for a person; and in
the end the bucket has what was acknowledged last, and every node reads it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.counting import count
from tests.faults.slices import share_of
from tests.stateful.lives import lived
from tests.stateful.shared_keys import SharedKeys
from tests.stateful.unsynced import unsynced

LIVES_OF_A_SEED = 5
SEEDS = range(40)
FREQUENT = ("catalogs that were built anew", "logs that were lost")  # in five lives


@pytest.fixture(scope="module")
def vfs() -> Iterator[str]:
    with unsynced() as name:
        yield name


@pytest.mark.slow
@pytest.mark.parametrize("seed", share_of(SEEDS))
def test_three_nodes_that_share_keys_keep_what_was_acknowledged_last(
    tmp_path: Path, vfs: str, seed: int, request: pytest.FixtureRequest
) -> None:
    met: Counter[str] = Counter()
    for number in range(seed * LIVES_OF_A_SEED, (seed + 1) * LIVES_OF_A_SEED):
        met += played(tmp_path / str(number), number, vfs)
    count(request, "lives of shared keys", LIVES_OF_A_SEED, seed)
    for kind, times in met.items():
        count(request, kind, times)
    assert not set(FREQUENT) - met.keys(), "a fault did not take place"


def played(top: Path, seed: int, vfs: str, only: frozenset[str] = frozenset()) -> Counter[str]:
    """Play a life; return what faults it met."""
    top.mkdir()
    with lived(SharedKeys(top, seed, vfs, only=only), seed) as world:
        return world.met
