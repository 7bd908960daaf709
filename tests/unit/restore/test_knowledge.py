"""What other nodes did to a step: learned before it is served, listed, defended or refused."""

from __future__ import annotations

import os
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import TypeVar

import pytest
from cachetier_client.bucket_format.documents import Manifest, ManifestState
from cachetier_client.bucket_format.uploads import ObjectInfo
from cachetier_client.identity.names import SaveIds

from cachetier.errors import NotFoundError, StepPublishedError
from cachetier.local.catalog import manifests, saves
from cachetier.model.checkpoint import Save, learned_state
from cachetier.model.levels import Level
from cachetier.model.lifecycle import SaveState
from cachetier.reclaim.gc import Garbage
from cachetier.remote.base import Listing, ObjectStore
from cachetier.remote.bucket import Remote
from cachetier.restore.knowledge import FRESH_SECONDS, WAIT_SECONDS, Stale
from tests.fakes.fake_clock import FakeClock
from tests.fakes.faulty_store import FaultyObjectStore
from tests.fakes.memory_store import MemoryObjectStore
from tests.stateful.fake_drain import REMOTE
from tests.stateful.node import Node

T = TypeVar("T")
STEP = 6
LARGE = bytes(100_000)


def ids(save: str, rank: int = 0, *, ranks: int = 2, overwrite: bool = False) -> SaveIds:
    return SaveIds("run", STEP, save, rank, ranks, overwrite)


def body(save: str, rank: int) -> bytes:
    return f"{save} of rank {rank}".encode() + LARGE


def put(node: Node, save: str, rank: int, *, overwrite: bool = False) -> None:
    of = ids(save, rank, overwrite=overwrite)
    node.put(of, f"rank-{rank}", body(save, rank))


def seal(node: Node, save: str, rank: int, *, overwrite: bool = False) -> None:
    node.checkpoints.seal(ids(save, rank, overwrite=overwrite), 1)


def save_part(node: Node, save: str, rank: int, *, overwrite: bool = False) -> None:
    put(node, save, rank, overwrite=overwrite)
    seal(node, save, rank, overwrite=overwrite)


def save_all(nodes: Sequence[Node], save: str, *, overwrite: bool = False) -> None:
    """Save the step, a rank on each node, and have it published, which all of them notice."""
    for rank, node in enumerate(nodes):
        save_part(node, save, rank, overwrite=overwrite)
    for _ in nodes:
        for node in nodes:
            node.drain.drain_all()
    assert {states(node)[save] for node in nodes} == {"published"}


def got(node: Node, rank: int) -> bytes:
    return node.get("run", STEP, f"rank-{rank}")


def latest(node: Node, level: Level = Level.DURABLE) -> tuple[int, str] | None:
    found = node.checkpoints.latest("run", level)
    return (found.step, found.save_id) if found is not None else None


def listed(node: Node) -> list[tuple[str, str]]:
    return [(view.save_id, view.state) for view in node.checkpoints.steps("run")]


def states(node: Node) -> dict[str, SaveState]:
    return {save.save_id: save.state for save in node.store.read(saves.saves_of, "run", STEP)}


class Waits(threading.Condition):
    """A condition that counts who waits at it."""

    count = 0

    def wait_for(self, predicate: Callable[[], T], timeout: float | None = None) -> T:
        self.count += 1
        assert timeout is not None
        assert timeout <= WAIT_SECONDS
        return super().wait_for(predicate, timeout)


class BlackHole(FaultyObjectStore):
    """A store whose connections may hang, until it is ``mended``."""

    def __init__(self, store: ObjectStore) -> None:
        super().__init__(store)
        self.mended = threading.Event()
        self.mended.set()
        self.asked = threading.Semaphore(0)

    def head(self, key: str) -> ObjectInfo | None:
        self.asked.release()
        self.mended.wait()
        return super().head(key)

    def list(self, prefix: str, delimiter: str | None = None) -> Listing:
        self.mended.wait()
        return super().list(prefix, delimiter)


@pytest.fixture
def far(remote: MemoryObjectStore) -> Iterator[BlackHole]:
    """The bucket as node ``a`` reaches it."""
    store = BlackHole(remote)
    yield store
    store.mended.set()


@pytest.fixture
def a(tmp_path: Path, far: BlackHole, clock: FakeClock, vfs: str) -> Iterator[Node]:
    with closing(Node(tmp_path / "a", far, clock, vfs=vfs)) as node:
        yield node


