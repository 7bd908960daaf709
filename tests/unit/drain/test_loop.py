"""What the drain does where ``serve`` hands out nothing, or a task ends it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import cast

import pytest
from cachetier_client.bucket_format.layout import Layout
from cachetier_client.bucket_format.publication import Claimant

from cachetier.drain.channel import RefusedReportError
from cachetier.drain.loop import IDLE_SECONDS, UNANSWERED_SECONDS, DrainLoop, Signals
from cachetier.drain.messages import Handout, Size
from cachetier.drain.pace.traffic import Traffic
from cachetier.drain.schedule.tasks import Task, TaskKind
from cachetier.drain.serve.service import DrainService
from cachetier.remote.bucket import Bucket
from tests.fakes.fake_clock import FakeClock
from tests.fakes.memory_store import MemoryObjectStore

CLAIM = Task(1, TaskKind.CLAIM, 1, Claimant("run", 1, "save", 1, False, 1.0), None)


class Serve:
    """The other end of the channel: answers from a script, and hears the rest."""

    def __init__(self, *handouts: Callable[[], Handout]) -> None:
        self.handouts = list(handouts)
        self.finishes = True
        self.heard: list[tuple[object, ...]] = []

    def next_work(self, _count: int) -> Handout:
        return self.handouts.pop(0)() if self.handouts else Handout()

    def finish_task(self, _task: int, *, done: bool) -> None:
        if not self.finishes:
            raise RefusedReportError(f"planned (internal), {done}")

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *args: self.heard.append((name, *args))


class Patient(Signals):
    """Notes how long the loop would wait, and lets it end after so many waits."""

    def __init__(self, waits: int) -> None:
        super().__init__()
        self.waited: list[float] = []
        self._waits = waits

    def wait(self, timeout_seconds: float) -> None:
        self.waited.append(timeout_seconds)
        if len(self.waited) == self._waits:
            self.stop()


def loop_of(
    serve: Serve, signals: Signals, prepare: Callable[[], object] = lambda: None
) -> DrainLoop:
    clock = FakeClock()
    return DrainLoop(
        cast("DrainService", serve),
        Bucket(MemoryObjectStore(), Layout()),
        "store",
        clock,
        probe=lambda: None,
        signals=signals,
        traffic=Traffic(2, clock),
        size=Size(uploads=1, parts=1, threads=1),
        prepare=prepare,
    )


@pytest.mark.parametrize(
    ("task", "size_bytes", "claims", "prepares"),
    [
        (TaskKind.CLAIM, 0, True, False),
        (TaskKind.DELETE, 0, False, False),
        (TaskKind.UPLOAD, 1 << 20, False, False),
        (TaskKind.UPLOAD, 1 << 30, False, True),
    ],
)
def test_what_uploads_wait_for_is_done_beside_what_comes_before(
    task: TaskKind, size_bytes: int, claims: bool, prepares: bool
) -> None:
    serve, prepared = Serve(), list[int]()
    loop = loop_of(serve, Signals(), lambda: prepared.append(1))
    loop._go_ahead([replace(CLAIM, kind=task, size_bytes=size_bytes)])
    loop._parts.shutdown()
    assert (("read_claim",) in serve.heard) == claims
    assert prepared == [1] * prepares


def refused() -> Handout:
    raise RefusedReportError("the catalog cannot be read (catalog_damaged)")


def test_a_drain_that_gets_no_work_for_an_error_asks_again_soon(
    caplog: pytest.LogCaptureFixture,
) -> None:
    serve, signals = Serve(refused, Handout), Patient(waits=2)

    loop_of(serve, signals).run()

    assert signals.waited == [UNANSWERED_SECONDS, IDLE_SECONDS]
    assert serve.handouts == []
    assert (
        "the drain could not get work from the service: the catalog cannot be read" in caplog.text
    )


def test_a_task_whose_end_cannot_be_reported_ends_the_drain(
    caplog: pytest.LogCaptureFixture,
) -> None:
    serve, signals = Serve(lambda: Handout((CLAIM,))), Signals()
    serve.finishes = False

    loop_of(serve, signals).run()

    assert signals.stopping()
    assert ("save_located", 1, "1") in serve.heard
    assert "cannot go on after task 1" in caplog.text
