"""Unchanged bytes are copied inside the bucket: over a real store, and a store in memory."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from cachetier_client.bucket_format.stored import Codec
from cachetier_client.bucket_format.uploads import MINIMUM_PART_BYTES
from cachetier_client.io.digests import BLOCK_BYTES, digest_of

from cachetier.drain.messages import Size
from cachetier.errors import CopiesRefusedError, SourceChangedError
from tests.fakes.bodies import compressible, noise
from tests.fakes.faulty_store import corrupt, fail, lose_reply
from tests.fakes.memory_store import MemoryObjectStore
from tests.integration.changing import (
    CHANGED,
    FIRST,
    NAME,
    SECOND,
    SIZE_BYTES,
    CountingStore,
    changed,
    new,
    old,
    put_step,
)
from tests.integration.compressing import clean_node, decoded, restored, stored
from tests.integration.drain_node import Node
from tests.integration.faulty_node import node

__all__ = ["node"]  # a fixture

SIZE = Size(uploads=4, parts=4)
SEVEN_BITS = bytes(number & 127 for number in range(256))


@pytest.fixture
def objects() -> CountingStore:
    return CountingStore(MemoryObjectStore())


def drain_first(node: Node, data: bytes | None = None, compression: str = "off") -> None:
    put_step(node, FIRST, old() if data is None else data)
    with node.draining(SIZE, compression=compression):
        node.wait_durable(FIRST)
    store = node.bucket.objects
    assert isinstance(store, CountingStore)
    store.forget()


def drain_second(node: Node, data: bytes | None = None, compression: str = "off") -> None:
    put_step(node, SECOND, new() if data is None else data)
    with node.draining(SIZE, compression=compression):
        node.wait_durable(SECOND)
        node.wait_until(lambda: node.queue.in_flight() == [])


def second_as_it_is(node: Node, compression: str) -> bytes:
    """Return the second step's shard as it lies in the bucket, decoded if it is compressed."""
    body = node.bucket.objects.get(node.key(SECOND, NAME))
    return decoded(body) if compression != "off" else body


def test_of_a_step_with_a_tenth_of_its_blocks_changed_at_most_15_percent_are_sent(
    node: Node, objects: CountingStore
) -> None:
    before = noise(20 * BLOCK_BYTES)
    after = changed(before, (4, 13))
    drain_first(node, before)
    put_step(node, SECOND, after)
    with node.draining(SIZE):
        node.wait_durable(SECOND)
        node.wait_until(lambda: node.state()["copied_bytes"] == objects.copied_bytes)

    assert objects.get(node.key(SECOND, NAME)) == after
    assert objects.sent_bytes <= 0.15 * len(after)
    assert objects.copied_bytes >= 0.85 * len(after)
    assert node.state()["remotes"][0]["copies"] == "on"
    assert node.state()["copied_bytes"] == objects.copied_bytes


def test_a_composed_object_outlives_its_donor_and_is_restored_elsewhere(
    node: Node, objects: CountingStore, tmp_path: Path
) -> None:
    drain_first(node)
    drain_second(node)
    node.checkpoints.delete_step(FIRST.run, FIRST.step)
    with node.draining(SIZE):
        node.wait_until(lambda: objects.head(node.key(FIRST, NAME)) is None)

    with clean_node(tmp_path / "another", objects) as restore:
        assert restored(restore, SECOND, NAME) == new()


def test_frames_of_unchanged_blocks_are_copied_and_any_tool_decodes_the_object(
    node: Node, objects: CountingStore
) -> None:
    before = compressible(SIZE_BYTES)
    after = changed(before)
    drain_first(node, before, "zstd:1")
    drain_second(node, after, "zstd:1")

    body = objects.get(node.key(SECOND, NAME))
    assert decoded(body) == after
    there = stored(node, SECOND, NAME)
    assert there is not None
    assert (there.codec, there.size_bytes, there.digest) == (
        *(Codec.ZSTD, len(body)),
        digest_of(body),
    )
    assert objects.copied_bytes + objects.sent_bytes >= len(body)


def test_of_an_unchanged_frame_only_what_a_part_lacks_is_sent(
    node: Node, objects: CountingStore
) -> None:
    before = noise(20 * BLOCK_BYTES).translate(SEVEN_BITS)  # zstd makes 0.88 of them
    after = changed(before, (4, 13))
    drain_first(node, before, "zstd:1")
    drain_second(node, after, "zstd:1")

    assert decoded(objects.get(node.key(SECOND, NAME))) == after
    assert objects.sent_bytes <= 2 * MINIMUM_PART_BYTES + 65536  # and what publishes the step
    assert objects.sent_bytes <= 0.15 * len(after)


def test_an_upload_that_ends_within_a_frame_goes_on_before_it(
    node: Node, objects: CountingStore
) -> None:
    before = old().translate(SEVEN_BITS)
    after = changed(before)
    drain_first(node, before, "zstd:1")
    objects.add(fail("copy_part", 2, SourceChangedError))  # behind a frame that was cut
    drain_second(node, after, "zstd:1")

    assert len(objects.fired) == 1
    assert objects.calls["create_upload"] == 1
    assert decoded(objects.get(node.key(SECOND, NAME))) == after


