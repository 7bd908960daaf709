"""Small shards go together, without the ones that turn out to be damaged or alone."""

from __future__ import annotations

from pathlib import Path

import pytest
from cachetier_client.identity.names import SaveIds

from cachetier.drain.schedule.tasks import TaskKind
from cachetier.model.lifecycle import ShardState
from tests.fakes.bodies import noise
from tests.fakes.memory_store import MemoryObjectStore
from tests.stateful.node import Node
from tests.unit.fsck.damage import flip

IDS = SaveIds("run", 1, "save", 0, 1)
BODIES = {name: noise(100_000, seed) for seed, name in enumerate("abc", 1)}


def pack_without(node: Node, tmp_path: Path, *damaged: str) -> None:
    """Do one task of packing, of shards of which some are damaged on disk."""
    for name, body in BODIES.items():
        node.put(IDS, name, body)
    node.checkpoints.seal(IDS, 1)
    for shard in node.rows():
        if shard.name in damaged:
            (path,) = tmp_path.rglob(f"*{shard.file_id}*")
            flip(path, 1000)
    drain = node.real_drain
    while (task := drain.next_task()) is not None:
        drain.perform(task)
        if task.kind is TaskKind.PACK:
            return


@pytest.mark.parametrize("damaged", [(), ("b",), ("a",), ("c",)], ids=str)
def test_a_pack_has_all_members_that_are_sound_in_their_order(
    node: Node, remote: MemoryObjectStore, tmp_path: Path, damaged: tuple[str, ...]
) -> None:
    pack_without(node, tmp_path, *damaged)

    (key,) = remote.list("tier/run/1/.cachetier/pack-").keys
    assert remote.get(key) == b"".join(BODIES[name] for name in BODIES if name not in damaged)
    for shard in node.rows():
        bad = shard.name in damaged
        assert shard.state is (ShardState.QUARANTINED if bad else ShardState.CLEAN)


def test_a_member_that_is_left_alone_goes_to_its_own_key(
    node: Node, remote: MemoryObjectStore, tmp_path: Path
) -> None:
    pack_without(node, tmp_path, "a", "b")

    assert remote.list("tier/run/1/.cachetier/pack-").keys == ()
    assert remote.get("tier/run/1/c") == BODIES["c"]
