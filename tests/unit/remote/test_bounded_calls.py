"""Calls on a bucket that are waited for a bounded time, and their end."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from cachetier.errors import TransientError
from cachetier.remote.bounded_calls import BoundedCalls


@pytest.fixture
def calls() -> Iterator[BoundedCalls]:
    opened = BoundedCalls(1, "test-calls")
    yield opened
    opened.close()


def test_a_call_that_waits_for_a_thread_fails_once_nobody_makes_calls_any_more(
    calls: BoundedCalls,
) -> None:
    hangs, go_on = threading.Event(), threading.Event()
    failed: list[TransientError] = []

    def hang() -> None:
        hangs.set()
        go_on.wait(60)

    def both() -> None:
        try:
            calls.each([hang, hang])
        except TransientError as error:
            failed.append(error)

    asking = threading.Thread(target=both)
    asking.start()
    assert hangs.wait(60)
    calls.close()
    go_on.set()
    asking.join(60)
    assert [each.message for each in failed] == ["the bucket is asked nothing more: this ends"]


def test_a_call_after_the_end_fails_as_one_that_waits(calls: BoundedCalls) -> None:
    calls.close()
    with pytest.raises(TransientError, match="nothing more"):
        calls(lambda: 1)
