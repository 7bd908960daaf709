"""A disk without a free byte, filled by others: what frees room still has room.

Every test runs on a real ext4 of its own.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from cachetier_client import BackpressureError, Client
from cachetier_client.results import Receipt

from cachetier.service.service import Service
from cachetier.testing.s3_endpoint import S3Endpoint
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
            rank.client.put_shard(
                body(2_000_000, 9), run="r", step=2, name="x", timeout_seconds=0.5, **RANK
            )
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
