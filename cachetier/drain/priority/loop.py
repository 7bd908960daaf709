"""The loop that measures pressure once a second and sets gates and CPU priority accordingly."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Any

from cachetier_client.clock import Clock

from cachetier.drain.channel import ChannelClosedError, RefusedReportError
from cachetier.drain.priority.apply import Courtesy
from cachetier.drain.priority.gates import Gates
from cachetier.drain.priority.policy import (
    Pressure,
    PressureSample,
    Stance,
    Training,
    compute_allowance,
    next_stance,
    pressure_between,
    read_allowance,
)
from cachetier.drain.priority.psi import Sensors
from cachetier.errors import StoppingError
from cachetier.telemetry import events
from cachetier.telemetry.events import tell

log = logging.getLogger(__name__)

LOOK_SECONDS = 1.0

Report = dict[str, Any]


class GivingWay:
    """Measures, decides, acts and reports; ``look`` is one round of it.

    Args:
        gates: What to open and to narrow.
        courtesy: What the kernel was asked for at the start, and can be asked again.
        sensors: What tells of pressure.
        exchange: Tells ``serve`` how the drain behaves, and returns what training does.
        clock: For the length of a round.
    """

    def __init__(
        self,
        gates: Gates,
        courtesy: Courtesy,
        sensors: Sensors,
        exchange: Callable[[Report], Training],
        clock: Clock,
    ) -> None:
        self._gates = gates
        self._courtesy = courtesy
        self._sensors = sensors
        self._exchange = exchange
        self._clock = clock
        self._stance = Stance()
        self._pressure = Pressure()
        self._training = Training()
        self._before = self._sample()

    def look(self) -> None:
        """Adapt to what happened since the last look."""
        now = self._sample()
        self._pressure, self._before = pressure_between(self._before, now), now
        self._training = self._exchange(self._report())
        before, self._stance = (
            self._stance,
            next_stance(self._stance, self._pressure, self._training),
        )
        self._act(before)

    def run(self, sleep: Callable[[float], None]) -> None:
        """Look once a second until ``sleep`` raises StoppingError or ``serve`` is gone."""
        try:
            while True:
                sleep(LOOK_SECONDS)
                try:
                    self.look()
                except RefusedReportError as error:
                    tell(log, events.DRAIN_UNREPORTED, reason=str(error))
        except (StoppingError, ChannelClosedError):
            pass
        finally:
            self._gates.open_wide()  # what is in flight ends sooner

    def start(self, sleep: Callable[[float], None]) -> threading.Thread:
        """``run`` on a thread of its own."""
        thread = threading.Thread(
            target=self.run, args=(sleep,), name="drain-giving-way", daemon=True
        )
        thread.start()
        return thread

    def _act(self, before: Stance) -> None:
        compute, reads = self._gates.compute, self._gates.reads
        restraint = self._stance.restraint
        if restraint is not before.restraint:
            narrowed = compute_allowance(restraint, compute.limit)
            compute.allow(narrowed.count, narrowed.pause_seconds)
            narrowed = read_allowance(restraint, reads.limit)
            reads.allow(narrowed.count, narrowed.pause_seconds)
        if self._stance.cpu_priority is not before.cpu_priority:
            self._courtesy.set_priority(self._stance.cpu_priority)

    def _sample(self) -> PressureSample:
        return self._sensors.sample(self._clock.monotonic(), self._gates.reads.worked_seconds())

    def _report(self) -> Report:
        stance, training = self._stance, self._training
        return {
            **self._courtesy.report,
            "restraint": stance.restraint.name.lower(),
            "standing": stance.cpu_priority.value,
            "pressure": {"cpu": self._pressure.cpu, "io": self._pressure.io},
            "hunger": round(self._pressure.hunger, 2),
            "busy_ranks": training.busy_ranks,
            "slots": self._gates.compute.allowed,
            "slots_limit": self._gates.compute.limit,
            "slowed_seconds": round(self._gates.slowed_seconds(), 3),
        }
