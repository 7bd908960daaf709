"""What nobody needs goes; what is young, pinned, damaged or an only copy stays."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
from cachetier_client.bucket_format.uploads import ObjectInfo

from cachetier.errors import InvalidRequestError, TransientError
from cachetier.local.catalog import copies, saves, shards
from cachetier.local.files.data_files import IDENTITY_ATTRIBUTE
from cachetier.local.lost_and_found import KEPT_SECONDS
from cachetier.model.lifecycle import SaveState
from cachetier.model.names import DURABLE
from cachetier.reclaim.gc import Collection, Garbage, GarbageKind
from cachetier.remote.bucket import Remote
from tests.fakes.fake_clock import FakeClock
from tests.fakes.memory_store import MemoryObjectStore
from tests.stateful.invariants import judge_bytes, judge_rows
from tests.stateful.node import Node
from tests.unit.steps.test_operations import LARGE, code_of, ids, save_step

HOUR = 3600.0


def garbage(node: Node, clock: FakeClock) -> Garbage:
    return Garbage(node.store, node.cache_dir, [Remote(DURABLE, node.bucket)], clock)


def kinds(found: Collection) -> list[tuple[GarbageKind, int | None]]:
    return [(each.kind, each.step) for each in found.rubbish]


def abandoned(node: Node, clock: FakeClock) -> None:
    """Step 1 is never completed, and step 2 is published."""
    node.put(ids(1), "rank-0", LARGE)
    node.drain.drain_all()
    clock.advance(HOUR)
    save_step(node, 2)
    node.drain.drain_all()
    clock.advance(HOUR)


def keys(remote: MemoryObjectStore) -> set[str]:
    return {key for key in remote.list("").keys if not key.endswith("manifest.json")}


def test_a_save_that_will_never_be_whole_goes_here_and_there(
    node: Node, clock: FakeClock, remote: MemoryObjectStore
) -> None:
    abandoned(node, clock)
    assert "tier/run/1/rank-0" in keys(remote)

    looked = garbage(node, clock).collect(HOUR, dry_run=True)
    assert kinds(looked) == [(GarbageKind.INCOMPLETE, 1)]
    assert (looked.rubbish[0].size_bytes, looked.rubbish[0].objects) == (len(LARGE), 1)
    assert node.get("run", 1, "rank-0") == LARGE, "it was only looked at"

    assert garbage(node, clock).collect(HOUR, dry_run=False).rubbish == looked.rubbish
    node.drain.delete_all()

    assert {row.step for row in node.rows()} == {2}
    assert not [key for key in keys(remote) if key.startswith("tier/run/1/")]
    assert node.get("run", 2, "rank-1") == LARGE
    assert garbage(node, clock).collect(0.0, dry_run=True).rubbish == ()
    judge_bytes(node)
    judge_rows(node)


def test_what_is_young_pinned_damaged_or_the_newest_stays(node: Node, clock: FakeClock) -> None:
    abandoned(node, clock)
    node.put(ids(3), "rank-0", LARGE)  # nothing newer is published
    clock.advance(HOUR)
    collector = garbage(node, clock)

    assert collector.collect(10 * HOUR, dry_run=True).rubbish == ()
    node.checkpoints.pin("run", 1)
    assert collector.collect(HOUR, dry_run=False).rubbish == ()
    node.checkpoints.unpin("run", 1)
    node.put(ids(1), "bad", LARGE)
    bad = next(row for row in node.rows() if row.name == "bad")
    node.store.write(shards.record_damage, bad.version, None, 0.0)
    assert collector.collect(HOUR, dry_run=False).rubbish == ()
    assert {row.step for row in node.rows()} == {1, 2, 3}


def test_a_whole_save_that_only_waits_for_the_remote_stays(node: Node, clock: FakeClock) -> None:
    save_step(node, 1)
    number = node.rows()[0].version
    clock.advance(HOUR)
    save_step(node, 2)
    node.drain.drain_step("run", 2)
    node.drain.drain_step("run", 2)
    node.drain.publish_step("run", 2)
    assert node.checkpoints.step("run", 2)[0].state == "published"
    clock.advance(48 * HOUR)

    assert garbage(node, clock).collect(HOUR, dry_run=False).rubbish == ()
    assert number in {row.version for row in node.rows()}
    node.drain.drain_all()
    assert node.checkpoints.step("run", 1)[0].state == "published"


def test_a_replaced_save_goes_with_its_objects_and_the_published_one_keeps_its_own(
    node: Node, clock: FakeClock, remote: MemoryObjectStore
) -> None:
    save_step(node, 1)
    node.drain.drain_all()
    clock.advance(HOUR)
    save_step(node, 1, save="newer", overwrite=True)
    node.drain.drain_all()
    clock.advance(HOUR)
    before = keys(remote)
    assert any(key.startswith("tier/run/1/") for key in before)

    found = garbage(node, clock).collect(HOUR, dry_run=False)
    node.drain.delete_all()

    assert kinds(found) == [(GarbageKind.REPLACED, 1)]
    assert found.rubbish[0].save_id == "save"
    left = keys(remote)
    assert left == {key for key in before if key.startswith("tier/run/1~newer/")}
    for row in node.rows():
        node.evict(row)
    assert node.get("run", 1, "rank-0") == b"newer of 1"


def test_uploads_of_ended_saves_are_aborted_and_those_of_open_ones_go_on(
    node: Node, clock: FakeClock, remote: MemoryObjectStore
) -> None:
    save_step(node, 1)
    node.drain.drain_all()
    remote.create_upload("tier/run/1/rank-1")
    node.put(ids(5), "rank-0", LARGE)
    open_upload = remote.create_upload("tier/run/5/rank-0")
    foreign = remote.create_upload("other/run/1/rank-1")
    clock.advance(2 * HOUR)

    found = garbage(node, clock).collect(HOUR, dry_run=False)

    assert kinds(found) == [(GarbageKind.UPLOAD, 1)]
    assert {upload for _, upload in remote.list_uploads("")} == {open_upload, foreign}


def test_a_file_that_was_set_aside_goes_only_if_the_catalog_says_why(
    tmp_path: Path, remote: MemoryObjectStore, clock: FakeClock, vfs: str
) -> None:
    node = Node(tmp_path / "n", remote, clock, vfs=vfs)
    save_step(node, 1)
    node.put(ids(2), "unsealed", LARGE)
    known = next(row for row in node.rows() if row.name == "rank-1")
    unsealed = next(row for row in node.rows() if row.name == "unsealed")
    assert known.file_id is not None
    assert unsealed.file_id is not None
    lost = tmp_path / "n" / "lost+found"
    _copied(tmp_path, known.file_id, lost / ("0" * 32))
    _copied(tmp_path, unsealed.file_id, lost / ("1" * 32))
    node.checkpoints.delete_shard("run", 2, "unsealed")  # the only copy is now in lost+found
    node.store.drop(node.store.write(saves.delete_step, "run", 1))
    (lost / ("2" * 32)).write_bytes(b"says nothing of itself")
    since = max(path.stat().st_ctime for path in lost.iterdir())
    clock.jump(since + 2 * HOUR - clock.now())

    found = garbage(node, clock).collect(HOUR, dry_run=False)

    assert [each.kind for each in found.rubbish] == [GarbageKind.SET_ASIDE]
    assert found.rubbish[0].why == "its save is deleted, without it"
    assert sorted(path.name[0] for path in lost.iterdir()) == ["1", "2"]
    node.close()


def test_lost_and_found_counts_as_used_and_is_empty_after_a_month(
    tmp_path: Path, remote: MemoryObjectStore, clock: FakeClock, vfs: str
) -> None:
    node = Node(tmp_path / "n", remote, clock, vfs=vfs)
    node.put(ids(2), "unsealed", LARGE)
    (row,) = node.rows()
    assert row.file_id is not None
    lost = tmp_path / "n" / "lost+found"
    _copied(tmp_path, row.file_id, lost / ("1" * 32))
    node.checkpoints.delete_shard("run", 2, "unsealed")
    (lost / ("2" * 32)).write_bytes(b"says nothing of itself")
    since = max(path.stat().st_ctime for path in lost.iterdir())
    node.close()
    node = Node(tmp_path / "n", remote, clock, vfs=vfs)
    assert node.store.space.used_bytes == len(LARGE) + 22

    clock.jump(since + KEPT_SECONDS - HOUR - clock.now())
    garbage(node, clock).purge_lost_and_found()
    assert len(list(lost.iterdir())) == 2
    clock.jump(2 * HOUR)
    garbage(node, clock).purge_lost_and_found()

    assert list(lost.iterdir()) == []
    assert node.store.space.used_bytes == 0
    node.close()


def _copied(tmp_path: Path, file_id: str, to: Path) -> None:
    source = tmp_path / "n" / "data" / file_id[:2] / file_id
    to.write_bytes(source.read_bytes())
    os.setxattr(to, IDENTITY_ATTRIBUTE, os.getxattr(source, IDENTITY_ATTRIBUTE))


def test_while_the_remote_does_not_answer_only_what_is_here_is_collected(
    node: Node, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    abandoned(node, clock)
    save_step(node, 2, save="newer", overwrite=True)
    node.drain.drain_all()
    clock.advance(2 * HOUR)

    def away(*_arguments: object) -> None:
        raise TransientError("no answer")

    monkeypatch.setattr(node.bucket.objects, "list", away)
    monkeypatch.setattr(node.bucket.objects, "list_uploads", away)
    found = garbage(node, clock).collect(HOUR, dry_run=False)

    assert found.unanswered == ("durable: no answer",)
    assert kinds(found) == [(GarbageKind.REPLACED, 2)]
    assert found.as_json()["objects"] == 0
    assert {row.step for row in node.rows()} == {1, 2}


def test_the_grace_is_no_negative_number(node: Node, clock: FakeClock) -> None:
    assert code_of(lambda: garbage(node, clock).collect(-1.0, dry_run=True)) == "invalid_request"
    with pytest.raises(InvalidRequestError):
        garbage(node, clock).collect(float("nan"), dry_run=True)


def test_what_goes_was_shown_before(node: Node, clock: FakeClock) -> None:
    """A save that left objects, and was replaced by one that is not published."""
    save_step(node, 1)
    node.drain.drain_one()
    clock.advance(HOUR)
    node.put(ids(1, 0, "newer"), "rank-0", LARGE)
    clock.advance(HOUR)

    looked = garbage(node, clock).collect(0.0, dry_run=True)
    gone = garbage(node, clock).collect(0.0, dry_run=False)

    assert kinds(gone) == kinds(looked)


def test_an_upload_that_no_save_of_ours_names_is_left(
    node: Node, clock: FakeClock, remote: MemoryObjectStore
) -> None:
    save_step(node, 1)
    node.drain.drain_all()
    foreign = remote.create_upload("tier/run/1/video.mp4")
    clock.advance(2 * HOUR)

    assert garbage(node, clock).collect(HOUR, dry_run=False).rubbish == ()
    assert [upload for _, upload in remote.list_uploads("")] == [foreign]


class Slow(MemoryObjectStore):
    """Lets something happen here before it answers."""

    def __init__(self) -> None:
        super().__init__()
        self.meanwhile: list[Callable[[], object]] = []

    def head(self, key: str) -> ObjectInfo | None:
        while self.meanwhile:
            self.meanwhile.pop()()
        return super().head(key)


@pytest.fixture
def slow(tmp_path: Path, clock: FakeClock, vfs: str) -> Iterator[Node]:
    with closing(Node(tmp_path / "n", Slow(), clock, vfs=vfs)) as node:
        yield node


@pytest.mark.parametrize("meanwhile", ["sealed", "pinned", "ended"])
def test_a_save_that_is_no_garbage_any_more_when_the_bucket_has_answered_stays(
    slow: Node, clock: FakeClock, meanwhile: str
) -> None:
    node, remote = slow, slow.bucket.objects
    assert isinstance(remote, Slow)
    abandoned(node, clock)
    number = next(row.save for row in node.rows() if row.step == 1)
    outcome = number, SaveState.PUBLISHED, None, clock.now()
    happens: dict[str, Callable[[], object]] = {
        "sealed": lambda: node.checkpoints.seal(ids(1), 1),
        "pinned": lambda: node.checkpoints.pin("run", 1),
        "ended": lambda: node.store.write(copies.record_outcome, node.store.policy, *outcome),
    }
    remote.meanwhile.append(happens[meanwhile])

    assert garbage(node, clock).collect(HOUR, dry_run=False).rubbish == ()

    assert remote.meanwhile == []
    assert node.get("run", 1, "rank-0") == LARGE


def test_a_file_that_its_rank_sealed_without_goes_while_the_save_is_open(
    slow: Node, tmp_path: Path, clock: FakeClock
) -> None:
    node = slow
    node.put(ids(2), "given-up", LARGE)
    node.put(ids(2), "kept", LARGE)
    row = next(row for row in node.rows() if row.name == "given-up")
    assert row.file_id is not None
    lost = tmp_path / "n" / "lost+found" / ("0" * 32)
    _copied(tmp_path, row.file_id, lost)
    node.checkpoints.delete_shard("run", 2, "given-up")
    clock.jump(lost.stat().st_ctime + 2 * HOUR - clock.now())
    assert garbage(node, clock).collect(HOUR, dry_run=False).rubbish == ()

    node.checkpoints.seal(ids(2), 1)
    (found,) = garbage(node, clock).collect(HOUR, dry_run=False).rubbish

    assert (found.kind, found.why) == (GarbageKind.SET_ASIDE, "its rank sealed without it")
    assert not lost.exists()
    assert node.get("run", 2, "kept") == LARGE
