"""A drain that was never started is stopped at once."""

from __future__ import annotations

from cachetier.drain.serve.supervisor import DrainSettings, Supervisor, environment_of_drain
from cachetier.model.names import DURABLE
from cachetier.notifier import Changes
from cachetier.remote.settings import RemoteSettings
from tests.fakes.fake_clock import FakeClock
from tests.stateful.node import Node


def test_a_drain_that_was_never_started_is_stopped_at_once(node: Node, clock: FakeClock) -> None:
    settings = DrainSettings(RemoteSettings(DURABLE, "bucket"), node.cache_dir)
    supervisor = Supervisor(node.store, Changes(clock), node.incidents, clock, settings)

    supervisor.stop(600.0)

    shown = supervisor.state()
    assert (shown.pid, shown.restarts) == (None, 0)


def test_a_drain_gets_the_keys_to_its_bucket_and_no_other_secret() -> None:
    given = {"AWS_SECRET_ACCESS_KEY": "a", "PATH": "/bin", "HOME": "/root"}
    kept_back = {"CACHETIER_TOKEN": "b", "CACHETIER_CAPACITY": "1 TB", "DATABASE_PASSWORD": "c"}

    assert environment_of_drain({**given, **kept_back}) == given
