"""Small shards of a rank go as one object: what it costs, and every turn a pack may take."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from cachetier_client.identity.names import SaveIds
from cachetier_client.io.digests import digest_of

from cachetier.errors import RemoteDigestError, TransientError
from cachetier.model.levels import Level
from cachetier.model.lifecycle import ShardState
from cachetier.model.packs import PACK_BYTES
from tests.fakes.faulty_store import FaultyObjectStore, corrupt, fail, lose_reply
from tests.fakes.memory_store import MemoryObjectStore
from tests.fakes.waiting import waited
from tests.integration.drain_node import Node, keys_of_saves, patterned
from tests.integration.packing import SHARDS, by_hand, in_pack, packs_in, put_small, summaries
from tests.integration.test_drain_damage import damage, data_file

IDS = SaveIds("run", 7, "save-1")
LARGE = 2 << 20
SECONDS = 60.0


@pytest.fixture
def objects() -> FaultyObjectStore:
    return FaultyObjectStore(MemoryObjectStore())


@pytest.fixture
def node(tmp_path: Path, objects: FaultyObjectStore) -> Iterator[Node]:
    node = Node(tmp_path / "cache", objects, packing=True, fraction=lambda: 0.01)
    yield node
    node.close()


def test_small_shards_of_a_rank_are_one_object_and_large_ones_their_own(
    node: Node, objects: FaultyObjectStore
) -> None:
    bodies = put_small(node, IDS, 20)
    bodies["large"] = patterned(LARGE)
    node.put(IDS, "large", bodies["large"])
    node.seal(IDS)
    with node.draining():
        node.wait_durable(IDS)

    keys = {key.removeprefix("ckpt/run/7/") for key in keys_of_saves(objects, "ckpt/")}
    (pack,) = packs_in(objects)
    assert keys == {
        "large",
        pack.removeprefix("ckpt/run/7/"),
        ".cachetier/manifest.json",
        ".cachetier/rank-0.json",
    }
    assert {name: by_hand(node, IDS, name) for name in bodies} == bodies
    assert [name for name, shard in summaries(node, IDS).items() if not shard.pack] == ["large"]
    assert pack.endswith(f"pack-0-{digest_of(objects.get(pack)):016x}")
    assert node.state()["drained_shards"] == 21
    assert node.state()["packs"] == {"packs": 1, "shards": 20, "size_bytes": 190_000}


def test_a_drain_of_140_small_shards_makes_eight_requests(
    node: Node, objects: FaultyObjectStore
) -> None:
    put_small(node, IDS)
    node.seal(IDS)
    with node.draining():
        waited(node.checkpoints, IDS.run, IDS.step, None, Level.DURABLE, SECONDS)
        node.wait_until(lambda: objects.calls["list_uploads"] == 1)

    made = dict(objects.calls)

    assert made == {
        "head": len(("the manifest", "is the pack there", "is it there before the part")),
        "put": len(("claim", "pack", "part", "manifest")),
        "list_uploads": 1,
    }
    assert sum(made.values()) == 8
    assert len(summaries(node, IDS)) == SHARDS


def test_more_than_a_pack_holds_goes_in_several(node: Node, objects: FaultyObjectStore) -> None:
    body = patterned(1 << 20)
    for number in range(PACK_BYTES // len(body) + 2):
        node.put(IDS, f"shard-{number}", body[number:] + body[:number])
    node.seal(IDS)
    with node.draining():
        node.wait_durable(IDS)

    sizes = [len(objects.get(key)) for key in packs_in(objects)]
    assert sorted(sizes) == [2 << 20, PACK_BYTES]
    assert by_hand(node, IDS, "shard-33") == body[33:] + body[:33]


def test_a_single_small_shard_is_an_object_of_its_own(
    node: Node, objects: FaultyObjectStore
) -> None:
    node.put(IDS, "small", b"hello")
    node.seal(IDS)
    with node.draining():
        node.wait_durable(IDS)

    assert packs_in(objects) == []
    assert objects.get(node.key(IDS, "small")) == b"hello"


def test_each_rank_has_packs_of_its_own(node: Node, objects: FaultyObjectStore) -> None:
    ranks = [SaveIds("run", 7, "save-1", rank, 2) for rank in range(2)]
    bodies = {name: body for ids in ranks for name, body in put_small(node, ids, 5).items()}
    for ids in ranks:
        node.seal(ids)
    with node.draining():
        node.wait_durable(IDS)

    names = [key.rsplit("/", 1)[1] for key in packs_in(objects)]
    assert [name[:7] for name in names] == ["pack-0-", "pack-1-"]
    assert {name: by_hand(node, IDS, name) for name in bodies} == bodies


def test_shards_that_went_alone_before_the_seal_stay_alone(node: Node) -> None:
    node.put(IDS, "early", b"early")
    node.hurry("run", 7)
    with node.draining():
        node.wait_clean(IDS, "early")
        bodies = put_small(node, IDS, 4)
        node.seal(IDS)
        node.wait_durable(IDS)

    assert in_pack(node, IDS, "early") is None
    assert by_hand(node, IDS, "early") == b"early"
    assert {name: by_hand(node, IDS, name) for name in bodies} == bodies


def test_nothing_is_packed_unless_asked_for(tmp_path: Path, objects: FaultyObjectStore) -> None:
    node = Node(tmp_path / "cache", objects)
    put_small(node, IDS, 5)
    node.seal(IDS)
    with node.draining():
        node.wait_durable(IDS)
    node.close()

    assert packs_in(objects) == []


def test_packing_may_be_switched_between_steps(node: Node, objects: FaultyObjectStore) -> None:
    for step, packing in enumerate((True, False, True), start=1):
        node.packing = packing
        ids = SaveIds("run", step, "save")
        bodies = put_small(node, ids, 4)
        node.seal(ids)
        with node.draining():
            node.wait_durable(ids)
        assert {name: by_hand(node, ids, name) for name in bodies} == bodies

    assert [key.split("/")[2] for key in packs_in(objects)] == ["1", "3"]


def test_packing_may_be_switched_off_before_a_step_is_drained_whole(
    node: Node, objects: FaultyObjectStore
) -> None:
    bodies = put_small(node, IDS, 6)
    node.seal(IDS)
    objects.add(fail("put", 3))  # the part
    with node.draining():
        node.wait_until(lambda: not objects.pending)
    node.packing = False
    with node.draining():
        node.wait_durable(IDS)

    assert {name: by_hand(node, IDS, name) for name in bodies} == bodies
    assert len(packs_in(objects)) == 1


# --- damage and loss ---------------------------------------------------------------------------


def test_a_damaged_member_is_quarantined_and_the_others_go_without_it(
    node: Node, objects: FaultyObjectStore
) -> None:
    put_small(node, IDS, 5)
    node.put(IDS, "damaged", patterned(200_000))
    damage(data_file(node, "damaged"), 100_000)
    node.seal(IDS)
    with node.draining():
        node.wait_until(lambda: node.seen.damaged == ["damaged"])
        node.wait_until(lambda: node.state()["drained_shards"] == 5)

    (pack,) = packs_in(objects)
    assert len(objects.get(pack)) == sum(range(5)) * 1000
    shard = node.shard(IDS, "damaged")
    assert shard is not None
    assert shard.state is ShardState.QUARANTINED
    assert node.bucket.published("run", 7) is None


def test_the_last_sound_member_goes_alone(node: Node, objects: FaultyObjectStore) -> None:
    for name in ("damaged", "sound"):
        node.put(IDS, name, patterned(200_000))
    damage(data_file(node, "damaged"), 0)
    node.seal(IDS)
    with node.draining():
        node.wait_until(lambda: node.seen.damaged == ["damaged"])
        node.wait_clean(IDS, "sound")

    assert packs_in(objects) == []
    assert objects.get(node.key(IDS, "sound")) == patterned(200_000)


def test_a_member_without_its_file_is_left_out(node: Node, objects: FaultyObjectStore) -> None:
    put_small(node, IDS, 3)
    node.put(IDS, "missing", patterned(200_000))
    data_file(node, "missing").unlink()
    node.seal(IDS)
    with node.draining():
        node.wait_until(lambda: node.state()["drained_shards"] == 3)

    assert node.seen.damaged == ["missing"]
    assert len(packs_in(objects)) == 1


def test_a_pack_deleted_before_the_part_is_sent_again(
    node: Node, objects: FaultyObjectStore
) -> None:
    bodies = put_small(node, IDS, 6)
    node.seal(IDS)
    original = objects.head
    heads: list[str] = []

    def head(key: str) -> object:
        heads.append(key)
        if heads.count(key) == 2 and "pack-" in key:  # the one before the part
            objects.delete(key)
        return original(key)

    objects.head = head  # type: ignore[method-assign,assignment]
    with node.draining():
        node.wait_durable(IDS)

    (pack,) = packs_in(objects)
    assert heads.count(pack) == 4
    assert objects.calls["delete"] == 1
    assert {name: by_hand(node, IDS, name) for name in bodies} == bodies


def test_another_object_under_the_key_of_a_pack_is_a_conflict_and_no_victim(
    node: Node, objects: FaultyObjectStore
) -> None:
    first = SaveIds("run", 6, "save-1")
    put_small(node, first, 3)
    node.seal(first)
    with node.draining():
        node.wait_durable(first)
    key = packs_in(objects)[0].replace("/6/", "/7/")
    objects.put(key, b"theirs", digest=digest_of(b"theirs"))
    put_small(node, IDS, 3)
    node.seal(IDS)
    with node.draining():
        node.wait_until(lambda: node.state()["conflicts"] != [])

    assert objects.get(key) == b"theirs"
    assert [key in incident.message for incident in node.told()] == [True]


# --- lost replies, kills, refusals -------------------------------------------------------------


def test_a_lost_reply_to_the_put_costs_a_look(node: Node, objects: FaultyObjectStore) -> None:
    objects.add(lose_reply("put", 2))
    bodies = put_small(node, IDS, 6)
    node.seal(IDS)
    with node.draining():
        node.wait_durable(IDS)

    assert not objects.pending
    assert len(packs_in(objects)) == 1
    assert {name: by_hand(node, IDS, name) for name in bodies} == bodies


def test_bytes_that_flip_on_the_way_are_sent_again(tmp_path: Path) -> None:
    store = FaultyObjectStore(MemoryObjectStore(keeps_digests=False), [corrupt("put", 2)])
    node = Node(tmp_path / "cache", store, packing=True)
    bodies = put_small(node, IDS, 6)
    node.seal(IDS)
    with node.draining():
        node.wait_durable(IDS)

    assert not store.pending
    assert {name: by_hand(node, IDS, name) for name in bodies} == bodies
    node.close()


@pytest.mark.parametrize("error", [TransientError, RemoteDigestError])
def test_a_pack_that_fails_is_tried_again(
    node: Node, objects: FaultyObjectStore, error: type[TransientError]
) -> None:
    objects.add(fail("put", 2, error))
    put_small(node, IDS, 6)
    node.seal(IDS)
    with node.draining():
        node.wait_durable(IDS)

    assert not objects.pending


def test_a_drain_that_dies_before_it_reports_a_pack_writes_the_same_one_again(
    node: Node, objects: FaultyObjectStore
) -> None:
    bodies = put_small(node, IDS, 6)
    node.seal(IDS)
    remote_state = node.context.remote_state
    recorded: list[object] = []
    original = type(remote_state).packed

    def die(*arguments: object) -> object:
        recorded.append(arguments)
        raise RuntimeError("the drain is gone before this is recorded")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(remote_state), "packed", die)
        with node.draining(abruptly=True):
            node.wait_until(lambda: bool(recorded))
    assert type(remote_state).packed is original
    before = packs_in(objects)
    assert len(before) == 1
    assert node.state()["drained_shards"] == 0

    with node.draining():
        node.wait_durable(IDS)
    assert packs_in(objects) == before
    assert {name: by_hand(node, IDS, name) for name in bodies} == bodies


def test_a_deleted_step_takes_its_packs_along(node: Node, objects: FaultyObjectStore) -> None:
    put_small(node, IDS, 6)
    node.seal(IDS)
    with node.draining():
        node.wait_durable(IDS)
        assert len(packs_in(objects)) == 1
        node.checkpoints.delete_step("run", 7)
        node.wait_until(lambda: packs_in(objects) == [])

    assert [key.rsplit("/", 1)[1] for key in keys_of_saves(objects, "ckpt/")] == ["manifest.json"]
