"""Local bytes that went bad are found before they are sent, quarantined and told."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from cachetier_client.bucket_format.uploads import SMALL_PART_BYTES
from cachetier_client.identity.names import SaveIds

from cachetier.errors import IntegrityError, RemoteDigestError
from cachetier.model.lifecycle import ShardState
from tests.fakes.faulty_store import FaultyObjectStore, fail
from tests.integration.drain_node import Node, patterned
from tests.integration.faulty_node import node, objects

__all__ = ["node", "objects"]  # fixtures

IDS = SaveIds("run", 7, "save-1")
LARGE = 20 << 20  # in three parts


def data_file(node: Node, name: str) -> Path:
    shard = node.shard(IDS, name)
    assert shard is not None
    assert shard.file_id is not None
    return node.cache_dir / "data" / shard.file_id[:2] / shard.file_id


def damage(path: Path, at: int) -> None:
    descriptor = os.open(path, os.O_RDWR)
    byte = os.pread(descriptor, 1, at)
    os.pwrite(descriptor, bytes([byte[0] ^ 1]), at)
    os.close(descriptor)


def test_damaged_local_bytes_are_quarantined_and_never_sent(
    node: Node, objects: FaultyObjectStore
) -> None:
    node.put(IDS, "sound", b"hello")
    node.put(IDS, "large", patterned(LARGE))
    damage(data_file(node, "large"), LARGE - 1)
    node.seal(IDS)

    with node.draining():
        node.wait_until(lambda: node.seen.damaged == ["large"])
        node.wait_clean(IDS, "sound")
        with pytest.raises(IntegrityError):
            node.wait_durable(IDS)

    shard = node.shard(IDS, "large")
    assert shard is not None
    assert shard.state is ShardState.QUARANTINED
    assert objects.head(node.key(IDS, "large")) is None
    assert [(i.code, i.name) for i in node.told()] == [("integrity", "large")]
    assert node.checkpoints.step("run", 7)[0].state == "damaged"
    assert node.bucket.published("run", 7) is None


def test_bytes_that_the_store_refuses_are_read_again_and_sent_only_if_they_are_sound(
    node: Node, objects: FaultyObjectStore
) -> None:
    node.put(IDS, "large", patterned(LARGE))
    objects.add(fail("upload_part", 3, RemoteDigestError))
    original, accepted = objects.upload_part, []

    def upload_part(*arguments: object, **options: object) -> object:
        try:
            part = original(*arguments, **options)  # type: ignore[arg-type]
            accepted.append(part)
            return part
        except RemoteDigestError:
            node.wait_until(lambda: len(accepted) == 2)  # they are read while this one is refused
            damage(data_file(node, "large"), 0)  # all parts, so whichever it was
            damage(data_file(node, "large"), SMALL_PART_BYTES)
            damage(data_file(node, "large"), 2 * SMALL_PART_BYTES)
            raise

    objects.upload_part = upload_part  # type: ignore[method-assign,assignment]
    node.seal(IDS)
    with node.draining():
        node.wait_until(lambda: node.seen.damaged == ["large"])

    assert not objects.pending
    assert len(accepted) == 2  # what was sent again broke off before its end
    assert objects.head(node.key(IDS, "large")) is None
    assert [(i.code, i.name) for i in node.told()] == [("integrity", "large")]


def test_a_lost_data_file_is_quarantined(node: Node) -> None:
    node.put(IDS, "large", patterned(1 << 20))
    data_file(node, "large").unlink()
    node.seal(IDS)

    with node.draining():
        node.wait_until(lambda: node.seen.damaged == ["large"])
