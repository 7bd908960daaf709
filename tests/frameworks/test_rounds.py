"""One round of several ranks over a store, with the ranks as threads of this process."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest
import torch.distributed as dist
from cachetier_client.clock import SystemClock
from cachetier_client.deadline import Deadline
from cachetier_client.torch import agreement
from cachetier_client.torch.rounds import AgreementError, RankGroup, Round
from torch._C._distributed_c10d import HashStore

pytestmark = pytest.mark.torch
RANKS = (0, 2, 5)
CLOCK = SystemClock()


class Store(HashStore):
    """A store in memory that says what is left in it."""

    def keys_left(self) -> set[str]:
        return {key for key in self.list_keys() if "/calls/" not in key}


class Waited:
    """A rank's clock: its time begins to pass when all that come have answered, and flies then."""

    def __init__(self, answered: threading.Barrier) -> None:
        self._answered: threading.Barrier | None = answered
        self._time = 0.0

    def monotonic(self) -> float:
        return self._time

    def now(self) -> float:
        return self._time

    def sleep(self, seconds: float) -> None:
        if self._answered is not None:
            self._answered.wait(30)
            self._answered = None
        self._time += seconds


def held(
    store: Any, answer: Callable[[int], Any], *, seconds: float = 20.0, ranks: Any = RANKS
) -> list[Any]:
    """Hold a round of ``RANKS`` in which ``ranks`` take part; return what each ended with.

    If one does not come, the others wait for it in vain: in no time, once all of them wait.
    """
    answered = threading.Barrier(len(ranks))

    def one(rank: int) -> Any:
        clock = CLOCK if len(ranks) in (1, len(RANKS)) else Waited(answered)
        deadline = Deadline(seconds, clock)
        round_ = Round(RankGroup(RANKS, rank, store), "what is the answer", deadline, clock)
        try:
            round_.begin()
            try:
                mine = answer(rank)
            except ValueError as error:
                return round_.fail(error)
            return round_.answer(mine, lambda every: every)
        except AgreementError as error:
            return error

    with ThreadPoolExecutor(len(ranks)) as pool:
        return list(pool.map(one, ranks))


def pair(number: int, rank: int) -> list[int]:
    return [number, rank]


def refusing(rank: int) -> int:
    if rank == 2:
        raise ValueError("not today")
    return rank


def test_all_ranks_get_all_answers_in_the_order_of_ranks_and_nothing_is_left_behind() -> None:
    store = Store()
    for number in range(3):
        assert held(store, partial(pair, number)) == [[[number, rank] for rank in RANKS]] * 3
    assert store.keys_left() == set()


def test_one_rank_that_fails_ends_it_for_all_with_the_same_error() -> None:
    store = Store()
    results = held(store, refusing)
    assert [type(each) for each in results] == [AgreementError] * 3
    assert len({str(each) for each in results}) == 1
    assert results[0].failures == {2: "ValueError: not today"}
    assert "rank 2 failed: ValueError: not today" in str(results[0])
    assert store.keys_left() == set()


def test_a_rank_that_never_comes_is_named_by_all_others_at_the_deadline() -> None:
    results = held(Store(), lambda rank: rank, ranks=(0, 5))
    assert [each.missing for each in results] == [(2,), (2,)]


def test_without_rank_0_the_others_name_it() -> None:
    results = held(Store(), lambda rank: rank, ranks=(2, 5))
    assert [each.missing for each in results] == [(0,), (0,)]


def test_a_rank_that_comes_too_late_raises_what_the_others_have_raised() -> None:
    store = Store()
    first = held(store, lambda rank: rank, ranks=(0, 2))
    (late,) = held(store, lambda rank: rank, ranks=(5,))
    assert str(late) == str(first[0])
    assert store.keys_left() == set()
    assert held(store, lambda rank: rank) == [list(RANKS)] * 3


