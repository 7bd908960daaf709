"""Admission: what is refused up front, what room does, and what is left behind: nothing."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from cachetier_client.bucket_format.stored import (
    NO_FACTS,
    SHARD_LIMIT_BYTES,
    Content,
    ShardFacts,
)
from cachetier_client.identity.names import SaveIds
from cachetier_client.io.digests import digest_of, to_hex

from cachetier.errors import BackpressureError, CachetierError
from cachetier.ingest.admission import GROWTH_BYTES, MustWaitError
from cachetier.ingest.ingest import NodeIngest
from cachetier.local.catalog import parts
from cachetier.local.catalog.rows import NewShard
from cachetier.local.store import Staged
from cachetier.model.backpressure import WhenFull
from cachetier.model.levels import Level
from cachetier.model.shard import INLINE_BYTES, Shard
from tests.stateful.node import Node, content_of, write

IDS = SaveIds("run", 1, "save")
CAPACITY_BYTES = 1_000_000


def staged_put(node: Node, name: str, data: bytes) -> Staged:
    staged = node.ingest.begin(IDS, name, len(data), 0.0)
    assert isinstance(staged, Staged)
    write(staged, data)
    return staged


def code_of(call: Callable[[], object]) -> str:
    with pytest.raises(CachetierError) as refusal:
        call()
    return refusal.value.code


def assert_nothing_left(node: Node) -> None:
    assert node.store.space.used_bytes == 0
    assert list(node.store.files.all()) == []
    assert node.rows() == []


@pytest.mark.parametrize("size", [0, 1, INLINE_BYTES, INLINE_BYTES + 1, 200_000])
def test_a_put_is_promised_at_local_and_reads_back(node: Node, size: int) -> None:
    data = bytes(range(256)) * (size // 256) + bytes(size % 256)

    receipt = node.put(IDS, "a", data)

    assert (receipt.size_bytes, receipt.digest) == (size, to_hex(content_of(data).digest))
    assert (receipt.run, receipt.step, receipt.name, receipt.save_id) == ("run", 1, "a", "save")
    assert receipt.level is Level.LOCAL
    assert node.get("run", 1, "a") == data
    assert node.store.space.used_bytes == size


@pytest.mark.parametrize("size", [-1, SHARD_LIMIT_BYTES + 1])
def test_a_size_beyond_the_limits_is_refused_up_front(node: Node, size: int) -> None:
    assert code_of(lambda: node.ingest.begin(IDS, "a", size, 0.0)) == "invalid_request"


@pytest.mark.parametrize("name", ["", "..", "a\0b"])
def test_a_hostile_name_takes_no_room(node: Node, name: str) -> None:
    assert code_of(lambda: node.ingest.begin(IDS, name, 10, 0.0)) == "invalid_name"
    assert code_of(lambda: node.ingest.begin_inline(IDS, name, b"x", 1, 0.0)) == "invalid_name"
    assert_nothing_left(node)


@pytest.mark.parametrize("declared", [99_999, 100_001, 0])
def test_a_file_of_another_size_than_declared_is_not_kept(node: Node, declared: int) -> None:
    staged = staged_put(node, "a", bytes(100_000))
    content = content_of(bytes(declared))

    assert code_of(lambda: node.ingest.commit(staged, IDS, "a", content)) == "size_mismatch"
    assert_nothing_left(node)


def test_more_than_was_reserved_is_not_kept(node: Node) -> None:
    """A rank holds a descriptor: it can write more than it asked for, but not get it promised."""
    staged = node.ingest.begin(IDS, "a", 1_000, 0.0)
    assert isinstance(staged, Staged)
    write(staged, bytes(500_000))

    code = code_of(lambda: node.ingest.commit(staged, IDS, "a", content_of(bytes(500_000))))

    assert code == "size_mismatch"
    assert_nothing_left(node)


def test_less_than_was_reserved_gives_the_rest_back(node: Node) -> None:
    staged = node.ingest.begin(IDS, "a", 500_000, 0.0)
    assert isinstance(staged, Staged)
    write(staged, bytes(100_000))

    node.ingest.commit(staged, IDS, "a", content_of(bytes(100_000)))

    assert node.store.space.used_bytes == 100_000


def test_a_wrong_description_is_refused_before_the_disk_is_touched(node: Node) -> None:
    staged = staged_put(node, "a", bytes(100_000))

    code = code_of(lambda: node.ingest.commit(staged, IDS, "a", Content(100_000, 1, (2,))))

    assert code == "digest_mismatch"
    assert_nothing_left(node)


def test_a_commit_that_the_catalog_refuses_leaves_nothing(node: Node) -> None:
    node.checkpoints.seal(IDS, None)
    staged = staged_put(node, "a", bytes(100_000))

    assert code_of(lambda: node.ingest.commit(staged, IDS, "a", content_of(bytes(100_000)))) == (
        "sealed"
    )
    assert_nothing_left(node)


def test_an_aborted_put_leaves_nothing(node: Node) -> None:
    node.ingest.abort(staged_put(node, "a", bytes(100_000)))

    assert_nothing_left(node)


def test_a_put_of_a_superseded_save_is_refused_before_it_takes_room(node: Node) -> None:
    node.put(IDS, "a", b"old")
    node.put(SaveIds("run", 1, "newer"), "a", b"new")
    used = node.store.space.used_bytes

    assert code_of(lambda: node.ingest.begin(IDS, "b", 500_000, 0.0)) == "save_superseded"
    assert node.store.space.used_bytes == used


def test_an_inline_shard_is_checked_before_it_is_promised(node: Node) -> None:
    ingest = node.ingest
    too_large = bytes(INLINE_BYTES + 1)

    assert code_of(lambda: ingest.begin_inline(IDS, "a", b"x", 1, 0.0)) == "digest_mismatch"
    assert code_of(lambda: ingest.begin_inline(IDS, "a", too_large, digest_of(too_large), 0.0)) == (
        "invalid_request"
    )
    assert_nothing_left(node)


def test_the_same_bytes_again_take_no_room_twice(node: Node) -> None:
    first = [node.put(IDS, "a", bytes(100_000)), node.put(IDS, "b", b"small")]

    assert [node.put(IDS, "a", bytes(100_000)), node.put(IDS, "b", b"small")] == first
    assert node.store.space.used_bytes == 100_005
    assert len(list(node.store.files.all())) == 1


def test_a_replaced_shard_gives_its_room_back(node: Node) -> None:
    node.put(IDS, "a", bytes(100_000))
    node.put(IDS, "a", bytes(200_000))
    node.put(IDS, "a", b"small")

    assert node.store.space.used_bytes == 5
    assert list(node.store.files.all()) == []


# --- room ---------------------------------------------------------------------------------------


def with_policy(node: Node, when_full: WhenFull, **how: object) -> NodeIngest:
    return NodeIngest(node.store, when_full=when_full, make_room=lambda: None, **how)  # type: ignore[arg-type]


@pytest.mark.parametrize("when_full", list(WhenFull))
def test_a_full_store_says_when_to_call_again(node: Node, when_full: WhenFull) -> None:
    ingest = with_policy(node, when_full)

    with pytest.raises(BackpressureError) as refusal:
        ingest.begin(IDS, "a", CAPACITY_BYTES + 1, 0.0)

    assert refusal.value.http_status == 507
    assert refusal.value.retry_after_seconds
    assert_nothing_left(node)


def test_clean_shards_make_room_for_a_put(node: Node) -> None:
    node.put(IDS, "a", bytes(600_000))
    node.drain.drain_all()

    node.put(IDS, "b", bytes(700_000))

    assert node.store.space.used_bytes == 700_000
    assert node.get("run", 1, "b") == bytes(700_000)


def test_dirty_shards_never_make_room(node: Node) -> None:
    node.put(IDS, "a", bytes(600_000))

    assert code_of(lambda: node.put(IDS, "b", bytes(700_000))) == "backpressure"
    assert node.get("run", 1, "a") == bytes(600_000)


def test_a_shard_of_unknown_length_grows_by_steps_and_pays_for_what_it_keeps(node: Node) -> None:
    node.store.space.capacity_bytes = 2 * GROWTH_BYTES
    staged = node.ingest.begin(IDS, "a", None, 0.0)
    assert isinstance(staged, Staged)
    assert staged.reserved_bytes == GROWTH_BYTES

    assert node.ingest.extend(staged, GROWTH_BYTES + 5_000, 0.0) == GROWTH_BYTES + 5_000
    assert code_of(lambda: node.ingest.extend(staged, 3 * GROWTH_BYTES, 0.0)) == "backpressure"
    assert code_of(lambda: node.ingest.extend(staged, 5, 0.0)) == "invalid_request"
    assert code_of(lambda: node.ingest.extend(staged, SHARD_LIMIT_BYTES + 1, 0.0)) == (
        "invalid_request"
    )
    write(staged, bytes(100_000))
    node.ingest.commit(staged, IDS, "a", content_of(bytes(100_000)))

    assert node.store.space.used_bytes == 100_000


class FakeRemoteStage:
    """Takes blocks as a write-through does, and remembers how it ended."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.begun_at = 0.0
        self.blocks: list[bytes] = []
        self.aborted = False

    def write(self, block: bytes | bytearray | memoryview) -> None:
        self.blocks.append(bytes(block))

    def commit(self, content: Content, facts: ShardFacts = NO_FACTS) -> Shard:
        store, new = self.node.store, NewShard.at_remote("r", "far", IDS.rank, content, facts)
        return store.write(parts.commit_remote, store.policy, IDS, new, 1.0).shard

    def abort(self) -> None:
        self.aborted = True


