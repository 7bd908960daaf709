"""The model of two nodes must report every bug that is planted here."""

from __future__ import annotations

import fcntl
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from cachetier_client.bucket_format import publication
from cachetier_client.bucket_format.documents import Manifest, ManifestState
from cachetier_client.bucket_format.publication import Claimant, ClaimState
from cachetier_client.bucket_format.stored import Stored

from cachetier.drain.publish.publisher import Publisher
from cachetier.drain.schedule.queue_state import QueueState
from cachetier.drain.upload.source import ShardSource
from cachetier.drain.upload.target import UploadTarget
from cachetier.drain.upload.uploader import Uploader
from cachetier.model.shard import Shard
from cachetier.reclaim.evict import Evictor
from cachetier.remote.base import IF_ABSENT
from tests.stateful.invariants import ViolationError
from tests.stateful.two_nodes import World
from tests.stateful.unsynced import unsynced

LIVES = 60


@pytest.fixture(scope="module")
def vfs() -> Iterator[str]:
    with unsynced() as name:
        yield name


@pytest.fixture
def caught(tmp_path: Path, vfs: str) -> Callable[[int], str]:
    def play(first: int) -> str:
        """Play lives from ``first`` on until the model reports; return what it says."""
        for seed in range(first, first + LIVES):
            top = tmp_path / str(seed)
            top.mkdir()
            world = World(top, seed, vfs)
            try:
                world.play()
            except ViolationError as violation:
                print(f"caught by life {seed}: {violation}")
                return str(violation)
            finally:
                world.close()
        raise AssertionError("the model found nothing")

    return play


def test_an_eviction_without_a_look_at_the_bucket(
    caught: Callable[[int], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def evict(self: Evictor, shard: Shard) -> bool:
        try:
            return self._store.evict(shard)
        except Exception:
            return False

    monkeypatch.setattr(Evictor, "evict", evict)

    assert "was evicted, and is not in the bucket" in caught(0)


def test_a_part_written_without_a_look_at_its_objects(
    caught: Callable[[int], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Publisher, "_look", lambda *_: None)

    assert caught(0)


def test_a_publication_without_a_second_look(
    caught: Callable[[int], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Publisher, "_look_again", lambda *_, **__: None)

    assert "is not there" in caught(0)


def test_the_answer_of_a_write_that_is_believed(
    caught: Callable[[int], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It names an ETag, which is no digest, and perhaps of nothing that was stored."""
    put = Uploader.put

    def trusting(self: Uploader, target: UploadTarget, source: ShardSource) -> Stored:
        if self._store.head(target.key) is not None:
            return put(self, target, source)
        with self._body(target, source) as (view, sent, metadata):
            self._store.put(
                target.key, view, digest=sent.digest, metadata=metadata, condition=IF_ABSENT
            )
        return sent

    monkeypatch.setattr(Uploader, "put", trusting)

    assert "is called clean, and is not in the bucket" in caught(0)


def test_work_that_is_dropped_once_it_was_refused(
    caught: Callable[[int], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        QueueState, "back_off", lambda self, key, *_: self.put_off(key, float("inf"))
    )

    assert caught(0)


def test_a_directory_without_a_lock(
    caught: Callable[[int], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fcntl, "flock", lambda *_: None)

    assert "a second service was admitted" in caught(0)


def test_a_claim_that_goes_by_the_clock(
    tmp_path: Path, vfs: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = publication.claim_state

    def by_the_clock(save: Claimant, seen: Manifest | None) -> ClaimState:
        found = state(save, seen)
        other = seen is not None and seen.save_id != save.save_id
        if other and seen is not None and seen.state is ManifestState.CLAIMED:
            return ClaimState.CLAIM if save.started_at > seen.started_at else ClaimState.SUPERSEDED
        return found

    monkeypatch.setattr(publication, "claim_state", by_the_clock)

    def outcome(seed: int, name: str, offsets: tuple[float, float]) -> Any:
        top = tmp_path / f"{name}-{seed}"
        top.mkdir()
        world = World(top, seed, vfs, offsets=offsets)
        try:
            world.play()
            return world.published
        except ViolationError as violation:
            return str(violation)
        finally:
            world.close()

    ends = ((outcome(s, "a", (0.0, 0.0)), outcome(s, "b", (7e4, 0.0))) for s in range(LIVES))
    assert any(one != other for one, other in ends)
