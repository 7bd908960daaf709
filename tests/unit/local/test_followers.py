"""Parts that follow rank 0: they grow until it has sealed, and are final from then on."""

from __future__ import annotations

import pytest
from cachetier_client.bucket_format.stored import Content
from cachetier_client.identity.names import SaveIds
from cachetier_client.io.digests import digest_of

from cachetier.errors import InvalidRequestError, SealedError
from cachetier.local.catalog import parts, saves
from cachetier.local.catalog.rows import NewShard
from cachetier.local.store import Store
from cachetier.model.checkpoint import RankPart, sealed_here
from cachetier.model.lifecycle import PartState

LEADER = SaveIds("run", 1, "save", 0, 2)
FOLLOWER = SaveIds("run", 1, "save", 1, 2)
NOW = 5.0


def put(store: Store, ids: SaveIds, name: str, data: bytes = b"bytes") -> None:
    content = Content(len(data), digest_of(data), (digest_of(data),))
    new = NewShard(name, ids.rank, content, body=data)
    store.write(parts.commit_shard, store.policy, ids, new, NOW)


def part(store: Store, rank: int = 1) -> RankPart:
    number = number_of(store)
    return next(
        each for each in store.read(lambda sql: saves.parts_of(sql, number)) if each.rank == rank
    )


def number_of(store: Store) -> int:
    save = store.read(lambda sql: saves.save_named(sql, "run", 1, "save"))
    assert save is not None
    return save.number


def follow(store: Store) -> list[int]:
    return store.write(parts.seal, store.policy, FOLLOWER, None, NOW, follows=True)


def test_a_following_part_is_sealed_but_not_final(store: Store) -> None:
    put(store, FOLLOWER, "a")

    assert follow(store) == [1]
    assert part(store).state is PartState.SEALED
    assert not part(store).final


def test_it_may_grow_and_is_open_meanwhile(store: Store) -> None:
    put(store, FOLLOWER, "a")
    follow(store)

    put(store, FOLLOWER, "b")
    put(store, FOLLOWER, "a", b"other")

    assert part(store).state is PartState.OPEN
    assert not part(store).follows
    follow(store)
    assert part(store).follows


def test_it_is_final_with_rank_0s_seal(store: Store) -> None:
    put(store, FOLLOWER, "a")
    follow(store)

    assert store.write(parts.seal, store.policy, LEADER, None, NOW) == [0, 1]

    assert part(store).final
    with pytest.raises(SealedError):
        put(store, FOLLOWER, "b")
    put(store, FOLLOWER, "a")  # the same bytes again are a repeat


def test_one_that_is_open_when_rank_0_seals_is_final_at_its_own_seal(store: Store) -> None:
    put(store, FOLLOWER, "a")
    follow(store)
    put(store, FOLLOWER, "b")
    store.write(parts.seal, store.policy, LEADER, None, NOW)
    assert part(store).state is PartState.OPEN

    follow(store)

    assert part(store).final


def test_rank_0_of_another_save_releases_nothing(store: Store) -> None:
    put(store, FOLLOWER, "a")
    follow(store)

    store.write(parts.seal, store.policy, SaveIds("run", 2, "save", 0, 2), None, NOW)

    assert part(store).follows


def test_it_is_final_once_rank_0_is_found_elsewhere(store: Store) -> None:
    put(store, FOLLOWER, "a")
    follow(store)

    store.write(parts.release_followers, number_of(store))

    assert part(store).final


def test_a_plain_seal_is_final_and_stays_so(store: Store) -> None:
    put(store, FOLLOWER, "a")
    follow(store)
    store.write(parts.seal, store.policy, FOLLOWER, None, NOW)
    follow(store)

    assert part(store).final


def test_it_can_be_taken_back(store: Store) -> None:
    put(store, FOLLOWER, "a")
    follow(store)

    assert [shard.name for shard in store.write(parts.abort_rank, FOLLOWER)] == ["a"]
    assert part(store).state is PartState.ABORTED
    put(store, FOLLOWER, "a")
    follow(store)
    assert store.write(parts.delete_shard, "run", 1, "a").name == "a"


def test_rank_0_follows_nobody(store: Store) -> None:
    with pytest.raises(InvalidRequestError, match="rank 0 cannot follow"):
        store.write(parts.seal, store.policy, LEADER, None, NOW, follows=True)


@pytest.mark.parametrize(
    ("follows", "ranks_on_node", "counts"),
    [(True, None, False), (False, None, True), (True, 1, True)],
)
def test_a_node_without_rank_0_counts_it_where_it_knows_its_ranks(
    follows: bool, ranks_on_node: int | None, counts: bool
) -> None:
    follower = RankPart(1, PartState.SEALED, ranks_on_node, NOW, uploaded=False, follows=follows)

    assert sealed_here([follower]) is counts
