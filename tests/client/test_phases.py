"""Hints of training: told by a thread, in the end always the latest, and never felt by the rank."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import cachetier_client
import pytest
from cachetier_client import Client, default
from cachetier_client.calls.training_hints import (
    AGAIN_SECONDS,
    AWAY_SECONDS,
    QUIET_SECONDS,
    TrainingPhases,
)
from cachetier_client.transport.base import ConnectionLostError

from tests.client.fake_http import Answer, FakeHttpService
from tests.client.fake_service import FakeService
from tests.client.fakes import FakeClock
from tests.client.test_forks import run_in_child

PATIENCE_SECONDS = 30.0
ENOUGH_STEPS = 2_000


class FakeTransport:
    """Hears hints, or fails as told; ``hold`` keeps it busy with one."""

    url = "fake://"

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.told: list[bool] = []
        self.tried = 0
        self.error: Exception | None = None
        self.held = False

    def call(self, op: str, fields: dict[str, Any], _deadline: object) -> dict[str, Any]:
        assert op == "phase"
        with self.changed:
            self.tried += 1
            self.changed.notify_all()
            assert self.changed.wait_for(lambda: not self.held, PATIENCE_SECONDS)
            if self.error is not None:
                raise self.error
            self.told.append(fields["busy"])
            self.changed.notify_all()
        return {}

    def forget_idle(self) -> None:
        """Nothing is kept."""

    def wait(self, reached: Callable[[], bool]) -> None:
        with self.changed:
            assert self.changed.wait_for(reached, PATIENCE_SECONDS), self.told

    def hold(self, *, held: bool) -> None:
        with self.changed:
            self.held = held
            self.changed.notify_all()


class Pauses:
    """Stands in for the pauses of the thread: it goes on when told."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.seconds: list[float] = []
        self._left = 0

    def __call__(self, closed: threading.Event, seconds: float) -> None:
        with self.changed:
            self.seconds.append(seconds)
            self.changed.notify_all()
            while not self._left and not closed.is_set():
                self.changed.wait(0.01)
            self._left = max(0, self._left - 1)

    def end(self) -> None:
        with self.changed:
            self._left += 1
            self.changed.notify_all()

    def wait_for(self, count: int) -> None:
        with self.changed:
            assert self.changed.wait_for(lambda: len(self.seconds) == count, PATIENCE_SECONDS)


class Rank:
    def __init__(self) -> None:
        self.transport, self.pauses, self.clock = FakeTransport(), Pauses(), FakeClock()
        self.phases = TrainingPhases(
            self.transport,  # type: ignore[arg-type]  # all that is asked of it
            self.clock,
            self.pauses,
        )


@pytest.fixture
def rank() -> Iterator[Rank]:
    made = Rank()
    yield made
    made.transport.hold(held=False)
    made.phases.close()


def test_a_step_is_told_at_its_beginning_and_at_its_end(rank: Rank) -> None:
    with rank.phases:
        rank.transport.wait(lambda: rank.transport.told == [True])
        rank.pauses.end()
    rank.transport.wait(lambda: rank.transport.told == [True, False])


def test_of_many_short_steps_only_the_latest_state_is_told(rank: Rank) -> None:
    with rank.phases:
        rank.transport.wait(lambda: rank.transport.told == [True])
        rank.pauses.wait_for(1)
    for _ in range(ENOUGH_STEPS):
        with rank.phases:
            pass
    rank.pauses.end()
    rank.transport.wait(lambda: rank.transport.told == [True, False])
    rank.pauses.wait_for(2)

    assert rank.transport.tried == 2
    assert rank.pauses.seconds == [QUIET_SECONDS] * 2


def test_a_rank_that_goes_on_training_is_told_again_before_the_hint_ends(rank: Rank) -> None:
    rank.phases.__enter__()
    rank.transport.wait(lambda: rank.transport.told == [True])
    rank.pauses.wait_for(1)
    for _ in range(10):
        rank.phases.__exit__(None, None, None)
        rank.phases.__enter__()
    rank.clock.time += AGAIN_SECONDS - 1
    rank.pauses.end()
    assert rank.transport.told == [True]
    rank.clock.time += 1
    rank.phases.__exit__(None, None, None)
    rank.phases.__enter__()
    rank.transport.wait(lambda: rank.transport.told == [True, True])


def test_overlapping_steps_are_one(rank: Rank) -> None:
    with rank.phases:
        rank.transport.wait(lambda: rank.transport.told == [True])
        rank.pauses.end()
        with rank.phases:
            pass
        threads = [threading.Thread(target=rank.phases.__enter__) for _ in range(3)]
        for thread in threads:
            thread.start()
            thread.join()
        for _ in threads:
            rank.phases.__exit__(None, None, None)
    rank.transport.wait(lambda: rank.transport.told == [True, False])


def test_a_step_that_raises_ends_too(rank: Rank) -> None:
    with pytest.raises(ZeroDivisionError), rank.phases:
        rank.transport.wait(lambda: rank.transport.told == [True])
        rank.pauses.end()
        raise ZeroDivisionError
    rank.transport.wait(lambda: rank.transport.told == [True, False])