@pytest.mark.parametrize("compression", ["off", "zstd:1"])
def test_a_step_that_is_all_unchanged_is_copied_whole(
    node: Node, objects: CountingStore, compression: str
) -> None:
    before = compressible(SIZE_BYTES)
    drain_first(node, before, compression)
    drain_second(node, before, compression)

    assert objects.calls["copy_part"] == 1
    assert objects.calls["upload_part"] == 0
    assert objects.get(node.key(SECOND, NAME)) == objects.get(node.key(FIRST, NAME))
    assert stored(node, SECOND, NAME) == stored(node, FIRST, NAME)


def test_another_size_copies_what_it_has_in_common(node: Node, objects: CountingStore) -> None:
    longer = old() + noise(BLOCK_BYTES + 17, seed=9)
    drain_first(node)
    drain_second(node, longer)

    assert objects.get(node.key(SECOND, NAME)) == longer
    assert objects.sent_bytes < 3 * BLOCK_BYTES


def test_frames_of_a_shard_that_has_grown_are_copied(node: Node, objects: CountingStore) -> None:
    before = compressible(SIZE_BYTES)
    longer = before + compressible(3 * BLOCK_BYTES + 17, seed=9)
    drain_first(node, before, "zstd:1")
    drain_second(node, longer, "zstd:1")

    assert decoded(objects.get(node.key(SECOND, NAME))) == longer
    assert objects.sent_bytes < 3 * BLOCK_BYTES < objects.copied_bytes


def test_a_store_that_keeps_no_digests_is_read_back(tmp_path: Path) -> None:
    objects = CountingStore(MemoryObjectStore(keeps_digests=False))
    node = Node(tmp_path / "cache", objects)
    drain_first(node)
    drain_second(node)
    node.close()

    assert objects.copied_bytes == SIZE_BYTES - len(CHANGED) * MINIMUM_PART_BYTES
    assert objects.calls["read_into"] >= SIZE_BYTES // (16 << 20)
    assert objects.get(node.key(SECOND, NAME)) == new()


# --- what may go wrong -----------------------------------------------------------------------


@pytest.mark.parametrize("compression", ["off", "zstd:1"])
@pytest.mark.parametrize("call", [1, 2])
@pytest.mark.parametrize("error", [SourceChangedError, CopiesRefusedError])
def test_what_cannot_be_copied_is_sent_in_the_same_upload(
    node: Node, objects: CountingStore, error: type, call: int, compression: str
) -> None:
    before = compressible(SIZE_BYTES)
    after = changed(before)
    drain_first(node, before, compression)
    objects.add(fail("copy_part", call, error))
    drain_second(node, after, compression)

    assert [fault.operation for fault in objects.fired] == ["copy_part"]
    assert objects.calls["create_upload"] == 1
    assert (
        decoded(objects.get(node.key(SECOND, NAME))) == after
        if compression != "off"
        else (objects.get(node.key(SECOND, NAME)) == after)
    )
    assert node.state()["failures"] == 0


def test_a_store_that_refuses_to_copy_is_not_asked_again(
    node: Node, objects: CountingStore
) -> None:
    drain_first(node)
    objects.add(fail("copy_part", 1, CopiesRefusedError))
    put_step(node, SECOND, new())
    with node.draining(SIZE):
        node.wait_durable(SECOND)
        assert len(objects.fired) == 1
        asked = objects.calls["copy_part"]
        third = replace(SECOND, step=3, save_id="save-3")
        put_step(node, third, changed(new(), (7,)))
        node.wait_durable(third)
        node.wait_until(lambda: node.state()["remotes"][0]["copies"] == "refused")

    assert objects.calls["copy_part"] == asked
    assert objects.get(node.key(third, NAME)) == changed(new(), (7,))


def test_a_donor_that_is_another_object_by_now_gives_nothing(
    node: Node, objects: CountingStore
) -> None:
    drain_first(node)
    foreign = noise(SIZE_BYTES, seed=5)
    metadata = objects.head(node.key(FIRST, NAME)).metadata  # type: ignore[union-attr]
    objects.put(node.key(FIRST, NAME), foreign, digest=digest_of(foreign), metadata=metadata)
    objects.forget()
    drain_second(node)

    assert objects.calls["copy_part"] == 0
    assert objects.get(node.key(SECOND, NAME)) == new()


def test_a_donor_with_other_bytes_that_nobody_judges_is_found_out_by_reading_back(
    tmp_path: Path,
) -> None:
    objects = CountingStore(MemoryObjectStore(keeps_digests=False))
    node = Node(tmp_path / "cache", objects)
    drain_first(node)
    foreign = noise(SIZE_BYTES, seed=5)
    metadata = objects.head(node.key(FIRST, NAME)).metadata  # type: ignore[union-attr]
    objects.put(node.key(FIRST, NAME), foreign, digest=digest_of(foreign), metadata=metadata)
    objects.forget()
    drain_second(node)
    node.close()

    assert objects.copied_bytes > 0
    assert objects.get(node.key(SECOND, NAME)) == new()


