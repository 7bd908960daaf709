"""However a put ends, what it counted for a share is what it left here."""

from __future__ import annotations

from pathlib import Path

import pytest
from cachetier_client.identity.names import SaveIds

from cachetier.access.principals import Caller, Principal, Quota
from cachetier.access.quotas import Quotas, ShareFullError
from cachetier.access.roles import Role
from cachetier.callers import working_for
from cachetier.errors import CachetierError, InvalidNameError
from cachetier.ingest.shares import ShareAwaitedError, SharedIngest, Shares
from cachetier.local.catalog import saves
from cachetier.local.catalog.figures import held_by_run
from cachetier.local.store import Staged
from cachetier.model.policy import Policy
from tests.fakes.fake_clock import FakeClock
from tests.fakes.memory_store import MemoryObjectStore
from tests.stateful.node import Node, content_of, write

IDS = SaveIds("run", 1, "save")
LARGE = bytes(100_000)


class Shared:
    """An ingest of ``node`` for a tenant who may have 300 kB in three shards, two of them open."""

    def __init__(self, node: Node, *, waits: bool = False) -> None:
        quota = Quota(size_bytes=300_000, shards=3, open_puts=2)
        self.tenant = Principal("tenant", Role.WRITE, runs=("run",), quota=quota)
        store = node.store
        self.quotas = Quotas([self.tenant], lambda: store.look(held_by_run), lambda: 0.0)
        self.rings = 0
        self.ingest = SharedIngest(node.ingest, Shares(self.quotas, waits=waits, ring=self.ring))

    def ring(self) -> None:
        self.rings += 1

    def begin(self, name: str, size_bytes: int | None = 100_000, patience: float = 0.0) -> Staged:
        with working_for(None, Caller(self.tenant)):
            stage = self.ingest.begin(IDS, name, size_bytes, patience)
        assert isinstance(stage, Staged)
        return stage

    def put(self, name: str, data: bytes = LARGE) -> None:
        stage = self.begin(name, len(data))
        write(stage, data)
        self.ingest.commit(stage, IDS, name, content_of(data))

    def used(self) -> tuple[int, ...]:
        share = self.quotas.described("tenant")[0]
        return tuple(share[kind]["used"] for kind in ("size_bytes", "shards", "open_puts"))


@pytest.fixture
def shared(node: Node) -> Shared:
    return Shared(node)


def test_a_put_counts_from_begin_and_on_after_its_commit(shared: Shared) -> None:
    stage = shared.begin("a")
    assert shared.used() == (100_000, 1, 1)
    write(stage, LARGE)
    shared.ingest.commit(stage, IDS, "a", content_of(LARGE))
    assert shared.used() == (100_000, 1, 0)
    shared.ingest.begin_inline(IDS, "b", b"x", content_of(b"x").digest, 0.0)()
    assert shared.used() == (100_001, 2, 0)


def test_what_is_put_again_counts_once(shared: Shared) -> None:
    shared.put("a")
    shared.put("a")
    assert shared.used() == (100_000, 1, 0)


def test_an_aborted_put_and_a_failed_one_count_for_nothing(shared: Shared) -> None:
    shared.ingest.abort(shared.begin("a"))
    stage = shared.begin("b")
    with pytest.raises(CachetierError):
        shared.ingest.commit(stage, IDS, "b", content_of(LARGE))  # nothing was written
    with pytest.raises(InvalidNameError):
        shared.begin("../c")
    with pytest.raises(CachetierError):
        shared.ingest.begin_inline(IDS, "d", b"x", 1, 0.0)()
    assert shared.used() == (0, 0, 0)
    assert not shared.ingest._shares._staged


def test_a_put_of_unknown_length_counts_as_it_grows(node: Node, shared: Shared) -> None:
    node.store.space.capacity_bytes = 1 << 30
    shared.quotas._shares["tenant"].principal = Principal(
        "tenant", Role.WRITE, runs=("run",), quota=Quota(size_bytes=100 << 20)
    )
    stage = shared.begin("a", None)
    assert shared.used()[0] == 64 << 20
    assert shared.ingest.extend(stage, 90 << 20, 0.0) == 90 << 20
    assert shared.used() == (90 << 20, 1, 1)
    with pytest.raises(ShareFullError):
        shared.ingest.extend(stage, 128 << 20, 0.0)
    assert shared.used() == (90 << 20, 1, 1)
    shared.ingest.abort(stage)
    assert shared.used() == (0, 0, 0)


def test_an_extension_that_is_refused_changes_no_share(node: Node, shared: Shared) -> None:
    stage = shared.begin("a", 900)
    for _ in range(3):
        with pytest.raises(CachetierError):
            shared.ingest.extend(stage, 0, 0.0)
        with pytest.raises(CachetierError):
            shared.ingest.extend(stage, node.store.space.capacity_bytes + 1, 0.0)
    assert shared.used() == (900, 1, 1)
    shared.ingest.abort(stage)
    assert shared.used() == (0, 0, 0)


def test_who_has_time_is_handed_what_to_wait_for(node: Node) -> None:
    shared = Shared(node, waits=True)
    held = [shared.begin("a"), shared.begin("b")]
    with pytest.raises(ShareAwaitedError) as awaited:
        shared.begin("c", patience=10.0)
    look = awaited.value.room.look
    assert look() is None
    assert shared.rings == 1
    shared.ingest.abort(held[0])
    assert shared.rings == 2, "who waits looks again"
    assert look() is True
    shared.begin("c", patience=10.0)


def test_who_has_no_time_or_never_fits_is_refused_at_once(node: Node) -> None:
    shared = Shared(node, waits=True)
    with pytest.raises(ShareFullError, match="400 kB are more than fits in the share of tenant"):
        shared.begin("a", 400_000, patience=10.0)
    shared.begin("a")
    shared.begin("b")
    with pytest.raises(ShareFullError, match="200 kB of 300 kB, 2 of 3 shards, 2 of 2 open puts"):
        shared.begin("c", patience=0.0)


def test_a_refused_put_took_no_room_on_the_node(node: Node, shared: Shared) -> None:
    shared.begin("a")
    shared.begin("b")
    used = node.store.space.used_bytes
    with pytest.raises(ShareFullError):
        shared.begin("c")
    assert node.store.space.used_bytes == used


def test_clean_shards_are_cache_and_pinned_ones_are_not(node: Node, shared: Shared) -> None:
    shared.put("a")
    node.checkpoints.seal(IDS, None)
    node.drain.drain_all()
    shared.quotas.changed()
    assert shared.used() == (0, 0, 0)
    node.store.write(saves.pin, "run", 1, 0.0)
    shared.quotas.changed()
    assert shared.used() == (100_000, 1, 0)


def test_local_only_steps_that_go_for_room_do_not_count_and_the_newest_does(
    tmp_path: Path, vfs: str
) -> None:
    clock = FakeClock()
    policy = Policy(durable_every=10)
    node = Node(tmp_path / "kept", MemoryObjectStore(), clock, vfs=vfs, policy=policy)
    try:
        shared = Shared(node)
        for step in (1, 2):
            ids = SaveIds("run", step, "save")
            shared.ingest.begin_inline(ids, "a", b"x" * 10, content_of(b"x" * 10).digest, 0.0)()
            node.checkpoints.seal(ids, None)
        shared.quotas.changed()
        assert shared.used() == (10, 1, 0)
        node.store.write(saves.pin, "run", 1, 0.0)
        shared.quotas.changed()
        assert shared.used() == (20, 2, 0)
    finally:
        node.close()
