"""A second remote: what one lost comes from the other."""

from __future__ import annotations

import os
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from cachetier_client.bucket_format.documents import ManifestState, encode
from cachetier_client.bucket_format.layout import Layout
from cachetier_client.bucket_format.publication import MANIFEST_NONCE_KEY
from cachetier_client.io.digests import digest_of

from cachetier.drain.serve.remote_state import RemoteState
from cachetier.fsck.findings import FindingKind, FsckReport
from cachetier.fsck.run import FsckOptions, fsck
from cachetier.local.catalog import copies
from cachetier.model.lifecycle import SaveState, ShardState
from cachetier.model.names import DURABLE
from cachetier.remote.bucket import Bucket, Remote
from cachetier.restore.fill import Room
from cachetier.restore.replica_choice import Replicas
from cachetier.restore.restore import Restore
from tests.fakes.fake_clock import FakeClock
from tests.fakes.memory_store import MemoryObjectStore
from tests.unit.drain.replica_drain import ReplicaDrain
from tests.unit.fsck.damage import CAPACITY_BYTES, Patient
from tests.unit.fsck.test_remote_damage import MANIFEST

RAW = "tier/run/1/rank-0"


class Mirrored(Patient):
    """A node whose published step is at a replica, object by object."""

    def __init__(self, directory: Path, remote: MemoryObjectStore, clock: FakeClock) -> None:
        super().__init__(directory, remote, clock)
        self.near = MemoryObjectStore()
        self.saved()
        for key in remote.list("").keys:
            info, body = remote.head(key), remote.get(key)
            assert info is not None
            assert info.digest is not None
            self.near.put(key, body, digest=info.digest, metadata=info.metadata)
        with self.running() as node:
            store = node.store
            store.write(copies.configure_replicas, {"near": False})
            rows = [row for row in node.rows() if row.step == 1]
            store.write(copies.record_location, 1, "1", "near")
            for row in rows:
                store.write(copies.record_verified, row.version, "near", [DURABLE], 0.0)
            RemoteState(store, "near").ended(1, SaveState.PUBLISHED, None, 0.0)

    def looked(self, *, repair: bool = False) -> FsckReport:
        remotes = [
            Remote(name, Bucket(objects, Layout("tier")))
            for name, objects in ((DURABLE, self.remote), ("near", self.near))
        ]
        return fsck(
            self.cache_dir,
            remotes,
            self.clock,
            FsckOptions(data=True, repair=repair),
            capacity_bytes=CAPACITY_BYTES,
            sleep=lambda _seconds: None,
        )


@pytest.fixture
def mirrored(tmp_path: Path, remote: MemoryObjectStore, clock: FakeClock) -> Mirrored:
    return Mirrored(tmp_path, remote, clock)


def test_what_is_at_both_remotes_is_clean(mirrored: Mirrored) -> None:
    report = mirrored.looked()

    assert (report.findings, report.unanswered) == ([], [])
    assert report.objects == 4


def test_what_only_the_replica_still_has_goes_back_to_the_durable_remote(
    mirrored: Mirrored, remote: MemoryObjectStore
) -> None:
    with mirrored.running() as node:
        for row in node.rows():
            node.evict(row)
    remote.delete(RAW)

    report = mirrored.looked(repair=True)

    assert [finding.kind for finding in report.findings] == [FindingKind.OBJECT_MISSING]
    assert report.remaining() == []
    assert remote.get(RAW) == b"save of 1"
    assert mirrored.looked().findings == []
    mirrored.reads_everything()


def test_what_the_replica_lost_is_sent_there_again(
    mirrored: Mirrored, remote: MemoryObjectStore
) -> None:
    mirrored.near.delete(RAW)

    report = mirrored.looked(repair=True)

    assert [(f.kind, f.remote) for f in report.findings] == [(FindingKind.OBJECT_MISSING, "near")]
    assert report.remaining() == []
    assert mirrored.near.get(RAW) == b"save of 1"
    assert mirrored.looked().findings == []


def test_a_quarantined_shard_comes_back_from_the_replica_that_has_it(
    mirrored: Mirrored, remote: MemoryObjectStore
) -> None:
    mirrored.sql("DELETE FROM drains WHERE remote = 'durable' AND version = 2")
    mirrored.sql("UPDATE shards SET state = 'quarantined' WHERE version = 2")

    report = mirrored.looked(repair=True)

    assert [finding.kind for finding in report.findings if finding.is_problem] == [
        FindingKind.QUARANTINED
    ]
    assert report.remaining() == []
    with mirrored.running() as node:
        row = next(row for row in node.rows() if row.version == 2)
        assert row.state is ShardState.DIRTY, "the durable remote still waits for it"


def test_what_is_damaged_here_and_gone_there_comes_from_the_replica_to_both(
    mirrored: Mirrored, remote: MemoryObjectStore
) -> None:
    """Its object goes back as what it was: the part in the bucket describes it."""
    with mirrored.running() as node:
        shard = next(row for row in node.rows() if (row.step, row.name) == (1, "rank-1"))
    key = "tier/run/1/rank-1"
    before = remote.head(key)
    assert before is not None
    mirrored.flip(shard)
    remote.delete(key)

    report = mirrored.looked(repair=True)

    assert report.remaining() == [], report.outcomes
    after = remote.head(key)
    assert after is not None
    assert (after.digest, after.metadata) == (before.digest, before.metadata)
    assert mirrored.looked().findings == []
    with mirrored.running() as node:
        row = next(row for row in node.rows() if row.version == shard.version)
        assert row.state is ShardState.CLEAN
    mirrored.reads_everything()


