"""Hours without the remote, and half an hour of one that comes and goes, in simulated time.

``make faults`` lives through all of it, ``make test`` through minutes.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from cachetier_client.identity.names import SaveIds

from cachetier.drain import channel
from cachetier.drain.pace.remote_health import PROBE_SECONDS
from cachetier.errors import RemoteError, RemoteRefusedError, TransientError
from cachetier.remote.call_policy import CallPolicy, Retries, RetryPolicy
from tests.fakes.fake_clock import FakeClock
from tests.fakes.faulty_store import FaultyObjectStore
from tests.fakes.memory_store import MemoryObjectStore
from tests.faults.counting import count
from tests.faults.slices import everything
from tests.integration.drain_node import Node

OUTAGE_SECONDS = 6 * 3600 if everything() else 600
SAVE_EVERY_SECONDS = 300 if everything() else 20
FLAPPING_SECONDS = 1800 if everything() else 120
FLAPPING_SEED = 13
SAVE_WHEN_FLAPPING_SECONDS = 10
SAVES_WITHOUT_FAULT = 5
BODY = bytes(100_000)
# What was under way when it began may fail, attempt by attempt, before the circuit opens.
UNDER_WAY = 40


class Outage:
    """A node whose clock only this test moves, and a remote that goes away."""

    def __init__(self, folder: Path) -> None:
        self.clock = FakeClock()
        self.objects = FaultyObjectStore(MemoryObjectStore())
        policy = RetryPolicy(attempts=2, base_seconds=0.001, cap_seconds=0.002)
        retrying = CallPolicy(self.objects, retries=Retries(policy))
        self.node = Node(folder / "cache", retrying, clock=self.clock, fraction=lambda: 0.5)
        self.node.probe = self.objects.check
        self.steps = 0

    def save(self) -> None:
        self.steps += 1
        ids = SaveIds("run", self.steps, "save-1")
        self.node.put(ids, "small", b"hello")
        self.node.put(ids, "large", BODY)
        self.node.seal(ids)

    def pass_second(self) -> None:
        """Let a second pass, and the drain notice it."""
        probes = self.objects.calls["check"]
        self.clock.advance(1.0)
        self.node.changes.ring()
        self.node.changes.wait_for(lambda: self.objects.calls["check"] > probes, 0.02, 0.001)

    @property
    def published(self) -> int:
        return len(self.node.seen.steps)

    def pass_seconds_until_all_is_published(self, most: int) -> int:
        """Return how many passed; at most ``most`` do, and none while steps are being published."""
        for seconds in range(most):
            if self.published == self.steps:
                return seconds
            self.pass_second()
            while self._publishes():
                pass
        return most

    def _publishes(self) -> bool:
        before = self.published
        return self.node.changes.wait_for(lambda: self.published > before, 0.2, 0.01)

    def assert_all_is_there(self) -> None:
        assert self.published == self.steps
        assert self.node.told() == []
        for step in range(1, self.steps + 1):
            assert self.objects.get(self.node.key(SaveIds("run", step, "save-1"), "large")) == BODY


@pytest.fixture
def outage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Outage]:
    monkeypatch.setattr(channel, "QUIET_SECONDS", 0.0)
    started = Outage(tmp_path)
    yield started
    started.node.close()


@pytest.mark.parametrize("error", [TransientError, RemoteRefusedError])
def test_nobody_notices_an_outage_and_it_is_made_up_for_at_once(
    outage: Outage, error: type[RemoteError], request: pytest.FixtureRequest
) -> None:
    node, objects = outage.node, outage.objects
    with node.draining():
        outage.save()
        node.wait_until(lambda: outage.published == 1)
        objects.go_down(error)
        before, probes = objects.calls.total(), objects.calls["check"]
        for second in range(OUTAGE_SECONDS):
            if second % SAVE_EVERY_SECONDS == 0:
                outage.save()  # raises if the put is refused
            outage.pass_second()
        probes = objects.calls["check"] - probes
        assert 0.8 * OUTAGE_SECONDS <= probes <= OUTAGE_SECONDS / PROBE_SECONDS
        assert objects.calls.total() - before - probes <= UNDER_WAY
        assert outage.published == 1

        objects.mend()
        seconds = outage.pass_seconds_until_all_is_published(60)
    assert outage.steps == 1 + OUTAGE_SECONDS // SAVE_EVERY_SECONDS
    assert seconds <= 15  # no long pause is left over from the outage
    outage.assert_all_is_there()
    count(request, "simulated seconds of outage", OUTAGE_SECONDS)


def test_a_remote_that_comes_and_goes_for_half_an_hour_gets_everything(
    outage: Outage, request: pytest.FixtureRequest
) -> None:
    objects, chance = outage.objects, random.Random(FLAPPING_SEED)
    away, changes_at, times_away, seconds_away = False, 0, 0, 0
    with outage.node.draining():
        for _ in range(SAVES_WITHOUT_FAULT):
            outage.save()
            outage.pass_seconds_until_all_is_published(60)
        needed = objects.calls.total() / SAVES_WITHOUT_FAULT
        for second in range(FLAPPING_SECONDS):
            if second == changes_at:
                away = not away
                (objects.go_down if away else objects.mend)()
                changes_at, times_away = second + chance.randint(1, 20), times_away + away
            seconds_away += away
            if second % SAVE_WHEN_FLAPPING_SECONDS == 0:
                outage.save()
            outage.pass_second()
        objects.mend()
        seconds = outage.pass_seconds_until_all_is_published(60)
    assert seconds <= 15
    refused_probes = sum(fault.operation == "check" for fault in objects.fired)
    assert times_away <= refused_probes <= seconds_away / PROBE_SECONDS + times_away
    assert len(objects.fired) - refused_probes <= 8 * times_away  # as many as are tried at once
    answered = objects.calls.total() - len(objects.fired)
    assert answered <= 1.5 * needed * outage.steps
    outage.assert_all_is_there()
    count(request, "simulated seconds of flapping", FLAPPING_SECONDS, FLAPPING_SEED)
