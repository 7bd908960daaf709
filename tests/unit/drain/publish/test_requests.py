"""How many requests a published step costs, beside its shards: some for each rank, whatever else.

The figures stand in docs/planning.md.
"""

from __future__ import annotations

import pytest

from cachetier.drain.publish.publisher import Ended, Located
from cachetier.model.lifecycle import SaveState
from tests.unit.drain.publish.test_publisher import World, save_of

ALONE, OF_MANY = 5, 8


@pytest.mark.parametrize(("nodes", "a_rank"), [(1, ALONE), (32, OF_MANY), (256, OF_MANY)])
def test_a_published_step_costs_so_many_requests_for_each_rank(nodes: int, a_rank: int) -> None:
    world, save = World(), save_of("a", world_size=nodes)
    publishers = [world.restarted() for _ in range(nodes)]
    claims = [publisher.claim(save) for publisher in publishers]
    assert isinstance(claims[0], Located)
    location = claims[0].location
    shards = [world.put(save, location, f"shard-{rank}") for rank in range(nodes)]
    ended = []
    for rank, publisher in enumerate(publishers):
        publisher.write_part(save, location, rank, [shards[rank]])
        ended.append(publisher.publish(save, location))
    assert ended[-1] == Ended(SaveState.PUBLISHED)
    assert sum(world.objects.calls.values()) - len(shards) <= a_rank * nodes
