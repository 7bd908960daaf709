"""A disk without a free byte, filled by others: what frees room still has room.

Every test runs on a real ext4 of its own.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from cachetier_client import BackpressureError, Client, FencedError
from cachetier_client.results import Receipt

from cachetier.errors import ConfigError
from cachetier.service.service import Service
from cachetier.testing.s3_endpoint import S3Endpoint
from tests.crash.killing import Tier
from tests.fakes.bodies import kept
from tests.fakes.small_disk import SmallDisk, small_disk
from tests.integration.serving import node_settings, running

SECONDS = 60.0
RANK: dict[str, Any] = {"rank": 0, "world_size": 1, "save_id": "one"}


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    with small_disk(tmp_path) as disk:
        yield disk


@pytest.fixture
def settings(
    disk: SmallDisk, tmp_path: Path, moto_s3: S3Endpoint, monkeypatch: pytest.MonkeyPatch
) -> dict[str, Any]:
    remote = f"s3://{moto_s3.bucket}/{tmp_path.name}"
    chosen = node_settings(tmp_path, moto_s3, remote, monkeypatch)
    return {**chosen, "cache_dir": disk.path / "cache", "capacity": "48 MB"}


@kept
def body(size_bytes: int, seed: int) -> bytes:
    return seed.to_bytes(8, "big") * (size_bytes // 8)


class Rank:
    """One rank of one, and the service that it saves to."""

    def __init__(self, node: Service, client: Client) -> None:
        self.node = node
        self.client = client
        self.put_shards: list[tuple[int, str, bytes]] = []

    def put(self, step: int, shards: int, size_bytes: int) -> list[Receipt]:
        receipts = []
        for number in range(shards):
            name, data = f"s{number}", body(size_bytes, step * 1000 + number)
            receipts.append(
                self.client.put_shard(
                    data, run="r", step=step, name=name, timeout_seconds=SECONDS, **RANK
                )
            )
            self.put_shards.append((step, name, data))
        return receipts

    def seal(self, step: int) -> None:
        self.client.seal("r", step, **RANK)

    def save(self, step: int, shards: int, size_bytes: int) -> None:
        """Save a step, and see it durable."""
        self.put(step, shards, size_bytes)
        self.seal(step)
        self.client.wait("r", step, "durable", SECONDS)

    @property
    def status(self) -> dict[str, Any]:
        return self.node.operations.status()

    @property
    def warnings(self) -> str:
        return "\n".join(self.status["warnings"])

    def assert_sound(self) -> None:
        """Nothing that was acknowledged is lost, and the node goes on."""
        assert self.node.store.fenced is None
        for step, name, data in self.put_shards:
            assert bytes(self.client.get_shard("r", step, name)) == data


@contextmanager
def rank_of(settings: dict[str, Any], **more: Any) -> Iterator[Rank]:
    with (
        running({**settings, **more}) as node,
        Client(f"unix://{node.socket}", fallback="fail") as client,
    ):
        yield Rank(node, client)


def until(reached: Callable[[], bool]) -> None:
    ends_at = time.monotonic() + SECONDS
    while not reached():
        assert time.monotonic() < ends_at
        time.sleep(0.05)


# --- the three cases ------------------------------------------------------------------------------


def test_dirty_shards_drain_from_a_disk_without_a_free_byte(
    disk: SmallDisk, settings: dict[str, Any]
) -> None:
    with rank_of(settings) as rank:
        rank.put(1, 24, 100_000)
        disk.fill()

        rank.seal(1)
        rank.client.wait("r", 1, "durable", SECONDS)

        assert disk.free_bytes == 0
        assert rank.status["dirty_shards"] == 0
        rank.assert_sound()


@pytest.mark.parametrize("when_full", ["wait", "reject", "write_through"])
def test_puts_go_on_where_others_filled_the_disk_as_clean_shards_go(
    disk: SmallDisk, settings: dict[str, Any], when_full: str
) -> None:
    with rank_of(settings, when_full=when_full) as rank:
        rank.save(1, 8, 2_000_000)
        disk.fill()

        receipts = rank.put(2, 4, 2_000_000)

        assert {receipt.level for receipt in receipts} == {"local"}
        assert rank.status["clean_bytes"] < 16_000_000
        assert "the disk is full at" in rank.warnings
        disk.free()
        until(lambda: "full" not in rank.warnings)
        rank.assert_sound()


def test_a_put_waits_for_the_drain_where_others_filled_the_disk_of_dirty_shards(
    disk: SmallDisk, settings: dict[str, Any]
) -> None:
    with rank_of(settings) as rank:
        rank.put(1, 4, 2_000_000)
        disk.fill()

        rank.put(2, 2, 2_000_000)

        rank.assert_sound()


def test_a_put_that_may_not_wait_is_refused_or_sent_past_a_full_disk(
    disk: SmallDisk, settings: dict[str, Any]
) -> None:
    with rank_of(settings, when_full="reject") as rank:
        rank.put(1, 2, 2_000_000)
        disk.fill()
        with pytest.raises(BackpressureError, match="the disk under cache_dir is full"):
            rank.client.put_shard(body(2_000_000, 9), run="r", step=2, name="x", **RANK)
        rank.assert_sound()

    with rank_of(settings, when_full="write_through") as rank:
        (receipt,) = rank.put(3, 1, 2_000_000)
        assert receipt.level == "durable"
        rank.assert_sound()


# --- the reserve ----------------------------------------------------------------------------------


def test_small_puts_on_a_full_disk_leave_the_drain_its_reserve(
    disk: SmallDisk, settings: dict[str, Any]
) -> None:
    """They lie in the catalog, so they never meet the disk's own refusal."""
    with rank_of(settings, when_full="reject") as rank:
        rank.put(1, 4, 100_000)
        disk.fill()

        with pytest.raises(BackpressureError, match="the disk under cache_dir is full"):
            rank.put(2, 1_000, 60_000)

        assert len(rank.put_shards) > 4, "none was taken"
        assert "left of the catalog's reserve" in rank.warnings
        for step in (1, 2):
            rank.seal(step)
            rank.client.wait("r", step, "durable", SECONDS)
        rank.assert_sound()
        disk.free()
        until(lambda: "full" not in rank.warnings)


