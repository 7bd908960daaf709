"""A compressing drain process over real S3 servers: killed in mid-upload, read back elsewhere."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest
import zstandard
from cachetier_client.identity.names import SaveIds
from cachetier_client.io.digests import digest_of
from msgspec.structs import replace

from cachetier.errors import IntegrityError
from cachetier.local.catalog import uploads
from cachetier.model.compression import Rules
from cachetier.testing.s3_endpoint import S3Endpoint
from cachetier.testing.s3proxy import S3Proxy
from tests.fakes.bodies import compressible
from tests.integration.compressing import COMPRESSION, SIZE, clean_node, decoded, restored, stored
from tests.integration.drain_node import REMOTE, Node, shown
from tests.integration.test_drain_process import (
    Gate,
    bucket,
    node_at,
    remote_of,
    server,
    supervised,
)

__all__ = ["bucket", "server"]  # fixtures

IDS = SaveIds("run", 7, "save-1")
LARGE = 35_000_001  # nine frames, in five parts


COMPRESSED: dict[str, Any] = {
    "size": replace(SIZE, parts=2),
    "compression": Rules.parsed(COMPRESSION),
}


def recorded_parts(node: Node) -> list[int]:
    shard = node.shard(IDS, "large")
    assert shard is not None
    progress = node.store.read(lambda sql: uploads.progress_of(sql, shard.version, REMOTE))
    return [part.number for part in progress.parts]


def test_a_killed_drain_goes_on_from_its_finished_parts_and_every_byte_comes_back(
    tmp_path: Path,
    server: S3Endpoint,
    bucket: str,
) -> None:
    large = compressible(LARGE)
    gate = Gate(passing=1)
    with S3Proxy(server.url, troubles=gate) as proxy:
        remote = remote_of(server, bucket, proxy.url)
        with node_at(tmp_path / "cache", remote_of(server, bucket), server) as node:
            node.put(IDS, "large", large)
            node.put(IDS, "middle", large[:3_000_000])
            node.seal(IDS)
            with supervised(node, remote, **COMPRESSED) as supervisor:
                assert gate.holds.wait(30)
                node.wait_until(lambda: recorded_parts(node) == [1])
                first = shown(supervisor)["pid"]
                os.kill(first, signal.SIGKILL)
                node.wait_until(lambda: shown(supervisor)["pid"] not in (first, None))
                gate.open()
                node.wait_durable(IDS, 60)

            assert gate.parts.count(1) == 1
            assert set(gate.parts) == {1, 2, 3, 4, 5}
            objects = node.bucket.objects
            assert decoded(objects.get(node.key(IDS, "large"))) == large
            assert decoded(objects.get(node.key(IDS, "middle"))) == large[:3_000_000]
            kept, info = stored(node, IDS, "large"), objects.head(node.key(IDS, "large"))
            assert kept is not None
            assert info is not None
            assert kept.size_bytes == info.size_bytes
            assert info.digest in (None, kept.digest)
            with clean_node(tmp_path / "another", objects) as restore:
                assert restored(restore, IDS, "large") == large
                assert restored(restore, IDS, "middle") == large[:3_000_000]


def test_zeros_shrink_to_almost_nothing_and_come_back(tmp_path: Path, moto_s3: S3Endpoint) -> None:
    ids = SaveIds("zeros", 7, "save-1")
    zeros = bytes(200 << 20)
    remote = remote_of(moto_s3)
    with node_at(tmp_path / "cache", remote, moto_s3) as node:
        node.put(ids, "zeros", zeros)
        node.seal(ids)
        with supervised(node, remote, **COMPRESSED):
            node.wait_durable(ids, 60)

        info = node.bucket.objects.head(node.key(ids, "zeros"))
        assert info is not None
        assert info.size_bytes < 1 << 20
        with clean_node(tmp_path / "another", node.bucket.objects) as restore:
            assert restored(restore, ids, "zeros") == zeros


def test_a_bomb_in_the_bucket_is_an_error_on_the_node_that_restores(
    tmp_path: Path, moto_s3: S3Endpoint
) -> None:
    ids = SaveIds("bomb", 7, "save-1")
    remote = remote_of(moto_s3)
    with node_at(tmp_path / "cache", remote, moto_s3) as node:
        node.put(ids, "middle", compressible(3_000_000))
        node.seal(ids)
        with supervised(node, remote, **COMPRESSED):
            node.wait_durable(ids, 60)
        objects, key = node.bucket.objects, node.key(ids, "middle")
        info = objects.head(key)
        assert info is not None
        bomb = zstandard.ZstdCompressor(level=1).compress(bytes(256 << 20))
        body = bomb + objects.get(key)[len(bomb) :]
        objects.put(key, body, digest=digest_of(body), metadata=info.metadata, headers=info.headers)

        with (
            clean_node(tmp_path / "another", objects) as restore,
            pytest.raises(IntegrityError, match="declares 268435456"),
        ):
            restored(restore, ids, "middle")
