"""A share counts what its principal has here, errs only upward, and tells only its own figures."""

from __future__ import annotations

import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cachetier.access.principals import Principal, Quota
from cachetier.access.quotas import FRESH_SECONDS, STARVED_SECONDS, Quotas, ShareFullError
from cachetier.access.roles import Role
from cachetier.errors import BusyError
from tests.fakes.fake_clock import FakeClock

MB = 1_000_000


def tenant(name: str, *runs: str, **quota: int) -> Principal:
    return Principal(name, Role.WRITE, runs=runs or (f"{name}-*",), quota=Quota(**quota))


class Node:
    """Quotas over a catalog that is a dictionary."""

    def __init__(self, *principals: Principal) -> None:
        self.clock = FakeClock()
        self.held: dict[str, tuple[int, int]] = {}
        self.reads = 0
        self.quotas = Quotas(principals, self.read, self.clock.monotonic)

    def read(self) -> dict[str, tuple[int, int]]:
        self.reads += 1
        return dict(self.held)

    def put(
        self, run: str, size_bytes: int, caller: str | None = None
    ) -> dict[str, dict[str, int]]:
        counts = self.quotas.of_put(run, caller or run[0], size_bytes)
        self.quotas.take(counts, caller or run[0])
        return {name: dict(each) for name, each in counts.items()}

    def commit(self, run: str, size_bytes: int) -> None:
        counts = self.put(run, size_bytes)
        before = self.held.get(run, (0, 0))
        self.held[run] = before[0] + size_bytes, before[1] + 1
        self.quotas.end(counts, size_bytes)

    def used(self, name: str, kind: str = "size_bytes") -> int:
        return int(self.quotas.described(name)[0][kind]["used"])


def test_a_put_counts_for_the_principals_whose_globs_have_its_run_and_for_no_other() -> None:
    node = Node(tenant("a", size_bytes=5 * MB), tenant("b", shards=3), tenant("all", "*", shards=9))
    node.put("a-run", MB)

    assert node.used("a") == node.used("all") == MB
    assert node.used("b") == 0
    assert node.used("all", "shards") == 1


def test_an_open_put_counts_for_who_opened_it_alone() -> None:
    node = Node(tenant("a", open_puts=2), tenant("all", "*", open_puts=2))
    node.put("a-run", MB, "all")

    assert (node.used("a", "open_puts"), node.used("all", "open_puts")) == (0, 1)


@pytest.mark.parametrize(
    ("quota", "puts", "figures"),
    [
        ({"size_bytes": 5 * MB}, 5, "5.0 MB of 5.0 MB"),
        ({"shards": 3}, 3, "3 of 3 shards"),
        ({"open_puts": 2, "shards": 9}, 2, "2 of 9 shards, 2 of 2 open puts"),
    ],
)
def test_who_has_filled_a_share_hears_so_with_their_own_figures_and_others_go_on(
    quota: dict[str, int], puts: int, figures: str
) -> None:
    node = Node(tenant("a", **quota), tenant("b", **quota))
    held = [node.put("a-run", MB) for _ in range(puts)]
    with pytest.raises(ShareFullError) as refused:
        node.put("a-other", MB)

    assert refused.value.message == f"no room for 1.0 MB in the share of a: {figures}"
    assert refused.value.retry_after_seconds
    assert not refused.value.for_ever
    node.put("b-run", MB)
    node.quotas.end(held[0])
    node.put("a-other", MB)


def test_a_share_of_others_is_told_without_a_figure() -> None:
    node = Node(tenant("a", shards=100), tenant("ops", "*", size_bytes=2 * MB))
    node.put("b-run", MB)
    with pytest.raises(ShareFullError) as refused:
        node.put("a-run", 2 * MB)

    assert refused.value.message == "no room for 2.0 MB in the share of another principal"


def test_what_is_larger_than_the_whole_share_is_told_so() -> None:
    node = Node(tenant("a", size_bytes=2 * MB))
    with pytest.raises(ShareFullError, match=r"3.0 MB are more than fits") as refused:
        node.put("a-run", 3 * MB)

    assert refused.value.for_ever


def test_what_is_clean_makes_room_as_soon_as_somebody_hears_of_it() -> None:
    node = Node(tenant("a", size_bytes=2 * MB))
    node.commit("a-run", 2 * MB)
    with pytest.raises(ShareFullError):
        node.put("a-run", MB)
    node.held.clear()
    node.quotas.changed()

    node.put("a-run", MB)
    assert node.used("a") == MB


def test_what_was_here_before_counts_from_the_first_put_on() -> None:
    node = Node(tenant("a", size_bytes=2 * MB))
    node.held["a-run"] = 2 * MB, 7
    with pytest.raises(ShareFullError):
        node.put("a-run", 1)


