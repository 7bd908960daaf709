"""What is left of a node knows less than the bucket: others went on, or the node itself did.

The power goes at a step of a life with puts and deletions of objects, and before the node starts
again another one overwrites one of its keys and deletes another; or a life goes on to its end, and
then the directory is that of an earlier step again. What is newer stays, and nothing is in the way.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from cachetier_client.io.digests import digest_of

from cachetier.drain.upload import objects as uploading
from cachetier.drain.upload.deletions import MountDeletions
from cachetier.local.catalog import objects
from cachetier.model.lifecycle import ShardState
from cachetier.model.superseding import Verdict
from tests.crash.judge import open_node
from tests.crash.sweep import CAPACITY_BYTES, Life, Moment, Remote, Report, fates, named
from tests.crash.workload import KEYS, ObjectWorkload
from tests.fakes.fake_clock import FakeClock
from tests.fakes.power_loss import PROCESS_ONLY, Survivor
from tests.faults.counting import count
from tests.faults.slices import share_of
from tests.stateful.invariants import ViolationError, require
from tests.stateful.node import Node
from tests.stateful.object_node import MOUNT
from tests.stateful.unsynced import unsynced
from tests.unit.drain.mount_node import known_clock

SEEDS, IN_DANGER = range(10), 5
LATER = 60.0
NEWER = b"put by another node"

Objects = dict[str, bytes]
World = Callable[[Path, int], int]


class EndingInDeletion(ObjectWorkload):
    """Deletes a key in the end, and drains all there is."""

    def end(self) -> None:
        self.drain_all()
        self._delete_objects(KEYS[:1])
        self.drain_all()


class TimedLife(Life):
    """A life of a node that knows the time of its store."""

    def _make_node(self) -> Node:
        return _told_the_time(super()._make_node(), self._clock)


def _told_the_time(node: Node, clock: FakeClock) -> Node:
    node.store_clock.own = clock.monotonic
    node.store_clock.learn(known_clock(clock).between)
    return node


def _opened(directory: Path, remote: Remote, clock: FakeClock, vfs: str) -> Node:
    node = open_node(directory, remote, clock, capacity_bytes=CAPACITY_BYTES, vfs=vfs)
    return _told_the_time(node, clock)


def lived(place: Path, seed: int) -> list[Moment]:
    life = TimedLife(place / f"life-{seed}", seed, plays=EndingInDeletion)
    assert isinstance(life.workload, EndingInDeletion)
    life.play(at_the_end=life.workload.end)
    return life.moments


def _some(moments: Sequence[Moment], seed: int, every: int) -> Sequence[Moment]:
    return moments[seed * every // len(SEEDS) :: every]


def overtaken_by_another(place: Path, seed: int) -> int:
    """Lose power at steps, and let another node go on; return how many keys were in danger."""
    endangered, report = 0, Report()
    with unsynced() as vfs:
        for moment in _some(lived(place, seed), seed, every=120):
            for way, fate in fates(seed * 10_000 + moment.step, 1):
                survivor = moment.image.survivor(fate)
                if not report.is_new(survivor, moment):
                    continue
                with named(f"seed {seed}, {moment.where}, {way}"):
                    remote, now = moment.remote.copy(), moment.now + LATER
                    promised = [moment.promise.before.objects, moment.promise.after.objects]
                    put, gone = _keys_of_the_backlog(moment, seed)
                    other = place / f"other-{report.states}"
                    _go_on_elsewhere(_opened(other, remote, FakeClock(now), vfs), put, gone)
                    expected = [_without(each, gone) | {put: NEWER} for each in promised]
                    endangered += judge_newer_stays(
                        place / "arena", survivor, remote, now, vfs, expected
                    )
    return endangered


def rolled_back(place: Path, seed: int) -> int:
    """Go back to steps of a life that is drained; return how many keys were in danger."""
    endangered, moments = 0, lived(place, seed)
    last = moments[-1]
    with unsynced() as vfs:
        for moment in _some(moments, seed, every=40):
            with named(f"seed {seed}, back to {moment.where}"):
                snapshot, remote = moment.image.survivor(PROCESS_ONLY), last.remote.copy()
                now, expected = last.now + LATER, [last.promise.after.objects]
                endangered += judge_newer_stays(
                    place / "arena", snapshot, remote, now, vfs, expected
                )
    return endangered


def judge_newer_stays(
    arena: Path,
    survivor: Survivor,
    remote: Remote,
    now: float,
    vfs: str,
    expected: Sequence[Objects],
) -> int:
    """Start and drain what is left; return how many keys it would have written over newer ones."""
    arena.mkdir(exist_ok=True)
    survivor.write_to(arena)
    clock = FakeClock(now + LATER)
    node = _opened(arena / "cache", remote, clock, vfs)
    try:
        uploads = set(remote.list_uploads(MOUNT.prefix)) - _uploads_known(node)
        endangered = _endangered(node, expected)
        for _ in range(3):
            node.real_drain.drain_all()
            clock.advance(LATER)  # what failed is tried again
        shown = _shown(remote)
        require(shown in expected, f"the bucket has other objects in {_differing(shown, expected)}")
        read = {key: data for key in KEYS if (data := node.objects.get(key)) is not None}
        require(read == shown, f"the node reads others in {_differing(read, [shown])}")
        left = set(remote.list_uploads(MOUNT.prefix)) - uploads
        require(not left, f"uploads are left: {left}")
        unshown = _rows(node, "SELECT key FROM objects WHERE state <> 'clean'")
        require(not unshown, f"{unshown} are never drained")
        waiting = [row for row in node.rows() if row.state is ShardState.DIRTY]
        dirty = {row.name for row in waiting if row.run == MOUNT.run}
        require(all(name.startswith("upload-") for name in dirty), f"{dirty} are never drained")
        told = set(_rows(node, "SELECT key FROM superseded_objects"))
        lost = {key for key, deleted in endangered.items() if not deleted}
        require(lost <= told, f"nobody is told of {lost - told}")
        return len(endangered)
    finally:
        node.die()


def _endangered(node: Node, expected: Sequence[Objects]) -> dict[str, bool]:
    """Return the keys of which the newest version here waits, and is not wanted: deletions too."""
    newest = _rows(node, "SELECT max(version) FROM objects WHERE state <> 'clean' GROUP BY key")
    found = [node.store.read(objects.by_version, version) for version in newest]
    return {
        each.key: each.deleted
        for each in found
        if each is not None
        if all(
            _digest(wanted, each.key) != (None if each.deleted else each.digest)
            for wanted in expected
        )
    }


def _digest(there: Objects, key: str) -> int | None:
    return digest_of(there[key]) if key in there else None


def _uploads_known(node: Node) -> set[tuple[str, str]]:
    """Return the uploads to the bucket whose beginning is recorded: the node is to end them."""
    query = "SELECT upload_id FROM drains UNION SELECT upload_id FROM replaced_uploads"
    known = set(_rows(node, query))
    return {each for each in node.bucket.objects.list_uploads(MOUNT.prefix) if each[1] in known}


def _rows(node: Node, query: str) -> list[Any]:
    return node.store.read(lambda sql: [row[0] for row in sql.execute(query)])


def _keys_of_the_backlog(moment: Moment, seed: int) -> tuple[str, str]:
    """Choose two keys, of the backlog if it has any."""
    there, promised = _shown(moment.remote), moment.promise.before.objects
    keys = random.Random(seed * 10_000 + moment.step).sample(KEYS, len(KEYS))
    first, second, *_ = sorted(keys, key=lambda key: there.get(key) == promised.get(key))
    return first, second


def _without(there: Objects, gone: str) -> Objects:
    return {key: data for key, data in there.items() if key != gone}


def _shown(remote: Remote) -> Objects:
    return {key: remote.get(key) for key in KEYS if remote.head(key) is not None}


def _differing(some: Objects, others: Sequence[Objects]) -> list[str]:
    return [key for key in KEYS if all(some.get(key) != each.get(key) for each in others)]


def _go_on_elsewhere(node: Node, put: str, gone: str) -> None:
    """Let another node put a key and delete another, durably."""
    node.objects.put(put, NEWER)
    node.objects.delete(gone)
    node.real_drain.drain_all()
    node.close()


@pytest.mark.slow
@pytest.mark.parametrize("world", [overtaken_by_another, rolled_back])
@pytest.mark.parametrize("seed", share_of(SEEDS))
def test_what_is_newer_in_the_bucket_stays(
    tmp_path: Path, world: World, seed: int, request: pytest.FixtureRequest
) -> None:
    endangered = world(tmp_path, seed)
    count(request, "newer objects in danger after a power cut", endangered, seed)

    assert endangered >= IN_DANGER


def replace_whatever_is_there(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(uploading, "judge", lambda *_, **__: Verdict.NEWER)


def forget_what_was_deleted(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(MountDeletions, "covers", lambda *_: False)


@pytest.mark.parametrize("world", [overtaken_by_another, rolled_back])
@pytest.mark.parametrize("plant", [replace_whatever_is_there, forget_what_was_deleted])
def test_a_planted_bug_is_caught(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    world: World,
    plant: Callable[[pytest.MonkeyPatch], None],
) -> None:
    plant(monkeypatch)

    with pytest.raises(ViolationError, match="the bucket has other objects"):
        world(tmp_path, 0)