@pytest.mark.parametrize("error", [ConnectionLostError("away"), OSError("no"), KeyError("defect")])
def test_what_cannot_be_told_is_counted_and_told_later(rank: Rank, error: Exception) -> None:
    rank.transport.error = error
    with rank.phases:
        rank.pauses.wait_for(1)
        assert rank.phases.lost == 1
        assert rank.pauses.seconds == [AWAY_SECONDS]
        rank.transport.error = None
        rank.pauses.end()
        rank.transport.wait(lambda: rank.transport.told == [True])


def test_an_end_that_could_not_be_told_is_left_to_the_service(rank: Rank) -> None:
    with rank.phases:
        rank.pauses.wait_for(1)
        rank.transport.error = ConnectionLostError("away")
    rank.pauses.end()
    rank.pauses.wait_for(2)
    rank.pauses.end()
    assert rank.phases.lost == 1
    rank.transport.error = None
    with rank.phases:
        rank.transport.wait(lambda: rank.transport.told == [True, True])


def test_a_service_that_hangs_does_not_keep_the_rank_waiting(rank: Rank) -> None:
    rank.transport.hold(held=True)
    with rank.phases:
        rank.transport.wait(lambda: rank.transport.tried == 1)
    for _ in range(ENOUGH_STEPS):
        with rank.phases:
            pass

    assert rank.transport.told == []
    assert rank.transport.tried == 1


def test_a_closed_client_tells_nothing_and_raises_nothing(rank: Rank) -> None:
    rank.phases.close()
    with rank.phases:
        pass

    assert rank.transport.tried == 0


# --- over the doors -----------------------------------------------------------------------------


def wait_until(reached: Callable[[], bool]) -> None:
    ends_at = time.monotonic() + PATIENCE_SECONDS
    while not reached():
        assert time.monotonic() < ends_at
        time.sleep(0.005)


def test_the_socket_carries_hints(service: FakeService, client: Client) -> None:
    service.answers["phase"] = {}
    with client.training_step():
        wait_until(lambda: [hint["busy"] for hint in service.ids("phase")] == [True])
    wait_until(lambda: [hint["busy"] for hint in service.ids("phase")] == [True, False])

    assert client.lost_hints == 0


def test_http_carries_hints_with_the_clients_id() -> None:
    service = FakeHttpService()
    service.answers = {("POST", "/v1/phase"): [Answer.document(), Answer.document()]}
    with service.running(), Client(service.url) as client:
        with client.training_step():
            wait_until(lambda: len(service.seen) == 1)

        assert b'"busy": true' in service.seen[0].body
        assert client._caller._hello["client_id"].encode() in service.seen[0].body


def test_without_a_service_training_goes_on() -> None:
    with Client("unix:///nowhere/at/all.sock") as client:
        with client.training_step():
            wait_until(lambda: client.lost_hints == 1)
        with client.training_step():
            pass


def test_an_old_service_that_knows_no_hints_is_no_harm(
    service: FakeService, client: Client
) -> None:
    service.answers["phase"] = {"ok": False, "error": {"code": "invalid_request"}}
    with client.training_step():
        wait_until(lambda: client.lost_hints == 1)


def test_the_process_s_own_client_tells_too(
    service: FakeService, monkeypatch: pytest.MonkeyPatch
) -> None:
    service.answers["phase"] = {}
    monkeypatch.setattr(default, "_default", None)
    monkeypatch.setenv("CACHETIER_URL", service.url)
    with cachetier_client.training_step():
        wait_until(lambda: len(service.ids("phase")) == 1)
    cachetier_client.default_client().close()


@pytest.mark.filterwarnings("ignore:.*use of fork.*:DeprecationWarning")
def test_a_child_of_a_busy_rank_is_a_rank_of_its_own(service: FakeService, client: Client) -> None:
    service.answers["phase"] = {}

    @contextmanager
    def in_step() -> Iterator[None]:
        with client.training_step():
            wait_until(lambda: len(service.ids("phase")) == 1)
            yield

    def child() -> None:
        client._caller.phases.__exit__(None, None, None)  # of the parent's step
        with client.training_step():
            wait_until(lambda: client._caller.phases._sent[0])
            client.close()  # waits for the thread, which is telling it

    with in_step():
        assert run_in_child(child) == 0
    wait_until(lambda: len(service.ids("phase")) >= 3)
    assert len({hello["client_id"] for hello in service.ids("hello")}) == 2


def test_a_step_costs_microseconds(service: FakeService, client: Client) -> None:
    """The bar is 100 microseconds; other load is taken out by the quickest of several runs."""
    service.answers["phase"] = {}
    costs = []
    for _ in range(5):
        began_at = time.perf_counter()
        for _ in range(500):
            with client.training_step():
                pass
        costs.append((time.perf_counter() - began_at) / 500)

    assert min(costs) < 100e-6, costs
