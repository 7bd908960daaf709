"""What a save needs of the rank's own memory, and whether many saves need ever more."""

from __future__ import annotations

import statistics

from cachetier_client import Client

from benchmarks.measures import Result, at_most
from benchmarks.node import node
from benchmarks.scratch import Bench
from benchmarks.torch.names import DCP_ASYNC, OURS, OURS_ASYNC, OURS_LAZY
from benchmarks.torch.places import Places
from benchmarks.torch.ranks import WORLD_SIZE, Ranks, ranks
from benchmarks.torch.sizes import Sizes, sizes_of

LIMIT_MIB = 64
GROWTH_MIB = 0.5  # for each save: what a measurement of resident memory cannot tell from nothing
SETTLING_SHARE = 0.2  # of the saves; allocators have what they need by then


def measure(bench: Bench) -> list[Result]:
    sizes = sizes_of(bench)
    with (
        node(bench.directory / "cache") as service,
        Client(service.url) as client,
    ):
        environment = {"CACHETIER_URL": service.url}
        places = Places(bench.directory, client)
        extra: dict[str, float] = {}
        growth = 0.0
        for mode in (OURS, OURS_LAZY, OURS_ASYNC, DCP_ASYNC):
            # Fresh ranks for each: what another way of saving left to the allocator would hide it.
            with ranks(sizes, environment, bench.directory / "ranks.log") as job:
                with places.next_for(mode) as place:
                    extra[mode] = job.peak(mode, place) / 2**20
                bench.say(f"{mode}: {extra[mode]:.0f} MiB more")
                if mode == OURS_LAZY:
                    growth = _growth(bench, sizes, job, places)
    ring = sizes.ring_bytes / 2**20
    beside = max(0.0, extra[OURS_LAZY] - ring)
    return [
        _extra("dcp.save, CachetierWriter", extra[OURS], LIMIT_MIB),
        _extra("LazyStager, beside the ring", beside, LIMIT_MIB),
        _extra("dcp.async_save, CachetierWriter, with its copy of the state", extra[OURS_ASYNC]),
        _extra("dcp.async_save, FileSystemWriter, with its copy", extra[DCP_ASYNC]),
        Result(
            f"growth of a rank's memory for each of {sizes.growing_saves} saves, LazyStager",
            max(0.0, growth),
            "MiB",
            at_most(GROWTH_MIB),
            (growth,),
        ),
    ]


def _extra(what: str, mib: float, limit: float | None = None) -> Result:
    bar = None if limit is None else at_most(limit)
    return Result(f"extra memory of a rank during its first save: {what}", mib, "MiB", bar, (mib,))


def _growth(bench: Bench, sizes: Sizes, job: Ranks, places: Places) -> float:
    """Return by how many MiB a rank grows with a save: last ones beside early ones, by medians."""
    held = []
    for _ in range(sizes.growing_saves):
        with places.next_for(OURS_LAZY) as place:
            job.save(OURS_LAZY, place)
        held.append(job.resident() / WORLD_SIZE / 2**20)
    early = int(len(held) * SETTLING_SHARE)
    few = max(1, early // 2)
    first = statistics.median(held[early : early + few])
    last = statistics.median(held[-few:])
    bench.say(f"{first:.1f} MiB after {early} saves, {last:.1f} after {len(held)}")
    return (last - first) / (len(held) - early - few)
