"""What saving cost, worked out from the ranks' events: pure functions.

*Blocked* is the wall time that a save adds to training: the call that saves, and what steps take
longer while the drain carries the bytes away. How long a step takes without is told by the nearest
steps of the same start that saw nothing in flight. Where there are too few of them, and as a second
figure, the same steps of the run that saves nothing tell it; as that ran minutes earlier, such a
difference also holds how the machine has changed since.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise

from examples.demo.record import SAVE_EVERY, SAVES, STEPS, Record

QUIET_STEPS = 6  # the nearest so many tell how long a step takes
LEAST_QUIET_STEPS = 3

Flights = Mapping[int, float]  # when the bytes of each saved step had left the node


@dataclass(frozen=True, slots=True)
class Cost:
    """What one save cost; None where the steps after it do not tell, as after a kill."""

    step: int
    size_bytes: int
    call_seconds: float
    blocked_seconds: float | None
    over_reference_seconds: float | None


def costs(record: Record, reference: Record, flights: Flights) -> list[Cost]:
    """Return what each save of a start cost that all ranks had their acknowledgement for."""
    found = []
    for step in filter(record.saved, SAVES):
        over_quiet = over_quiet_seconds(record, step, flights)
        over_reference = over_reference_seconds(record, reference, step)
        found.append(
            Cost(
                step=step,
                size_bytes=record.size_bytes(step),
                call_seconds=record.call_seconds(step),
                blocked_seconds=over_reference if over_quiet is None else over_quiet,
                over_reference_seconds=over_reference,
            )
        )
    return found


def over_quiet_seconds(record: Record, step: int, flights: Flights) -> float | None:
    """Return how much longer the steps to the next save took than steps with nothing in flight."""
    seconds, quiet = step_durations(record), quiet_steps(record, flights)
    after = range(step + 1, _until(step) + 1)
    nearest = sorted(quiet, key=lambda each: abs(each - step))[:QUIET_STEPS]
    if after[-1] not in seconds or len(nearest) < LEAST_QUIET_STEPS:
        return None
    without = statistics.mean(seconds[each] for each in nearest)
    longer = sum(seconds[each] - without for each in after if each not in quiet)
    return max(longer, record.call_seconds(step))  # steps may vary by more than a save costs


def quiet_steps(record: Record, flights: Flights) -> set[int]:
    """Return the steps, but for a start's first, that began when no save was in flight."""
    ends = record.ends()
    return {
        step
        for step in step_durations(record)
        if all(flights[save] <= ends[step - 1] for save in flights if save < step)
    }


def step_durations(record: Record) -> dict[int, float]:
    """Return how long each step took but the first of a start, the save before it included."""
    return {step: at - before for (_, before), (step, at) in pairwise(record.ends().items())}


def over_reference_seconds(record: Record, reference: Record, step: int) -> float | None:
    """Return how much longer it was to the next save than in a run that saves nothing."""
    ends, plain, until = record.ends(), reference.ends(), _until(step)
    if until not in ends:
        return None
    return (ends[until] - ends[step]) - (plain[until] - plain[step])


def step_seconds(record: Record) -> float:
    """Return the median time of a step."""
    return statistics.median(step_durations(record).values())


def median(values: Iterable[float | None]) -> float | None:
    """Return the median of the values that are there, or None without any."""
    there = [value for value in values if value is not None]
    return statistics.median(there) if there else None


def same_weights(record: Record, reference: Record) -> bool:
    """Say whether both ended with the same bits: weights and AdamW's state, on every rank."""
    return all(
        record.of("finished", rank)[-1][name] == reference.of("finished", rank)[-1][name]
        for rank in reference.events
        for name in ("weights", "optimizer")
    )


def same_losses(record: Record, reference: Record) -> bool:
    """Say whether every step that a start took had, bit for bit, the reference's loss."""
    for rank in reference.events:
        expected = {event["step"]: event["loss"] for event in reference.of("step", rank)}
        if any(expected[event["step"]] != event["loss"] for event in record.of("step", rank)):
            return False
    return True


def _until(step: int) -> int:
    """Return the last step before the next save, whose end is where that save begins."""
    return min(step + SAVE_EVERY, STEPS)