@pytest.fixture
def b(tmp_path: Path, remote: MemoryObjectStore, clock: FakeClock, vfs: str) -> Iterator[Node]:
    with closing(Node(tmp_path / "b", remote, clock, vfs=vfs)) as node:
        yield node


# --- two saves of a step -------------------------------------------------------------------------


@pytest.fixture
def mixed(a: Node, b: Node) -> None:
    """Step 6 under i1: only A's part is in the bucket. The job restarts: A seals i2, B dies."""
    save_part(a, "i1", 0)
    a.drain.drain_all()
    save_part(b, "i1", 1)
    save_part(a, "i2", 0)
    put(b, "i2", 1)
    b.drain.publish_all()  # it looks before it sends anything
    while b.drain.drain_step("run", STEP) and "published" not in states(b).values():
        pass
    assert states(b)["i1"] is SaveState.PUBLISHED
    assert states(a) == {"i1": "open", "i2": "open"}, "A has a backlog, and was told nothing"


@pytest.mark.usefixtures("mixed")
@pytest.mark.parametrize("asked_first", [True, False], ids=["latest", "only read"])
def test_every_shard_on_every_node_is_of_the_save_that_is_published(
    a: Node, b: Node, asked_first: bool
) -> None:
    if asked_first:
        assert latest(a) == latest(b) == (STEP, "i1")

    for node in (a, b):
        for rank in (0, 1):
            assert got(node, rank) == body("i1", rank)
    assert states(a) == {"i1": "published", "i2": "open"}


@pytest.mark.usefixtures("mixed")
def test_a_save_that_came_later_is_published_over_what_was_learned(a: Node, b: Node) -> None:
    assert got(a, 0) == body("i1", 0)
    a.drain.drain_all()
    seal(b, "i2", 1)
    b.drain.drain_all()
    a.drain.drain_all()

    assert latest(a) == latest(b) == (STEP, "i2")
    for node in (a, b):
        assert [got(node, rank) for rank in (0, 1)] == [body("i2", rank) for rank in (0, 1)]


def test_a_try_that_its_rank_gave_up_is_never_read_once_another_is_published(
    a: Node, b: Node
) -> None:
    put(a, "i1", 0)  # the service is away then: the rank seals other bytes past it
    a.put(ids("i1"), "left", body("i1", 0))
    b.put(ids("i1"), "rank-0", b"the second try")
    seal(b, "i1", 0)
    save_part(b, "i1", 1)
    b.drain.drain_all()

    assert latest(a) == (STEP, "i1")

    assert got(a, 0) == b"the second try"
    with pytest.raises(NotFoundError):
        a.get("run", STEP, "left")


def test_an_open_save_is_read_on_its_node_while_nothing_else_is_published(
    a: Node, far: BlackHole, clock: FakeClock
) -> None:
    save_part(a, "i1", 0)
    for _ in range(3):
        assert got(a, 0) == body("i1", 0)
    assert far.calls["head"] == 1, "the manifest was asked once"
    save_part(a, "i1", 1)
    clock.advance(60.0)
    assert got(a, 0) == body("i1", 0)
    assert far.calls["head"] == 1, "of a save that is whole here nobody is asked"


def test_a_name_that_is_not_in_the_open_save_here_is_looked_up_in_the_bucket(
    a: Node, b: Node, clock: FakeClock
) -> None:
    """B publishes the step; before A's drain has noticed, a rank reads B's shard on A."""
    save_part(a, "i1", 0)
    a.drain.drain_all()
    with pytest.raises(NotFoundError):
        got(a, 1)
    clock.advance(0.1)
    save_part(b, "i1", 1)
    b.drain.drain_all()
    assert states(a) == {"i1": "open"}

    assert got(a, 1) == body("i1", 1)
    assert states(a) == {"i1": "published"}


def test_readers_get_the_save_that_latest_named_though_a_newer_one_is_whole_here(
    a: Node, b: Node
) -> None:
    save_all((a, b), "i1")
    for rank in (0, 1):
        save_part(a, "i2", rank, overwrite=True)
    assert got(a, 1) == body("i2", 1), "whoever saves a step again reads it"

    assert latest(a) == (STEP, "i1")
    assert [got(a, rank) for rank in (0, 1)] == [body("i1", rank) for rank in (0, 1)]
    assert latest(a, Level.LOCAL) == (STEP, "i2")
    assert [got(a, rank) for rank in (0, 1)] == [body("i2", rank) for rank in (0, 1)]


