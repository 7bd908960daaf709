"""A dirty shard that is damaged here comes back from the replica that has it, and goes on."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from cachetier_client.bucket_format.layout import Layout
from cachetier_client.bucket_format.stored import Stored
from cachetier_client.identity.names import SaveIds
from cachetier_client.io.digests import digest_of

from cachetier.drain.serve.remote_state import RemoteState
from cachetier.errors import IntegrityError
from cachetier.local.catalog import copies, saves
from cachetier.model.lifecycle import ShardState
from cachetier.model.shard import Shard
from cachetier.remote.bucket import Bucket, Remote
from cachetier.restore.fill import Room
from cachetier.restore.replica_choice import Replicas
from cachetier.restore.restore import Restore
from tests.fakes.fake_clock import FakeClock
from tests.fakes.faulty_store import FaultyObjectStore
from tests.fakes.memory_store import MemoryObjectStore
from tests.stateful.fake_drain import REMOTE
from tests.stateful.node import Node
from tests.stateful.reading import whole

IDS = SaveIds("run", 1, "save", 0, 1)
DATA = bytes(range(256)) * 400
SECONDS = 60.0


class Damaged:
    """A shard that is verified at the replica, not yet durable, and damaged on this node."""

    def __init__(self, node: Node, clock: FakeClock) -> None:
        self.node, self.near = node, FaultyObjectStore(MemoryObjectStore())
        node.store.write(copies.configure_replicas, {"near": False})
        replica = Remote("near", Bucket(self.near, Layout("tier")))
        self.restore = Restore(
            node.store,
            node.bucket,
            clock,
            remote=REMOTE,
            replicas=Replicas([replica]),
            room=Room(lambda: None),
        )
        node.put(IDS, "a", DATA)
        node.checkpoints.seal(IDS, 1)
        self.near.put("tier/run/1/a", DATA, digest=digest_of(DATA))
        remote_state, shard = RemoteState(node.store, "near"), self.shard()
        (save,) = node.store.read(lambda sql: saves.saves_of(sql, "run", 1))
        remote_state.locate(save.number, "1")
        remote_state.verified(shard.version, 1.0, Stored.raw(shard.content))
        assert shard.file_id is not None
        path = node.cache_dir / "data" / shard.file_id[:2] / shard.file_id
        path.chmod(0o600)
        with path.open("r+b") as file:
            file.write(b"\xff")
        assert not self.restore.verify("run", 1, "a")

    def shard(self) -> Shard:
        (row,) = self.node.rows()
        return row

    def files(self) -> list[Path]:
        return [path for path in (self.node.cache_dir / "data").rglob("*") if path.is_file()]


@pytest.fixture
def damaged(node: Node, clock: FakeClock) -> Iterator[Damaged]:
    made = Damaged(node, clock)
    yield made
    made.restore.close()


def test_a_reader_gets_the_replicas_bytes(damaged: Damaged) -> None:
    assert damaged.shard().state is ShardState.QUARANTINED
    opened = damaged.restore.open("run", 1, "a", SECONDS)
    assert opened.descriptor is not None
    assert whole(opened.descriptor) == DATA
    assert damaged.shard().state is ShardState.DIRTY


def test_mending_leaves_one_sound_file_and_the_right_account(damaged: Damaged) -> None:
    (before,) = damaged.files()
    assert damaged.restore.mend(SECONDS) == 1
    (after,) = damaged.files()
    assert after != before
    assert damaged.node.store.space.used_bytes == len(DATA)
    assert damaged.restore.mend(SECONDS) == 0


def test_what_was_mended_becomes_durable(damaged: Damaged) -> None:
    damaged.restore.mend(SECONDS)
    damaged.node.drain.drain_all()
    assert damaged.shard().state is ShardState.CLEAN
    assert damaged.node.checkpoints.step("run", 1)[0].state == "published"


def test_while_the_replica_is_away_the_shard_stays_quarantined_and_is_tried_again(
    damaged: Damaged,
) -> None:
    damaged.near.go_down()
    assert damaged.restore.mend(SECONDS) == 0
    assert damaged.shard().state is ShardState.QUARANTINED
    assert len(damaged.files()) == 1
    damaged.near.mend()
    assert damaged.restore.mend(SECONDS) == 1


def test_without_another_copy_it_stays_lost(node: Node, clock: FakeClock) -> None:
    made = Damaged(node, clock)
    node.store.write(copies.record_lost, made.shard().version, "near")
    with pytest.raises(IntegrityError):
        made.restore.open("run", 1, "a", SECONDS)
    assert made.restore.mend(SECONDS) == 0
    made.restore.close()
    assert os.listdir(node.cache_dir / "data")


def test_what_was_damaged_while_it_waited_for_a_replica_that_gave_up_is_clean_once_mended(
    node: Node, clock: FakeClock
) -> None:
    made = Damaged(node, clock)
    node.store.write(copies.configure_replicas, {"near": False, "other": True})
    (save,) = node.store.read(lambda sql: saves.saves_of(sql, "run", 1))
    shard = made.shard()
    RemoteState(node.store, REMOTE).verified(shard.version, 1.0, Stored.raw(shard.content))
    assert made.shard().state is ShardState.QUARANTINED  # "other" has not got it
    RemoteState(node.store, "other").give_up(save.number, 2.0)
    assert made.restore.mend(SECONDS) == 1
    assert made.shard().state is ShardState.CLEAN
    made.restore.close()
