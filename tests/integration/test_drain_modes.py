"""The drain with ``planes`` and ``auto``, with rules and labels, and back; stopped in between."""

from __future__ import annotations

from pathlib import Path

import pytest
from cachetier_client.bucket_format.documents import ShardSummary
from cachetier_client.bucket_format.stored import Codec
from cachetier_client.bucket_format.uploads import CODEC_KEY, ELEMENT_SIZE_KEY, ObjectInfo
from cachetier_client.identity.names import SaveIds
from cachetier_client.io.digests import digest_of

from cachetier.codec import planes
from cachetier.errors import IntegrityError
from tests.fakes.bodies import compressible, noise
from tests.fakes.faulty_store import FaultyObjectStore, fail
from tests.integration.compressing import (
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
LARGE = 50_000_008  # 12 frames, in three parts
SMALL = 3_000_000


@pytest.fixture(scope="module")
def numbers() -> bytes:
    """Elements of four bytes, like weights: two of noise, two that hardly differ."""
    data = bytearray(LARGE)
    for place in range(4):
        made = noise if place < 2 else compressible
        data[place::4] = made(LARGE // 4, place)
    return bytes(data)


def found(node: Node, name: str) -> ObjectInfo:
    info = node.bucket.objects.head(node.key(IDS, name))
    assert info is not None
    return info


def summary(node: Node, name: str) -> ShardSummary:
    manifest = node.bucket.published("run", 7)
    assert manifest is not None
    return next(shard for shard in manifest.shards if shard.name == name)


def joined(body: bytes, element_size: int) -> bytes:
    """Undo planes by hand: each block of 4 MiB apart."""
    block = 4 << 20
    return b"".join(
        planes.join(body[at : at + block], element_size) for at in range(0, len(body), block)
    )


def test_planes_are_marked_everywhere_and_any_node_restores_them(
    node: Node, objects: FaultyObjectStore, tmp_path: Path, numbers: bytes
) -> None:
    shards = {"large": numbers, "small": numbers[:SMALL], "untyped": numbers[:SMALL]}
    for name, data in shards.items():
        node.put(IDS, name, data, element_size=0 if name == "untyped" else 4)
    node.seal(IDS)
    with node.draining(SIZE, compression="planes:1"):
        node.wait_durable(IDS)

    for name in ("large", "small"):
        info = found(node, name)
        assert info.metadata[CODEC_KEY] == "zstd-planes-1"
        assert info.metadata[ELEMENT_SIZE_KEY] == "4"
        assert info.encoding is None
        listed = summary(node, name)
        assert (listed.codec, listed.element_size) == (Codec.PLANES, 4)
        assert joined(decoded(objects.get(info.key)), 4) == shards[name]
    assert found(node, "large").size_bytes < 0.87 * LARGE
    assert found(node, "untyped").metadata[CODEC_KEY] == "zstd"
    assert node.state()["codecs"]["zstd-planes-1"]["shards"] == 2
    with clean_node(tmp_path / "another", objects) as restore:
        assert {name: restored(restore, IDS, name) for name in shards} == shards


def test_plain_zstd_says_so_to_everybody_and_raw_bytes_say_nothing(
    node: Node, numbers: bytes
) -> None:
    shards = {"large": numbers, "small": numbers[:SMALL], "noise": noise(SMALL)}
    for name, data in shards.items():
        node.put(IDS, name, data)
    node.seal(IDS)
    with node.draining(SIZE, compression="zstd:1"):
        node.wait_durable(IDS)

    encodings = {name: found(node, name).encoding for name in shards}
    assert encodings == {"large": "zstd", "small": "zstd", "noise": None}


def test_auto_keeps_noise_raw_compresses_the_rest_and_says_why(
    node: Node, objects: FaultyObjectStore, tmp_path: Path
) -> None:
    shards = {
        "small": compressible(SMALL),
        "large": compressible(LARGE),
        "noise": noise(20 << 20),
    }
    for name, data in shards.items():
        node.put(IDS, name, data, element_size=4)
    node.seal(IDS)
    with node.draining(SIZE, compression="auto"):
        node.wait_durable(IDS)
        node.wait_until(lambda: node.state()["compression"]["blocks"]["stored"] > 0)

    codecs = {name: found(node, name).metadata.get(CODEC_KEY) for name in shards}
    assert codecs == {"small": "zstd", "large": "zstd", "noise": None}
    for name, data in shards.items():
        body = objects.get(node.key(IDS, name))
        assert (decoded(body) if codecs[name] else body) == data
    told = node.state()["compression"]["runs"]["run"]
    assert told["why"]
    assert 0 < told["ratio"] < 2
    with clean_node(tmp_path / "another", objects) as restore:
        assert {name: restored(restore, IDS, name) for name in shards} == shards


def test_rules_choose_by_run_and_name(node: Node) -> None:
    other = SaveIds("other", 7, "save-1")
    for ids, name in ((IDS, "optimizer"), (IDS, "model"), (other, "model")):
        node.put(ids, name, compressible(SMALL), element_size=2)
    rules = [("*/optim*", "planes:1"), ("run", "zstd:1")]
    with node.draining(SIZE, compression="off", rules=rules):
        for ids in (IDS, other):
            node.seal(ids)
            node.wait_durable(ids)

    kept = {
        (ids.run, name): stored(node, ids, name)
        for ids, name in ((IDS, "optimizer"), (IDS, "model"), (other, "model"))
    }
    assert {key: value.codec for key, value in kept.items() if value is not None} == {
        ("run", "optimizer"): Codec.PLANES,
        ("run", "model"): Codec.ZSTD,
        ("other", "model"): Codec.RAW,
    }


# --- stopped in between -------------------------------------------------------------------------


@pytest.mark.parametrize("began", ["planes:1", "auto", "zstd:1"])
@pytest.mark.parametrize("goes_on", ["off", "auto", "zstd:9", "planes:3"])
def test_an_upload_keeps_its_codec_whatever_the_setting_becomes(
    node: Node, objects: FaultyObjectStore, numbers: bytes, began: str, goes_on: str
) -> None:
    objects.add(fail("upload_part", 3))
    node.put(IDS, "large", numbers, element_size=4)
    node.seal(IDS)
    with node.draining(SIZE, compression=began, abruptly=True):
        node.wait_until(lambda: bool(objects.fired))
    with node.draining(SIZE, compression=goes_on):
        node.wait_durable(IDS)

    assert objects.calls["create_upload"] == 1
    info = found(node, "large")
    body = decoded(objects.get(info.key))
    is_planes = began.startswith("planes")
    assert info.metadata[CODEC_KEY] == ("zstd-planes-1" if is_planes else "zstd")
    assert (joined(body, 4) if is_planes else body) == numbers
    kept = stored(node, IDS, "large")
    assert kept is not None
    assert (kept.size_bytes, kept.digest) == (info.size_bytes, info.digest)
    assert kept.element_size == (4 if is_planes else 0)


def test_sound_planes_that_nobody_here_recorded_are_taken_as_they_are(
    node: Node, objects: FaultyObjectStore, tmp_path: Path, numbers: bytes
) -> None:
    other = Node(tmp_path / "another", objects)
    other.put(IDS, "large", numbers, element_size=4)
    other.hurry("run", 7)
    with other.draining(SIZE, compression="planes:1"):
        other.wait_clean(IDS, "large")
    before = found(other, "large")

    node.put(IDS, "large", numbers)
    node.seal(IDS)
    with node.draining(SIZE, compression="zstd:1"):
        node.wait_durable(IDS)

    assert found(node, "large") == before
    assert stored(node, IDS, "large") == stored(other, IDS, "large")
    other.close()


# --- a bucket that lies -------------------------------------------------------------------------


def forged(objects: FaultyObjectStore, key: str, old: bytes, new: bytes) -> None:
    """Change a document in the bucket, as somebody with the right to write could."""
    body = objects.get(key)
    assert old in body
    changed = body.replace(old, new)
    objects.put(key, changed, digest=digest_of(changed))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b'"element_size":4', b'"element_size":8'),
        (b'"element_size":4', b'"element_size":3'),
        (b'"element_size":4', b'"element_size":4000000000'),
        (b'"codec":"zstd-planes-1"', b'"codec":"zstd"'),
        (b'"codec":"zstd-planes-1"', b'"codec":"raw"'),
        (b'"codec":"zstd-planes-1"', b'"codec":"zstd-planes-2"'),
        (b'"size_bytes":3000000', b'"size_bytes":3000001'),
        (b'"size_bytes":3000000', b'"size_bytes":600000000000'),
        (b'"block_digests":"', b'"block_digests":"0123456789abcdef'),
    ],
)
def test_documents_that_lie_about_a_shard_are_an_error_and_never_data(
    node: Node, objects: FaultyObjectStore, tmp_path: Path, numbers: bytes, old: bytes, new: bytes
) -> None:
    node.put(IDS, "small", numbers[:SMALL], element_size=4)
    node.seal(IDS)
    with node.draining(SIZE, compression="planes:1"):
        node.wait_durable(IDS)
    part_key = "ckpt/run/7/.cachetier/rank-0.json"
    before = objects.get(part_key)
    forged(objects, part_key, old, new)
    after = objects.get(part_key)
    manifest_key = "ckpt/run/7/.cachetier/manifest.json"  # it pins the part: it has to lie, too
    forged(
        objects,
        manifest_key,
        f"{digest_of(before):016x}".encode(),
        f"{digest_of(after):016x}".encode(),
    )

    with clean_node(tmp_path / "another", objects) as restore, pytest.raises(IntegrityError):
        restore.open("run", 7, "small", 5.0)