def test_a_save_that_overwrites_is_read_by_its_node_whatever_is_learned_of_the_bucket(
    a: Node, b: Node
) -> None:
    for rank in (0, 1):
        save_part(a, "mine", rank, overwrite=True)
        save_part(b, "theirs", rank, overwrite=True)
    b.drain.drain_all()
    a.restore.knowledge.manifest("run", STEP)

    assert states(a) == {"mine": "open", "theirs": "published"}
    assert got(a, 0) == body("mine", 0)


# --- replaced and deleted elsewhere --------------------------------------------------------------


def test_a_step_that_another_node_replaced_is_the_new_save_here(
    a: Node, b: Node, clock: FakeClock
) -> None:
    save_all((a, b), "i1")
    save_all((b, b), "i2", overwrite=True)
    clock.advance(FRESH_SECONDS + 1)

    assert listed(a) == [("i2", "published")]
    (view,) = a.checkpoints.steps("run")
    assert (view.shards, view.ranks, view.size_bytes) == (2, (0, 1), 2 * len(body("i2", 0)))
    assert view.checked_at == clock.now()
    assert a.store.space.used_bytes == 0, "the bytes of what was replaced went"
    assert got(a, 0) == body("i2", 0)
    assert latest(a) == (STEP, "i2")
    assert a.checkpoints.step("run", STEP)[0].save_id == "i2"


def test_a_read_alone_finds_that_its_step_was_replaced(a: Node, b: Node, clock: FakeClock) -> None:
    save_all((a, b), "i1")
    assert latest(a, Level.LOCAL) == (STEP, "i1")
    save_all((b, b), "i2", overwrite=True)
    clock.advance(FRESH_SECONDS + 1)

    assert got(a, 0) == body("i2", 0)
    assert got(a, 1) == body("i2", 1)


def test_a_step_that_another_node_deleted_is_gone_here_and_can_be_saved_again(
    a: Node, b: Node, clock: FakeClock
) -> None:
    save_all((a, b), "i1")
    b.checkpoints.delete_step("run", STEP)
    b.drain.delete_all()
    clock.advance(FRESH_SECONDS + 1)

    with pytest.raises(NotFoundError):
        got(a, 0)
    assert listed(a) == []
    assert latest(a, Level.LOCAL) is None
    assert a.store.space.used_bytes == 0
    save_all((a, b), "i2")
    assert latest(b) == (STEP, "i2")


@pytest.mark.parametrize("size", [10, len(LARGE)], ids=["small", "large"])
def test_published_already_is_only_said_after_asking(
    a: Node, b: Node, far: BlackHole, clock: FakeClock, size: int
) -> None:
    """Nothing was read on A since; it saves at once what B deleted."""
    save_all((a, b), "i1")
    asked = far.calls["head"]
    with pytest.raises(StepPublishedError):
        a.put(ids("i2"), "x", bytes(size))
    assert far.calls["head"] > asked
    clock.advance(0.1)
    b.checkpoints.delete_step("run", STEP)
    b.drain.delete_all()

    a.put(ids("i2"), "x", bytes(size))
    assert a.get("run", STEP, "x") == bytes(size)
    assert states(a) == {"i1": "deleted", "i2": "open"}


def test_a_seal_is_refused_only_after_asking(a: Node, b: Node) -> None:
    save_all((a, b), "i1")
    b.checkpoints.delete_step("run", STEP)
    b.drain.delete_all()

    assert a.checkpoints.seal(ids("i2"), 1) == [0]


def test_a_put_that_is_admitted_asks_nothing(a: Node, far: BlackHole) -> None:
    put(a, "i1", 0)
    a.put(ids("i1"), "small", b"x")
    a.checkpoints.seal(ids("i1"), 1)
    assert sum(far.calls.values()) == 0


