"""What a save that goes on behind training costs training: the wall time that it adds.

A few steps after a save has begun, beside as many without one; the state is collected in both. The
rest of the save is waited for afterwards, and not counted. Nothing is drained meanwhile.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from cachetier_client import Client

from benchmarks.measures import Result, at_most, ratios
from benchmarks.node import node
from benchmarks.scratch import Bench, settle
from benchmarks.torch.names import COPIED, DCP_ASYNC, OURS_ASYNC, OURS_LAZY
from benchmarks.torch.places import Places
from benchmarks.torch.ranks import Ranks, ranks
from benchmarks.torch.sizes import Sizes, sizes_of

MODES = (DCP_ASYNC, COPIED, OURS_ASYNC, OURS_LAZY)
LEAST_SECONDS = 0.001


def measure(bench: Bench) -> list[Result]:
    sizes = sizes_of(bench)
    with (
        node(bench.directory / "cache") as service,
        Client(service.url) as client,
        ranks(sizes, {"CACHETIER_URL": service.url}, bench.directory / "ranks.log") as job,
    ):
        added = _added(bench, sizes, job, Places(bench.directory, client))
    usual = blocked(added[DCP_ASYNC])
    results = [
        Result(
            f"training blocked by {_what(mode)} / FileSystemWriter, default",
            blocked(added[mode]) / usual,
            "",
            at_most(limit) if limit else None,
            tuple(ratios(added[mode], [usual] * len(added[mode]))),
        )
        for mode, limit in ((OURS_ASYNC, 0.5), (OURS_LAZY, 0.05), (COPIED, None))
    ]
    seconds = [
        Result(
            f"training blocked by {_called(mode)}",
            blocked(added[mode]),
            "s",
            None,
            tuple(added[mode]),
        )
        for mode in MODES
    ]
    return [*results, *seconds]


def blocked(added: Sequence[float]) -> float:
    """Return the median of what was added; by chance that may be less than nothing."""
    return max(LEAST_SECONDS, statistics.median(added))


def _added(bench: Bench, sizes: Sizes, job: Ranks, places: Places) -> dict[str, list[float]]:
    """Return by how much a save makes some steps longer, by mode, for each round."""
    added: dict[str, list[float]] = {mode: [] for mode in MODES}
    before = _alone(job, sizes)
    for number in range(sizes.trainings + 1):
        for mode in MODES if number % 2 else reversed(MODES):
            with places.next_for(mode) as place:
                taken = job.train(mode, place, sizes.steps)
            after = _alone(job, sizes)
            if number:  # the first one only warms up
                added[mode].append(taken - (before + after) / 2)
                bench.say(f"{mode}: {taken:.3f} s, alone {before:.3f} and {after:.3f} s")
            before = after
    return added


def _alone(job: Ranks, sizes: Sizes) -> float:
    settle()
    return job.train(None, "", sizes.steps)


def _what(mode: str) -> str:
    return _called(mode) if mode == COPIED else f"dcp.async_save: {_called(mode)}"


def _called(mode: str) -> str:
    return {
        DCP_ASYNC: "FileSystemWriter, default",
        COPIED: "a thread that copies the state once",
        OURS_ASYNC: "CachetierWriter",
        OURS_LAZY: "CachetierWriter, LazyStager",
    }[mode]
