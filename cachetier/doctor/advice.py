"""What the figures of ``objbench`` suggest for the settings of the drain: a pure rule."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from cachetier.doctor.objbench import PART_BYTES, MeasuredThroughput

ENOUGH_SHARE = 0.9  # more streams are not worth what they take from everybody else
GROWTH = 1.1
WORKERS_LIMIT = 64
BELOW_THROTTLING = 0.8
_ROUND_BYTES = 1_000_000


@dataclass(frozen=True, slots=True)
class Advice:
    """Settings to write down.

    Args:
        drain_workers: The fewest streams that reach nine tenths of the best throughput.
        max_rate: Four fifths of what passed without throttling, as the setting has it; empty
            where nothing was throttled.
        remarks: What a person should know of them.
    """

    drain_workers: int
    max_rate: str
    remarks: tuple[str, ...]


def advice_for(measured: Sequence[MeasuredThroughput]) -> Advice:
    """Return what to set, from at least one throughput with parts of the usual size."""
    usual = sorted(
        (each for each in measured if each.part_bytes == PART_BYTES), key=lambda each: each.streams
    )
    calm = [each for each in usual if not each.throttled] or usual[:1]
    best = max(each.put_bytes_per_second for each in calm)
    enough = next(each for each in calm if each.put_bytes_per_second >= ENOUGH_SHARE * best)
    remarks, max_rate = [], ""
    if throttled := [each.streams for each in usual if each.throttled]:
        rate = max(1, int(best * BELOW_THROTTLING) // _ROUND_BYTES)
        max_rate = f"{rate} MB/s"
        remarks.append(
            f"the store throttles from {min(throttled)} streams; the drain finds its pace by "
            "itself, max_rate only spares it the finding, and others the refusals"
        )
    elif _still_grows(usual):
        remarks.append(
            f"{usual[-1].streams} streams were still faster than fewer: try --streams "
            f"{min(WORKERS_LIMIT, 2 * usual[-1].streams)}"
        )
    if failed := sum(each.failed for each in measured):
        remarks.append(f"{failed} requests failed: the figures are those of a store in trouble")
    return Advice(min(WORKERS_LIMIT, enough.streams), max_rate, tuple(remarks))


def _still_grows(usual: Sequence[MeasuredThroughput]) -> bool:
    """Whether the most streams were clearly faster than any fewer."""
    if len(usual) < 2 or usual[-1].streams >= WORKERS_LIMIT:
        return False
    fewer = max(each.put_bytes_per_second for each in usual[:-1])
    return usual[-1].put_bytes_per_second > GROWTH * fewer
