"""The model of two nodes must report every bug that is planted here."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cachetier_client.bucket_format import publication
from cachetier_client.bucket_format.documents import Manifest, ManifestState
from cachetier_client.bucket_format.publication import Claimant, ClaimState

from cachetier.drain.publish.publisher import Publisher
from cachetier.drain.schedule.queue_state import QueueState
from cachetier.drain.upload import packs, uploader
from cachetier.drain.upload.target import VerifiedObject
from cachetier.drain.upload.uploader import Upload
from cachetier.model.shard import Shard
from cachetier.reclaim.evict import Evictor
from cachetier.remote.base import IF_ABSENT
from cachetier.restore.knowledge import Knowledge
from cachetier.steps.unflushed import UnflushedNotes
from tests.stateful.invariants import ViolationError
from tests.stateful.lives import LIVES, Caught, catching
from tests.stateful.two_nodes import World
from tests.stateful.unsynced import unsynced


@pytest.fixture(scope="module")
def vfs() -> Iterator[str]:
    with unsynced() as name:
        yield name


@pytest.fixture
def caught(tmp_path: Path, vfs: str, monkeypatch: pytest.MonkeyPatch) -> Caught:
    return catching(tmp_path, monkeypatch, lambda top, seed, only: World(top, seed, vfs, only=only))


def test_an_eviction_without_a_look_at_the_bucket(
    caught: Caught, monkeypatch: pytest.MonkeyPatch
) -> None:
    def evict(self: Evictor, shard: Shard, **_how: bool) -> bool:
        try:
            return self._store.evict(shard)
        except Exception:
            return False

    monkeypatch.setattr(Evictor, "evict", evict)

    found = caught(2, "save_whole", "drain_all", "evict", "remove_an_object")
    assert "was evicted, and is not in the bucket" in found


def test_a_part_written_without_a_look_at_its_objects(
    caught: Caught, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What looks again before a publication passes over what this drain wrote just now."""
    write_part = Publisher.write_part

    def careless(self: Publisher, *what: Any) -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(self, "_look", lambda *_: None)
            write_part(self, *what)

    monkeypatch.setattr(Publisher, "write_part", careless)

    assert "is not there" in caught(3, "put", "seal", "drain_one", "remove_an_object")


def test_the_upload_of_a_replaced_version_that_is_kept(
    caught: Caught, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It ends late, after what replaced it was published."""
    for module in (uploader, packs):
        monkeypatch.setattr(module, "abort_replaced", lambda *_: None)

    assert "is not there" in caught(5, "seal", "drain_all", "replace_what_is_late")


def test_a_publication_without_a_second_look(
    caught: Caught, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Publisher, "_look_again", lambda *_, **__: None)

    assert "is not there" in caught(0)


def test_the_answer_of_a_write_that_is_believed(
    caught: Caught, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It names an ETag, which is no digest, and perhaps of nothing that was stored."""
    put = Upload.put

    def trusting(self: Upload) -> VerifiedObject:
        key = self._target.key
        if self._store.head(key) is not None:
            return put(self)
        with self._body() as (view, sent, metadata):
            self._store.put(key, view, digest=sent.digest, metadata=metadata, condition=IF_ABSENT)
        return VerifiedObject("", sent)

    monkeypatch.setattr(Upload, "put", trusting)

    assert "is called clean, and is not in the bucket" in caught(6)


def test_work_that_is_dropped_once_it_was_refused(
    caught: Caught, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        QueueState, "back_off", lambda self, key, *_: self.put_off(key, float("inf"))
    )

    assert "is never drained, and nobody is told" in caught(11)


def test_what_is_learned_of_the_bucket_and_not_written_down(
    caught: Caught, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``latest`` names a save of another node, and readers get the one that was begun here."""
    monkeypatch.setattr(Knowledge, "_learn", lambda *_: True)

    deeds = "save_whole", "save_half", "drain_one", "read_what_latest_names"
    assert "is of another save" in caught(0, *deeds)


def test_knowledge_that_has_no_age(caught: Caught, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Knowledge, "refresh", lambda *_: None)

    found = caught(0, "save_whole", "drain_all", "delete_step", "read")
    assert "is of a save that was replaced or deleted" in found


def test_acknowledged_steps_that_no_note_tells_of(
    caught: Caught, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(UnflushedNotes, "_settle", lambda *_: None)

    assert "is not told of" in caught(0, "save_whole", "drain_one", "move")


def test_a_directory_without_a_lock(caught: Caught, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fcntl, "flock", lambda *_: None)

    assert "a second service was admitted" in caught(1, "put", "second_service")


def test_a_claim_that_goes_by_the_clock(tmp_path: Path, vfs: str) -> None:
    state = publication.claim_state

    def by_the_clock(save: Claimant, seen: Manifest | None) -> ClaimState:
        found = state(save, seen)
        other = seen is not None and seen.save_id != save.save_id
        if other and seen is not None and seen.state is ManifestState.CLAIMED:
            return ClaimState.CLAIM if save.started_at > seen.started_at else ClaimState.SUPERSEDED
        return found

    def outcome(seed: int, name: str, offset: float) -> Any:
        top = tmp_path / f"{name}-{seed}"
        top.mkdir()
        only = frozenset({"save_whole", "drain_one", "save_again"})
        world = World(top, seed, vfs, offsets=(offset, 0.0), only=only)
        try:
            world.play()
            return world.outcome()
        except ViolationError as violation:
            return str(violation)
        finally:
            world.close()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(publication, "claim_state", by_the_clock)
        seed = next(s for s in range(14, LIVES) if outcome(s, "a", 0.0) != outcome(s, "b", 7e4))
    print(f"caught by life {seed}")
    assert outcome(seed, "c", 0.0) == outcome(seed, "d", 7e4)
