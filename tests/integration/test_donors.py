"""Which object ``serve`` names as a donor: verified at this remote, whole, and the nearest kin."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from cachetier_client.bucket_format.stored import Codec, InPack, Stored
from cachetier_client.identity.names import SaveIds

from cachetier.drain.serve.remote_state import RemoteState
from cachetier.drain.serve.service import DrainService
from cachetier.drain.upload.server_copies import Offer
from cachetier.local.catalog import copies
from tests.fakes.bodies import compressible
from tests.fakes.memory_store import MemoryObjectStore
from tests.integration.drain_node import NO_ORDERS, REMOTE, Node, patterned

FIRST = SaveIds("run", 1, "save-1")
SECOND = SaveIds("run", 2, "save-2")
THIRD = SaveIds("run", 3, "save-3")
SIZE_BYTES = 200_000
OLD, NEW = patterned(SIZE_BYTES), patterned(SIZE_BYTES, seed=5)


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    node = Node(tmp_path / "cache", MemoryObjectStore())
    yield node
    node.close()


def offered(node: Node, ids: SaveIds, name: str, remote: str = REMOTE) -> Offer | None:
    shard = node.store.read(
        lambda sql: sql.execute(
            "SELECT version FROM shards JOIN saves ON number = save WHERE save_id = ? AND name = ?",
            (ids.save_id, name),
        ).fetchone()
    )
    assert shard is not None
    context = replace(node.context, remote_state=RemoteState(node.store, remote))
    donor = DrainService(context, NO_ORDERS).find_donor(shard[0])
    return Offer.of(*donor, node.bucket.layout) if donor is not None else None


def put_durable(node: Node, ids: SaveIds, name: str, data: bytes, compression: str = "off") -> None:
    node.put(ids, name, data)
    node.seal(ids)
    with node.draining(compression=compression):
        node.wait_durable(ids)


def test_the_first_shard_of_its_kind_has_no_donor(node: Node) -> None:
    node.put(FIRST, "weights", OLD)
    assert offered(node, FIRST, "weights") is None


def test_the_shard_of_the_same_name_in_the_save_before_is_named(node: Node) -> None:
    put_durable(node, FIRST, "weights", OLD)
    node.put(SECOND, "weights", NEW)

    offer = offered(node, SECOND, "weights")

    shard = node.shard(FIRST, "weights")
    assert shard is not None
    expected = node.key(FIRST, "weights"), "save-1", shard.content, Stored.raw(shard.content)
    assert offer == Offer(*expected)


def test_of_several_saves_the_newest_is_named(node: Node) -> None:
    put_durable(node, FIRST, "weights", OLD)
    put_durable(node, SECOND, "weights", NEW)
    node.put(THIRD, "weights", OLD)

    offer = offered(node, THIRD, "weights")
    assert offer is not None
    assert offer.save_id == "save-2"


def test_what_is_not_verified_yet_is_not_named(node: Node) -> None:
    node.put(FIRST, "weights", OLD)
    node.put(SECOND, "weights", NEW)
    assert offered(node, SECOND, "weights") is None


def test_what_another_remote_has_is_not_named(node: Node) -> None:
    put_durable(node, FIRST, "weights", OLD)
    node.put(SECOND, "weights", NEW)
    assert offered(node, SECOND, "weights", remote="elsewhere") is None
    assert offered(node, SECOND, "weights") is not None


def test_a_shard_in_a_pack_is_not_named(node: Node) -> None:
    put_durable(node, FIRST, "weights", OLD)
    shard = node.shard(FIRST, "weights")
    assert shard is not None
    packed = replace(Stored.raw(shard.content), pack=InPack("pack", 0, SIZE_BYTES, 1))
    node.store.write(copies.record_verified, shard.version, REMOTE, [REMOTE], 1.0, packed)
    node.put(SECOND, "weights", NEW)
    assert offered(node, SECOND, "weights") is None


def test_another_run_and_another_name_are_no_kin(node: Node) -> None:
    put_durable(node, FIRST, "weights", OLD)
    node.put(SaveIds("other", 2, "save-9"), "weights", OLD)
    node.put(SECOND, "moments", OLD)
    assert offered(node, SaveIds("other", 2, "save-9"), "weights") is None
    assert offered(node, SECOND, "moments") is None


def test_a_twin_of_the_same_save_comes_before_an_older_save(node: Node) -> None:
    put_durable(node, FIRST, "weights-1", OLD)
    other = SaveIds("run", 4, "save-4", rank=0, world_size=2)
    node.put(other, "weights-0", NEW)
    node.seal(other)
    with node.draining():
        node.wait_clean(other, "weights-0")
    node.put(replace(other, rank=1), "weights-1", NEW)

    offer = offered(node, other, "weights-1")
    assert offer is not None
    assert (offer.save_id, offer.key) == ("save-4", node.key(other, "weights-0"))


def test_frames_are_named_with_their_sizes_and_digests(node: Node) -> None:
    put_durable(node, FIRST, "weights", compressible(3_000_000), "zstd:1")
    node.put(SECOND, "weights", compressible(3_000_000))

    offer = offered(node, SECOND, "weights")
    assert offer is not None
    assert offer.stored.codec is Codec.ZSTD
    offer.stored.check(3_000_000)