def test_write_through_sends_what_has_no_room_straight_to_the_remote(node: Node) -> None:
    stage = FakeRemoteStage(node)
    ingest = with_policy(node, WhenFull.WRITE_THROUGH, open_remote_stage=lambda *_put: stage)
    node.store.space.account(CAPACITY_BYTES)

    assert ingest.begin(IDS, "far", 10, 0.0) is stage
    receipt = ingest.begin_inline(IDS, "far", b"x", digest_of(b"x"), 0.0)()

    assert receipt.level is Level.DURABLE
    assert stage.blocks == [b"x"]
    node.store.space.release(CAPACITY_BYTES)


def test_write_through_uses_the_disk_while_there_is_room(node: Node) -> None:
    ingest = with_policy(node, WhenFull.WRITE_THROUGH, open_remote_stage=lambda *_put: None)

    staged = ingest.begin(IDS, "a", 10, 0.0)

    assert isinstance(staged, Staged)
    ingest.abort(staged)


def test_a_wrong_description_of_a_streamed_shard_is_taken_back_from_the_remote(
    node: Node,
) -> None:
    stage = FakeRemoteStage(node)

    assert code_of(lambda: node.ingest.commit(stage, IDS, "far", Content(1, 1, (2,)))) == (
        "digest_mismatch"
    )
    assert stage.aborted


def test_whoever_wants_to_hear_of_a_commit_does(node: Node) -> None:
    heard: list[int] = []
    ingest = with_policy(node, WhenFull.REJECT, on_committed=lambda: heard.append(len(node.rows())))

    ingest.begin_inline(IDS, "a", b"x", digest_of(b"x"), 0.0)()

    assert heard == [1]


def test_a_small_put_that_may_not_wait_is_kept_at_once_or_reserves_nothing(node: Node) -> None:
    body = bytes(100)
    node.ingest.begin_inline(IDS, "a", body, digest_of(body), None)()
    assert node.get("run", 1, "a") == body
    node.put(IDS, "the-rest", bytes(node.store.space.capacity_bytes - 150))
    used_bytes = node.store.space.used_bytes

    with pytest.raises(MustWaitError):
        node.ingest.begin_inline(IDS, "b", body, digest_of(body), None)

    assert node.store.space.used_bytes == used_bytes