def test_a_pin_keeps_what_was_deleted_elsewhere_and_not_the_step_that_was_replaced(
    a: Node, b: Node, clock: FakeClock
) -> None:
    save_all((a, b), "i1")
    a.checkpoints.pin("run", STEP)
    used = a.store.space.used_bytes
    save_all((b, b), "i2", overwrite=True)
    clock.advance(FRESH_SECONDS + 1)

    assert listed(a) == [("i2", "published")]
    a.evictor.collect()
    clock.advance(100_000.0)
    Garbage(a.store, a.cache_dir, [Remote(REMOTE, a.bucket)], clock).collect(dry_run=False)
    assert a.store.space.used_bytes == used, "its bytes stay"
    assert got(a, 0) == body("i2", 0), "and readers see the new save"
    b.checkpoints.delete_step("run", STEP)
    b.drain.delete_all()
    clock.advance(FRESH_SECONDS + 1)
    assert got(a, 0) == body("i2", 0)
    assert listed(a) == [("i2", "published")]


def test_the_sweep_frees_the_bytes_of_what_was_replaced_or_deleted(
    a: Node, b: Node, clock: FakeClock
) -> None:
    save_all((a, b), "i1")
    save_all((b, b), "i2", overwrite=True)
    assert a.store.space.used_bytes > 0
    clock.advance(FRESH_SECONDS + 1)

    a.restore.knowledge.sweep()
    a.restore.knowledge.refresh("run", STEP)  # waits for the request that is under way

    assert states(a) == {"i1": "superseded", "i2": "published"}
    assert a.store.space.used_bytes == 0


def test_a_node_whose_disk_takes_no_writes_says_what_the_bucket_has(a: Node, b: Node) -> None:
    save_all((a, b), "i1")
    save_all((b, b), "i2", overwrite=True)
    a.store.fence("planned")

    assert latest(a) == (STEP, "i2")
    assert states(a) == {"i1": "published"}


# --- a remote that does not answer ---------------------------------------------------------------


@pytest.fixture
def waits(a: Node) -> Waits:
    a.restore.knowledge._changed = waits = Waits()
    return waits


def cut_off(a: Node, far: BlackHole, clock: FakeClock) -> None:
    """Publish a step on one node alone, and let its bucket hang from now on."""
    for rank in (0, 1):
        save_part(a, "i1", rank)
    a.drain.drain_all()
    assert got(a, 0) == body("i1", 0)
    clock.advance(FRESH_SECONDS + 1)
    far.mended.clear()


def test_the_first_caller_of_a_node_waits_for_the_bucket(a: Node, waits: Waits) -> None:
    assert a.restore.knowledge.refresh("run", STEP) is None, "it was asked, and is fresh"
    assert waits.count == 1


def test_nobody_waits_once_the_remote_is_known_not_to_answer(
    a: Node, far: BlackHole, clock: FakeClock, waits: Waits
) -> None:
    cut_off(a, far, clock)
    asked_at = clock.now() - FRESH_SECONDS - 1
    opened = a.restore.open("run", STEP, "rank-0", 0.0)
    assert opened.stale == Stale(asked_at), "the answer says how old it is"
    assert opened.descriptor is not None
    os.close(opened.descriptor)
    waited = waits.count
    assert waited > 0

    for _ in range(50):
        clock.advance(1.0)
        assert got(a, 0) == body("i1", 0)
        assert latest(a, Level.LOCAL) == (STEP, "i1")
        assert listed(a) == [("i1", "published")]
        with pytest.raises(StepPublishedError) as refusal:
            a.put(ids("i2"), "x", b"x")
        assert refusal.value.context["checked_at"] == asked_at
    assert waits.count == waited


def test_an_answer_that_came_late_counts_and_callers_wait_again(
    a: Node, b: Node, far: BlackHole, clock: FakeClock, waits: Waits
) -> None:
    cut_off(a, far, clock)
    assert got(a, 0) == body("i1", 0)
    b.checkpoints.delete_step("run", STEP)
    b.drain.delete_all()
    far.mended.set()
    with waits:
        assert waits.wait_for(lambda: not a.restore.knowledge._asking, WAIT_SECONDS)

    with pytest.raises(NotFoundError):
        got(a, 0)
    assert a.store.space.used_bytes == 0


def test_nobody_waits_while_the_circuit_of_the_drain_is_open(
    a: Node, far: BlackHole, clock: FakeClock, waits: Waits
) -> None:
    cut_off(a, far, clock)
    a.restore.knowledge._is_cut_off = lambda: True
    waited = waits.count

    opened = a.restore.open("run", STEP, "rank-0", 0.0)

    assert waits.count == waited
    assert opened.stale is not None
    assert opened.descriptor is not None
    os.close(opened.descriptor)


