"""When a call to a store is repeated, how long after, and when it is given up."""

from __future__ import annotations

import pytest
from awscrt.checksums import crc64nvme

from cachetier.errors import (
    ObjectMissingError,
    PreconditionFailedError,
    RemoteDigestError,
    RemoteError,
    RemoteRefusedError,
    ThrottledError,
    TransientError,
    UploadGoneError,
)
from cachetier.remote.base import IF_ABSENT
from cachetier.remote.call_policy import (
    CallPolicy,
    Retries,
    RetryBudget,
    RetryPolicy,
    wait_before_next,
)
from tests.fakes.faulty_store import Fault, FaultyObjectStore, fail, lose_reply
from tests.fakes.memory_store import MemoryObjectStore

POLICY = RetryPolicy(attempts=4, base_seconds=1.0, cap_seconds=3.0, deadline_seconds=60.0)
TRANSIENT = TransientError("reset")


class Clock:
    """A clock that only ``sleep`` moves."""

    def __init__(self) -> None:
        self.now = 0.0
        self.slept: list[float] = []

    def read(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds


def retrying(
    *plan: Fault, policy: RetryPolicy = POLICY
) -> tuple[CallPolicy, FaultyObjectStore, Clock]:
    clock = Clock()
    faulty = FaultyObjectStore(MemoryObjectStore(), plan)
    retries = Retries(policy, clock=clock.read, sleep=clock.sleep, fraction=lambda: 0.5)
    store = CallPolicy(faulty, retries=retries)
    return store, faulty, clock


@pytest.mark.parametrize("error", [ThrottledError("slow down"), TRANSIENT])
def test_what_may_pass_is_repeated(error: RemoteError) -> None:
    assert wait_before_next(POLICY, error, 1, 0.0, 0.5) == 0.5


@pytest.mark.parametrize(
    "kind",
    [
        ObjectMissingError,
        PreconditionFailedError,
        RemoteDigestError,
        RemoteRefusedError,
        UploadGoneError,
        RemoteError,
    ],
)
def test_what_another_try_cannot_change_is_not_repeated(kind: type[RemoteError]) -> None:
    assert wait_before_next(POLICY, kind("no"), 1, 0.0, 0.5) is None


@pytest.mark.parametrize(("attempt", "step"), [(1, 1.0), (2, 2.0), (3, 3.0)])
def test_the_wait_is_anything_up_to_a_step_that_doubles_to_a_cap(attempt: int, step: float) -> None:
    waits = [
        wait_before_next(POLICY, TRANSIENT, attempt, 0.0, fraction) for fraction in (0.0, 0.5, 0.99)
    ]

    assert waits == [0.0, step * 0.5, step * 0.99]


def test_attempts_are_counted_from_one() -> None:
    assert wait_before_next(POLICY, TRANSIENT, 3, 0.0, 0.5) is not None
    assert wait_before_next(POLICY, TRANSIENT, 4, 0.0, 0.5) is None


def test_no_attempt_begins_after_the_deadline() -> None:
    assert wait_before_next(POLICY, TRANSIENT, 1, 59.4, 0.5) == 0.5
    assert wait_before_next(POLICY, TRANSIENT, 1, 59.5, 0.5) is None


def test_a_policy_without_end_neither_overflows_nor_exceeds_its_cap() -> None:
    endless = RetryPolicy(attempts=10**9, deadline_seconds=float("inf"))

    assert wait_before_next(endless, TRANSIENT, 100_000, 1e9, 0.999) == pytest.approx(20 * 0.999)


def test_the_time_a_store_asks_for_is_waited_in_full_with_jitter_on_top() -> None:
    throttled = ThrottledError("slow down")
    throttled.retry_after_seconds = 7.0

    assert wait_before_next(POLICY, throttled, 1, 0.0, 0.5) == 7.5
    assert wait_before_next(POLICY, throttled, 1, 55.0, 0.5) is None


def test_a_call_is_repeated_until_it_succeeds() -> None:
    store, faulty, clock = retrying(fail("head", 1), fail("head", 2, ThrottledError))

    assert store.head("a") is None

    assert faulty.calls["head"] == 3
    assert len(faulty.fired) == 2
    assert clock.slept == [0.5, 1.0]


def test_the_last_error_is_raised_when_attempts_run_out() -> None:
    plan = [fail("get", call) for call in (1, 2, 3)]
    store, faulty, clock = retrying(*plan, fail("get", 4, ThrottledError))

    with pytest.raises(ThrottledError):
        store.get("a")
    assert faulty.calls["get"] == 4
    assert len(clock.slept) == 3


def test_a_refusal_is_raised_at_once() -> None:
    store, faulty, clock = retrying(fail("check", 1, RemoteRefusedError))

    with pytest.raises(RemoteRefusedError):
        store.check()
    assert (faulty.calls["check"], clock.slept) == (1, [])


def test_a_repeated_conditional_put_that_had_succeeded_is_the_callers_to_settle() -> None:
    store, faulty, _ = retrying(lose_reply("put"))

    with pytest.raises(PreconditionFailedError):
        store.put("a", b"body", digest=crc64nvme(b"body"), condition=IF_ABSENT)

    assert faulty.fired == [lose_reply("put")]
    found = store.head("a")
    assert found is not None
    assert found.digest == crc64nvme(b"body")


def test_a_repeated_completion_that_had_succeeded_is_the_callers_to_settle() -> None:
    store, faulty, _ = retrying(lose_reply("complete_upload"))
    upload_id = store.create_upload("a")
    part = store.upload_part("a", upload_id, 1, b"body", digest=crc64nvme(b"body"))

    with pytest.raises(UploadGoneError):
        store.complete_upload("a", upload_id, [part], digest=crc64nvme(b"body"))

    assert faulty.fired == [lose_reply("complete_upload")]
    assert store.get("a") == b"body"


def test_a_listing_of_uploads_is_repeated_as_a_whole() -> None:
    store, faulty, _ = retrying(fail("list_uploads"))
    upload_id = store.create_upload("a")

    assert list(store.list_uploads("")) == [("a", upload_id)]
    assert faulty.calls["list_uploads"] == 2


def test_a_sleep_that_raises_cuts_the_wait_short() -> None:
    class StopError(Exception):
        pass

    def stop(_: float) -> None:
        raise StopError

    faulty = FaultyObjectStore(MemoryObjectStore(), [fail("head")])
    store = CallPolicy(faulty, retries=Retries(POLICY, sleep=stop))

    with pytest.raises(StopError):
        store.head("a")


def test_when_most_calls_fail_they_fail_at_once_instead_of_several_times_each() -> None:
    plan = [fail("head", number) for number in range(1, 200)]
    policy = RetryPolicy(attempts=4, base_seconds=0.0, deadline_seconds=1e9)
    store, faulty, _ = retrying(*plan, policy=policy)
    for _ in range(40):
        with pytest.raises(TransientError):
            store.head("a")
    assert faulty.calls["head"] == 40 + RetryBudget.LIMIT


def spent(clock: Clock) -> RetryBudget:
    """Return a budget of which nothing is left."""
    budget = RetryBudget(clock.read)
    while budget.spend(TRANSIENT):
        pass
    return budget


def test_successes_pay_for_repeating_again() -> None:
    budget = spent(Clock())
    for _ in range(10):
        budget.earn()
    assert [budget.spend(TRANSIENT), budget.spend(TRANSIENT)] == [True, False]


def test_time_alone_pays_for_a_few_repeats_and_never_for_more_than_the_budget_holds() -> None:
    clock = Clock()
    budget = spent(clock)
    clock.now += 1.0
    assert [budget.spend(TRANSIENT) for _ in range(6)] == [True] * 5 + [False]
    clock.now += 3600.0
    assert sum(budget.spend(TRANSIENT) for _ in range(100)) == RetryBudget.LIMIT


def test_a_throttled_call_is_repeated_whatever_the_budget_says() -> None:
    budget = spent(Clock())
    assert budget.spend(ThrottledError("slow down"))


def test_what_is_throttled_may_be_repeated_more_often_than_what_fails() -> None:
    policy = RetryPolicy(attempts=2, throttled_attempts=4)
    throttled = ThrottledError("slow down")
    repeated = [
        [wait_before_next(policy, error, attempt, 0.0, 0.5) is not None for attempt in range(1, 5)]
        for error in (TRANSIENT, throttled)
    ]
    assert repeated == [[True, False, False, False], [True, True, True, False]]
