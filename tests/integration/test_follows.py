"""Ranks that follow rank 0, over whole services: a step is published once rank 0 has committed."""

from __future__ import annotations

import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from cachetier_client import Client
from cachetier_client.errors import (
    BackgroundError,
    DeadlineError,
    InvalidRequestError,
    NotDurableError,
    SealedError,
)
from cachetier_client.identity.names import SaveIds

from cachetier.drain.schedule.tasks import TaskKind
from cachetier.drain.serve.service import DrainService
from cachetier.testing.s3_endpoint import S3Endpoint
from tests.fakes.fake_clock import FakeClock
from tests.integration.drain_node import NO_ORDERS
from tests.integration.drain_node import Node as DrainNode
from tests.integration.serving import node_settings, running
from tests.integration.two_remotes import until

SECONDS = 60.0
SAVE = {"world_size": 2, "save_id": "one"}


class Nodes:
    """Settings of nodes that share a bucket, and who runs."""

    def __init__(self, settings: dict[str, Any], scratch: Path) -> None:
        self._settings = settings
        self._scratch = scratch

    @contextmanager
    def up(self, name: str, door: str = "unix") -> Iterator[Client]:
        """Run a node, and lend a client of it; the same name has the same disk."""
        directory = self._scratch / name
        directory.mkdir(exist_ok=True)
        own = {"cache_dir": directory / "cache", "socket": directory / "s"}
        with running({**self._settings, **own}) as service:
            url = service.url if door == "http" else f"unix://{service.socket}"
            with Client(url) as client:
                yield client


@pytest.fixture
def nodes(moto_s3: S3Endpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Nodes]:
    bucket = f"follows-{uuid.uuid4().hex[:12]}"
    moto_s3.create_bucket(bucket)
    with tempfile.TemporaryDirectory(prefix="ct-") as short:
        settings = node_settings(tmp_path, moto_s3, f"s3://{bucket}/p", monkeypatch)
        yield Nodes(settings, Path(short))


def put(client: Client, rank: int, name: str, data: bytes = b"bytes", step: int = 1) -> None:
    client.put_shard(data, run="run", step=step, name=name, rank=rank, **SAVE)  # type: ignore[arg-type]


def seal(client: Client, rank: int, step: int = 1, *, follows: bool = False) -> tuple[int, ...]:
    return client.seal("run", step, rank=rank, follows=follows, **SAVE)  # type: ignore[arg-type]


def holds(condition: Callable[[], bool], seconds: float) -> None:
    """Look for a while that something does not change."""
    ends_at = time.monotonic() + seconds
    while time.monotonic() < ends_at:
        assert condition()
        time.sleep(0.05)


def shard_is_durable(client: Client, name: str) -> bool:
    return client.wait("run", 1, "durable", SECONDS, name=name).level == "durable"


@pytest.mark.parametrize("door", ["unix", "http"])
def test_a_part_follows_at_either_door(nodes: Nodes, door: str) -> None:
    with nodes.up("a", door) as client:
        put(client, 1, "a")
        assert seal(client, 1, follows=True) == (1,)
        put(client, 1, "b")
        assert seal(client, 1, follows=True) == (1,)
        with pytest.raises(InvalidRequestError, match="rank 0 cannot follow"):
            seal(client, 0, follows=True)
        put(client, 0, "c")
        assert seal(client, 0) == (0, 1)
        with pytest.raises(SealedError):
            put(client, 1, "d")


def test_a_part_that_overwrites_grows_after_it_was_sealed(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable, value in (("CACHETIER_SAVE_ID", "one"), ("RANK", "1"), ("WORLD_SIZE", "2")):
        monkeypatch.setenv(variable, value)
    with nodes.up("a") as client:
        for name in ("a", "b"):
            client.put_shard(b"1", run="run", step=1, name=name, overwrite=True)
            client.seal("run", 1, follows=True, overwrite=True)

        assert {shard.name for shard in client.step("run", 1).shards} == {"a", "b"}


def test_a_node_publishes_once_its_rank_0_has_committed(nodes: Nodes) -> None:
    with nodes.up("a") as client:
        put(client, 0, "zero")
        put(client, 1, "one")
        seal(client, 1, follows=True)
        assert shard_is_durable(client, "one")  # its bytes go out at once
        put(client, 1, "late")
        seal(client, 1, follows=True)
        with pytest.raises((NotDurableError, DeadlineError)):
            client.wait("run", 1, "durable", 1.0)

        seal(client, 0)

        client.wait("run", 1, "durable", SECONDS)
        step = client.step("run", 1)
        assert {shard.name for shard in step.shards} == {"zero", "one", "late"}


def test_who_follows_looks_often_at_first_where_nobody_told_the_ranks_of_the_node(
    tmp_path: Path, moto_s3: S3Endpoint
) -> None:
    clock = FakeClock()
    node = DrainNode(tmp_path / "cache", moto_s3.store(), clock=clock)
    ids = SaveIds("run", 1, "one", 1, 2)
    node.put(ids, "a", b"bytes")
    node.checkpoints.seal(ids, None, follows=True)
    save = node.save(ids)
    not_yet = DrainService(node.context, NO_ORDERS).save_not_ready
    waited = []
    for _ in range(3):
        not_yet(save.number, TaskKind.FOLLOW)
        due = node.queue.situation(wants_room=False).not_before[save.number, TaskKind.FOLLOW, ""]
        waited.append(due - clock.monotonic())
    node.close()

    assert waited == [1.0, 2.0, 4.0]


def test_two_nodes_publish_one_step_over_the_restart_of_one(
    nodes: Nodes, moto_s3: S3Endpoint
) -> None:
    with nodes.up("a") as leader:
        with nodes.up("b") as follower:
            put(follower, 1, "one")
            seal(follower, 1, follows=True)
            assert shard_is_durable(follower, "one")
            put(leader, 0, "zero")
            assert shard_is_durable(leader, "zero")
        with nodes.up("b") as follower:
            put(follower, 1, "late", b"after the restart")
            seal(follower, 1, follows=True)
            holds(lambda: leader.latest("run", "durable") is None, 1.0)

            seal(leader, 0)

            for client in (follower, leader):
                client.wait("run", 1, "durable", SECONDS)
            with pytest.raises(SealedError):
                put(follower, 1, "too-late")
            names = {shard.name for shard in leader.step("run", 1).shards}
            assert names == {"zero", "one", "late"}
            assert bytes(leader.get_shard("run", 1, "late")) == b"after the restart"


def test_who_follows_finds_out_that_another_save_has_taken_its_place(nodes: Nodes) -> None:
    newer = {"world_size": 1, "save_id": "two"}
    with nodes.up("a") as leader, nodes.up("b") as follower:
        put(follower, 1, "one")
        seal(follower, 1, follows=True)
        assert shard_is_durable(follower, "one")
        with leader.checkpoint("run", 1, rank=0, **newer) as checkpoint:  # type: ignore[arg-type]
            checkpoint.put(b"newer", "one")
        leader.wait("run", 1, "durable", SECONDS)

        def ended() -> bool:
            try:
                follower.flush("run", timeout_seconds=1.0)
                return follower.step("run", 1).save_id == "two"
            except BackgroundError as error:  # told once, where the other was published already
                if "save two is published" not in str(error):
                    raise
            except (NotDurableError, DeadlineError):  # not within this second
                pass
            return False

        until(ended, SECONDS)
        with suppress(BackgroundError):  # the drain may find out later than readers
            assert bytes(follower.get_shard("run", 1, "one")) == b"newer"
        with suppress(BackgroundError):
            follower.close()
