"""Of what was never completed goes what nobody can complete, and it ends in the bucket first."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from cachetier_client.bucket_format.documents import Manifest, ManifestState, SeenManifest
from cachetier_client.bucket_format.publication import ClaimState, claim_state
from cachetier_client.io.digests import digest_of

from cachetier.errors import TransientError
from cachetier.local.catalog import saves
from cachetier.model.checkpoint import Save
from cachetier.model.lifecycle import SaveState
from cachetier.model.names import DURABLE
from cachetier.reclaim.abandoned import AbandonedSaves, SaveInBucket
from cachetier.reclaim.gc import Collection, Garbage, GarbageKind
from cachetier.remote.bucket import Remote
from tests.fakes.fake_clock import FakeClock
from tests.fakes.memory_store import MemoryObjectStore
from tests.stateful.invariants import judge_bytes, judge_rows
from tests.stateful.node import Node
from tests.unit.reclaim.test_gc import HOUR, abandoned, garbage, keys, kinds
from tests.unit.steps.test_operations import LARGE, ids, save_step


class DiedError(Exception):
    """The process was killed."""


@pytest.fixture
def other(tmp_path: Path, remote: MemoryObjectStore, clock: FakeClock, vfs: str) -> Iterator[Node]:
    """Another node of the same bucket."""
    other = Node(tmp_path / "other", remote, clock, vfs=vfs)
    yield other
    other.close()


def manifest(node: Node, step: int = 1) -> Manifest:
    seen = node.bucket.manifest("run", step)
    assert seen is not None
    return seen.manifest


def save_of(node: Node, step: int = 1, save_id: str = "save") -> Save:
    found = node.store.read(lambda sql: saves.save_named(sql, "run", step, save_id))
    assert found is not None
    return found


def half(node: Node, rank: int, *, sealed: bool = True) -> None:
    """One rank of step 1 puts a shard on its node, and seals."""
    node.put(ids(1, rank), f"rank-{rank}", LARGE)
    if sealed:
        node.checkpoints.seal(ids(1, rank), 1)


def published_since(node: Node, clock: FakeClock) -> None:
    clock.advance(HOUR)
    save_step(node, 2)
    for _ in range(3):
        node.drain.drain_step("run", 2)
    assert node.checkpoints.step("run", 2)[0].state == "published"
    clock.advance(25 * HOUR)


def collected(node: Node, clock: FakeClock) -> Collection:
    """Look, collect, and find that it is the same."""
    looked = garbage(node, clock).collect(HOUR, dry_run=True)
    done = garbage(node, clock).collect(HOUR, dry_run=False)
    assert done == replace(looked, dry_run=False)
    return done


def test_a_save_is_ended_in_the_bucket_before_anything_of_it_goes_here(
    node: Node, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    abandoned(node, clock)

    def die(*_arguments: object) -> None:
        raise DiedError

    monkeypatch.setattr(saves, "delete_incomplete", die)
    with pytest.raises(DiedError):
        garbage(node, clock).collect(HOUR, dry_run=False)

    assert manifest(node).state is ManifestState.DELETED
    assert [row.name for row in node.rows() if row.step == 1] == ["rank-0"]
    monkeypatch.undo()
    assert kinds(collected(node, clock)) == [(GarbageKind.INCOMPLETE, 1)]
    node.drain.delete_all()
    assert save_of(node).state is SaveState.DELETED
    assert node.bucket.objects.list("tier/run/1/").keys == ("tier/run/1/.cachetier/manifest.json",)


def test_ranks_that_seal_after_all_find_that_the_save_is_ended(
    node: Node, clock: FakeClock
) -> None:
    """It died after the tombstone, and the drain finds that."""
    abandoned(node, clock)
    incomplete = AbandonedSaves(node.store, node.bucket)
    assert incomplete.end(incomplete.look(save_of(node)))
    for rank in (0, 1):
        node.checkpoints.seal(ids(1, rank), 2)
    node.drain.drain_all()

    assert save_of(node).state is SaveState.DELETED
    assert manifest(node).state is ManifestState.DELETED
    assert {row.step for row in node.rows()} == {2}
    judge_bytes(node)
    judge_rows(node)


def test_whoever_publishes_before_the_end_was_first(
    node: Node, other: Node, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client of the rank that never sealed here sealed at another node meanwhile."""
    half(node, 0, sealed=False)
    node.drain.drain_all()
    published_since(node, clock)
    put_manifest = node.bucket.put_manifest

    def late(document: Manifest, over: SeenManifest | None) -> SeenManifest | None:
        for rank in (0, 1):
            half(other, rank)
        other.drain.drain_all()
        return put_manifest(document, over)

    monkeypatch.setattr(node.bucket, "put_manifest", late)
    found = garbage(node, clock).collect(HOUR, dry_run=False)
    node.drain.delete_all()

    assert found.rubbish == ()
    assert manifest(node).state is ManifestState.PUBLISHED
    assert {row.step for row in node.rows()} == {1, 2}
    assert other.get("run", 1, "rank-1") == LARGE


