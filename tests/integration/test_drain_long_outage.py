"""Ten minutes without the remote, in simulated time, on the whole drain."""

from __future__ import annotations

from pathlib import Path

import pytest
from cachetier_client.identity.names import SaveIds

from cachetier.drain import channel
from cachetier.drain.pace.remote_health import PROBE_SECONDS
from cachetier.errors import RemoteError, RemoteRefusedError, TransientError
from cachetier.remote.retrying import RetryingObjectStore, RetryPolicy
from tests.fakes.fake_clock import FakeClock
from tests.fakes.faulty_store import FaultyObjectStore
from tests.fakes.memory_store import MemoryObjectStore
from tests.integration.drain_node import Node

OUTAGE_SECONDS = 600
SAVE_EVERY_SECONDS = 20
BODY = bytes(100_000)
# What was under way when it began may fail, attempt by attempt, before the circuit opens.
UNDER_WAY = 40


class Outage:
    """A node whose clock only this test moves, and a remote that goes away."""

    def __init__(self, folder: Path) -> None:
        self.clock = FakeClock()
        self.objects = FaultyObjectStore(MemoryObjectStore())
        policy = RetryPolicy(attempts=2, base_seconds=0.001, cap_seconds=0.002)
        retrying = RetryingObjectStore(self.objects, policy)
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


@pytest.mark.parametrize("error", [TransientError, RemoteRefusedError])
def test_nobody_notices_an_outage_and_it_is_made_up_for_at_once(
    tmp_path: Path, error: type[RemoteError], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(channel, "QUIET_SECONDS", 0.0)
    outage = Outage(tmp_path)
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
        seconds = 0
        while outage.published < outage.steps and seconds < 60:
            outage.pass_second()
            node.changes.wait_for(lambda: outage.published == outage.steps, 0.2, 0.01)
            seconds += 1
    assert outage.published == outage.steps == 1 + OUTAGE_SECONDS // SAVE_EVERY_SECONDS
    assert seconds <= 15  # no long pause is left over from the outage
    assert node.told() == []
    for step in range(1, outage.steps + 1):
        assert objects.get(node.key(SaveIds("run", step, "save-1"), "large")) == BODY
    node.close()
