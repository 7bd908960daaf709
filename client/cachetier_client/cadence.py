"""How often to save: pure rules, from what a save costs, what the bucket takes, and what fails.

Rare saves lose work with every failure, frequent ones hold training up. Young (1974) balances the
two for a save that blocks *b* seconds and a failure every *M*: one every ``sqrt(2 b M)``; Daly
(2006) adds the terms that count where *b* is not small beside *M*. Two bounds hold beside it: saves
may cost at most a share of the time, and none may be asked for before the one before is durable.

Source: docs/planning.md.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import Literal

from cachetier_client.errors import InvalidRequestError
from cachetier_client.results import StepInfo
from cachetier_client.units import counted

OVERHEAD_CAP = 0.035
FAILURES_PER_NODE_DAY = 0.0065  # docs/planning.md has the source
RECENT_SAVES = 20
_DAY_SECONDS = 86_400.0

Bound = Literal["young-daly", "overhead", "drain"]
Origin = Literal["given", "measured", "assumed"]


@dataclass(frozen=True, slots=True)
class Figure:
    """A figure that advice is made of, in seconds; ``about`` says what it was taken from."""

    seconds: float
    origin: Origin = "given"
    about: str = ""


@dataclass(frozen=True, slots=True)
class Cadence:
    """How often to save, and what that costs.

    Attributes:
        interval_seconds: From the start of one save to that of the next.
        interval_steps: The same in steps of training, rounded up; None if their time is not known.
        bound: What decided: the optimum of Young and Daly, the cap on overhead, or the drain.
        overhead: The share of its time that training is blocked by saves.
        lost_seconds: Time since the start of the newest save that is left after a failure, on
            average, if the failure takes the node and its disk.
        lost_seconds_node_kept: The same if the disk is there after it.
        blocked, durable, mtbf, step: What it was made of: how long a save blocks training, and how
            long it takes to become durable; the time between failures of the job; a step's time.
        overhead_cap: The most that ``overhead`` may be.
    """

    interval_seconds: float
    interval_steps: int | None
    bound: Bound
    overhead: float
    lost_seconds: float
    lost_seconds_node_kept: float
    blocked: Figure
    durable: Figure
    mtbf: Figure
    step: Figure | None
    overhead_cap: float


def cadence_of(
    blocked: Figure | None,
    durable: Figure | None,
    mtbf: Figure | None,
    step: Figure | None = None,
    *,
    overhead_cap: float = OVERHEAD_CAP,
) -> Cadence:
    """Return how often to save.

    Raises:
        InvalidRequestError: A figure is missing or no time, or the cap no share; says what to pass.
    """
    if blocked is None or durable is None or mtbf is None:
        raise _missing(blocked, durable)
    for name, figure in (("durable", durable), ("mtbf", mtbf), ("step", step)):
        if figure is not None and not 0 < figure.seconds < math.inf:
            raise _wrong(f"{name}_seconds={figure.seconds:g} is no time", "Pass one above 0.")
    if not 0 <= blocked.seconds < math.inf:
        raise _wrong(f"blocked_seconds={blocked.seconds:g} is no time", "Pass 0 or more.")
    if not 0 < overhead_cap < 1:
        raise _wrong(f"overhead_cap={overhead_cap:g} is no share", "Pass one such as 0.035.")
    bounds: dict[Bound, float] = {
        "young-daly": young_daly(blocked.seconds, mtbf.seconds),
        "overhead": blocked.seconds / overhead_cap,
        "drain": durable.seconds,
    }
    bound = max(bounds, key=lambda each: bounds[each])
    interval = bounds[bound]
    worked = max(0.0, interval - blocked.seconds)
    return Cadence(
        interval_seconds=interval,
        interval_steps=None if step is None else max(1, math.ceil(worked / step.seconds)),
        bound=bound,
        overhead=min(1.0, blocked.seconds / interval),
        lost_seconds=interval / 2 + durable.seconds,
        lost_seconds_node_kept=interval / 2 + blocked.seconds,
        blocked=blocked,
        durable=durable,
        mtbf=mtbf,
        step=step,
        overhead_cap=overhead_cap,
    )


def young_daly(blocked_seconds: float, mtbf_seconds: float) -> float:
    """Return the interval that wastes least, from the start of a save to that of the next."""
    ratio = blocked_seconds / (2 * mtbf_seconds)
    if ratio >= 1:
        return mtbf_seconds + blocked_seconds
    first_order = math.sqrt(2 * blocked_seconds * mtbf_seconds)
    return first_order * (1 + math.sqrt(ratio) / 3 + ratio / 9)


# --- what the steps of a run tell ----------------------------------------------------------------


def measured_blocked(recent: Sequence[float], steps: Sequence[StepInfo]) -> Figure | None:
    """Return how long a save blocks: ``recent`` as the client saw it, else as long as it took."""
    if recent:
        about = f"by this client, median of {counted(len(recent), 'save')}"
        return Figure(median(recent), "measured", about)
    took = [
        step.sealed_at - step.started_at for step in steps if step.sealed_at and step.started_at
    ]
    took = [each for each in took[-RECENT_SAVES:] if each >= 0]
    if not took:
        return None
    about = f"as long as a save took, median of {len(took)}; one in the background blocks less"
    return Figure(median(took), "assumed", about)


def measured_durable(
    steps: Sequence[StepInfo], rate_bytes_per_second: float | None = None
) -> Figure | None:
    """Return how long a step takes to become durable, the time in the queue apart.

    Before one is, what a step has at the rate of the drain.
    """
    published = sorted(
        (step for step in steps if step.sealed_at and step.started_at and step.published_at),
        key=lambda step: step.published_at or 0.0,
    )
    took, free_at = [], 0.0
    for step in published:
        took.append((step.published_at or 0.0) - max(step.started_at or 0.0, free_at))
        free_at = step.published_at or 0.0
    took = [each for each in took[-RECENT_SAVES:] if each > 0]
    if took:
        about = f"from start to publication, median of {counted(len(took), 'step')}"
        return Figure(median(took), "measured", about)
    sizes = [step.size_bytes for step in steps if step.size_bytes]
    if not sizes or not rate_bytes_per_second:
        return None
    about = "a step's bytes on this node at the rate of the drain; none is durable yet"
    return Figure(median(sizes) / rate_bytes_per_second, "measured", about)


def measured_step(steps: Sequence[StepInfo], blocked: Figure | None) -> Figure | None:
    """Return a training step's time, from the starts of saves that follow each other."""
    blocked_seconds = 0.0 if blocked is None else blocked.seconds
    started = [(step.step, step.started_at) for step in steps if step.sealed_at and step.started_at]
    took = [
        (at - before_at - blocked_seconds) / (number - before)
        for (before, before_at), (number, at) in pairwise(started)
    ]
    took = [each for each in took[-RECENT_SAVES:] if each > 0]
    if not took:
        return None
    return Figure(median(took), "measured", f"from the starts of {len(took) + 1} saves")