def test_a_published_shard_that_was_forgotten_at_the_durable_remote_is_no_backlog(
    mirrored: Mirrored,
) -> None:
    """As an earlier repair left it: dirty, though nothing would ever send it."""
    mirrored.sql("DELETE FROM drains WHERE remote = 'durable' AND version = 1")
    mirrored.sql("UPDATE shards SET state = 'dirty' WHERE version = 1")

    report = mirrored.looked(repair=True)

    assert [finding.kind for finding in report.findings] == [FindingKind.ROW_CONTRADICTS]
    assert report.remaining() == [], report.outcomes
    assert mirrored.looked().findings == []
    with mirrored.running() as node:
        assert node.checkpoints.step("run", 1)[0].dirty_bytes == 0


def test_a_damaged_row_of_a_replicas_copy_is_written_again_from_the_replicas_part(
    mirrored: Mirrored,
) -> None:
    mirrored.sql("UPDATE drains SET stored_bytes = 5 WHERE remote = 'near' AND version = 1")

    assert [f.kind for f in mirrored.looked().findings] == [FindingKind.ROW_CONTRADICTS]
    assert mirrored.looked(repair=True).remaining() == []
    assert mirrored.looked().findings == []


def test_what_a_replica_held_that_is_not_in_the_settings_any_more_is_nobodys_problem(
    mirrored: Mirrored,
) -> None:
    with mirrored.running() as node:
        node.store.write(copies.configure_replicas, {})
    mirrored.sql("UPDATE drains SET stored_bytes = 5 WHERE remote = 'near'")

    assert mirrored.found(data=True) == []


def test_a_durable_step_that_is_still_on_its_way_to_a_replica_is_looked_at_there_as_well(
    mirrored: Mirrored,
) -> None:
    bucket = Bucket(mirrored.near, Layout("tier"))
    seen = bucket.manifest("run", 1)
    assert seen is not None
    claimed = replace(seen.manifest, state=ManifestState.CLAIMED, parts=(), shards=())
    body, nonce = encode(claimed), {MANIFEST_NONCE_KEY: claimed.nonce}
    key = bucket.layout.manifest_key("run", 1)
    mirrored.near.put(key, body, digest=digest_of(body), metadata=nonce)
    mirrored.sql("UPDATE copies SET state = 'open', due = 1")

    assert mirrored.looked().findings == []
    mirrored.near.delete(RAW)
    (found,) = mirrored.looked(repair=True).findings
    assert (found.kind, found.remote, found.key) == (FindingKind.OBJECT_MISSING, "near", RAW)
    assert mirrored.looked().findings == [], "its drain sends it again"


def test_a_manifest_that_the_replica_lost_is_published_there_again(
    mirrored: Mirrored, clock: FakeClock
) -> None:
    mirrored.near.delete(MANIFEST)

    report = mirrored.looked(repair=True)

    assert [(f.kind, f.remote) for f in report.findings] == [(FindingKind.MANIFEST_MISSING, "near")]
    assert report.remaining() == []
    near = Bucket(mirrored.near, Layout("tier"))
    with mirrored.running() as node, closing(ReplicaDrain(node.store, near, clock)) as drain:
        drain.drain_all()
    assert near.published("run", 1) is not None
    assert mirrored.looked().findings == []


class Reader(Mirrored):
    """A node that only read the step, which both remotes have."""

    def __init__(self, of: Mirrored, directory: Path) -> None:
        Patient.__init__(self, directory / "reader", of.remote, of.clock)
        self.near = of.near
        self.cache_dir.parent.mkdir()
        near = Remote("near", Bucket(of.near, Layout("tier")))
        with self.running() as node:
            node.store.write(copies.configure_replicas, {"near": False})
            with closing(
                Restore(
                    *(node.store, node.bucket, of.clock),
                    remote=DURABLE,
                    replicas=Replicas([near]),
                    room=Room(lambda: None),
                )
            ) as restore:
                descriptor = restore.open("run", 1, "rank-1", 0.0).descriptor
                assert descriptor is not None
                os.close(descriptor)


@pytest.mark.parametrize("where", [DURABLE, "near"])
def test_a_lost_manifest_is_left_to_a_node_that_saved_the_step(
    mirrored: Mirrored, tmp_path: Path, remote: MemoryObjectStore, where: str
) -> None:
    reader = Reader(mirrored, tmp_path)
    (remote if where == DURABLE else mirrored.near).delete(MANIFEST)

    (outcome,) = reader.looked(repair=True).outcomes

    assert (outcome.finding.kind, outcome.finding.remote) == (FindingKind.MANIFEST_MISSING, where)
    assert "this node has no part of it" in outcome.what
    assert mirrored.looked(repair=True).remaining() == []
