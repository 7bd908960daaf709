"""Block copies by the drain process, over real S3 servers: killed in mid-compose, and refused."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path

import pytest
from cachetier_client.bucket_format.layout import Layout
from cachetier_client.io.digests import BLOCK_BYTES

from cachetier.local.catalog import uploads
from cachetier.testing.http_wire import WireHead
from cachetier.testing.s3_endpoint import S3Endpoint
from cachetier.testing.s3_operations import operation_of
from cachetier.testing.s3proxy import S3Proxy
from cachetier.testing.troubles import ALWAYS, Fault, Trouble, Troubles
from tests.fakes.bodies import noise
from tests.integration.changing import FIRST, NAME, SECOND, changed, new, old, put_step
from tests.integration.drain_node import REMOTE, Node, shown
from tests.integration.test_drain_process import (
    bucket,  # noqa: F401
    node_at,
    remote_of,
    server,  # noqa: F401
    supervised,
)
from tests.integration.two_remotes import RUN, published_at_near, running, site, until


class SentGate(Troubles):
    """Counts what passes; once ``close`` was called, holds sent parts back until ``open``."""

    def __init__(self) -> None:
        super().__init__()
        self._gate = threading.Event()
        self._gate.set()
        self.holds = threading.Event()

    def close(self) -> None:
        self._gate.clear()

    def open(self) -> None:
        self._gate.set()

    def strike(self, request: WireHead) -> Trouble | None:
        if operation_of(request) == "UploadPart" and not self._gate.is_set():
            self.holds.set()
            self._gate.wait(60)
        return super().strike(request)


def finished_parts(node: Node) -> int:
    shard = node.shard(SECOND, NAME)
    assert shard is not None
    return len(node.store.read(lambda sql: uploads.progress_of(sql, shard.version, REMOTE)).parts)


def test_a_step_with_few_changed_blocks_is_composed_in_the_bucket(
    tmp_path: Path,
    server: S3Endpoint,  # noqa: F811
    bucket: str,  # noqa: F811
) -> None:
    before = noise(20 * BLOCK_BYTES)
    after = changed(before, (4, 13))
    remote = remote_of(server, bucket)
    with node_at(tmp_path / "cache", remote, server) as node:
        with supervised(node, remote) as supervisor:
            put_step(node, FIRST, before)
            node.wait_durable(FIRST, 60)
            node.wait_until(lambda: shown(supervisor)["sent_bytes"] >= len(before))
            sent = shown(supervisor)["sent_bytes"]
            put_step(node, SECOND, after)
            node.wait_durable(SECOND, 60)
            node.wait_until(lambda: shown(supervisor)["copied_bytes"] >= 0.85 * len(before))
            sent_bytes = shown(supervisor)["sent_bytes"] - sent
        assert sent_bytes <= 0.15 * len(before)
        assert node.bucket.objects.get(node.key(SECOND, NAME)) == after


def test_a_drain_killed_in_mid_compose_goes_on_with_what_it_had(
    tmp_path: Path,
    server: S3Endpoint,  # noqa: F811
    bucket: str,  # noqa: F811
) -> None:
    gate = SentGate()
    with S3Proxy(server.url, troubles=gate) as proxy:
        remote = remote_of(server, bucket, proxy.url)
        with node_at(tmp_path / "cache", remote_of(server, bucket), server) as node:
            with supervised(node, remote) as supervisor:
                put_step(node, FIRST, old())
                node.wait_durable(FIRST, 60)
                gate.close()
                put_step(node, SECOND, new())
                assert gate.holds.wait(30)
                node.wait_until(lambda: finished_parts(node) >= 1)
                copied, first = finished_parts(node), shown(supervisor)["pid"]
                os.kill(first, signal.SIGKILL)
                node.wait_until(lambda: shown(supervisor)["pid"] not in (first, None))
                gate.open()
                node.wait_durable(SECOND, 60)

            # What the first had recorded is not copied again; it may have asked for all three.
            assert gate.seen["UploadPartCopy"] <= 3 + 3 - copied
            assert gate.seen["CreateMultipartUpload"] == 2  # one for each step
            assert node.bucket.objects.get(node.key(SECOND, NAME)) == new()


@pytest.mark.parametrize("trouble", [Trouble.ACCESS_DENIED])
def test_a_remote_that_refuses_to_copy_gets_every_byte_and_one_question(
    tmp_path: Path,
    server: S3Endpoint,  # noqa: F811
    bucket: str,  # noqa: F811
    trouble: Trouble,
) -> None:
    troubles = Troubles([Fault(trouble, "UploadPartCopy", ALWAYS)])
    with S3Proxy(server.url, troubles=troubles) as proxy:
        remote = remote_of(server, bucket, proxy.url)
        with node_at(tmp_path / "cache", remote_of(server, bucket), server) as node:
            with supervised(node, remote) as supervisor:
                put_step(node, FIRST, old())
                node.wait_durable(FIRST, 60)
                put_step(node, SECOND, new())
                node.wait_durable(SECOND, 60)
                node.wait_until(lambda: shown(supervisor)["remotes"][0]["copies"] == "refused")
                state = shown(supervisor)

            assert troubles.fired[trouble] >= 1
            assert (state["failures"], state["copied_bytes"]) == (0, 0)
            assert state["remotes"][0]["state"] == "ok"
            assert node.bucket.objects.get(node.key(SECOND, NAME)) == new()


@pytest.mark.slow
def test_each_remote_copies_from_what_it_has_itself(
    moto_s3: S3Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in moto_s3.environment().items():
        monkeypatch.setenv(name, value)
    with site(moto_s3) as place, running(place.settings()) as node:
        node.save(1, {NAME: old()})
        until(lambda: published_at_near(place, 1))
        node.client.wait(RUN, 1, "durable", 60.0)
        node.save(2, {NAME: new()})
        until(lambda: published_at_near(place, 2))
        node.client.wait(RUN, 2, "durable", 60.0)

        for proxy, bucket_name in ((place.far, place.far_bucket), (place.near, place.near_bucket)):
            assert proxy.troubles.seen["UploadPartCopy"] == 3
            stored = place.store(bucket_name).get(Layout("p").shard_key(RUN, "2", NAME))
            assert stored == new()
