"""A remote that is not well gets one probe a second, then one item, then everything."""

from __future__ import annotations

import pytest

from cachetier.drain.pace.remote_health import PROBE_LIMIT_SECONDS, UNLIMITED, Health, RemoteHealth
from cachetier.errors import (
    PreconditionFailedError,
    RemoteError,
    RemoteRefusedError,
    ThrottledError,
    TransientError,
)
from tests.fakes.fake_clock import FakeClock


class Remote:
    """The health of a remote with everything around it."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.error: RemoteError | None = None
        self.probes = 0
        self.reports: list[Health] = []
        self.health = RemoteHealth(self._probe, self.reports.append, self.clock)

    def _probe(self) -> None:
        self.probes += 1
        if self.error is not None:
            raise self.error

    def pass_seconds(self, seconds: int) -> None:
        """Let the dispatcher look four times a second."""
        for _ in range(4 * seconds):
            self.clock.advance(0.25)
            self.health.probe()


@pytest.fixture
def remote() -> Remote:
    return Remote()


def test_a_remote_that_is_well_gets_everything_and_no_probe(remote: Remote) -> None:
    remote.pass_seconds(10)

    assert remote.health.allowed == UNLIMITED
    assert remote.probes == 0
    assert remote.reports == []


def test_the_first_success_is_told_as_a_drain_before_may_have_told_otherwise(
    remote: Remote,
) -> None:
    remote.health.succeeded()
    remote.health.succeeded()

    assert remote.reports == [Health("ok")]


@pytest.mark.parametrize(
    ("error", "state"),
    [
        (RemoteRefusedError("no bucket"), "refused"),
        (TransientError("no bucket"), "unreachable"),
        (ThrottledError("no bucket"), "throttled"),
    ],
)
def test_a_failure_stops_all_work_and_is_reported(
    remote: Remote, error: RemoteError, state: str
) -> None:
    remote.health.failed(error)

    assert remote.health.allowed == 0
    assert remote.reports == [Health(state, "no bucket")]


def test_a_failure_that_is_about_one_object_stops_nothing(remote: Remote) -> None:
    remote.health.failed(PreconditionFailedError("lost a race"))
    remote.health.failed(RemoteError("its key is too long"))

    assert remote.health.allowed == UNLIMITED


def test_there_is_at_most_one_probe_a_second(remote: Remote) -> None:
    remote.error = RemoteRefusedError("no bucket")
    remote.health.failed(remote.error)
    remote.pass_seconds(60)

    assert 50 <= remote.probes <= 60
    assert remote.health.allowed == 0


def test_a_probe_that_passes_lets_one_item_try_then_everything(remote: Remote) -> None:
    remote.error = RemoteRefusedError("no bucket")
    remote.health.failed(remote.error)
    remote.pass_seconds(3)
    remote.error = None
    remote.pass_seconds(1)

    assert remote.health.allowed == 1
    assert remote.reports[-1] == Health("refused", "no bucket", retry=True)
    remote.health.succeeded()
    assert remote.health.allowed == UNLIMITED
    assert remote.reports[-1] == Health("ok", retry=True)


def test_where_only_writing_is_refused_probes_get_rarer(remote: Remote) -> None:
    remote.health.failed(RemoteRefusedError("read only"))
    tries = 0
    for _ in range(600):
        remote.pass_seconds(1)
        if remote.health.allowed:
            tries += 1
            remote.health.failed(RemoteRefusedError("read only"))

    assert remote.probes == tries
    assert 600 / PROBE_LIMIT_SECONDS <= tries <= 40
    assert not any(health.retry for health in remote.reports)


def test_a_change_of_reason_is_reported_once(remote: Remote) -> None:
    remote.health.failed(TransientError("away"))
    remote.error = RemoteRefusedError("forbidden")
    remote.pass_seconds(5)

    assert remote.reports == [
        Health("unreachable", "away"),
        Health("refused", "forbidden"),
    ]


def test_an_outage_of_six_hours_costs_one_probe_a_second_at_most(remote: Remote) -> None:
    remote.error = TransientError("away")
    remote.health.failed(remote.error)
    remote.pass_seconds(6 * 3600)

    assert 0.75 * 6 * 3600 <= remote.probes <= 6 * 3600
    assert remote.reports == [Health("unreachable", "away")]
    remote.error = None
    remote.pass_seconds(2)
    assert remote.health.allowed == 1


def test_a_remote_that_comes_and_goes_is_used_while_it_is_there(remote: Remote) -> None:
    used_seconds = 0
    for second in range(30 * 60):
        away = TransientError("away") if second // 30 % 2 else None
        remote.error = away
        remote.pass_seconds(1)
        if remote.health.allowed and away is not None:
            remote.health.failed(away)
        elif remote.health.allowed:
            remote.health.succeeded()
            used_seconds += 1

    assert used_seconds >= 0.95 * 15 * 60
    assert remote.probes <= 15 * 60 + 60
