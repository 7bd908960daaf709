"""The model of three peers must report every bug that is planted here."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from cachetier_client.bucket_format.documents import Manifest
from cachetier_client.identity.names import SaveIds

from cachetier.drain.upload.target import ConflictError, UploadTarget
from cachetier.local.catalog import copies, manifests, parts, saves
from cachetier.model.checkpoint import Save
from cachetier.model.lifecycle import OPEN_SAVES
from cachetier.model.shard import Shard
from cachetier.peers import finishing, keeper, kept_saves
from cachetier.peers.keeper import KeptObjects
from cachetier.remote.base import ObjectStore, if_match
from cachetier.remote.neighbours import store as neighbours
from tests.stateful.lives import Caught, catching
from tests.stateful.peer_machine import small_uploads
from tests.stateful.three_nodes import ThreeNodes
from tests.stateful.unsynced import unsynced

SAVED = ("save_whole", "copy_all")


@pytest.fixture(scope="module")
def vfs() -> Iterator[str]:
    with unsynced() as name, small_uploads():
        yield name


@pytest.fixture
def caught(tmp_path: Path, vfs: str, monkeypatch: pytest.MonkeyPatch) -> Caught:
    return catching(tmp_path, monkeypatch, lambda top, seed, only: ThreeNodes(top, seed, vfs, only))


def test_a_copy_that_is_acknowledged_before_it_is_synced(
    caught: Caught, monkeypatch: pytest.MonkeyPatch
) -> None:
    def write(path: Path, text: str) -> None:
        path.write_text(text)

    monkeypatch.setattr(keeper, "write_synced", write)

    assert "is lost" in caught(8, *SAVED, "cut_power")


def test_bytes_of_a_copy_that_are_acknowledged_before_they_are_synced(
    caught: Caught, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = KeptObjects._written

    def careless(self: KeptObjects, *what: Any) -> Any:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(os, "fsync", lambda _descriptor: None)
            return written(self, *what)

    monkeypatch.setattr(KeptObjects, "_written", careless)

    assert "is lost" in caught(8, *SAVED, "cut_power")


def test_a_copy_that_goes_once_the_step_is_claimed(
    caught: Caught, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kept_saves, "has_ended", lambda _save, seen: seen is not None)

    deeds = *SAVED, "drain_one", "look_after_copies"
    assert "is not published" in caught(3, *deeds)


def test_a_full_keeper_that_evicts_the_oldest_copy(
    caught: Caught, monkeypatch: pytest.MonkeyPatch
) -> None:
    def make_room(self: KeptObjects, _size_bytes: int) -> None:
        if self.used_bytes > self.room_bytes // 2:
            for key in [key for key in self._kept if not key.endswith(".json")][:1]:
                self.delete(key)

    monkeypatch.setattr(KeptObjects, "_refuse_if_full", make_room)

    assert caught(11, *SAVED, "fill_a_room")


def test_an_owner_that_forgets_to_tell(caught: Caught, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copies, "are_superfluous", lambda *_: False)

    assert "believes in copies" in caught(0, *SAVED, "drain_all")


def test_keepers_that_wait_for_an_owner_to_tell(
    caught: Caught, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kept_saves, "has_ended", lambda *_: False)

    deeds = *SAVED, "drain_all"
    assert "of a published step" in caught(0, *deeds)


def test_two_peers_that_finish_a_part_as_saves_of_their_own(
    caught: Caught, monkeypatch: pytest.MonkeyPatch
) -> None:
    def of_its_own(*which: Any, **how: Any) -> SaveIds:
        ids = SaveIds(*which, **how)
        return replace(ids, save_id=f"{ids.save_id}-finished")

    monkeypatch.setattr(finishing, "SaveIds", of_its_own)

    assert "which nobody put" in caught(0, *SAVED)


def test_an_older_save_that_is_finished_after_the_newer_one(
    caught: Caught, monkeypatch: pytest.MonkeyPatch
) -> None:
    def forgetful(seen: Any) -> Manifest | None:
        return replace(seen.manifest, replaces=()) if seen is not None else None

    monkeypatch.setattr(finishing, "manifest_of", forgetful)

    assert caught(1, *SAVED)


def test_a_part_that_is_finished_where_its_step_was_restored(
    caught: Caught, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its shards have rows there already, and no drain sends those on."""

    def nothing(*_: Any) -> list[Shard]:
        return []

    monkeypatch.setattr(parts, "take_over", nothing)

    assert "is not published" in caught(1, *SAVED)


def test_a_part_of_another_node_that_only_strangers_read_from_peers(
    caught: Caught, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A node with a part of its own finds nothing of the others while the bucket is away."""
    adopted = manifests._adopted_save

    def by_strangers(sql: Any, policy: Any, save: Save, now: float) -> int | None:
        known = saves.save_named(sql, save.run, save.step, save.save_id)
        is_open = known is not None and known.state in OPEN_SAVES
        return None if is_open else adopted(sql, policy, save, now)

    monkeypatch.setattr(manifests, "_adopted_save", by_strangers)

    assert "is lost" in caught(5, *SAVED)


def test_a_late_claim_that_hides_a_published_step(
    caught: Caught, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(neighbours, "_generation", lambda _info: 0)

    assert "is lost" in caught(23, *SAVED, "copy_one", "delay_a_call", "deliver")


def test_an_owner_that_is_back_and_is_not_asked_what_it_knows(
    caught: Caught, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parts, "knows", lambda *_: True)

    assert "is not published" in caught(0, "come_back_with_the_save_before")


def test_a_finisher_that_forgets_which_save_came_after(
    caught: Caught, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The old disk publishes the save before, and the one that was promised comes too late."""
    begin = parts.take_over

    def unordered(sql: Any, policy: Any, ids: SaveIds, _replaces: Any, now: float) -> list[Shard]:
        return begin(sql, policy, ids, (), now)

    monkeypatch.setattr(parts, "take_over", unordered)

    assert "is not published" in caught(0, "come_back_with_the_save_before")


def test_a_returning_owner_that_overwrites(caught: Caught, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its old disk has other bytes of the save than those that its peers finished."""
    look = UploadTarget.look

    def overwriting(self: UploadTarget, store: ObjectStore, *how: Any) -> Any:
        try:
            return look(self, store, *how)
        except ConflictError:
            info = store.head(self.key)
            assert info is not None
            return if_match(info.etag)

    monkeypatch.setattr(UploadTarget, "look", overwriting)

    assert caught(3, "come_back_to_a_finished_step")