def test_requests_to_a_remote_that_hangs_are_few(a: Node, far: BlackHole, clock: FakeClock) -> None:
    cut_off(a, far, clock)
    before = far.calls["head"]
    for _ in range(100):
        clock.advance(0.1)
        a.restore.knowledge.refresh("run", STEP)
    far.mended.set()
    a.restore.knowledge.close()

    assert far.calls["head"] - before <= 1, "one and the same step is asked for once"


def test_all_callers_of_a_node_share_one_request(a: Node, far: BlackHole, clock: FakeClock) -> None:
    cut_off(a, far, clock)
    far.asked = threading.Semaphore(0)
    with ThreadPoolExecutor(16) as ranks:
        answers = [ranks.submit(a.restore.knowledge.refresh, "run", STEP) for _ in range(16)]
        assert far.asked.acquire(timeout=30)
        far.mended.set()
        for answer in answers:
            answer.result()

    assert not far.asked.acquire(blocking=False)


# --- rules ---------------------------------------------------------------------------------------

CLAIMED, PUBLISHED, DELETED = ManifestState


def manifest(save_id: str, state: ManifestState, *replaces: str) -> Manifest:
    return Manifest(
        state=state,
        run="run",
        step=STEP,
        save_id=save_id,
        location="6",
        nonce="n",
        started_at=1.0,
        replaces=replaces,
    )


@pytest.mark.parametrize(
    ("state", "seen", "then"),
    [
        ("open", manifest("x", PUBLISHED), "published"),
        ("local_only", manifest("x", PUBLISHED), "published"),
        ("replicated", manifest("x", PUBLISHED), "published"),
        ("superseded", manifest("x", PUBLISHED), "published"),
        ("deleted", manifest("x", PUBLISHED), "deleted"),
        ("open", manifest("x", DELETED), "deleted"),
        ("published", manifest("x", DELETED), "deleted"),
        ("published", manifest("x", CLAIMED), "published"),
        ("open", manifest("y", PUBLISHED), "open"),
        ("open", manifest("y", PUBLISHED, "x"), "open"),
        ("open", manifest("y", DELETED, "x"), "open"),
        ("published", manifest("y", PUBLISHED), "superseded"),
        ("replicated", manifest("y", PUBLISHED), "superseded"),
        ("published", manifest("y", CLAIMED), "published"),
        ("published", manifest("y", CLAIMED, "x"), "superseded"),
        ("published", manifest("y", DELETED), "published"),
        ("published", manifest("y", DELETED, "x"), "superseded"),
        ("refused", manifest("y", PUBLISHED), "refused"),
    ],
)
def test_what_a_manifest_makes_of_a_save_here(state: str, seen: Manifest, then: str) -> None:
    save = Save(1, "run", STEP, "x", SaveState(state), 1, False, 1.0)
    assert learned_state(save, seen) == then


def test_a_manifest_that_was_read_before_something_else_was_learned_changes_nothing(
    a: Node, b: Node
) -> None:
    save_all((a, b), "i1")
    older = a.bucket.manifest("run", STEP)
    assert older is not None
    before = a.store.read(manifests.settled, "run", STEP)
    save_all((b, b), "i2", overwrite=True)
    a.restore.knowledge.manifest("run", STEP)
    assert states(a) == {"i1": "superseded", "i2": "published"}

    learned = a.store.write(manifests.learn, a.store.policy, older.manifest, before, 1.0)

    assert learned is None
    assert states(a) == {"i1": "superseded", "i2": "published"}


def test_a_manifest_that_has_not_changed_is_not_read_again(
    a: Node, far: BlackHole, clock: FakeClock
) -> None:
    for rank in (0, 1):
        save_part(a, "i1", rank)
    a.drain.drain_all()
    asked = Counter(far.calls)
    for _ in range(3):
        assert got(a, 0) == body("i1", 0)
        clock.advance(FRESH_SECONDS + 1)

    assert far.calls - asked == {"head": 3, "get": 1}


def test_a_restore_on_a_node_that_never_saw_the_step_costs_what_it_did(
    a: Node, b: Node, far: BlackHole
) -> None:
    for rank in (0, 1):
        save_part(b, "i1", rank)
    b.drain.drain_all()

    for rank in (0, 1):
        assert got(a, rank) == body("i1", rank)

    documents = {"head": 2, "get": 4}  # for each rank: the manifest's two calls, and its part
    assert far.calls == {**documents, "read_into": 2}
