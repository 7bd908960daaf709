"""The drain with ``compression = zstd``, over a real store and a store in memory, and back."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from cachetier_client.bucket_format.documents import encode
from cachetier_client.bucket_format.stored import Codec
from cachetier_client.bucket_format.uploads import CODEC_KEY
from cachetier_client.identity.names import SaveIds

from cachetier.drain.messages import Size
from cachetier.errors import IntegrityError
from cachetier.model.lifecycle import ShardState
from cachetier.remote.wrapped import Operation
from tests.fakes.bodies import compressible, noise
from tests.fakes.faulty_store import FaultyObjectStore, corrupt, fail, lose_reply
from tests.fakes.memory_store import MemoryObjectStore
from tests.integration.compressing import (
    COMPRESSION,
    SIZE,
    clean_node,
    decoded,
    restored,
    stored,
)
from tests.integration.drain_node import Node
from tests.integration.faulty_node import node, objects

__all__ = ["node", "objects"]  # fixtures

IDS = SaveIds("run", 7, "save-1")
LARGE = 24_000_001  # six frames, in three parts
SMALL = 3_000_000


@pytest.fixture(scope="module")
def large() -> bytes:
    return compressible(LARGE)


def stored_bytes_of(objects: FaultyObjectStore, key: str) -> int:
    info = objects.head(key)
    assert info is not None
    return info.size_bytes


def codec_of(objects: FaultyObjectStore, key: str) -> str:
    info = objects.head(key)
    assert info is not None
    return info.metadata.get(CODEC_KEY, "raw")


def test_what_compresses_is_stored_as_frames_that_any_tool_decodes(
    node: Node, objects: FaultyObjectStore, large: bytes
) -> None:
    node.put(IDS, "large", large)
    node.put(IDS, "middle", large[:SMALL])
    node.seal(IDS)
    with node.draining(SIZE, compression=COMPRESSION):
        node.wait_durable(IDS)

    for name, raw in (("large", large), ("middle", large[:SMALL])):
        body = objects.get(node.key(IDS, name))
        assert len(body) < 0.7 * len(raw)
        assert decoded(body) == raw
        assert codec_of(objects, node.key(IDS, name)) == "zstd"
    assert objects.calls["upload_part"] == 3
    assert node.seen.drained_bytes == LARGE + SMALL
    stored_bytes = sum(
        stored_bytes_of(objects, node.key(IDS, name)) for name in ("large", "middle")
    )
    assert node.state()["codecs"] == {
        "zstd": {"shards": 2, "size_bytes": LARGE + SMALL, "stored_bytes": stored_bytes}
    }


def test_what_is_small_or_does_not_compress_stays_as_it_is(
    node: Node, objects: FaultyObjectStore
) -> None:
    shards = {
        "inline": bytes(60_000),
        "small": bytes(1_000_000),
        "middle": noise(SMALL),
        "large": noise(20 << 20),
        "empty": b"",
    }
    for name, data in shards.items():
        node.put(IDS, name, data)
    node.seal(IDS)
    with node.draining(SIZE, compression=COMPRESSION):
        node.wait_durable(IDS)

    for name, data in shards.items():
        assert objects.get(node.key(IDS, name)) == data
        assert codec_of(objects, node.key(IDS, name)) == "raw"


def test_part_and_manifest_say_how_each_shard_is_stored(
    node: Node, objects: FaultyObjectStore, large: bytes
) -> None:
    node.put(IDS, "large", large)
    node.put(IDS, "inline", b"hello")
    node.seal(IDS)
    with node.draining(SIZE, compression=COMPRESSION):
        node.wait_durable(IDS)

    body = objects.get(node.key(IDS, "large"))
    manifest = node.bucket.published("run", 7)
    assert manifest is not None
    kinds = {shard.name: (shard.codec, shard.stored_bytes) for shard in manifest.shards}
    assert kinds == {"large": (Codec.ZSTD, len(body)), "inline": (Codec.RAW, 5)}
    entry = next(s for s in node.bucket.part("run", "7", 0).shards if s.name == "large")
    info = objects.head(node.key(IDS, "large"))
    assert info is not None
    assert entry.stored() == stored(node, IDS, "large")
    assert entry.stored().digest == info.digest
    assert len(entry.stored().frames) == 6
    assert b"frame_sizes" not in encode(manifest)


def test_a_node_that_never_saw_the_run_restores_every_byte(
    node: Node, objects: FaultyObjectStore, tmp_path: Path, large: bytes
) -> None:
    shards = {"large": large, "middle": large[:SMALL], "raw": noise(20 << 20)}
    for name, data in shards.items():
        node.put(IDS, name, data)
    node.seal(IDS)
    with node.draining(SIZE, compression=COMPRESSION):
        node.wait_durable(IDS)

    with clean_node(tmp_path / "another", objects) as restore:
        assert {name: restored(restore, IDS, name) for name in shards} == shards


@pytest.mark.parametrize(
    ("operation", "call"),
    [
        *(("put", call) for call in (2, 3, 4)),  # shard, part, manifest
        *(("upload_part", call) for call in (1, 2, 3)),
        *(("head", call) for call in (1, 2, 3, 4, 5)),
        ("create_upload", 1),
        ("complete_upload", 1),
    ],
)
def test_lost_replies_cost_nothing(
    node: Node, objects: FaultyObjectStore, large: bytes, operation: Operation, call: int
) -> None:
    objects.add(lose_reply(operation, call))
    node.put(IDS, "middle", large[:SMALL])
    node.put(IDS, "large", large)
    node.seal(IDS)
    with node.draining(SIZE, compression=COMPRESSION):
        node.wait_durable(IDS)
        node.wait_until(lambda: not list(objects.list_uploads("")))

    assert len(objects.fired) == 1
    assert decoded(objects.get(node.key(IDS, "middle"))) == large[:SMALL]
    assert decoded(objects.get(node.key(IDS, "large"))) == large


@pytest.mark.parametrize("keeps_digests", [True, False])
def test_bytes_that_flip_on_the_way_are_sent_again(
    tmp_path: Path, large: bytes, keeps_digests: bool
) -> None:
    plan = [corrupt("put", 2), corrupt("upload_part", 2)]  # the first put is the claim
    objects = FaultyObjectStore(MemoryObjectStore(keeps_digests=keeps_digests), plan)
    node = Node(tmp_path / "cache", objects)
    node.put(IDS, "middle", large[:SMALL])
    node.put(IDS, "large", large)
    node.seal(IDS)
    with node.draining(SIZE, compression=COMPRESSION):
        node.wait_durable(IDS)

    assert not objects.pending
    assert decoded(objects.get(node.key(IDS, "middle"))) == large[:SMALL]
    assert decoded(objects.get(node.key(IDS, "large"))) == large
    assert node.told() == []
    node.close()


def test_damaged_local_bytes_are_quarantined_and_no_frame_of_them_is_sent(
    node: Node, objects: FaultyObjectStore, large: bytes
) -> None:
    node.put(IDS, "large", large)
    shard = node.shard(IDS, "large")
    assert shard is not None
    assert shard.file_id is not None
    descriptor = os.open(node.cache_dir / "data" / shard.file_id[:2] / shard.file_id, os.O_RDWR)
    os.pwrite(descriptor, b"\xff", LARGE - 1)
    os.close(descriptor)
    node.seal(IDS)
    with node.draining(SIZE, compression=COMPRESSION):
        node.wait_until(lambda: node.seen.damaged == ["large"])

    shard = node.shard(IDS, "large")
    assert shard is not None
    assert shard.state is ShardState.QUARANTINED
    assert objects.head(node.key(IDS, "large")) is None


# --- going on, and finding what is there already ------------------------------------------------


def test_an_upload_goes_on_from_its_last_finished_part_with_another_level(
    node: Node, objects: FaultyObjectStore, large: bytes
) -> None:
    objects.add(fail("complete_upload", 1))
    node.put(IDS, "large", large)
    node.seal(IDS)
    with node.draining(SIZE, compression=COMPRESSION, abruptly=True):
        node.wait_until(lambda: bool(objects.fired))
    sent = objects.calls["upload_part"]

    with node.draining(SIZE, compression="zstd:3"):
        node.wait_durable(IDS)

    assert objects.calls["upload_part"] == sent == 3
    assert objects.calls["create_upload"] == 1
    assert decoded(objects.get(node.key(IDS, "large"))) == large


def test_an_upload_with_a_gap_is_packed_again_from_the_gap_on(
    node: Node, objects: FaultyObjectStore, large: bytes
) -> None:
    objects.add(fail("upload_part", 2))
    node.put(IDS, "large", large)
    node.seal(IDS)
    with node.draining(Size(uploads=1, parts=1), compression=COMPRESSION):
        node.wait_durable(IDS)

    assert len(objects.fired) == 1
    assert objects.calls["create_upload"] == 1
    assert decoded(objects.get(node.key(IDS, "large"))) == large


def test_an_upload_of_frames_goes_on_as_frames_once_compression_is_off(
    node: Node, objects: FaultyObjectStore, large: bytes
) -> None:
    objects.add(fail("complete_upload", 1))
    node.put(IDS, "large", large)
    node.seal(IDS)
    with node.draining(SIZE, compression=COMPRESSION, abruptly=True):
        node.wait_until(lambda: bool(objects.fired))
    with node.draining():
        node.wait_durable(IDS)

    assert objects.calls["create_upload"] == 1
    assert decoded(objects.get(node.key(IDS, "large"))) == large


def test_a_raw_upload_stays_raw_once_compression_is_on(
    node: Node, objects: FaultyObjectStore, large: bytes
) -> None:
    objects.add(fail("complete_upload", 1))
    node.put(IDS, "large", large)
    node.seal(IDS)
    with node.draining(abruptly=True):
        node.wait_until(lambda: bool(objects.fired))
    with node.draining(SIZE, compression=COMPRESSION):
        node.wait_durable(IDS)

    assert objects.get(node.key(IDS, "large")) == large
    assert objects.calls["create_upload"] == 1


@pytest.mark.parametrize("compression", ["off", "auto", "zstd:9", "planes:1"])
@pytest.mark.parametrize("size_bytes", [SMALL, LARGE])
def test_a_sound_object_that_another_node_compressed_is_taken_as_it_is(
    node: Node,
    objects: FaultyObjectStore,
    tmp_path: Path,
    large: bytes,
    compression: str,
    size_bytes: int,
) -> None:
    other = Node(tmp_path / "another", objects)
    other.put(IDS, "shard", large[:size_bytes])
    other.hurry("run", 7)
    with other.draining(SIZE, compression=COMPRESSION):
        other.wait_clean(IDS, "shard")
    before = objects.head(other.key(IDS, "shard"))

    node.put(IDS, "shard", large[:size_bytes])
    node.seal(IDS)
    with node.draining(SIZE, compression=compression):
        node.wait_durable(IDS)

    assert before is not None
    assert objects.head(node.key(IDS, "shard")) == before
    assert stored(node, IDS, "shard") == stored(other, IDS, "shard")
    assert decoded(objects.get(node.key(IDS, "shard"))) == large[:size_bytes]
    other.close()


def test_a_damaged_object_of_another_node_is_written_again(
    node: Node, objects: FaultyObjectStore, tmp_path: Path, large: bytes
) -> None:
    other = Node(tmp_path / "another", objects)
    other.put(IDS, "shard", large)
    other.hurry("run", 7)
    with other.draining(SIZE, compression=COMPRESSION):
        other.wait_clean(IDS, "shard")
    key = other.key(IDS, "shard")
    replace_bytes(objects, key, 10_000_000)

    node.put(IDS, "shard", large)
    node.seal(IDS)
    with node.draining(SIZE, compression=COMPRESSION):
        node.wait_durable(IDS)

    assert decoded(objects.get(key)) == large
    other.close()


# --- a bucket that lies -------------------------------------------------------------------------


def replace_bytes(objects: FaultyObjectStore, key: str, at: int) -> None:
    """Put the same object with one byte changed, and a digest that says so."""
    from cachetier_client.io.digests import digest_of

    info = objects.head(key)
    assert info is not None
    body = bytearray(objects.get(key))
    body[at] ^= 1
    objects.put(key, bytes(body), digest=digest_of(body), metadata=info.metadata)


@pytest.mark.parametrize("at", [0, 6, 1_000_000, -1])
def test_a_changed_object_is_an_error_and_never_data(
    node: Node, objects: FaultyObjectStore, tmp_path: Path, large: bytes, at: int
) -> None:
    node.put(IDS, "middle", large[:SMALL])
    node.seal(IDS)
    with node.draining(SIZE, compression=COMPRESSION):
        node.wait_durable(IDS)
    key = node.key(IDS, "middle")
    replace_bytes(objects, key, at)

    with clean_node(tmp_path / "another", objects) as restore:
        if at == -1:  # the seek table is for other tools: we go by the manifest
            assert restored(restore, IDS, "middle") == large[:SMALL]
        else:
            with pytest.raises(IntegrityError, match="damaged"):
                restore.open("run", 7, "middle", 5.0)


def test_an_object_that_was_replaced_before_its_part_was_written_is_sent_again(
    node: Node, objects: FaultyObjectStore, large: bytes
) -> None:
    node.put(IDS, "middle", large[:SMALL])
    node.hurry("run", 7)
    with node.draining(SIZE, compression=COMPRESSION):
        node.wait_clean(IDS, "middle")
        objects.delete(node.key(IDS, "middle"))
        node.seal(IDS)
        node.wait_durable(IDS)

    assert decoded(objects.get(node.key(IDS, "middle"))) == large[:SMALL]
    assert "lost" in node.seen.codes
