"""Nodes that put data and markers in any order: what the bucket shows, and that all of it comes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from cachetier_client.io.digests import digest_of
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from cachetier.errors import NotFoundError, RemoteError
from cachetier.local.catalog import notes, objects
from cachetier.model.cluster_order import UNLISTED
from cachetier.model.objects import Order
from cachetier.objects import cluster as cluster_module
from cachetier.objects.cluster import ROUND_SECONDS, MountOrder
from cachetier.objects.ordering import PlaceInOrder
from tests.fakes.fake_clock import FakeClock
from tests.fakes.faulty_store import FaultyObjectStore
from tests.fakes.memory_store import MemoryObjectStore
from tests.stateful.node import Node
from tests.stateful.unsynced import unsynced
from tests.unit.drain.mount_node import MOUNT, MountNode

CLUSTER = replace(MOUNT, order=Order.CLUSTER, release_seconds=3600.0)
HOURS = 3 * CLUSTER.release_seconds


@dataclass
class Put:
    """A commit that has its place, and has not ended."""

    key: str
    follows: int
    context: AbstractContextManager[PlaceInOrder]
    place: PlaceInOrder
    before: frozenset[str]  # acknowledged anywhere, with the cluster's word, when its bytes were in


class OneNode:
    """A node with a mount whose order is the cluster's; ``link`` may go down."""

    def __init__(self, directory: Path, bucket: MemoryObjectStore, clock: FakeClock, vfs: str):
        self.directory, self.bucket, self.clock, self.vfs = directory, bucket, clock, vfs
        self.link = FaultyObjectStore(bucket, [])
        self.putting: list[Put] = []
        self.away = False
        self._open()

    def _open(self) -> None:
        self.node = Node(self.directory, MemoryObjectStore(), self.clock, vfs=self.vfs)
        self.mount = MountNode(self.node, self.link, self.clock)
        self.order = MountOrder(CLUSTER, self.link, self.node.store, self.clock, lambda: None)

    def begin(self, key: str, before: frozenset[str]) -> None:
        follows = self.mount.watermark()
        context = self.order.commit([key])
        place = context.__enter__()
        self.putting.append(Put(key, follows, context, place, before))

    def end(self, put: Put) -> None:
        self.putting.remove(put)
        epoch, waits = put.place.of(CLUSTER, put.key)
        self.mount.put(put.key, put.key.encode(), follows=put.follows, epoch=epoch, waits=waits)
        put.context.__exit__(None, None, None)

    @property
    def would_wait(self) -> bool:
        """Whether a marker's commit waits for one that is under way here."""
        return any(put.place.epoch is not None for put in self.putting)

    def round(self) -> None:
        self.clock.advance(ROUND_SECONDS)
        if not (self.would_wait and self.order._owes):  # else it waits for the commits, and we here
            try:
                self.order.round()
            except RemoteError:
                assert self.away

    def drain_one(self) -> None:
        if not self.away:
            self.mount.drain.drain_one()

    def cut(self, *, away: bool) -> None:
        self.away = away
        if away:
            self.link.go_down()
        else:
            self.link.mend()

    def die(self) -> None:
        """Be killed, and start again: what was not committed is gone."""
        self.putting.clear()
        self.order.close()
        self.mount.close()
        self.node.die()
        self._open()

    def close(self) -> None:
        self.order.close()
        self.mount.close()
        self.node.close()