def test_the_catalog_is_read_once_a_second_while_there_is_room() -> None:
    node = Node(tenant("a", size_bytes=500 * MB))
    for _ in range(100):
        node.commit("a-run", MB)
    assert node.reads == 1
    node.clock.advance(FRESH_SECONDS)
    node.commit("a-run", MB)
    assert node.reads == 2
    assert node.used("a") == 101 * MB


def test_full_or_not_it_is_read_again_only_once_something_has_changed() -> None:
    node = Node(tenant("a", shards=1))
    node.commit("a-run", MB)
    for _ in range(10):
        with pytest.raises(ShareFullError):
            node.put("a-run", MB)
    assert node.reads == 2


def test_what_is_committed_while_the_catalog_is_read_counts_on() -> None:
    node = Node(tenant("a", size_bytes=10 * MB))
    real = node.read

    def slowly() -> dict[str, tuple[int, int]]:
        found = real()
        if node.reads == 1:
            counts = node.quotas.of_put("a-run", "a", MB)
            node.quotas._refused(counts, "a")
            node.held["a-run"] = MB, 1
            node.quotas.end(counts, MB)
        return found

    node.quotas._read = slowly
    node.quotas._look()

    assert node.quotas._shares["a"].used("size_bytes") == MB
    node.clock.advance(FRESH_SECONDS)
    assert node.used("a") == MB


def test_a_catalog_that_cannot_be_read_forgets_nothing() -> None:
    node = Node(tenant("a", size_bytes=10 * MB))
    node.commit("a-run", MB)

    def fails() -> dict[str, tuple[int, int]]:
        raise OSError

    node.quotas._read, real = fails, node.quotas._read
    with pytest.raises(OSError):
        node.quotas.described()
    assert node.quotas._shares["a"].used("size_bytes") == MB
    node.quotas._read = real
    assert node.used("a") == MB


@given(
    st.lists(
        st.tuples(st.sampled_from(["put", "commit", "abort", "drain", "look"]), st.integers(0, 9))
    )
)
def test_a_count_is_never_below_what_is_here_and_soon_the_same(
    steps: list[tuple[str, int]],
) -> None:
    node, staged = (
        Node(tenant("a", size_bytes=10**9)),
        list[tuple[int, dict[str, dict[str, int]]]](),
    )
    for what, size_bytes in steps:
        if what == "put":
            staged.append((size_bytes, node.put("a-run", size_bytes)))
        elif what in ("commit", "abort") and staged:
            own, counts = staged.pop(0)
            if what == "commit":
                before = node.held.get("a-run", (0, 0))
                node.held["a-run"] = before[0] + own, before[1] + 1
            node.quotas.end(counts, own if what == "commit" else None)
        elif what == "drain":
            node.held.clear()
        else:
            node.clock.advance(0.4)
        here = node.held.get("a-run", (0, 0))[0] + sum(own for own, _ in staged)
        assert node.quotas._shares["a"].used("size_bytes") >= here
    node.clock.advance(FRESH_SECONDS)
    assert node.used("a") == node.held.get("a-run", (0, 0))[0] + sum(own for own, _ in staged)


def test_runs_are_starved_while_a_put_waits_for_their_share() -> None:
    node = Node(tenant("a", shards=1), tenant("b", shards=1))
    counts = node.put("a-run", MB)
    assert not node.quotas.starves("a-run")
    wanted = node.quotas.of_put("a-new", "a", MB)
    assert not node.quotas.has_room(wanted)
    assert node.quotas.starves("a-run")
    assert not node.quotas.starves("b-run")
    assert node.quotas.end(counts), "somebody waits for it"
    assert node.quotas.has_room(wanted)
    node.clock.advance(STARVED_SECONDS)
    assert not node.quotas.starves("a-run")


def test_connections_are_counted_by_principal() -> None:
    node = Node(tenant("a", connections=2), tenant("b", connections=1))
    node.quotas.connect("a")
    node.quotas.connect("a")
    with pytest.raises(BusyError, match="the share of a: 2 of 2 connections"):
        node.quotas.connect("a")
    node.quotas.connect("b")
    node.quotas.connect("of whom nothing is known")
    node.quotas.disconnect("a")
    node.quotas.connect("a")
    node.quotas.connect("a", at_any_rate=True)
    assert node.used("a", "connections") == 3
    assert node.reads == 1, "a door never waits for the catalog"


def test_threads_never_take_more_than_there_is() -> None:
    node = Node(tenant("a", shards=50))
    took: list[int] = []

    def work() -> None:
        for _ in range(20):
            try:
                node.put("a-run", 1)
            except ShareFullError:
                continue
            took.append(1)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(took) == node.used("a", "shards") == 50


def test_without_a_quota_nothing_is_counted_or_read() -> None:
    node = Node(Principal("a", Role.WRITE))
    assert node.put("a-run", MB) == {}
    assert not node.quotas
    assert node.quotas.described() == []
    assert node.reads == 0
