"""A drain that was never started is stopped at once."""

from __future__ import annotations

from cachetier.drain.serve.supervisor import DrainSettings, Supervisor
from cachetier.model.names import DURABLE
from cachetier.notifier import Changes
from cachetier.remote.settings import RemoteSettings
from tests.fakes.fake_clock import FakeClock
from tests.stateful.node import Node


def test_a_drain_that_was_never_started_is_stopped_at_once(node: Node, clock: FakeClock) -> None:
    settings = DrainSettings(RemoteSettings(DURABLE, "bucket"), node.cache_dir)
    supervisor = Supervisor(node.store, Changes(clock), node.incidents, clock, settings)

    supervisor.stop(600.0)

    (shown,) = supervisor.state()
    assert (shown.pid, shown.restarts) == (None, 0)
