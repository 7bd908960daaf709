"""What the scheduler is shown of small shards, where they are packed."""

from __future__ import annotations

from collections.abc import Collection

from cachetier_client.identity.names import SaveIds

from cachetier.drain.schedule.scheduler import SaveView
from cachetier.drain.serve.remote_state import RemoteState
from cachetier.drain.serve.snapshot import unfinished
from cachetier.local.catalog import shards
from cachetier.model.packs import PACKED_UP_TO_BYTES
from tests.stateful.node import Node

LARGE = bytes(PACKED_UP_TO_BYTES + 1)
RANKS = [SaveIds("run", 1, "save", rank, 2) for rank in range(2)]


def filled(node: Node) -> None:
    """Put small and large shards of two ranks, and seal the first."""
    node.store.space.capacity_bytes = 64 << 20
    for ids in RANKS:
        for name in "abc":
            node.put(ids, f"{name}{ids.rank}", name.encode() * 10)
        node.put(ids, f"large{ids.rank}", LARGE)
    node.checkpoints.seal(RANKS[0], 2)


def shown(node: Node, *, packing: bool = True, busy: Collection[str] = ()) -> SaveView:
    remote_state = RemoteState(node.store)
    (view,) = unfinished(
        node.store,
        remote_state,
        {},
        lambda *_: None,
        beside_packs=(lambda _number: busy) if packing else None,
    )
    return view


def names(view: SaveView) -> list[str]:
    return [shard.name for shard in view.dirty]


def test_small_shards_of_a_sealed_rank_are_shown_as_one_and_others_as_ever(node: Node) -> None:
    filled(node)
    view = shown(node)

    assert [(each.rank, each.size_bytes) for each in view.packable] == [(0, 30)]
    assert names(view) == ["large0", "a1", "b1", "c1", "large1"]
    assert view.has_all


def test_without_packing_all_are_shown(node: Node) -> None:
    filled(node)
    view = shown(node, packing=False)

    assert view.packable == ()
    assert len(names(view)) == 8


def test_what_is_on_its_way_already_is_not_packed(node: Node) -> None:
    filled(node)

    assert [each.size_bytes for each in shown(node, busy={"a0"}).packable] == [20]


def test_a_rank_whose_small_shards_are_all_on_their_way_has_nothing_to_pack(node: Node) -> None:
    filled(node)
    view = shown(node, busy={"a0", "b0", "c0"})

    # They show as any shards in flight, so that no part is written before they are there.
    assert view.packable == ()
    assert {"a0", "b0", "c0"} < set(names(view))


def test_many_small_shards_do_not_hide_a_large_one(node: Node) -> None:
    node.store.space.capacity_bytes = 64 << 20
    for number in range(50):
        node.put(RANKS[0], f"small{number}", b"x")
    node.put(RANKS[0], "large", LARGE)
    node.checkpoints.seal(RANKS[0], 2)

    assert names(shown(node)) == ["large"]


def test_a_sealed_rank_with_damaged_bytes_is_unsound_before_its_part_is_written(
    node: Node,
) -> None:
    node.put(RANKS[0], "damaged", b"bytes")
    node.checkpoints.seal(RANKS[0], 1)
    (row,) = node.rows()
    node.store.write(shards.record_damage, row.version, None, 0.0)

    assert shown(node).unsound == {0}
