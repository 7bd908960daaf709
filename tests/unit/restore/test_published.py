"""Which of two remotes is believed about a step, and what happens while one cannot be asked."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from cachetier_client.bucket_format.documents import Manifest, ManifestState
from cachetier_client.bucket_format.layout import Layout
from cachetier_client.identity.names import SaveIds
from cachetier_client.io.digests import digest_of

from cachetier.errors import IntegrityError, NotFoundError, TransientError
from cachetier.local.catalog import copies, saves
from cachetier.model.lifecycle import SaveState
from cachetier.remote.base import Listing
from cachetier.remote.bucket import Bucket, Remote
from cachetier.restore.fill import Room
from cachetier.restore.published import counts
from cachetier.restore.replica_choice import AWAY_SECONDS, PassedOverCopies, Reason, Replicas
from cachetier.restore.restore import Restore
from tests.fakes.fake_clock import FakeClock
from tests.fakes.faulty_store import FaultyObjectStore, corrupt
from tests.fakes.memory_store import MemoryObjectStore
from tests.stateful.fake_drain import REMOTE
from tests.stateful.node import Node
from tests.stateful.reading import whole

CLAIMED, PUBLISHED, DELETED = ManifestState
IDS = SaveIds("run", 1, "save", 0, 1)
DATA = bytes(range(256)) * 400


def manifest(
    save_id: str, state: ManifestState, at: float = 1.0, replaces: tuple[str, ...] = ()
) -> Manifest:
    return Manifest(
        state=state,
        run="run",
        step=1,
        save_id=save_id,
        location="1",
        nonce="n",
        started_at=at,
        replaces=replaces,
    )


@pytest.mark.parametrize(
    ("durable", "believed"),
    [
        (None, True),
        (manifest("a", CLAIMED), True),
        (manifest("b", CLAIMED, at=9.0), True),
        (manifest("a", PUBLISHED), True),
        (manifest("b", PUBLISHED), False),
        (manifest("a", DELETED), False),
        (manifest("b", DELETED, at=9.0), True),
        (manifest("b", DELETED, at=0.5), True),
        (manifest("b", DELETED, at=0.5, replaces=("a",)), False),
    ],
)
def test_a_replica_is_believed_where_the_durable_remote_does_not_know_better(
    durable: Manifest | None, believed: bool
) -> None:
    assert counts(manifest("a", PUBLISHED), durable) is believed


def copied(store: MemoryObjectStore) -> MemoryObjectStore:
    """Return another store with the same objects."""
    copy = MemoryObjectStore()
    for key in store.list("").keys:
        body, info = store.get(key), store.head(key)
        assert info is not None
        copy.put(key, body, digest=digest_of(body), metadata=info.metadata)
    return copy


class World:
    """A step at two remotes with the same objects, and a node that never saw it."""

    def __init__(self, far: MemoryObjectStore, node: Node, clock: FakeClock) -> None:
        self.far, self.near = FaultyObjectStore(far), FaultyObjectStore(copied(far))
        self.node = node
        self.passed: list[tuple[str, str]] = []
        self.restore = Restore(
            node.store,
            Bucket(self.far, Layout("tier")),
            clock,
            remote=REMOTE,
            replicas=Replicas(
                [Remote("near", Bucket(self.near, Layout("tier")))],
                lambda _shard, copy, reason, _error: self.passed.append((copy.remote, reason)),
            ),
            room=Room(lambda: None),
        )
        node.store.write(copies.configure_replicas, {"near": False})

    def get(self, name: str = "a") -> bytes:
        opened = self.restore.open("run", 1, name, 0.0)
        if opened.body is not None:
            return opened.body
        assert opened.descriptor is not None
        return whole(opened.descriptor)

    def state(self) -> SaveState:
        (save,) = self.node.store.read(lambda sql: saves.saves_of(sql, "run", 1))
        return save.state

    def drop_local(self) -> None:
        for shard in self.node.rows():
            assert self.node.store.evict(shard)


@pytest.fixture
def world(
    tmp_path: Path, node: Node, remote: MemoryObjectStore, clock: FakeClock, vfs: str
) -> Iterator[World]:
    node.put(IDS, "a", DATA)
    node.checkpoints.seal(IDS, 1)
    node.drain.drain_all()
    elsewhere = Node(tmp_path / "elsewhere", remote, clock, vfs=vfs)
    world = World(remote, elsewhere, clock)
    yield world
    world.restore.close()
    elsewhere.close()


def test_the_replica_is_read_though_the_durable_manifest_decides(world: World) -> None:
    assert world.get() == DATA
    assert world.state() is SaveState.PUBLISHED
    assert world.near.calls["read_into"] == 1
    assert world.far.calls["read_into"] == 0
    assert world.passed == []


def test_while_the_durable_remote_is_cut_off_a_step_is_known_as_replicated(world: World) -> None:
    world.far.go_down()
    assert world.get() == DATA
    assert world.state() is SaveState.REPLICATED
    found = next(world.restore.published.steps("run"))
    assert (found.manifest.step, found.durable) == (1, False)


@pytest.mark.parametrize("looks", [1, 2])  # at first it is not yet known to be out of reach
def test_the_steps_of_a_replica_are_a_list_that_ends_though_another_remote_is_cut_off(
    world: World, looks: int
) -> None:
    world.far.go_down()
    for _ in range(looks):
        assert [each.manifest.step for each in world.restore.published.steps("run")] == [1]


def test_a_step_known_as_replicated_is_published_once_the_durable_remote_says_so(
    world: World, clock: FakeClock
) -> None:
    world.far.go_down()
    world.get()
    world.drop_local()
    world.far.mend()
    clock.advance(AWAY_SECONDS + 1)

    assert world.get() == DATA
    assert world.state() is SaveState.PUBLISHED
    world.drop_local()
    world.near.go_down()
    assert world.get() == DATA
    assert world.passed == [("near", "unreachable")]


def test_a_remote_that_was_out_of_reach_is_asked_last_for_a_while(
    world: World, clock: FakeClock
) -> None:
    world.get()
    world.drop_local()
    world.near.go_down()
    assert world.get() == DATA
    asked = world.near.calls["read_into"]
    world.drop_local()
    assert world.get() == DATA
    assert world.near.calls["read_into"] == asked
    assert world.passed == [("near", "unreachable")]

    world.near.mend()
    clock.advance(AWAY_SECONDS + 1)
    world.drop_local()
    assert world.get() == DATA
    assert world.near.calls["read_into"] == asked + 1


def test_a_damaged_copy_is_passed_over_for_the_next(world: World) -> None:
    world.get()
    world.drop_local()
    fault = corrupt("read_into", world.near.calls["read_into"] + 1)
    world.near.add(fault)

    assert world.get() == DATA
    assert world.near.fired == [fault]
    assert world.passed == [("near", "damaged")]


def test_when_every_copy_is_damaged_that_is_an_error_and_no_bytes(world: World) -> None:
    world.get()
    world.drop_local()
    for store in (world.near, world.far):
        store.add(corrupt("read_into", store.calls["read_into"] + 1))

    with pytest.raises(IntegrityError):
        world.get()
    assert world.near.pending == world.far.pending == []


def test_when_a_copy_is_damaged_and_the_other_out_of_reach_the_caller_may_come_again(
    world: World,
) -> None:
    world.get()
    world.drop_local()
    world.near.add(corrupt("read_into", world.near.calls["read_into"] + 1))
    world.far.go_down()

    with pytest.raises(TransientError):
        world.get()
    assert world.near.pending == []
    world.far.mend()
    assert world.get() == DATA


def test_when_nobody_answers_that_is_said_and_not_that_there_is_no_step(world: World) -> None:
    world.far.go_down()
    world.near.go_down()
    with pytest.raises(TransientError):
        world.get()


def test_when_nobody_answers_the_list_of_steps_is_an_error_and_not_empty(world: World) -> None:
    world.far.go_down()
    world.near.go_down()
    for _ in range(2):  # at first they are not yet known to be out of reach
        with pytest.raises(TransientError):
            list(world.restore.published.steps("run"))


def test_a_replica_without_steps_does_not_speak_for_a_remote_that_is_cut_off(world: World) -> None:
    for key in world.near.list("").keys:
        world.near.delete(key)
    world.far.go_down()
    for _ in range(2):
        with pytest.raises(TransientError):
            list(world.restore.published.steps("run"))


def test_steps_that_are_listed_but_cannot_be_read_are_no_empty_list(
    world: World,
) -> None:
    list_ = world.far.list

    def last_word(prefix: str, delimiter: str | None = None) -> Listing:
        found = list_(prefix, delimiter)
        world.far.go_down()
        return found

    for key in world.near.list("").keys:
        world.near.delete(key)
    world.far.list = last_word  # type: ignore[method-assign]
    with pytest.raises(TransientError):
        list(world.restore.published.steps("run"))


def test_a_remote_that_does_not_answer_is_asked_once_for_a_step(world: World) -> None:
    world.near.go_down()
    with pytest.raises(TransientError):
        world.restore.published.find("run", 2)
    assert world.near.calls["head"] == 1


def test_a_step_that_was_deleted_durably_is_not_brought_back_by_a_replica(
    world: World, node: Node
) -> None:
    node.checkpoints.delete_step("run", 1)
    node.drain.delete_all()
    with pytest.raises(NotFoundError):
        world.get()
    assert list(world.restore.published.steps("run")) == []


def test_eviction_goes_by_the_replica_only_while_the_durable_remote_cannot_be_asked(
    world: World,
) -> None:
    world.get()
    (shard,) = world.node.rows()
    assert world.restore.sources.still_there(shard)
    world.far.go_down()
    assert world.restore.sources.still_there(shard)
    world.near.go_down()
    with pytest.raises(TransientError):
        world.restore.sources.still_there(shard)

    world.far.mend()
    world.near.mend()
    world.far.delete("tier/run/1/a")
    assert not world.restore.sources.still_there(shard)


# --- what replicas say when a step is adopted --------------------------------------------------


@pytest.mark.parametrize("wrong", ["missing", "damaged"])
def test_a_replica_whose_part_cannot_be_read_is_no_source_and_no_obstacle(
    world: World, wrong: str
) -> None:
    key = Layout("tier").part_key("run", "1", 0)
    if wrong == "missing":
        world.near.delete(key)
    else:
        world.near.put(key, b"{}", digest=digest_of(b"{}"))

    assert world.get() == DATA

    (shard,) = world.node.rows()
    assert [copy.remote for copy in world.restore.sources.of(shard)] == [REMOTE]


def test_a_replica_that_is_lost_sight_of_meanwhile_is_not_asked_for_its_part(
    world: World,
) -> None:
    get = world.far.get

    def last_word(key: str, start: int = 0, length: int | None = None) -> bytes:
        if key == Layout("tier").part_key("run", "1", 0):
            world.restore.published.absences.note("near")
        return get(key, start, length)

    world.far.get = last_word  # type: ignore[method-assign]

    assert world.get() == DATA

    assert world.near.calls["get"] == 1  # the manifest
    (shard,) = world.node.rows()
    assert [copy.remote for copy in world.restore.sources.of(shard)] == [REMOTE]


def test_the_damaged_manifest_of_a_replica_keeps_nobody_from_the_others(world: World) -> None:
    key = Layout("tier").manifest_key("run", 1)
    world.near.put(key, b"{", digest=digest_of(b"{"))

    assert world.get() == DATA

    (shard,) = world.node.rows()
    assert [copy.remote for copy in world.restore.sources.of(shard)] == [REMOTE]


def test_a_manifest_that_lists_a_shard_of_a_rank_without_a_part_is_not_believed(
    world: World,
) -> None:
    found = world.restore.published.durable("run", 1)
    assert found is not None
    seen = Bucket(world.far, Layout("tier")).manifest("run", 1)
    Bucket(world.far, Layout("tier")).put_manifest(replace(found, parts=()), seen)

    with pytest.raises(IntegrityError, match="names no part of rank 0"):
        world.get()

    assert world.node.rows() == []


def test_of_two_saves_of_a_step_at_replicas_only_one_is_restored(
    node: Node, tmp_path: Path, clock: FakeClock, vfs: str
) -> None:
    replicas = {name: FaultyObjectStore(MemoryObjectStore()) for name in ("near", "next")}
    for name, store in replicas.items():
        with closing(Node(tmp_path / name, store, clock, vfs=vfs)) as saving:
            ids = SaveIds("run", 1, name, 0, 1)
            saving.put(ids, "a", name.encode() * 20_000)
            saving.checkpoints.seal(ids, 1)
            saving.drain.drain_all()
    node.store.write(copies.configure_replicas, dict.fromkeys(replicas, False))
    remotes = [Remote(name, Bucket(store, Layout("tier"))) for name, store in replicas.items()]
    with closing(
        Restore(
            node.store,
            node.bucket,
            clock,
            remote=REMOTE,
            replicas=Replicas(remotes),
            room=Room(lambda: None),
        )
    ) as restore:
        found = restore.published.find("run", 1)
        assert found is not None
        assert [remote.name for remote, _ in found.replicas] == ["near"]
        opened = restore.open("run", 1, "a", 0.0)
        assert opened.descriptor is not None
        assert whole(opened.descriptor) == b"near" * 20_000
        (shard,) = node.rows()
        assert [copy.remote for copy in restore.sources.of(shard)] == ["near"]


def test_a_damaged_copy_is_shown_once_however_often_it_is_met(world: World) -> None:
    world.get()
    (shard,) = world.node.rows()
    near, far = world.restore.sources.of(shard)
    counted: list[tuple[str, str]] = []
    passed = PassedOverCopies(lambda reason, remote: counted.append((reason, remote)))

    for _ in range(3):
        passed(shard, near, Reason.DAMAGED, IntegrityError("planned"))
    passed(shard, far, Reason.UNREACHABLE, TransientError("planned"))

    assert passed.warnings() == [f"damaged copies at near, passed over since the start: {near.key}"]
    assert counted == [("damaged", "near")] * 3 + [("unreachable", REMOTE)]


def test_what_came_from_a_replica_is_read_here_while_nobody_can_say_more_of_it(
    world: World, clock: FakeClock
) -> None:
    world.far.go_down()
    assert world.get() == DATA
    world.near.go_down()
    clock.advance(AWAY_SECONDS + 1)
    asked = world.far.calls["head"]

    assert world.get() == DATA

    assert world.far.calls["head"] > asked
    assert world.state() is SaveState.REPLICATED
