"""Estimate when each waiting step will be durable, from the measured rate and the drain's order.

The rate is bytes verified per second *of uploading*, over the last uploads: pauses with nothing to
do do not count. What is waited for goes first; then every run gets its share of the rate, and sends
one step after the other. That leaves out what nobody can know: other nodes, and saves to come.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from cachetier.drain.schedule.queue_state import Weights
from cachetier.local.catalog.rows import Backlog
from cachetier.model.checkpoint import Save
from cachetier.model.lifecycle import DRAINED_SAVES

WINDOW_UPLOADS = 256
WINDOW_SECONDS = 900.0
LEAST_UPLOADS = 2
TELLING_BYTES, TELLING_UPLOADS = 1 << 20, 16  # few small ones measure latency, not the rate


@dataclass(frozen=True, slots=True)
class FinishedUpload:
    """A shard that was verified at the monotonic instant ``at``, ``seconds`` after it was begun."""

    at: float
    seconds: float
    size_bytes: int


def measured_rate(
    uploads: Iterable[FinishedUpload], now: float, *, uploading: bool
) -> float | None:
    """Return the bytes per second of the last uploads, or None when they are too few to tell.

    While something is ``uploading``, more time since the last success than any upload took counts
    as a standstill.
    """
    recent = [upload for upload in uploads if now - upload.at <= WINDOW_SECONDS]
    size_bytes = sum(upload.size_bytes for upload in recent)
    if len(recent) < LEAST_UPLOADS:
        return None
    if size_bytes < TELLING_BYTES and len(recent) < TELLING_UPLOADS:
        return None
    spans = sorted((upload.at - upload.seconds, upload.at) for upload in recent)
    busy_seconds, reached = 0.0, spans[0][0]
    for begun_at, ended_at in spans:
        busy_seconds += max(0.0, ended_at - max(begun_at, reached))
        reached = max(reached, ended_at)
    if uploading:
        longest_seconds = max(upload.seconds for upload in recent)
        busy_seconds += max(0.0, now - reached - longest_seconds)
    return size_bytes / busy_seconds if size_bytes and busy_seconds > 0 else None


def etas(
    backlog: Sequence[Backlog],
    rate: float | None,
    hurried: Callable[[Save], bool],
    weights: Weights,
) -> dict[int, float]:
    """Return in how many seconds each save will be durable, by its number.

    Saves are left out while nobody can tell: without a rate, and before they are sealed here.
    """
    if rate is None:
        return {}
    waiting = [each for each in backlog if each.save.state in DRAINED_SAVES]
    first = [each for each in waiting if hurried(each.save)]
    others = [each for each in waiting if each.sealed and not hurried(each.save)]
    found = _shared(first, rate, weights, 0.0)
    found |= _shared(others, rate, weights, max(found.values(), default=0.0))
    return {each.save.number: found[each.save.number] for each in waiting if each.sealed}


def _shared(
    waiting: Iterable[Backlog], rate: float, weights: Weights, start: float
) -> dict[int, float]:
    """Return when each save is through if its run gets its share of ``rate`` from ``start`` on."""
    queues: dict[str, list[Backlog]] = {}
    for each in sorted(waiting, key=lambda each: each.save.number, reverse=True):
        queues.setdefault(each.save.run, []).append(each)
    left = {run: float(queue[-1].dirty_bytes) for run, queue in queues.items()}
    found: dict[int, float] = {}
    now = start
    while left:
        speeds = {run: rate * part for run, part in weights.portions(left).items()}
        seconds = min(size_bytes / speeds[run] for run, size_bytes in left.items())
        now += seconds
        left = {run: size - speeds[run] * seconds for run, size in left.items()}
        _finish(queues, left, found, now)
    return found


def _finish(
    queues: Mapping[str, list[Backlog]], left: dict[str, float], found: dict[int, float], now: float
) -> None:
    """Note the saves at the head of their queues that are through, and begin with the next."""
    for run in [run for run, size_bytes in left.items() if size_bytes < 1.0]:
        found[queues[run].pop().save.number] = now
        if queues[run]:
            left[run] = float(queues[run][-1].dirty_bytes)
        else:
            del left[run]
