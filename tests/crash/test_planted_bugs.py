"""The harness must report every bug that is planted here; one that it misses makes it worthless."""

from __future__ import annotations

import os
from pathlib import Path

import apsw
import pytest
from cachetier_client.bucket_format.documents import PartDocument, ShardEntry
from cachetier_client.bucket_format.stored import Content
from cachetier_client.identity.names import SaveIds

from cachetier.errors import CatalogDamagedError
from cachetier.local.catalog import connection, puts, queries
from cachetier.local.catalog.committer import Committer
from cachetier.local.catalog.puts import Committed
from cachetier.local.catalog.records import NewShard
from cachetier.local.files.data_files import DiskFiles
from cachetier.local.store import Staged, Store
from cachetier.model.checkpoint import Save
from cachetier.model.shard import Shard
from tests.crash.sweep import Life, judge_start, live, sweep
from tests.fakes.power_loss import WORST
from tests.stateful.fake_drain import FakeDrain
from tests.stateful.invariants import ViolationError
from tests.stateful.node import MakeDrain
from tests.stateful.unsynced import unsynced

pytestmark = pytest.mark.soak


def caught(place: Path, make_drain: MakeDrain = FakeDrain) -> str:
    """Sweep lives until the harness reports; return what it says."""
    for seed in range(3):
        try:
            sweep(place, seed, lucks=0, make_drain=make_drain)
        except ViolationError as violation:
            return str(violation)
    raise AssertionError("the harness found nothing")


def test_the_harness_catches_an_acknowledgement_before_the_sync(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def commit(self: Store, staged: Staged, ids: SaveIds, name: str, content: Content) -> Committed:
        new = NewShard(name, ids.rank, content, file_id=staged.file_id)
        committed = self.write(puts.commit_shard, self.policy, ids, new, 0.0)
        self._sync(staged, ids, name, content, ids.world_size)
        if committed.repeated:
            self.discard(staged)
        else:
            self._keep(staged, content)
        self.drop(committed.replaced)
        return committed

    monkeypatch.setattr(Store, "commit", commit)

    assert "lost their files" in caught(tmp_path)


def test_the_harness_catches_a_missing_sync_of_the_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        DiskFiles,
        "seal",
        lambda _self, descriptor, identity: os.setxattr(descriptor, "user.planted", identity),
    )

    assert "lost their files" in caught(tmp_path)


def test_the_harness_catches_a_missing_sync_of_the_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(DiskFiles, "sync_name", lambda _self, _file_id: None)

    assert "lost their files" in caught(tmp_path)


def test_the_harness_catches_a_missing_sync_of_the_catalog(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    configure = connection._configure

    def careless(sql: apsw.Connection) -> None:
        configure(sql)
        sql.execute("PRAGMA synchronous = OFF")

    monkeypatch.setattr(connection, "_configure", careless)

    assert caught(tmp_path)


def test_the_harness_catches_a_catalog_that_is_synced_only_now_and_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    configure = connection._configure

    def careless(sql: apsw.Connection) -> None:
        configure(sql)
        sql.execute("PRAGMA synchronous = NORMAL")

    monkeypatch.setattr(connection, "_configure", careless)

    assert caught(tmp_path)


class EagerPublisher(FakeDrain):
    """Publishes a sealed step without waiting for its shards."""

    def _write_part(self, save: Save, location: str, rank: int) -> bool:
        shards = self._store.read(lambda sql: queries.shards_of_rank(sql, save.number, rank, 0, -1))
        entries = tuple(ShardEntry.of(shard.name, shard.rank, shard.content) for shard in shards)
        part = PartDocument(
            run=save.run,
            step=save.step,
            save_id=save.save_id,
            rank=rank,
            world_size=save.world_size,
            shards=entries,
        )
        self._bucket.put_part(part, location)
        return True


def test_the_harness_catches_a_manifest_published_before_its_shards(tmp_path: Path) -> None:
    assert "is not there" in caught(tmp_path, EagerPublisher)


class TrustingDrain(FakeDrain):
    """Calls a shard clean before the remote has confirmed it, so that it may be evicted."""

    def _make_clean(self, shard: Shard, key: str, body: bytes) -> None:
        self._record(shard)
        self._send(shard, key, body)


def test_the_harness_catches_a_shard_called_clean_before_the_remote_confirmed_it(
    tmp_path: Path,
) -> None:
    assert "is not at the remote" in caught(tmp_path, TrustingDrain)


def test_the_harness_catches_an_eviction_of_dirty_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Store, "evict", lambda self, shard: self.drop([shard]) is None)

    assert caught(tmp_path)


# --- a failed sync that is believed later -------------------------------------------------------


def lost_after_failed_sync(place: Path, kind: str) -> str:
    """Fail each sync of ``kind`` in turn; return what the harness says of the power cut after."""
    trace = live(place / "sound", 0)[-1].disk.trace
    steps = [number for number, step in enumerate(trace, 1) if step.startswith(f"sync {kind}")]
    for step in steps:
        life = Life(place / f"life-{step}", 0)
        life.disk.fail_sync_at = step
        try:
            life.play()
        except CatalogDamagedError:
            continue  # it failed while the node started: that it refuses is right
        assert life.disk.failed_syncs == 1, "the fault did not fire"
        end = life.moments[-1]
        with unsynced() as vfs:
            try:
                judge_start(place / "arena", end.image.survivor(WORST), end, vfs)
            except ViolationError as violation:
                return str(violation)
    raise AssertionError("the harness found nothing")


def test_the_harness_catches_a_failed_sync_of_data_retried_into_a_success(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sync = os.fsync

    def seal(_self: DiskFiles, descriptor: int, identity: bytes) -> None:
        os.setxattr(descriptor, "user.planted", identity)
        try:
            os.fsync(descriptor)
        except OSError:
            os.fsync(descriptor)

    assert sync is os.fsync
    monkeypatch.setattr(DiskFiles, "seal", seal)

    assert lost_after_failed_sync(tmp_path, "cache/data/")


def test_the_harness_catches_a_fence_that_is_ignored_after_a_failed_sync_of_the_catalog(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Committer.run

    def stubborn(self: Committer, operation, *args, **kwargs):  # type: ignore[no-untyped-def]
        try:
            return run(self, operation, *args, **kwargs)
        except Exception:
            if self.fenced is None:
                raise
            self.fenced = None
            return run(self, operation, *args, **kwargs)

    monkeypatch.setattr(Committer, "run", stubborn)

    assert lost_after_failed_sync(tmp_path, "cache/catalog.db-wal")
