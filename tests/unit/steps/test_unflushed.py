"""Notes about steps that are not durable: when they are in the bucket, and what others read."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from cachetier_client.bucket_format.documents import UnflushedNote, UnflushedSave, encode
from cachetier_client.identity.names import SaveIds
from cachetier_client.io.digests import digest_of
from cachetier_client.results import UnflushedStep

from cachetier.errors import CachetierError, NotFoundError, RemoteError, RemoteRefusedError
from cachetier.model.levels import Level
from cachetier.model.policy import DRAIN_ALL, Policy
from cachetier.steps.unflushed import (
    AGAIN_SECONDS,
    ANNOUNCED_SECONDS,
    FRESH_SECONDS,
    LATE_SECONDS,
    UnflushedNotes,
)
from cachetier.steps.views import StepView
from tests.fakes.fake_clock import FakeClock
from tests.fakes.faulty_store import FaultyObjectStore, fail, lose_reply
from tests.fakes.memory_store import MemoryObjectStore
from tests.stateful.node import Node

NOTES = "tier/.cachetier/unflushed/"


@dataclass
class Writer:
    """A node that writes notes over a link that may fail."""

    directory: Path
    bucket: MemoryObjectStore
    clock: FakeClock
    vfs: str
    policy: Policy = DRAIN_ALL

    def __post_init__(self) -> None:
        self.link = FaultyObjectStore(self.bucket)
        self._open()

    def _open(self) -> None:
        self.node = Node(self.directory, self.link, self.clock, vfs=self.vfs, policy=self.policy)
        self.notes = UnflushedNotes(
            self.node.store, self.node.bucket, self.node.changes, self.clock
        )

    def seal(self, step: int, *ranks: int, world_size: int = 1, save: str = "save") -> None:
        for rank in ranks or (0,):
            ids = SaveIds("run", step, save, rank, world_size)
            self.node.put(ids, f"rank-{rank}", b"weights")
            self.node.checkpoints.seal(ids, len(ranks) or 1)

    def round(self, seconds: float = 1.0) -> None:
        self.notes_or_error()
        self.clock.advance(seconds)
        self.notes.round()

    def notes_or_error(self) -> bool:
        try:
            self.notes.round()
        except RemoteError:
            return False
        return True

    def kill(self) -> None:
        self.notes.stop(0.0)
        self.node.die()
        self._open()

    def close(self) -> None:
        self.notes.stop(0.0)
        self.node.close()

    def told(self) -> tuple[UnflushedStep, ...]:
        self.clock.advance(FRESH_SECONDS)
        return self.node.checkpoints.unflushed.of_run("run")


@pytest.fixture
def one(tmp_path: Path, remote: MemoryObjectStore, clock: FakeClock, vfs: str) -> Iterator[Writer]:
    writer = Writer(tmp_path / "one", remote, clock, vfs)
    yield writer
    writer.close()


@pytest.fixture
def other(
    tmp_path: Path, remote: MemoryObjectStore, clock: FakeClock, vfs: str
) -> Iterator[Writer]:
    writer = Writer(tmp_path / "other", remote, clock, vfs)
    yield writer
    writer.close()


def noted(bucket: MemoryObjectStore) -> list[list[int]]:
    """Return the steps that each note in the bucket names."""
    bodies = [json.loads(bucket.get(key)) for key in bucket.list(NOTES).keys]
    return [[save["step"] for save in body["saves"]] for body in bodies]


def test_a_step_is_noted_once_it_is_not_durable_for_a_moment_and_until_it_is(
    one: Writer, remote: MemoryObjectStore
) -> None:
    one.seal(1)
    one.notes.round()
    assert noted(remote) == []
    one.round()
    assert noted(remote) == [[1]]
    one.seal(2)
    one.round()
    assert noted(remote) == [[2, 1]]
    one.node.drain.drain_all()
    one.round()

    assert noted(remote) == []
    assert not one.notes.warnings()


def test_a_note_stands_while_its_node_starts_again(one: Writer, remote: MemoryObjectStore) -> None:
    """A job that asks just then is told."""
    one.seal(1)
    one.round()
    one.kill()
    one.link.calls.clear()

    one.notes.round()

    assert one.link.calls["delete"] == 0
    assert noted(remote) == [[1]]
    assert not one.notes.warnings()


def test_a_step_that_is_durable_at_once_costs_no_request(one: Writer) -> None:
    one.seal(1)
    one.notes.round()
    one.node.drain.drain_all()
    before = one.link.calls.copy()
    one.round()

    assert one.link.calls == before


def test_a_slow_step_costs_a_put_and_a_delete_and_nothing_while_it_stands(one: Writer) -> None:
    one.round()
    one.round(LATE_SECONDS)  # what a start costs: see below
    one.seal(1, 0, 1, world_size=2)
    before = one.link.calls.copy()
    for _ in range(20):
        one.round()
    assert one.link.calls - before == {"put": 1}
    one.node.drain.drain_all()
    before = one.link.calls.copy()
    for _ in range(20):
        one.round()

    assert one.link.calls - before == {"delete": 1}


def test_what_a_policy_keeps_here_is_not_noted_until_a_flush_wants_it(
    tmp_path: Path, remote: MemoryObjectStore, clock: FakeClock, vfs: str
) -> None:
    writer = Writer(tmp_path / "kept", remote, clock, vfs, Policy(durable_every=2))
    try:
        writer.seal(1)
        writer.round()
        assert noted(remote) == []
        writer.node.checkpoints.drained("run", 1)
        writer.round()
        assert noted(remote) == [[1]]
    finally:
        writer.close()


def test_a_step_that_ends_otherwise_leaves_its_note(one: Writer, remote: MemoryObjectStore) -> None:
    one.seal(1)
    one.seal(2)
    one.round()
    one.node.checkpoints.delete_step("run", 2)
    one.round()

    assert noted(remote) == [[1]]


def test_while_the_bucket_is_away_the_status_says_so_and_the_note_comes_later(
    one: Writer, remote: MemoryObjectStore
) -> None:
    one.seal(1)
    one.notes.round()
    one.link.go_down()
    one.clock.advance(ANNOUNCED_SECONDS + 1)
    assert not one.notes_or_error()
    assert one.link.fired
    (warning,) = one.notes.warnings()
    assert "1 step of run could not be announced" in warning
    one.link.mend()
    one.notes.round()

    assert noted(remote) == [[1]]
    assert not one.notes.warnings()


@pytest.mark.parametrize("operation", ["put", "delete"])
def test_a_note_is_right_in_the_end_though_a_request_came_late(
    one: Writer, remote: MemoryObjectStore, operation: str
) -> None:
    one.seal(1)
    call = one.link.calls["put"] + 1 if operation == "put" else 1
    one.link.add(lose_reply("put", call) if operation == "put" else fail("delete"))
    for _ in range(3):
        one.notes_or_error()
        one.clock.advance(1.0)
    one.node.drain.drain_all()
    for _ in range(3):
        one.notes_or_error()
    assert len(one.link.fired) == 1
    assert noted(remote) == []
    remote.put(note_of(one), b"late", digest=digest_of(b"late"))  # that request, after all
    one.round(LATE_SECONDS)

    assert remote.list(NOTES).keys == ()


@pytest.mark.parametrize("moment", ["sealed", "note", "durable", "deleted", "log lost"])
def test_a_kill_at_any_moment_leaves_no_note_in_the_end(
    one: Writer, remote: MemoryObjectStore, moment: str
) -> None:
    one.seal(1)
    one.notes.round()
    one.clock.advance(1.0)
    if moment != "sealed":
        one.notes.round()
    if moment in ("durable", "deleted"):
        one.node.drain.drain_all()
    if moment == "deleted":
        remote.delete(note_of(one))
    if moment == "log lost":  # the note is all that is left of the step
        one.node.checkpoints.delete_step("run", 1)
    one.kill()
    one.round()
    assert noted(remote) == ([[1]] if moment in ("sealed", "note") else [])
    one.node.drain.drain_all()
    one.round()
    assert noted(remote) == []
    remote.put(note_of(one), b"late", digest=digest_of(b"late"))  # of the process before
    one.round(LATE_SECONDS)

    assert remote.list(NOTES).keys == ()


def note_of(one: Writer) -> str:
    return one.node.bucket.layout.unflushed_key("run", one.node.store.store_id)


def test_an_idle_node_asks_twice_and_then_no_more(one: Writer) -> None:
    for _ in range(20):
        one.round(LATE_SECONDS)

    assert one.link.calls == {"list": 2}


def test_a_role_that_may_not_list_still_announces(one: Writer, remote: MemoryObjectStore) -> None:
    one.link.add(fail("list", 1, RemoteRefusedError))
    one.seal(1)
    one.round()
    one.round()

    assert one.link.fired
    assert noted(remote) == [[1]]


def test_others_are_told_who_has_a_step_and_what_of_it(one: Writer, other: Writer) -> None:
    one.seal(5, 0, 1, world_size=4)
    one.round()
    (step,) = other.told()
    assert (step.step, step.ranks, step.ranks_here) == (5, (0, 1), ())
    assert step.stores == (one.node.store.store_id,)
    assert not step.is_whole
    other.seal(5, 2, 3, world_size=4)

    (step,) = other.told()
    assert (step.ranks, step.ranks_here, step.is_whole) == ((0, 1, 2, 3), (2, 3), True)
    assert one.told() == ()  # the other has not said so yet


def test_a_step_that_the_bucket_knows_or_has_passed_is_nothing_to_wait_for(
    one: Writer, other: Writer, remote: MemoryObjectStore
) -> None:
    one.seal(5)
    one.round()
    note, key = remote.get(remote.list(NOTES).keys[0]), remote.list(NOTES).keys[0]
    one.node.drain.drain_all()
    one.round()
    remote.put(key, note, digest=digest_of(note))  # its node died before it took it away
    assert other.told() == ()
    other.seal(6)
    other.node.drain.drain_all()

    assert other.told() == ()


def test_another_save_of_the_newest_durable_step_is_waited_for(one: Writer, other: Writer) -> None:
    other.seal(5, save="durable")
    other.node.drain.drain_all()
    one.seal(5, save="again")
    one.round()

    (step,) = other.told()
    assert step.save_id == "again"
    newest = other.node.checkpoints.newest("run", Level.DURABLE)
    assert newest.unflushed == (step,)
    assert other.node.checkpoints.newest("run", Level.LOCAL).unflushed is None


def test_a_step_that_becomes_durable_while_a_job_asks_is_durable_or_told_of(
    one: Writer, other: Writer, monkeypatch: pytest.MonkeyPatch
) -> None:
    one.seal(5)
    one.round()
    latest = other.node.checkpoints.latest

    def slow(run: str, level: Level) -> StepView | None:
        found = latest(run, level)
        one.node.drain.drain_all()
        one.round()
        assert noted(one.bucket) == []
        return found

    monkeypatch.setattr(other.node.checkpoints, "latest", slow)

    newest = other.node.checkpoints.newest("run", Level.DURABLE)
    assert newest.step is None
    assert [each.step for each in newest.unflushed or ()] == [5]


def test_a_node_looks_once_for_all_who_ask_in_five_seconds(one: Writer, other: Writer) -> None:
    one.seal(5)
    one.round()
    other.told()
    before = other.link.calls.copy()
    for _ in range(64):
        assert len(other.node.checkpoints.unflushed.of_run("run")) == 1
    assert other.link.calls == before
    other.told()

    asked = other.link.calls - before
    assert asked["list"] == 2  # the notes, and the steps that are durable


def test_a_bucket_that_is_away_is_not_asked_by_each(one: Writer, other: Writer) -> None:
    one.seal(5)
    one.round()
    other.link.go_down()
    other.clock.advance(FRESH_SECONDS)
    for _ in range(3):
        with pytest.raises(RemoteError):
            other.node.checkpoints.unflushed.of_run("run")

    assert len(other.link.fired) == 1
    assert other.node.checkpoints.unflushed.heard("run") is None


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b'{"format": 1}',
        json.dumps({"format": 1, "run": "r", "store": "ab", "host": "h", "saves": []}).encode(),
        json.dumps(
            {"format": 1, "run": "run", "store": "ab", "host": "\x1b[2J", "saves": []}
        ).encode(),
    ],
)
def test_what_is_no_note_is_passed_over(
    one: Writer, other: Writer, remote: MemoryObjectStore, body: bytes
) -> None:
    one.seal(5)
    one.round()
    remote.put(f"{NOTES}run/ab.json", body, digest=digest_of(body))

    assert [step.step for step in other.told()] == [5]


@pytest.mark.parametrize("run", ["run", None])
def test_a_node_that_will_not_return_is_forgotten_by_id(
    one: Writer, other: Writer, remote: MemoryObjectStore, run: str | None
) -> None:
    one.seal(5)
    one.round()
    reader = other.node.checkpoints.unflushed
    with pytest.raises(NotFoundError):
        reader.forgotten({"node": other.node.store.store_id, "run": run})
    forgotten = reader.forgotten({"node": one.node.store.store_id, "run": run})

    assert [step["step"] for step in forgotten["forgotten"]] == [5]
    assert reader.of_run("run") == ()
    one.round()
    assert noted(remote) == []
    one.round(AGAIN_SECONDS)
    assert noted(remote) == [[5]]  # it is alive


def test_a_name_that_is_none_is_refused(other: Writer) -> None:
    with pytest.raises(CachetierError):
        other.node.checkpoints.unflushed.forgotten({"node": "n", "run": "../x"})
    with pytest.raises(CachetierError):
        other.node.checkpoints.unflushed.listed({"run": None})


@pytest.mark.parametrize("held", [0, 1, 3])
def test_a_node_asks_for_little_at_the_start_of_a_job(
    one: Writer, other: Writer, remote: MemoryObjectStore, held: int
) -> None:
    """The table in docs/design/0037-unflushed-steps.md has these numbers."""
    one.seal(1)
    one.node.drain.drain_all()
    for number in range(held):
        save = UnflushedSave(step=9, save_id="s", world_size=8, ranks=(number,))
        note = encode(UnflushedNote(run="run", store=f"{number}f", host="h", saves=(save,)))
        remote.put(f"{NOTES}run/{number}f.json", note, digest=digest_of(note))
    before = other.link.calls.copy()
    found = [other.node.checkpoints.unflushed.of_run("run") for _rank in range(8)][-1]

    asked = other.link.calls - before
    assert [len(each.nodes) for each in found] == ([held] if held else [])
    manifest = {"head": 1, "get": held + 1, "list": 2}
    assert asked == (manifest if held else {"list": 1})
