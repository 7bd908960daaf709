"""Two nodes on whose disks, clocks and bucket others have their hands.

What is published is one save's acknowledged bytes, all of them, and never changes; nothing is
evicted that the bucket does not have; a save that is lost is an incident, unless a disk forgot it;
no clock decides anything, and neither a full disk nor a lock fences.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import pytest

from cachetier.errors import CachetierError
from tests.faults.counting import count
from tests.faults.slices import share_of
from tests.stateful.lives import lived
from tests.stateful.node import Node
from tests.stateful.two_nodes import NAMES, RUN, STEPS, World
from tests.stateful.unsynced import unsynced

Found = TypeVar("Found")

LIVES_OF_A_SEED = 10
SEEDS = range(40)
# Of ten lives each meets these; the rarer ones are goals of ``make faults``.
FREQUENT = (
    "full disks that refused",
    "locks from outside",
    "locks that were removed",
    "logs that were lost",
    "writes: hold",
    "writes: lose",
)


@pytest.fixture(scope="module")
def vfs() -> Iterator[str]:
    with unsynced() as name:
        yield name


@pytest.mark.slow
@pytest.mark.parametrize("seed", share_of(SEEDS))
def test_two_nodes_keep_their_promises_in_a_larger_world(
    tmp_path: Path, vfs: str, seed: int, request: pytest.FixtureRequest
) -> None:
    met: Counter[str] = Counter()
    for number in range(LIVES_OF_A_SEED):
        met += played(tmp_path / str(number), seed * LIVES_OF_A_SEED + number, vfs, faults)
    count(request, "lives of two nodes", LIVES_OF_A_SEED, seed)
    for kind, times in met.items():
        count(request, kind, times)
    assert not set(FREQUENT) - met.keys(), "a fault did not take place"


@pytest.mark.parametrize("seed", [0, 1, 3])  # in 2 a copied disk has the times of two clocks
def test_no_clock_decides(tmp_path: Path, vfs: str, seed: int) -> None:
    """The same history has the same outcome, whatever the clocks of the nodes say.

    In the bucket there are the same bytes at each step, and readers of each node get the same.
    """
    ends = [
        played(tmp_path / name, seed, vfs, outcome, offsets)
        for name, offsets in {"same": (0.0, 0.0), "fast": (7e4, 0.0), "slow": (0.0, 7e4)}.items()
    ]

    assert ends[0] == ends[1] == ends[2]


def played(
    top: Path,
    seed: int,
    vfs: str,
    look: Callable[[World], Found],
    offsets: tuple[float, float] = (0.0, 0.0),
) -> Found:
    """Play a life, and return what ``look`` finds in the end."""
    top.mkdir()
    with lived(World(top, seed, vfs, offsets=offsets), seed) as world:
        return look(world)


def faults(world: World) -> Counter[str]:
    return world.met


def outcome(world: World) -> object:
    return world.saves, world.published, read(world)


def read(world: World) -> list[bytes | str]:
    """Return what readers of each node get of every shard: its bytes, or the code of an error."""
    names = [name for of_rank in NAMES for name in of_rank]
    return [answer(node, step, name) for node in world.nodes for step in STEPS for name in names]


def answer(node: Node, step: int, name: str) -> bytes | str:
    try:
        return node.get(RUN, step, name)
    except CachetierError as error:
        return error.code
