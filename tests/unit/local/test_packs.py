"""What the catalog knows of packs: which shards wait for one, and who lies where in it."""

from __future__ import annotations

import pytest
from cachetier_client.bucket_format.stored import Content, InPack
from cachetier_client.identity.names import SaveIds
from cachetier_client.io.digests import digest_of

from cachetier.local.catalog import copies, parts, saves, shards
from cachetier.local.catalog.rows import NewShard
from cachetier.local.catalog.shards import ShardFilter, beside_small_of, small_of
from cachetier.local.store import Store
from cachetier.model.lifecycle import ShardState
from cachetier.model.names import DURABLE
from cachetier.model.packs import PACKED_UP_TO_BYTES, PackedExtent
from cachetier.model.shard import Shard

NOW = 5.0
PACK = "pack-0-00000000000000ab"
SMALL, LARGE = PACKED_UP_TO_BYTES, PACKED_UP_TO_BYTES + 1


def ids(rank: int = 0, step: int = 1) -> SaveIds:
    return SaveIds("run", step, "save-1", rank, 2)


def put(store: Store, name: str, size_bytes: int = 5, rank: int = 0, step: int = 1) -> Shard:
    body = name.encode()
    content = Content(size_bytes, digest_of(body), (digest_of(body),))
    return store.write(
        parts.commit_shard,
        store.policy,
        ids(rank, step),
        NewShard(name, rank, content, body=body),
        NOW,
    ).shard


def number_of(store: Store, step: int = 1) -> int:
    save = store.read(lambda sql: saves.save_named(sql, "run", step, "save-1"))
    assert save is not None
    return save.number


def pack(store: Store, *shards: Shard, remote: str = DURABLE) -> list[Shard]:
    """Record shards of five bytes each in one pack."""
    packs = {
        shard.version: InPack(PACK, at * 5, 5 * len(shards), 0xAB)
        for at, shard in enumerate(shards)
    }
    return store.write(copies.record_packed, packs, remote, [remote], NOW)


def state_of(store: Store, shard: Shard) -> ShardState | None:
    found = store.read(lambda sql: shards.shard_by_version(sql, shard.version))
    return found.state if found is not None else None


def evict(store: Store, *found: Shard) -> None:
    for shard in found:
        store.write(shards.evict, shard.version)


@pytest.fixture
def mixed(store: Store) -> dict[str, Shard]:
    """Small and large shards of two ranks."""
    return {
        name: put(store, name, size, rank)
        for name, size, rank in (
            ("a", SMALL, 0),
            ("b", LARGE, 0),
            ("c", 0, 0),
            ("d", SMALL, 1),
            ("e", LARGE, 1),
        )
    }


@pytest.mark.usefixtures("mixed")
def test_small_shards_of_a_rank_are_found_and_all_others(store: Store) -> None:
    number = number_of(store)

    def names(shard_filter: ShardFilter) -> list[str]:
        found = store.read(
            lambda sql: shards.dirty_shards_of(sql, number, -1, DURABLE, shard_filter)
        )
        return [shard.name for shard in found]

    assert names(small_of(0)) == ["a", "c"]
    assert names(small_of(1)) == ["d"]
    assert names(beside_small_of([0])) == ["b", "d", "e"]
    assert names(beside_small_of([0, 1])) == ["b", "e"]
    assert names(beside_small_of([])) == ["a", "b", "c", "d", "e"]


@pytest.mark.usefixtures("mixed")
def test_the_same_is_found_of_what_a_replica_lacks(store: Store) -> None:
    number = number_of(store)
    found = store.read(lambda sql: copies.shards_wanted_at(sql, number, "near", 1, small_of(0)))

    assert [shard.name for shard in found] == ["a"]


