"""Several drains as one: who hurries, who is shown where, and that they stop together."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import pytest

from cachetier.drain.schedule.queue_state import QueueState
from cachetier.drain.serve.drains import Drains
from cachetier.drain.serve.stats import DrainSnapshot, RemoteSnapshot
from cachetier.drain.serve.supervisor import Supervisor
from cachetier.local.catalog.rows import Backlog
from cachetier.model.checkpoint import Save
from tests.fakes.fake_clock import FakeClock


class OneDrain(Supervisor):
    """A drain of one remote that notes what it is asked; ``stop`` waits for ``others``."""

    def __init__(self, name: str, others: threading.Barrier | None = None) -> None:
        self.queue = QueueState(FakeClock())
        self.name = name
        self.heard: list[str] = []
        self._others = others

    def start(self) -> None:
        self.heard.append("start")

    def ask_to_end(self) -> None:
        self.heard.append("end")

    def stop(self, grace_seconds: float) -> None:
        if self._others is not None:
            self._others.wait(60.0)
        self.heard.append(f"stop {grace_seconds:g}")

    def hurry(self, run: str | None, step: int | None) -> None:
        self.heard.append(f"hurry {run} {step}")

    def nudge(self) -> None:
        self.heard.append("nudge")

    def retry(self) -> None:
        self.heard.append("retry")

    def limit_rate(self, bytes_per_second: float | None) -> None:
        self.heard.append(f"limit {bytes_per_second}")

    def passed_by(self, size_bytes: int) -> None:
        self.heard.append(f"passed by {size_bytes}")

    def published(self, save: Save) -> None:
        self.heard.append(f"published {save.step}")

    def etas(self, backlog: Sequence[Backlog]) -> dict[int, float]:
        return {1: float(len(self.name))}

    def state(self) -> DrainSnapshot:
        return DrainSnapshot(RemoteSnapshot(self.name), pid=len(self.name))


@pytest.fixture
def parts() -> tuple[OneDrain, OneDrain, OneDrain]:
    return OneDrain("durable"), OneDrain("near"), OneDrain("needed")


@pytest.fixture
def drains(parts: tuple[OneDrain, OneDrain, OneDrain]) -> Drains:
    durable, near, needed = parts
    return Drains(durable, [(near, False), (needed, True)])


def test_a_flush_hurries_the_durable_remote_and_what_is_required(
    drains: Drains, parts: tuple[OneDrain, OneDrain, OneDrain]
) -> None:
    drains.hurry("run", 1)
    assert [part.heard for part in parts] == [["hurry run 1"], [], ["hurry run 1"]]


def test_a_wait_for_replicated_hurries_every_replica(
    drains: Drains, parts: tuple[OneDrain, OneDrain, OneDrain]
) -> None:
    drains.hurry_replicas("run", 1)
    assert [part.heard for part in parts] == [[], ["hurry run 1"], ["hurry run 1"]]


def test_the_durable_drain_is_shown_first_and_each_other_after_it(
    drains: Drains, parts: tuple[OneDrain, OneDrain, OneDrain]
) -> None:
    assert [(each.remote.name, each.pid) for each in drains.state()] == [
        ("durable", 7),
        ("near", 4),
        ("needed", 6),
    ]
    assert drains.queue is parts[0].queue
    assert drains.etas([]) == {1: 7.0}


def test_what_passes_the_drain_by_went_to_the_durable_remote(
    parts: tuple[OneDrain, OneDrain, OneDrain], drains: Drains
) -> None:
    drains.passed_by(7)

    assert [part.heard for part in parts] == [["passed by 7"], [], []]


def test_one_nudge_is_enough_as_they_share_a_bell(
    drains: Drains, parts: tuple[OneDrain, OneDrain, OneDrain]
) -> None:
    drains.nudge()
    assert [part.heard for part in parts] == [["nudge"], [], []]


def test_all_of_them_try_again_and_only_the_far_link_is_limited(
    drains: Drains, parts: tuple[OneDrain, OneDrain, OneDrain]
) -> None:
    drains.retry()
    drains.limit_rate(5e6)
    assert [part.heard for part in parts] == [["retry", "limit 5000000.0"], ["retry"], ["retry"]]


def test_all_of_them_are_asked_to_end(
    drains: Drains, parts: tuple[OneDrain, OneDrain, OneDrain]
) -> None:
    drains.ask_to_end()
    assert [part.heard for part in parts] == [["end"]] * 3


def test_all_of_them_stop_at_the_same_time_within_one_grace() -> None:
    barrier = threading.Barrier(3)
    parts = [OneDrain(name, barrier) for name in ("durable", "near", "far")]
    drains = Drains(parts[0], [(parts[1], False), (parts[2], False)])
    drains.start()
    drains.stop(5.0)
    assert [part.heard for part in parts] == [["start", "stop 5"]] * 3
