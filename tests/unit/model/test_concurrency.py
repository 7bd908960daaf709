"""The search for concurrency comes near the best number in worlds that it was not told of."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import pytest

from cachetier.model.concurrency import LATER_SECONDS, Begun, Search
from tests.fakes.link_world import Outcome, World, run

LIMIT = 128
PART = 8 << 20
SMALL_BUFFERS, SOME, WHOLE_BODIES = 256e3, 4e6, 64e6


class Trying:
    """A search, as ``Pace`` asks one."""

    def __init__(self, search: Search) -> None:
        self.search = search
        self.sizes: list[tuple[float, int]] = []

    def has_room(self, now: float, in_flight: int, moved: float) -> bool:
        if in_flight >= self.search.size:
            self.search.look(now, moved)
        self.sizes.append((now, self.search.size))
        return in_flight < self.search.size

    def begin(self, now: float, size_bytes: int, moved: float) -> Begun:
        return self.search.begin(now, size_bytes, moved)

    def answered(self, begun: object, now: float) -> None:
        assert isinstance(begun, Begun)
        self.search.answered(begun, now)


class Fixed:
    def __init__(self, size: int) -> None:
        self.size = size

    def has_room(self, _now: float, in_flight: int, _moved: float) -> bool:
        return in_flight < self.size

    def begin(self, _now: float, _size_bytes: int, _moved: float) -> None:
        return None

    def answered(self, _begun: object, _now: float) -> None:
        return None


def searched(world: World, mib: int, found: int | None = None) -> Outcome:
    return run(world, Trying(Search(LIMIT, found)), [PART] * (mib // 8))


def best(world: World, mib: int, sizes: tuple[int, ...] = (16, 64, 128)) -> float:
    return min(run(world, Fixed(size), [PART] * (mib // 8)).seconds for size in sizes)


@pytest.mark.parametrize("round_trip", [0.0005, 0.035, 0.12])
@pytest.mark.parametrize("each", [8e6, 60e6, 1e10], ids=["8MB", "60MB", "nolimit"])
@pytest.mark.parametrize("buffer", [SMALL_BUFFERS, SOME, WHOLE_BODIES])
def test_a_gibibyte_takes_little_longer_than_with_the_best_number(
    buffer: float, each: float, round_trip: float
) -> None:
    world = World(each=each, round_trip=round_trip, buffer=buffer)
    assert best(world, 1024) >= 0.8 * searched(world, 1024).seconds


@pytest.mark.parametrize("buffer", [SMALL_BUFFERS, WHOLE_BODIES])
@pytest.mark.parametrize(
    "world",
    [
        World(outliers=0.03),
        World(round_trip=0.12, greets=2),
        World(changes=(0.5, 2.0)),
        World(total=100e6, changes=(2.0, 4.0)),
        World(total=20e6),
    ],
    ids=["outliers", "far_and_secured", "halves", "doubles", "thin"],
)
def test_so_it_is_where_something_is_odd(world: World, buffer: float) -> None:
    world = replace(world, buffer=buffer)
    assert best(world, 1024) >= 0.8 * searched(world, 1024).seconds


# Where whole bodies are taken nobody sees how slow they are until the first of 128 are answered.
@pytest.mark.parametrize(("buffer", "share"), [(SMALL_BUFFERS, 0.75), (WHOLE_BODIES, 0.4)])
def test_where_more_connections_are_slower_there_are_soon_fewer(
    buffer: float, share: float
) -> None:
    world = World(knee=24, buffer=buffer)
    assert best(world, 4096, (24,)) >= share * searched(world, 4096).seconds


@pytest.mark.parametrize(
    "world",
    [
        World(each=2.5e6),
        World(each=1.3e6, round_trip=0.12),
        World(each=0.6e6, round_trip=0.25),
    ],
    ids=["2.5MB", "1.3MB", "0.6MB"],
)
def test_slow_connections_do_not_pass_for_a_link_that_is_full(world: World) -> None:
    ours = run(world, Trying(_asked(world.round_trip)), [PART] * 256).seconds
    assert best(world, 2048) >= 0.7 * ours


@pytest.mark.parametrize("mib", [128, 512])
def test_a_small_step_is_not_over_before_there_are_enough(mib: int) -> None:
    for buffer in (SMALL_BUFFERS, WHOLE_BODIES):
        world = World(buffer=buffer)
        assert best(world, mib) >= 0.8 * searched(world, mib).seconds


def test_what_was_found_before_loses_no_time() -> None:
    world = World(round_trip=0.12, greets=2)
    assert best(world, 512) >= 0.95 * searched(world, 512, found=64).seconds


def test_where_fewer_bring_as_much_there_are_fewer_in_the_end() -> None:
    trying = Trying(Search(LIMIT))
    run(World(total=20e6), trying, [PART] * 256)
    assert trying.search.size <= 24


def test_a_link_that_gets_faster_is_found_out_by_the_next_search() -> None:
    trying = Trying(Search(LIMIT))
    run(World(total=60e6, changes=(math.inf, 30.0)), trying, [PART] * 1200)
    assert max(size for now, size in trying.sizes if 22.0 < now < 30.0) <= 24
    assert max(size for now, size in trying.sizes if now < 40.0 + LATER_SECONDS) == LIMIT


# --- one request after another -------------------------------------------------------------------


def test_a_step_up_that_takes_too_long_to_be_worth_it_is_not_waited_for() -> None:
    search, now = _goes_up(Search(LIMIT), 0.0)
    tried = search.size
    for _ in range(tried):
        search.begin(now, PART, 0.0)
    assert search.look(now + 0.1, 0.0) > 0.0 and search.size == tried
    search.look(now + 2.0, 0.0)
    assert search.size < tried


def test_a_moment_in_which_a_disk_gives_nothing_does_not_end_the_opening() -> None:
    assert _opened(0.6, lambda now: 0.0 if 0.05 <= now < 0.2 else 10e6).size >= 64


def test_bytes_that_begin_to_flow_late_are_seen() -> None:
    assert _opened(2.0, lambda now: 5e6 if now > 1.0 else 0.0).size == LIMIT


def test_what_buffers_give_at_first_does_not_pass_for_a_flow() -> None:
    """A round trip of 35 ms is known: of 64 new connections 27 MB come at once, then little."""

    def moves(now: float) -> float:
        return 5e6 if 0.26 <= now < 0.31 else 1.2e6

    assert _opened(3.8, moves, _asked(0.035)).size == 64
    assert _opened(1.0, moves).size == LIMIT  # where they may be as near as that


def test_waves_of_a_flow_do_not_pass_for_what_a_few_more_bring() -> None:
    for phase in range(8):

        def moves(now: float, phase: int = phase) -> float:
            return 1.2e6 * (1.0 + 0.4 * math.sin(math.tau * (now / 0.45 + phase / 8)))

        assert _opened(5.0, moves, _asked(0.035)).size == 64


def test_a_thin_link_is_not_filled_with_what_it_cannot_carry() -> None:
    assert _opened(1.0, lambda _now: 0.01 * 2e6).size <= 16


def test_too_few_requests_tell_nothing() -> None:
    search = Search(LIMIT)
    for now in range(50):
        search.answered(search.begin(float(now), PART, 0.0), now + 0.5)
    assert search.size == 8


def test_a_cut_ends_a_step_and_the_search_goes_on() -> None:
    search, now = _goes_up(Search(LIMIT), 0.0)
    tried = search.size
    search.cut(now)
    assert search.size < tried
    assert _goes_up(search, now)[0].size == tried


def _asked(seconds: float) -> Search:
    """Return a search after a small request that took so long."""
    search = Search(LIMIT)
    search.answered(search.begin(0.0, 0, 0.0), seconds)
    return search


def _opened(
    seconds: float, moves: Callable[[float], float], search: Search | None = None
) -> Search:
    """Return a search after an opening without an answer, in which so much moves each 10 ms."""
    search, moved, begun, look_at = search or Search(LIMIT), 0.0, 0, 0.0
    for hundredth in range(round(100 * seconds)):
        now = hundredth / 100
        while begun < search.size:
            search.begin(now, PART, moved)
            begun += 1
        moved = min(begun * PART, moved + moves(now))
        if now >= look_at:
            look_at = now + search.look(now, moved)
    return search


def _goes_up(search: Search, now: float) -> tuple[Search, float]:
    """Let requests of a second go by until more are tried."""
    before = search.size
    while search.size <= before:
        begun = [search.begin(now, PART, 0.0) for _ in range(search.size)]
        now += 1.0
        for each in begun:
            search.answered(each, now)
    return search, now
