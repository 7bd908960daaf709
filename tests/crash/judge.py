"""Judge what a power cut left: open it, and hold it against what was promised."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from cachetier_client.clock import Clock
from cachetier_client.identity.names import SaveIds
from cachetier_client.io.digests import digest_of

from cachetier.errors import CachetierError, FencedError
from cachetier.local.catalog import saves
from cachetier.model.lifecycle import PartState, SaveState, ShardState
from cachetier.remote.base import ObjectStore
from tests.crash.workload import KEYS, NAMES, RUN, STEPS, Promise
from tests.fakes.fake_clock import FakeClock
from tests.stateful.invariants import ViolationError, judge_bytes, judge_rows, require
from tests.stateful.model import DELETED, OPEN, PUBLISHED, Model
from tests.stateful.node import Node
from tests.stateful.object_node import MOUNT
from tests.stateful.published import published_bytes
from tests.stateful.reading import bytes_of


def judge(node: Node, promise: Promise) -> None:
    """Check every invariant of a node that has just started, and read everything it promised."""
    require(node.store.fenced is None, "fenced after start-up")
    require(node.recovered.lost_shards == 0, f"{node.recovered.lost_shards} rows lost their files")
    judge_bytes(node)
    quarantined = [row.name for row in node.rows() if row.state is ShardState.QUARANTINED]
    require(not quarantined, f"{quarantined} are quarantined")
    judge_rows(node)
    judge_manifests(node, promise)
    matches = [m for m in (promise.before, promise.after) if sealed_as(node, m)]
    require(matches, "seals were lost or made up")
    there, parts = objects_of(node), node.objects.parts_put()
    matches = [m for m in matches if (there, parts) == (m.objects, m.uploads)]
    require(matches, f"objects are {sorted(there)}, parts {parts.keys()}; promised are others")
    found = {step: readable(node, step) for step in STEPS}
    matches = [m for m in matches if found == {step: m.readable(RUN, step) for step in STEPS}]
    require(matches, f"readers get {_described(found)}, promised {_promised(promise)}")


def judge_manifests(node: Node, promise: Promise) -> None:
    """What is published reads back from the bucket alone, as one save's acknowledged bytes."""
    for step in STEPS:
        found = published_bytes(node.bucket, RUN, step)
        models = (promise.before, promise.after)
        if found is not None:
            sound = any(_is_of(step, *found, model) for model in models)
            require(sound, f"published step {step} has other bytes than one save's")


def _is_of(step: int, save_id: str, found: Mapping[str, bytes], model: Model) -> bool:
    save = model.save_named(RUN, step, save_id)
    if save is None:
        return False
    if save.state == DELETED:
        return True  # its tombstone is on its way
    return found == {name: shard.data for name, shard in save.shards.items()}


def judge_drained(node: Node, clock: FakeClock, promise: Promise) -> None:
    """Let the drain go on to its end: then what was promised is in the bucket, and whole."""
    for _ in range(3):
        node.real_drain.drain_all()
        clock.advance(60.0)  # what failed is tried again
    replaced = {
        (save.step, save.save_id)
        for step in STEPS
        for save in node.store.read(saves.saves_of, RUN, step)
        if save.state in (SaveState.SUPERSEDED, SaveState.REFUSED)
    }
    dirty = [
        row.name
        for row in node.rows()
        if row.state is ShardState.DIRTY and (row.step, row.save_id) not in replaced
        if not row.name.startswith("upload-")  # of one that is not complete
    ]
    require(not dirty, f"{dirty} are never drained")
    judge_rows(node)
    found = {step: published_bytes(node.bucket, RUN, step) for step in STEPS}
    expected = [_as_published(model.copy()) for model in (promise.before, promise.after)]
    require(found in expected, f"once drained there is {found}, not {expected}")
    shown = objects_shown(node)
    require(
        shown in [promise.before.objects, promise.after.objects],
        f"once drained the bucket shows the objects {sorted(shown)}, promised are others",
    )
    uploads = [key for key, _ in node.bucket.objects.list_uploads("") if not _is_open(node, key)]
    require(not uploads, f"uploads are left of {uploads}")


def objects_of(node: Node) -> dict[str, bytes]:
    """Read the objects that a program could read."""
    found = {key: node.objects.get(key) for key in KEYS}
    listed = node.objects.objects.list(node.objects.mount, MOUNT.prefix, "", "", 100).objects
    there = {key: data for key, data in found.items() if data is not None}
    require([each.key for each in listed] == sorted(there), f"{listed} are listed of {there}")
    return there