def test_small_shards_are_found_in_the_index_alone(store: Store) -> None:
    shard_filter = beside_small_of([0])
    query = (
        "EXPLAIN QUERY PLAN SELECT version FROM shards WHERE save = 1 AND state = 'dirty' "
        f"AND {shard_filter.clause} ORDER BY version"
    )
    plan = store.read(lambda sql: [row[3] for row in sql.execute(query, shard_filter.values)])

    assert "USING COVERING INDEX dirty_shards" in plan[0]


def test_all_members_of_a_pack_become_clean_together(store: Store) -> None:
    found = [put(store, name) for name in "abc"]

    assert [shard.name for shard in pack(store, *found)] == ["a", "b", "c"]
    assert {state_of(store, shard) for shard in found} == {ShardState.CLEAN}
    stored = store.read(lambda sql: shards.stored_of(sql, found[1].version, DURABLE))
    assert stored is not None
    assert stored.pack == InPack(PACK, 5, 15, 0xAB)


def test_members_that_went_or_were_damaged_meanwhile_are_passed_over(store: Store) -> None:
    sound, damaged, replaced = (put(store, name) for name in "abc")
    store.write(shards.record_damage, damaged.version, None, NOW)
    other = Content(5, 7, (7,))
    new = NewShard("c", 0, other, body=b"other")
    store.write(parts.commit_shard, store.policy, ids(), new, NOW)

    assert [shard.name for shard in pack(store, sound, damaged, replaced)] == ["a"]
    assert state_of(store, sound) is ShardState.CLEAN
    assert state_of(store, damaged) is ShardState.QUARANTINED
    assert state_of(store, replaced) is None


def test_a_member_that_another_remote_still_lacks_stays_dirty(store: Store) -> None:
    shard = put(store, "a")
    packs = {shard.version: InPack(PACK, 0, 5, 0xAB)}
    store.write(copies.record_packed, packs, DURABLE, [DURABLE, "near"], NOW)

    assert state_of(store, shard) is ShardState.DIRTY
    number = number_of(store)
    assert store.read(lambda sql: shards.dirty_shards_of(sql, number, -1, DURABLE)) == []


def test_members_of_a_lost_pack_are_dirty_again_and_know_it_no_more(store: Store) -> None:
    shard = put(store, "a")
    pack(store, shard)
    store.write(copies.record_lost, shard.version, DURABLE)

    assert state_of(store, shard) is ShardState.DIRTY
    assert store.read(lambda sql: shards.stored_of(sql, shard.version, DURABLE)) is None


def test_a_lost_member_may_be_sent_alone(store: Store) -> None:
    shard = put(store, "a")
    pack(store, shard)
    store.write(copies.record_lost, shard.version, DURABLE)
    store.write(copies.record_verified, shard.version, DURABLE, [DURABLE], NOW)

    stored = store.read(lambda sql: shards.stored_of(sql, shard.version, DURABLE))
    assert stored is not None
    assert stored.pack is None


def test_neighbours_in_a_pack_are_those_of_the_same_save_without_bytes_here(store: Store) -> None:
    shards = [put(store, name) for name in "abcd"]
    elsewhere = [put(store, name, step=2) for name in "abcd"]  # the same bytes: the same pack
    for members in (shards, elsewhere):
        pack(store, *members)
    evict(store, *shards[1:], *elsewhere)

    version = shards[1].version
    found = store.read(lambda sql: copies.evicted_in_pack(sql, version, DURABLE, PACK))
    assert found == [PackedExtent(shards[at].version, 5 * at, 5) for at in (1, 2, 3)]
    assert store.read(lambda sql: copies.evicted_in_pack(sql, version, "near", PACK)) == []
    assert store.read(lambda sql: copies.evicted_in_pack(sql, version, DURABLE, "other")) == []


def test_shards_that_went_since_are_no_neighbours(store: Store) -> None:
    shard = put(store, "a")
    found = store.read(
        lambda sql: copies.shards_at(
            sql, [PackedExtent(shard.version, 0, 5), PackedExtent(99, 5, 5)]
        )
    )

    assert found == [(shard, PackedExtent(shard.version, 0, 5))]
