"""Everybody who waits is answered from one thread, once, and is forgotten when gone."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any, NoReturn

import pytest
from cachetier_client.clock import SystemClock

from cachetier.errors import NotDurableError, NotFoundError
from cachetier.notifier import Changes
from cachetier.steps.waits import AskBucket, Question, Waits

LONG = 60.0


@pytest.fixture
def changes() -> Changes:
    return Changes(SystemClock())


@pytest.fixture
def waits(changes: Changes) -> Iterator[Waits]:
    waits = Waits(changes, SystemClock())
    waits.start()
    yield waits
    waits.stop()


class Idling(threading.Condition):
    """A condition that says when somebody waits at it without end."""

    def __init__(self) -> None:
        super().__init__()
        self.idle = threading.Event()

    def wait_for(self, predicate: Callable[[], Any], timeout: float | None = None) -> Any:
        if timeout is None:
            self.idle.set()
        return super().wait_for(predicate, timeout)


class World:
    """What is looked at: ``value`` is there once somebody sets it."""

    def __init__(self) -> None:
        self.value: int | None = None
        self.looks = 0
        self.looked = threading.Event()

    def look(self) -> int | None:
        self.looks += 1
        self.looked.set()
        return self.value

    def question(self, key: str = "key") -> Question[int]:
        return Question(key, self.look, too_late)


def too_late(seconds: float) -> NoReturn:
    raise NotDurableError(f"not after {seconds:g} s")


def asked(look: Callable[[], int | AskBucket[int] | None], key: str = "key") -> Question[int]:
    return Question(key, look, too_late)


def test_whoever_waits_is_answered_once_it_comes_about(waits: Waits, changes: Changes) -> None:
    world = World()
    answer = waits.ask(world.question(), LONG)
    assert world.looked.wait(LONG)

    world.value = 7
    changes.ring()

    assert answer.result(LONG) == 7
    assert waits.callers == 0


def test_who_asks_while_nobody_waits_is_looked_for_at_once(changes: Changes) -> None:
    waits, changed, world = Waits(changes, SystemClock()), Idling(), World()
    waits._changed = changed
    world.value = 7
    waits.start()
    try:
        assert changed.idle.wait(LONG)
        assert waits.ask(world.question(), LONG).result(LONG) == 7
    finally:
        waits.stop()


def test_what_a_look_raises_is_the_answer(waits: Waits) -> None:
    def look() -> NoReturn:
        raise NotFoundError("no such step")

    with pytest.raises(NotFoundError):
        waits.ask(asked(look), LONG).result(LONG)


def test_at_the_deadline_the_question_says_what_is_late(waits: Waits) -> None:
    answer = waits.ask(World().question(), 0.05)

    with pytest.raises(NotDurableError, match=r"not after 0\.05 s"):
        answer.result(LONG)


def test_a_deadline_that_has_passed_still_gets_one_look(waits: Waits) -> None:
    world = World()
    world.value = 7

    assert waits.ask(world.question(), 0.0).result(LONG) == 7


def test_callers_who_ask_the_same_share_each_look(waits: Waits, changes: Changes) -> None:
    world = World()
    began, go_on = threading.Event(), threading.Event()

    def hold_up() -> int:
        began.set()
        assert go_on.wait(LONG)
        return 0

    held = waits.ask(asked(hold_up, "held"), LONG)
    assert began.wait(LONG)
    world.value = 7
    answers = [waits.ask(world.question(), LONG) for _ in range(100)]
    go_on.set()

    assert [answer.result(LONG) for answer in answers] == [7] * 100
    assert held.result(LONG) == 0
    assert world.looks == 1


def test_an_answer_goes_to_nobody_who_asked_after_the_look(waits: Waits) -> None:
    """It may be out of date: the step of a later caller may have been put since."""
    began, go_on = threading.Event(), threading.Event()
    there = False

    def look() -> int:
        if there:
            return 7
        began.set()
        assert go_on.wait(LONG)
        raise NotFoundError("no such step")

    early = waits.ask(asked(look), LONG)
    assert began.wait(LONG)
    there = True
    late = waits.ask(asked(look), LONG)
    go_on.set()

    with pytest.raises(NotFoundError):
        early.result(LONG)
    assert late.result(LONG) == 7


def test_a_caller_who_is_gone_is_forgotten_and_holds_up_no_answer(
    waits: Waits, changes: Changes
) -> None:
    world = World()
    gone, stays = waits.ask(world.question(), LONG), waits.ask(world.question(), LONG)
    assert gone.cancel()
    assert waits.callers == 1

    world.value = 7
    changes.ring()

    assert stays.result(LONG) == 7


def test_a_bucket_that_hangs_holds_up_nobody_who_does_not_ask_it(
    waits: Waits, changes: Changes
) -> None:
    answers_at_last = threading.Event()
    hanging: list[Future[int]] = []

    def ask_bucket() -> int:
        assert answers_at_last.wait(LONG)
        return 1

    for number in range(10):
        hanging.append(waits.ask(asked(lambda: AskBucket(ask_bucket), f"step {number}"), LONG))
    world = World()
    world.value = 7

    assert waits.ask(world.question(), LONG).result(LONG) == 7
    with pytest.raises(NotDurableError):
        waits.ask(asked(lambda: AskBucket(ask_bucket), "late"), 0.05).result(LONG)
    answers_at_last.set()
    assert [answer.result(LONG) for answer in hanging] == [1] * 10


def test_the_bucket_is_asked_again_only_after_a_while(waits: Waits, changes: Changes) -> None:
    asked_bucket = []
    first = threading.Event()

    def ask_bucket() -> None:
        asked_bucket.append(1)
        first.set()

    answer = waits.ask(Question("key", lambda: AskBucket(ask_bucket), too_late), 0.5)
    assert first.wait(LONG)
    for _ in range(200):
        changes.ring()

    with pytest.raises(NotDurableError):
        answer.result(LONG)
    assert len(asked_bucket) == 1


def test_a_stop_answers_everybody(changes: Changes) -> None:
    waits = Waits(changes, SystemClock())
    waits.start()
    answers = [waits.ask(World().question(str(number)), LONG) for number in range(3)]

    waits.stop()

    for answer in answers:
        with pytest.raises(NotDurableError):
            answer.result(LONG)