def test_whoever_waits_no_longer_decides_for_those_who_would_still_wait() -> None:
    """Rank 5 gives up before rank 2 has come: rank 0 has minutes, and ends nevertheless."""
    store = Store()
    with ThreadPoolExecutor(2) as pool:
        patient = pool.submit(held, store, lambda rank: rank, seconds=300, ranks=(0,))
        hasty = pool.submit(held, store, lambda rank: rank, seconds=0.1, ranks=(5,))
        (first,), (second,) = patient.result(60), hasty.result(60)
    assert isinstance(second, AgreementError)
    assert (first.missing, str(first)) == (second.missing, str(second))


def test_ranks_that_ask_different_things_are_told_so() -> None:
    store = Store()

    def one(rank: int) -> Any:
        asked = "another thing" if rank == 5 else "one thing"
        round_ = Round(RankGroup(RANKS, rank, store), asked, Deadline(20, CLOCK), CLOCK)
        round_.begin()
        with pytest.raises(AgreementError) as raised:
            round_.answer(rank, lambda every: every)
        return raised.value.failures

    with ThreadPoolExecutor(3) as pool:
        assert list(pool.map(one, RANKS)) == [{5: "asked another thing"}] * 3


def as_ranks(monkeypatch: pytest.MonkeyPatch, store: Any, call: Callable[[int], Any]) -> list[Any]:
    """Let each rank make a call of its own, as a thread; return what it returned or raised."""
    here = threading.local()
    monkeypatch.setattr(agreement, "_group", lambda _group: RankGroup(RANKS, here.rank, store))

    def one(rank: int) -> Any:
        here.rank = rank
        try:
            return call(rank)
        except (AgreementError, KeyboardInterrupt) as error:
            return error

    with ThreadPoolExecutor(len(RANKS)) as pool:
        return list(pool.map(one, RANKS))


def test_a_value_that_another_agreement_fails_for_is_told_to_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Such as one of a smaller group, of which the others know nothing."""
    store = Store()

    def value(rank: int) -> int:
        if rank == 2:
            raise AgreementError("the smaller group", missing=[9])
        return rank

    results = as_ranks(
        monkeypatch, store, lambda rank: agreement.agree(lambda: value(rank), timeout_seconds=60)
    )
    assert [type(each) for each in results] == [AgreementError] * 3
    assert [list(each.failures) for each in results] == [[2]] * 3
    assert "the smaller group" in str(results[0])
    assert store.keys_left() == set()


def test_an_interrupt_behind_the_verdict_counts_no_rank_twice(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store, over = Store(), threading.Event()
    raised, awaited = Round._raised, Round._await_verdict

    def late(round_: Round) -> dict[str, Any]:
        assert round_._group.rank == 5 or over.wait(60)
        return awaited(round_)

    def call(rank: int) -> Any:
        try:
            return agreement.agree(lambda: rank, timeout_seconds=5)
        finally:
            if rank == 5:
                over.set()

    def interrupted(round_: Round, verdict: dict[str, Any]) -> Any:
        if round_._group.rank == 5:
            raise KeyboardInterrupt
        return raised(round_, verdict)

    monkeypatch.setattr(Round, "_raised", interrupted)
    monkeypatch.setattr(Round, "_await_verdict", late)
    results = as_ranks(monkeypatch, store, call)
    assert results[:2] == [list(RANKS)] * 2
    assert isinstance(results[2], KeyboardInterrupt)
    assert store.keys_left() == set()


class GoneStore:
    """A store whose process hangs: no operation ever ends."""

    def __getattr__(self, _operation: str) -> Any:
        def hang(*_: Any) -> None:
            threading.Event().wait()

        return hang


def test_a_store_that_hangs_ends_in_the_named_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cachetier_client.torch.rounds.GRACE_SECONDS", 0.05)
    (error,) = held(GoneStore(), lambda rank: rank, seconds=0.05, ranks=(2,))
    assert "the store of the process group does not answer" in str(error)


class LostStore:
    """A store that is not there any more."""

    def __getattr__(self, _operation: str) -> Any:
        def lost(*_: Any) -> None:
            raise dist.DistNetworkError("connection reset")

        return lost


def test_a_store_that_is_lost_ends_in_the_named_error() -> None:
    (error,) = held(LostStore(), lambda rank: rank, ranks=(2,))
    assert "DistNetworkError: connection reset" in str(error)