def objects_shown(node: Node) -> dict[str, bytes]:
    """Read the objects that the bucket shows by itself."""
    remote = node.bucket.objects
    return {key: remote.get(key) for key in remote.list(MOUNT.prefix).keys}


def _as_published(model: Model) -> dict[int, tuple[str, dict[str, bytes]] | None]:
    """Return what must be in the bucket once all of ``model`` is drained."""
    found: dict[int, tuple[str, dict[str, bytes]] | None] = dict.fromkeys(STEPS)
    for (run, step), every_save in model.steps.items():
        for save in every_save:
            if save.state == OPEN and save.whole():
                model.publish(save, run, step)
        for save in every_save:
            if save.state == PUBLISHED:
                found[step] = save.save_id, {n: shard.data for n, shard in save.shards.items()}
    return found


def _is_open(node: Node, key: str) -> bool:
    """Return whether a save that may still go on has its objects where ``key`` is.

    Among the keys of a mount, whose uploads may be anybody's: one of ours whose beginning was not
    recorded is left to the bucket's own rule for uploads that nobody goes on with.
    """
    found = node.store.read(saves.unfinished_saves)
    prefixes = [node.bucket.layout.shard_key(RUN, str(save.location), "") for save in found]
    return key.startswith((*prefixes, MOUNT.prefix))


def sealed_as(node: Node, model: Model) -> bool:
    """Return whether the parts sealed here are those of ``model``."""
    for step in STEPS:
        found = node.store.read(lambda sql, step=step: saves.saves_of(sql, RUN, step))  # type: ignore[misc]
        for save in found:
            number = save.number
            parts = node.store.read(lambda sql, n=number: saves.parts_of(sql, n))  # type: ignore[misc]
            sealed = {part.rank for part in parts if part.state is PartState.SEALED}
            known = model.save_named(RUN, step, save.save_id)
            if known is None or known.sealed() != sealed:
                return False
    return True


def readable(node: Node, step: int) -> dict[str, bytes]:
    """Read what a client could read of a step."""
    found = {}
    for name in NAMES:
        try:
            found[name] = node.get(RUN, step, name)
        except CachetierError as error:
            require(error.code == "not_found", f"reading {name} of step {step}: {error}")
    return found


def judge_fenced(node: Node) -> None:
    """A sync failed: nothing is acknowledged any more, and what is here can still be read."""
    require(node.store.fenced is not None, "a failed sync did not fence")
    ids = SaveIds("after", 1, "save", 0, 1)
    calls: dict[str, Callable[[], object]] = {
        "put": lambda: node.put(ids, "x", b"small"),
        "put of a file": lambda: node.put(ids, "y", bytes(100_000)),
        "seal": lambda: node.checkpoints.seal(ids, 1),
        "abort": lambda: node.checkpoints.abort_rank(ids),
    }
    for name, call in calls.items():
        try:
            call()
        except FencedError:
            continue
        raise ViolationError(f"{name} is acknowledged after a failed sync")
    for row in node.rows():
        body = bytes_of(node.store, row)
        if body is not None:
            require(digest_of(body) == row.content.digest, f"{row.name} cannot be read any more")


def judge_works(node: Node) -> None:
    """A node that has started takes a new save, and gives it back."""
    ids = SaveIds("after", 1, "save", 0, 1)
    node.put(ids, "x", b"after the power cut")
    require(node.get("after", 1, "x") == b"after the power cut", "a new shard cannot be read")


def open_node(
    cache_dir: Path, remote: ObjectStore, clock: Clock, *, capacity_bytes: int, vfs: str
) -> Node:
    """Open what a power cut left; a refusal to start is a broken promise too."""
    try:
        return Node(cache_dir, remote, clock, capacity_bytes=capacity_bytes, vfs=vfs)
    except CachetierError as error:
        raise ViolationError(f"start-up refuses: {error}") from error


def _described(found: dict[int, dict[str, bytes]]) -> str:
    return str(
        {step: {n: f"{len(b)}:{digest_of(b):x}" for n, b in s.items()} for step, s in found.items()}
    )


def _promised(promise: Promise) -> str:
    return " or ".join(
        _described({step: model.readable(RUN, step) for step in STEPS})
        for model in (promise.before, promise.after)
    )