def test_a_donor_that_is_gone_gives_nothing(node: Node, objects: CountingStore) -> None:
    drain_first(node)
    objects.delete(node.key(FIRST, NAME))
    drain_second(node)

    assert objects.calls["copy_part"] == 0
    assert objects.get(node.key(SECOND, NAME)) == new()


@pytest.mark.parametrize(
    "fault", [lose_reply("copy_part", 2), corrupt("upload_part", 1), lose_reply("complete_upload")]
)
def test_lost_replies_and_flipped_bits_are_mended(
    node: Node, objects: CountingStore, fault: object
) -> None:
    drain_first(node)
    objects.add(fault)  # type: ignore[arg-type]
    drain_second(node)

    assert objects.fired == [fault]
    assert objects.get(node.key(SECOND, NAME)) == new()


@pytest.mark.parametrize("compression", ["off", "zstd:1"])
def test_an_upload_cut_off_in_mid_compose_goes_on_with_what_is_there(
    node: Node, objects: CountingStore, compression: str
) -> None:
    before = compressible(SIZE_BYTES)
    after = changed(before)
    drain_first(node, before, compression)
    objects.add(fail("complete_upload", 1))
    put_step(node, SECOND, after)
    with node.draining(SIZE, compression=compression, abruptly=True):
        node.wait_until(lambda: bool(objects.fired))
    brought = objects.calls["copy_part"], objects.calls["upload_part"]
    with node.draining(SIZE, compression=compression):
        node.wait_durable(SECOND)

    assert (objects.calls["copy_part"], objects.calls["upload_part"]) == brought
    assert objects.calls["create_upload"] == 1
    assert second_as_it_is(node, compression) == after


@pytest.mark.parametrize("compression", ["off", "zstd:1"])
def test_an_upload_whose_donor_went_while_nobody_looked_is_sent_behind_what_is_there(
    node: Node, objects: CountingStore, compression: str
) -> None:
    before = compressible(SIZE_BYTES)
    after = changed(before)
    drain_first(node, before, compression)
    objects.add(fail("upload_part", 1))  # the first part, a copied one, stays
    put_step(node, SECOND, after)
    with node.draining(Size(uploads=1, parts=1), compression=compression, abruptly=True):
        node.wait_until(lambda: bool(objects.fired))
    objects.delete(node.key(FIRST, NAME))
    copied = objects.calls["copy_part"]
    with node.draining(SIZE, compression=compression):
        node.wait_durable(SECOND)

    assert copied >= 1
    assert objects.calls["copy_part"] == copied
    assert objects.calls["create_upload"] == 1
    assert objects.sent_bytes < SIZE_BYTES  # the first run was not sent
    assert second_as_it_is(node, compression) == after


# --- twins -----------------------------------------------------------------------------------


@pytest.mark.parametrize("compression", ["off", "zstd:1"])
def test_the_same_bytes_of_four_ranks_are_sent_once(
    node: Node, objects: CountingStore, compression: str
) -> None:
    body = compressible(SIZE_BYTES)
    ranks = [replace(FIRST, rank=rank, world_size=4) for rank in range(4)]
    for ids in ranks:
        node.put(ids, f"{NAME}-{ids.rank}", body)
    for ids in ranks:
        node.seal(ids)
    with node.draining(Size(uploads=8, parts=4), compression=compression):
        node.wait_durable(FIRST)

    there = [objects.get(node.key(FIRST, f"{NAME}-{rank}")) for rank in range(4)]
    assert len(set(there)) == 1
    assert (decoded(there[0]) if compression != "off" else there[0]) == body
    assert objects.sent_bytes < 1.01 * len(there[0]) + 65536  # and what publishes the step
    assert objects.copied_bytes == 3 * len(there[0])


def test_twins_of_one_that_cannot_be_sent_do_not_wait_for_it(
    node: Node, objects: CountingStore
) -> None:
    names = [f"{NAME}-{number}" for number in range(3)]
    for name in names:
        node.put(FIRST, name, old())
    node.seal(FIRST)
    foreign = node.key(FIRST, names[0])
    objects.put(foreign, b"somebody's", digest=digest_of(b"somebody's"))
    with node.draining(SIZE):
        node.wait_clean(FIRST, names[1])
        node.wait_clean(FIRST, names[2])
        assert node.seen.codes[0] == "conflict"

    assert objects.get(foreign) == b"somebody's"
    assert objects.copied_bytes == SIZE_BYTES


def test_with_the_setting_off_everything_is_sent(node: Node, objects: CountingStore) -> None:
    drain_first(node)
    put_step(node, SECOND, new())
    with node.draining(Size(uploads=4, parts=4, block_copies=False)):
        node.wait_durable(SECOND)
        node.wait_until(lambda: node.state()["remotes"][0]["copies"] == "off")

    assert objects.calls["copy_part"] == 0
    assert objects.sent_bytes >= SIZE_BYTES