@dataclass
class Cluster:
    nodes: list[OneNode]
    bucket: MemoryObjectStore
    acknowledged: set[str] = field(default_factory=set)
    before: dict[str, frozenset[str]] = field(default_factory=dict)
    count: int = 0

    def shown(self) -> set[str]:
        return {key for key in self.bucket.list("ckpt/").keys if ".cachetier/" not in key}

    def begin(self, node: OneNode, *, marker: bool) -> None:
        if marker and node.would_wait:
            return
        self.count += 1
        key = f"ckpt/{self.count}/{'latest' if marker else 'data'}"
        node.begin(key, frozenset(self.acknowledged))

    def end(self, node: OneNode, which: int) -> None:
        if node.putting:
            put = node.putting[which % len(node.putting)]
            node.end(put)
            if CLUSTER.is_marker(put.key) and put.place.kept == "cluster":
                self.before[put.key] = put.before
            elif not CLUSTER.is_marker(put.key) and put.place.kept == "cluster":
                self.acknowledged.add(put.key)

    def put(self, node: OneNode, *, marker: bool) -> None:
        self.begin(node, marker=marker)
        self.end(node, -1)

    def check(self) -> None:
        shown = self.shown()
        for marker, before in self.before.items():
            assert marker not in shown or before <= shown, (marker, before - shown)

    def finish(self) -> None:
        """Let every node drain: all that was committed comes to be shown."""
        for node in self.nodes:
            node.cut(away=False)
            while node.putting:
                self.end(node, 0)
        for _ in range(12 * (self.count + 2)):
            for node in self.nodes:
                node.clock.advance(60.0)
                node.round()
                node.mount.drain.drain_all()
                self.check()
            if not any(node.mount.unshown() for node in self.nodes):
                break
        assert [node.mount.unshown() for node in self.nodes] == [[] for _ in self.nodes]
        for node in self.nodes:
            node.round()
        assert not any(".cachetier/" in key for key in self.bucket.list("ckpt/").keys)


@contextmanager
def cluster(nodes: int) -> Iterator[Cluster]:
    bucket, clock = MemoryObjectStore(minimum_part_bytes=1), FakeClock()
    with TemporaryDirectory() as directory, unsynced() as vfs, ExitStack() as closing:
        made = [
            OneNode(Path(directory) / str(number), bucket, clock, vfs) for number in range(nodes)
        ]
        for node in made:
            closing.callback(node.close)
        yield Cluster(made, bucket)


ACTIONS = (
    *("put", "put", "mark", "mark", "drain", "drain", "round", "round"),
    *("begin data", "begin marker", "end", "away", "back", "die", "sleep", "jump"),
)
STEP = st.sampled_from(ACTIONS), st.integers(0, 2), st.integers(0, 3)
steps = st.lists(st.tuples(*STEP), min_size=8, max_size=40)


def act(made: Cluster, action: str, node: OneNode, which: int) -> None:
    does: dict[str, Callable[[], None]] = {
        "put": lambda: made.put(node, marker=False),
        "mark": lambda: made.put(node, marker=True),
        "begin data": lambda: made.begin(node, marker=False),
        "begin marker": lambda: made.begin(node, marker=True),
        "end": lambda: made.end(node, which),
        "drain": node.drain_one,
        "round": node.round,
        "away": lambda: node.cut(away=True),
        "back": lambda: node.cut(away=False),
        "die": node.die,
        "sleep": lambda: node.clock.advance(HOURS),
        "jump": lambda: node.clock.jump(HOURS),
    }
    does[action]()


def live(nodes: int, steps: list[tuple[str, int, int]]) -> None:
    with cluster(nodes) as made:
        for action, number, which in steps:
            act(made, action, made.nodes[number % nodes], which)
            made.check()
        made.finish()


@pytest.mark.parametrize("nodes", [2, 3])
@settings(max_examples=25)
@given(steps=steps)
def test_no_marker_is_shown_without_what_was_put_before_it_anywhere_and_all_comes(
    nodes: int, steps: list[tuple[str, int, int]]
) -> None:
    live(nodes, steps)


def by_the_wall(patch: pytest.MonkeyPatch) -> None:
    def count(order: MountOrder, _seconds: float) -> None:
        for marker in order._waiting():
            if order._clock.now() - marker.committed_at > order.mount.release_seconds:
                order._release(marker, None)

    patch.setattr(MountOrder, "_count", count)


