"""One look a second: what was measured moves the gates, and serve hears of it."""

from __future__ import annotations

from typing import Any

import pytest

from cachetier.drain.channel import ChannelClosedError, RefusedReportError
from cachetier.drain.priority.apply import Courtesy
from cachetier.drain.priority.gates import ComputeSlots, Gates
from cachetier.drain.priority.loop import GivingWay
from cachetier.drain.priority.policy import (
    FED_SECONDS,
    STARVED_SECONDS,
    CpuPriority,
    PressureSample,
    Training,
)
from cachetier.drain.priority.psi import Sensors
from cachetier.errors import StoppingError
from tests.fakes.fake_clock import FakeClock


class FakeSensors(Sensors):
    """Seconds in which so much of the time somebody, or the drain, waited."""

    def __init__(self) -> None:
        super().__init__()
        self.cpu = self.own_waited = 0.0
        self.own_used = 0.5  # it works
        self._clocks = [0.0, 0.0, 0.0]

    def sample(self, at: float, own_io: float) -> PressureSample:
        for number, seconds in enumerate((self.cpu, self.own_waited, self.own_used)):
            self._clocks[number] += seconds
        cpu, waited, used = self._clocks
        return PressureSample(at, cpu, 0.0, waited, used, own_io)


class FakeCourtesy(Courtesy):
    """Remembers where it was told to stand."""

    def __init__(self) -> None:
        super().__init__({"nice": 19})
        self.standings: list[CpuPriority] = []

    def set_priority(self, cpu_priority: CpuPriority) -> None:
        self.standings.append(cpu_priority)


class Scene:
    """A drain whose pressure a test sets."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.sensors = FakeSensors()
        self.courtesy = FakeCourtesy()
        self.gates = Gates(ComputeSlots(4), ComputeSlots(16))
        self.training = Training()
        self.reports: list[dict[str, Any]] = []
        self.giving_way = GivingWay(
            self.gates, self.courtesy, self.sensors, self.exchange, self.clock
        )

    def exchange(self, report: dict[str, Any]) -> Training:
        self.reports.append(report)
        return self.training

    def pass_seconds(self, count: int = 1) -> None:
        for _ in range(count):
            self.clock.advance(1.0)
            self.giving_way.look()

    @property
    def allowed(self) -> tuple[int, int]:
        return self.gates.compute.allowed, self.gates.reads.allowed


def test_pressure_narrows_the_compressor_then_the_reader_and_opens_them_again() -> None:
    scene = Scene()
    scene.pass_seconds()
    assert scene.allowed == (4, 16)
    scene.sensors.cpu = 0.9
    scene.pass_seconds()
    assert scene.allowed == (2, 16)
    scene.pass_seconds()
    assert scene.allowed == (1, 1)
    scene.sensors.cpu = 0.0
    scene.pass_seconds(2)
    assert scene.allowed == (4, 16)


def test_pressure_while_the_drain_does_nothing_narrows_no_gate() -> None:
    scene = Scene()
    scene.sensors.cpu, scene.sensors.own_used = 0.9, 0.0
    scene.pass_seconds(3)

    assert scene.allowed == (4, 16)
    assert scene.reports[-1]["pressure"]["cpu"] == 90.0


def test_a_busy_rank_halves_the_compressor_and_an_idle_one_frees_it() -> None:
    scene = Scene()
    scene.training = Training(hinting_ranks=1, busy_ranks=1)
    scene.pass_seconds(3)
    assert scene.allowed == (2, 16)
    scene.training = Training(hinting_ranks=1)
    scene.pass_seconds()
    assert scene.allowed == (4, 16)


def test_the_kernel_is_asked_once_for_each_change_of_standing() -> None:
    scene = Scene()
    scene.pass_seconds(int(FED_SECONDS) + 5)
    assert scene.courtesy.standings == [CpuPriority.LAST]
    scene.sensors.own_waited = 1.9
    scene.sensors.own_used = 0.1
    scene.pass_seconds(int(STARVED_SECONDS) + 5)

    assert scene.courtesy.standings == [CpuPriority.LAST, CpuPriority.SHARE]


def test_serve_hears_how_the_drain_behaves() -> None:
    scene = Scene()
    scene.sensors.cpu = 0.5
    scene.training = Training(hinting_ranks=2, busy_ranks=2)
    scene.pass_seconds(2)

    assert scene.reports[-1] == {
        "nice": 19,
        "restraint": "compressor",
        "standing": "large share",
        "pressure": {"cpu": 50.0, "io": 0.0},
        "hunger": 0.0,
        "busy_ranks": 2,
        "slots": 2,
        "slots_limit": 4,
        "slowed_seconds": 0.0,
    }


@pytest.mark.parametrize("end", [StoppingError("stop"), ChannelClosedError()])
def test_at_the_end_the_gates_are_open(end: Exception) -> None:
    scene = Scene()
    scene.sensors.cpu = 0.9
    left = 3

    def sleep(_seconds: float) -> None:
        nonlocal left
        left -= 1
        if not left:
            assert scene.allowed == (1, 1)
            raise end
        scene.clock.advance(1.0)

    scene.giving_way.run(sleep)
    assert scene.allowed == (4, 16)
    assert left == 0


def test_a_report_that_serve_cannot_take_does_not_end_the_looking() -> None:
    scene = Scene()
    naps = 0

    def refuse(_report: dict[str, Any]) -> Training:
        raise RefusedReportError("not now")

    def sleep(_seconds: float) -> None:
        nonlocal naps
        naps += 1
        if naps == 4:
            raise StoppingError("stop")

    giving_way = GivingWay(scene.gates, scene.courtesy, scene.sensors, refuse, scene.clock)
    giving_way.run(sleep)
    assert naps == 4