@pytest.mark.parametrize("act", ["pin", "seal"])
def test_a_pin_or_a_seal_while_the_bucket_is_asked_keeps_the_save(
    node: Node, clock: FakeClock, monkeypatch: pytest.MonkeyPatch, act: str
) -> None:
    abandoned(node, clock)
    look = AbandonedSaves.look

    def slow(of: AbandonedSaves, save: Save) -> SaveInBucket:
        seen = look(of, save)
        assert seen.hopeless
        if act == "pin":
            node.checkpoints.pin("run", 1)
        else:
            node.checkpoints.seal(ids(1, 0), 1)
        return seen

    monkeypatch.setattr(AbandonedSaves, "look", slow)

    assert garbage(node, clock).collect(HOUR, dry_run=False).rubbish == ()
    assert manifest(node).state is ManifestState.CLAIMED
    assert {row.step for row in node.rows()} == {1, 2}


def test_an_answer_that_is_lost_leaves_the_save_for_the_next_collection(
    node: Node, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    abandoned(node, clock)
    put_manifest = node.bucket.put_manifest

    def lost(document: Manifest, over: SeenManifest | None) -> SeenManifest | None:
        put_manifest(document, over)
        raise TransientError("the reply is lost")

    monkeypatch.setattr(node.bucket, "put_manifest", lost)
    found = garbage(node, clock).collect(HOUR, dry_run=False)
    assert (found.rubbish, found.unanswered) == ((), ("durable: the reply is lost",))
    assert {row.step for row in node.rows()} == {1, 2}

    monkeypatch.undo()
    assert kinds(collected(node, clock)) == [(GarbageKind.INCOMPLETE, 1)]


def test_what_other_nodes_have_not_sent_yet_is_theirs_however_long_it_takes(
    node: Node, other: Node, clock: FakeClock
) -> None:
    half(node, 0)
    node.drain.drain_all()
    half(other, 1)
    published_since(node, clock)
    clock.advance(100 * 24 * HOUR)

    found = collected(node, clock)
    assert found.rubbish == ()
    assert [(each.step, each.command) for each in found.left] == [(1, "cachetier delete run 1")]
    assert found.left[0].why == "whole here; rank 1 of 2 is to come from other nodes"
    assert found.as_json()["left"][0]["what"] == "run/1, save save"
    other.drain.drain_all()
    assert other.checkpoints.step("run", 1)[0].state == "published"
    assert other.get("run", 1, "rank-1") == LARGE
    assert collected(node, clock).left == (), "it is whole"


def test_the_command_that_is_named_ends_a_save_that_nobody_completes(
    node: Node, clock: FakeClock
) -> None:
    half(node, 0)
    node.drain.drain_all()
    published_since(node, clock)
    assert collected(node, clock).left
    node.checkpoints.delete_step("run", 1)
    node.drain.delete_all()

    assert collected(node, clock) == Collection(dry_run=False, rubbish=())
    assert manifest(node).state is ManifestState.DELETED


def test_no_command_is_named_that_takes_another_save_along(node: Node, clock: FakeClock) -> None:
    save_step(node, 1, "first")
    node.drain.drain_all()
    clock.advance(1.0)
    again = ids(1, 0, "again", overwrite=True)
    node.put(again, "rank-0", LARGE)
    node.checkpoints.seal(again, 1)
    node.drain.drain_all()
    published_since(node, clock)

    found = collected(node, clock)
    assert [(each.save_id, each.command) for each in found.left] == [("again", None)]
    assert manifest(node).save_id == "first"


def test_a_step_that_another_node_completed_since_is_no_rubbish(
    node: Node, other: Node, clock: FakeClock
) -> None:
    """This node's drain has not looked at step 1 since the other node published it."""
    half(node, 0)
    node.drain.drain_all()
    half(other, 1)
    other.drain.drain_all()
    published_since(node, clock)

    found = collected(node, clock)
    node.drain.delete_all()

    assert (found.rubbish, found.left) == ((), ())
    assert manifest(node).state is ManifestState.PUBLISHED
    assert other.get("run", 1, "rank-0") == LARGE


@pytest.mark.parametrize("document", ["rank-0.json", "pending-0.json"])
def test_a_rank_that_sealed_past_this_service_is_waited_for(
    node: Node, clock: FakeClock, document: str
) -> None:
    abandoned(node, clock)
    key = f"tier/run/1/.cachetier/{document}"
    node.bucket.objects.put(key, b"{}", digest=digest_of(b"{}"))

    found = collected(node, clock)
    assert found.rubbish == ()
    assert "sealed past this service" in found.left[0].why
    assert manifest(node).state is ManifestState.CLAIMED


def test_an_unfinished_overwrite_ends_and_what_it_was_to_replace_stays_published(
    node: Node, other: Node, clock: FakeClock, remote: MemoryObjectStore
) -> None:
    save_step(node, 1, "first")
    node.drain.drain_all()
    clock.advance(1.0)
    node.put(ids(1, 0, "again", overwrite=True), "rank-0", b"again")
    node.drain.drain_all()
    published_since(node, clock)
    save = save_of(node, save_id="again")
    look = AbandonedSaves(node.store, node.bucket).look(save)
    assert claim_state(look.claimant, manifest(node)) is ClaimState.REPLACE_WHEN_WHOLE
    before = manifest(node)

    found = collected(node, clock)
    node.drain.delete_all()

    assert [(each.save_id, each.objects) for each in found.rubbish] == [("again", 1)]
    assert claim_state(look.claimant, manifest(node)) is ClaimState.SUPERSEDED
    after = manifest(node)
    assert replace(after, replaces=before.replaces, nonce=before.nonce) == before
    assert not [key for key in keys(remote) if "~again" in key]
    assert other.get("run", 1, "rank-0") == b"first of 1"


def test_what_only_other_nodes_sent_of_an_incomplete_save_goes_with_it(
    node: Node, other: Node, clock: FakeClock, remote: MemoryObjectStore
) -> None:
    """This node never got as far as asking where the save lies."""
    half(other, 1)
    other.drain.drain_all()
    half(node, 0, sealed=False)
    published_since(node, clock)
    assert save_of(node).location is None

    found = collected(node, clock)
    node.drain.delete_all()

    assert [(each.step, each.objects) for each in found.rubbish] == [(1, 2)]
    assert not [key for key in keys(remote) if key.startswith("tier/run/1/")]
    other.drain.publish_all()
    assert save_of(other).state is SaveState.DELETED


def test_the_count_of_objects_is_of_those_that_go(
    node: Node, clock: FakeClock, remote: MemoryObjectStore
) -> None:
    abandoned(node, clock)
    for name in ("README.txt", "deep/er/notes"):
        remote.put(f"tier/run/1/{name}", b"not ours", digest=digest_of(b"not ours"))
    before = keys(remote)

    (found,) = collected(node, clock).rubbish
    node.drain.delete_all()

    assert found.objects == len(before - keys(remote)) == 1
    assert remote.get("tier/run/1/README.txt") == b"not ours"


def test_a_save_whose_manifest_is_damaged_is_left_to_fsck(node: Node, clock: FakeClock) -> None:
    abandoned(node, clock)
    key = "tier/run/1/.cachetier/manifest.json"
    node.bucket.objects.put(key, b"{}", digest=digest_of(b"{}"))

    found = collected(node, clock)
    assert found.rubbish == ()
    assert "cachetier fsck" in found.left[0].why
    assert found.left[0].command is None
    assert {row.step for row in node.rows()} == {1, 2}


def test_a_remote_that_does_not_answer_is_asked_once(
    node: Node, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    for step in (1, 2, 3):
        node.put(ids(step), "rank-0", LARGE)
    clock.advance(HOUR)
    save_step(node, 4)
    node.drain.drain_all()
    clock.advance(25 * HOUR)
    asked: list[int] = []

    def away(_run: str, step: int) -> None:
        asked.append(step)
        raise TransientError("no answer")

    monkeypatch.setattr(node.bucket, "manifest", away)
    found = Garbage(node.store, node.cache_dir, [Remote(DURABLE, node.bucket)], clock).collect(
        HOUR, dry_run=False
    )

    assert (found.rubbish, found.unanswered, asked) == ((), ("durable: no answer",), [1])