def expected_mtbf(
    steps: Sequence[StepInfo], nodes: int | None, failures_per_node_day: float
) -> Figure | None:
    """Return the time between failures of a job, by its nodes; they are counted by a sealed step.

    Raises:
        InvalidRequestError: There is no such number of nodes, or no such rate.
    """
    if not 0 < failures_per_node_day < math.inf or (nodes is not None and nodes < 1):
        what = f"nodes={nodes} with failures_per_node_day={failures_per_node_day:g} never fail"
        raise _wrong(what, "Pass both above 0, or the MTBF itself.")
    of_ranks = [step for step in steps if step.sealed_at and step.ranks and step.world_size]
    if nodes is None and of_ranks:
        nodes = math.ceil(of_ranks[-1].world_size / len(of_ranks[-1].ranks))
    if nodes is None:
        return None
    about = f"{counted(nodes, 'node')} at {failures_per_node_day:g} failures per node-day"
    return Figure(_DAY_SECONDS / (nodes * failures_per_node_day), "assumed", about)


def _missing(blocked: Figure | None, durable: Figure | None) -> InvalidRequestError:
    """Return what to raise where nothing was measured or passed."""
    what, argument = "how many nodes the job has", "nodes"
    if blocked is None:
        what, argument = "what a save blocks", "blocked_seconds"
    elif durable is None:
        what, argument = "how long a step takes to become durable", "durable_seconds"
    hint = f"Pass {argument}=, or ask again once this node has saved and drained a step."
    return _wrong(f"nothing here tells {what}", hint)


def _wrong(message: str, hint: str) -> InvalidRequestError:
    return InvalidRequestError(message, hint=hint)