@pytest.mark.parametrize("end", ["stop", "kill"])
def test_a_service_starts_and_drains_on_a_disk_without_a_free_byte(
    disk: SmallDisk, moto_s3: S3Endpoint, end: str
) -> None:
    """Its log is a file on that disk."""
    run, data = f"full-{end}", body(100_000, 7)
    with Tier(disk.path, moto_s3) as tier:
        tier.environment["CACHETIER_CAPACITY"] = "64MiB"
        tier.environment["CACHETIER_REMOTE_ASSUME"] = moto_s3.verify
        tier.start()
        with Client(tier.url, fallback="fail") as client:
            for name, some in (("large", data), ("small", data[:1000])):
                client.put_shard(some, run=run, step=1, name=name, **RANK)
        getattr(tier, end)()
        disk.fill()

        tier.start()

        with Client(tier.url, fallback="fail") as client:
            client.seal(run, 1, **RANK)
            client.wait(run, 1, "durable", SECONDS)
            assert bytes(client.get_shard(run, 1, "large")) == data
            assert bytes(client.get_shard(run, 1, "small")) == data[:1000]
        tier.stop()


# --- what is not a full disk ----------------------------------------------------------------------


@pytest.mark.parametrize("size_bytes", [100_000, 1_000], ids=["file", "in the catalog"])
def test_a_file_system_that_turns_read_only_fences_says_so_and_is_read(
    disk: SmallDisk, settings: dict[str, Any], size_bytes: int
) -> None:
    with rank_of(settings) as rank:
        rank.put(1, 2, 100_000)
        disk.break_down()

        with pytest.raises(FencedError, match=r"(?i)read-only"):
            rank.put(2, 1, size_bytes)

        assert rank.status["state"] == "fenced"
        assert "read-only" in rank.status["reason"].lower()
        for step, name, data in rank.put_shards:
            assert bytes(rank.client.get_shard("r", step, name)) == data
    with pytest.raises(ConfigError, match=r"(?i)read-only"), running(settings):
        pass


QUOTA = """
import sys
from pathlib import Path
from cachetier_client.bucket_format.stored import Content
from cachetier_client.clock import SystemClock
from cachetier_client.identity.names import SaveIds
from cachetier_client.io.digests import digest_of
from cachetier.errors import BackpressureError
from cachetier.local.recovery import open_store

store = open_store(Path(sys.argv[1]), 1 << 30, SystemClock()).store
content, refused = Content(1, digest_of(b"x"), (digest_of(b"x"),)), 0
for number in range(60):
    assert store.space.try_reserve(1)
    try:
        store.commit_inline(SaveIds("r", 1, "one"), f"s{number}", content, b"x")()
        last = number
    except BackpressureError:
        refused += 1
print(refused, last, store.fenced)
"""


@pytest.mark.skipif(shutil.which("strace") is None, reason="needs strace")
def test_a_quota_that_the_catalog_meets_refuses_and_does_not_fence(tmp_path: Path) -> None:
    """SQLite calls it an I/O error."""
    log = tmp_path / "catalog.db-wal"
    inject = "inject=pwrite64:error=EDQUOT:when=200..240"
    strace = ("strace", "-f", "-qqq", "-o", os.devnull, "-P", str(log), "-e", inject)

    done = subprocess.run(
        [*strace, sys.executable, "-c", QUOTA, str(tmp_path)],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip

    refused, last, fenced = done.stdout.split()
    assert int(refused) > 0, "the quota was never met"
    assert (last, fenced) == ("59", "None")