def with_time_asleep(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(cluster_module, "LONGEST_ROUND_SECONDS", HOURS)


@pytest.mark.parametrize("plant", [by_the_wall, with_time_asleep])
def test_a_limit_that_counts_time_in_which_nothing_could_come_is_caught(
    plant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)

    few = st.tuples(st.sampled_from(["put", "mark", "drain", "round", "sleep"]), *STEP[1:])

    @settings(max_examples=300, derandomize=True, phases=[Phase.generate])
    @given(steps=st.lists(few, min_size=20, max_size=40))
    def lives(steps: list[tuple[str, int, int]]) -> None:
        live(2, steps)

    with pytest.raises(AssertionError):
        lives()


def put(made: Cluster, node: OneNode, *, marker: bool = False) -> str:
    made.begin(node, marker=marker)
    key = node.putting[-1].key
    made.end(node, len(node.putting) - 1)
    return key


def test_a_marker_waits_for_what_another_node_has_and_names_it() -> None:
    with cluster(2) as made:
        one, two = made.nodes
        data = put(made, one)
        marker = put(made, two, marker=True)
        two.mount.drain.drain_all()
        two.round()

        assert made.shown() == set()
        (waiting,) = two.order.waiting()
        assert waiting.key == marker
        assert one.node.store.store_id in waiting.nodes[0]

        one.mount.drain.drain_all()
        one.round()
        two.round()
        two.mount.drain.drain_all()
        assert made.shown() == {data, marker}
        assert two.order.waiting() == []


def test_an_outage_that_ends_in_the_middle_of_what_two_nodes_mark_in_turn_locks_nobody_up() -> None:
    """Notes before owed listings would: each node's marker would wait for the other's epoch."""
    with cluster(2) as made:
        one, two = made.nodes
        one.cut(away=True)
        put(made, one)
        put(made, one, marker=True)
        put(made, one)  # waits for the marker, which never listed
        one.cut(away=False)
        with pytest.MonkeyPatch.context() as patch:
            listed, calls = one.order._names, count(1)

            def in_between() -> set[str]:
                if next(calls) == 2:  # the first one finds that the bucket is back
                    put(made, two, marker=True)
                    put(made, two)
                return listed()

            patch.setattr(one.order, "_names", in_between)
            one.round()
            assert next(calls) > 2
        made.finish()


def test_two_nodes_that_put_and_mark_in_turn_do_not_lock_each_other_up() -> None:
    with cluster(2) as made:
        one, two = made.nodes
        put(made, one)
        put(made, two)
        put(made, one, marker=True)
        put(made, one)
        put(made, two, marker=True)
        put(made, two)
        assert len(one.order.waiting()) == len(two.order.waiting()) == 1
        made.finish()


def test_an_epoch_whose_only_commit_is_under_way_keeps_its_note() -> None:
    with cluster(2) as made:
        one, two = made.nodes
        made.begin(one, marker=False)
        one.round()
        made.end(one, 0)
        put(made, two, marker=True)
        two.mount.drain.drain_all()
        assert made.shown() == set()
        made.finish()


def test_while_the_bucket_is_away_commits_go_on_and_say_what_they_promise() -> None:
    with cluster(1) as made:
        (one,) = made.nodes
        one.cut(away=True)
        made.begin(one, marker=False)
        assert one.putting[0].place.kept == "node"
        made.end(one, 0)
        made.begin(one, marker=True)
        assert one.putting[0].place == PlaceInOrder(None, UNLISTED, "node")
        made.end(one, 0)
        one.cut(away=False)
        one.mount.drain.drain_all()
        assert made.shown() == set()  # it owes a note and a look first

        one.round()
        one.mount.drain.drain_all()
        assert len(made.shown()) == 2
        made.begin(one, marker=False)
        (again,) = one.putting
        assert again.place.kept == "cluster"
        made.end(one, 0)
        made.finish()


def test_a_burst_has_one_note_and_a_marker_ends_it() -> None:
    with cluster(1) as made:
        (one,) = made.nodes
        for _ in range(3):
            put(made, one)
        assert one.link.calls["put"] == 1
        put(made, one, marker=True)
        put(made, one)
        notes = one.node.store.read(objects.notes_of, MOUNT.run)
        assert len(notes) == one.link.calls["put"] == 2
        made.finish()


def test_a_marker_goes_by_a_persons_word_or_after_its_limit_with_an_incident() -> None:
    with cluster(2) as made:
        one, two = made.nodes
        put(made, one)
        first, second = (put(made, two, marker=True) for _ in range(2))
        two.order.release(first)
        two.mount.drain.drain_all()
        assert made.shown() == {first}
        with pytest.raises(NotFoundError):
            two.order.release(first)

        two.order.mount = LIMITED
        made.before.clear()  # that is what the incident says
        assert rounds_until_released(two) == LIMIT_ROUNDS
        two.mount.drain.drain_all()
        assert made.shown() == {first, second}
        (incident,) = two.node.store.read(notes.incidents_after, 0)
        assert (incident.code, incident.name) == ("order", second)
        assert f"shown after {LIMITED.release_seconds + ROUND_SECONDS:.0f} s" in incident.message
        made.finish()


LIMITED = replace(CLUSTER, release_seconds=60.0)
LIMIT_ROUNDS = 60 // 2 + 2  # one that finds what to count for, and one beyond the limit


def rounds_until_released(node: OneNode, *, away_between: int = 0) -> int:
    """Return how many rounds are answered, each in its time, until no marker waits any more."""
    for number in count():
        if not node.order.waiting():
            return number
        node.cut(away=True)
        for _ in range(away_between):
            node.round()
        node.cut(away=False)
        node.round()
    raise AssertionError


def an_outage(node: OneNode) -> None:
    node.cut(away=True)
    for _ in range(3 * LIMIT_ROUNDS):
        node.round()
    node.cut(away=False)


def a_jump_of_the_clock(node: OneNode) -> None:
    node.clock.jump(86_400.0)


def a_sleep(node: OneNode) -> None:
    node.clock.advance(86_400.0)


def a_power_cut(node: OneNode) -> None:
    node.die()
    node.clock.advance(86_400.0)
    node.order.mount = LIMITED


@pytest.mark.parametrize("trouble", [an_outage, a_jump_of_the_clock, a_sleep, a_power_cut])
def test_a_markers_limit_counts_no_time_in_which_nothing_could_have_come(
    trouble: Callable[[OneNode], None],
) -> None:
    with cluster(2) as made:
        one, two = made.nodes
        data = put(made, one)
        marker = put(made, two, marker=True)
        two.order.mount = LIMITED
        two.round()
        trouble(two)

        for _ in range(LIMIT_ROUNDS - 4):
            two.round()
        two.mount.drain.drain_all()
        assert made.shown() == set()

        one.mount.drain.drain_all()
        one.round()
        two.round()
        two.mount.drain.drain_all()
        assert made.shown() == {data, marker}
        assert two.node.store.read(notes.incidents_after, 0) == []


def test_a_markers_limit_counts_the_rounds_of_a_bucket_that_comes_and_goes() -> None:
    with cluster(2) as made:
        one, two = made.nodes
        put(made, one)
        put(made, two, marker=True)
        two.order.mount = LIMITED

        assert rounds_until_released(two, away_between=2) == LIMIT_ROUNDS


def test_a_markers_limit_starts_anew_when_something_came_of_what_it_waits_for() -> None:
    with cluster(3) as made:
        one, two, three = made.nodes
        put(made, one)
        put(made, three)
        put(made, two, marker=True)
        two.order.mount = LIMITED
        for _ in range(LIMIT_ROUNDS - 1):
            two.round()
        three.mount.drain.drain_all()
        three.round()

        two.round()
        assert rounds_until_released(two) == LIMIT_ROUNDS - 1


def test_a_note_whose_epoch_was_forgotten_is_taken_away() -> None:
    with cluster(1) as made:
        (one,) = made.nodes
        lost = f"ckpt/.cachetier/order/{one.node.store.store_id}-lost"
        one.order._write_note("lost", 0.0)
        assert made.bucket.head(lost) is not None
        one.round()
        assert made.bucket.head(lost) is None


def test_a_note_that_is_no_note_is_waited_for_by_its_name() -> None:
    with cluster(1) as made:
        (one,) = made.nodes
        made.bucket.put("ckpt/.cachetier/order/other-1", b"[]", digest=digest_of(b"[]"))
        put(made, one, marker=True)
        one.round()
        (waiting,) = one.order.waiting()
        assert waiting.nodes == ("other-1",)
