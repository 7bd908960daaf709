"""Whole saves: how long each way holds up a rank that waits for it."""

from __future__ import annotations

from cachetier_client import Client

from benchmarks.measures import Result, at_least, median_of, ratios
from benchmarks.node import node
from benchmarks.scratch import Bench
from benchmarks.torch.names import DCP, DIRECT, OURS, SYNCED, UNSYNCED
from benchmarks.torch.places import Places
from benchmarks.torch.ranks import ranks
from benchmarks.torch.sizes import sizes_of

MODES = (UNSYNCED, SYNCED, DCP, DIRECT, OURS)


def measure(bench: Bench) -> list[Result]:
    sizes = sizes_of(bench)
    seconds: dict[str, list[float]] = {mode: [] for mode in MODES}
    with (
        node(bench.directory / "cache") as service,
        Client(service.url) as client,
        ranks(sizes, {"CACHETIER_URL": service.url}, bench.directory / "ranks.log") as job,
    ):
        places = Places(bench.directory, client)
        size_bytes = job.state_bytes()
        bench.say(f"{size_bytes / 1e6:.0f} MB of each rank")
        for number in range(sizes.saves + 1):
            for mode in MODES if number % 2 else reversed(MODES):
                with places.next_for(mode) as place:
                    taken = job.save(mode, place)
                if number:  # the first one only warms up
                    seconds[mode].append(taken)
        bench.say(", ".join(f"{mode}: {found[-1]:.2f} s" for mode, found in seconds.items()))
    faster = ratios(seconds[DCP], seconds[OURS])
    rates = [2 * size_bytes / 1e9 / each for each in seconds[OURS]]
    return [
        median_of(
            "dcp.save, FileSystemWriter, synced / CachetierWriter", faster, "times", at_least(2)
        ),
        median_of(
            "dcp.save, CachetierWriter / raw O_DIRECT write of as many bytes by two processes",
            ratios(seconds[DIRECT], seconds[OURS]),
            "",
            at_least(0.92),
        ),
        median_of("dcp.save, CachetierWriter, both ranks", rates, "GB/s"),
        *(median_of(_named(mode), found, "s") for mode, found in seconds.items()),
    ]


def _named(mode: str) -> str:
    words = {DCP: "dcp.save, FileSystemWriter, synced", OURS: "dcp.save, CachetierWriter"}
    return f"a save by {words.get(mode, mode)}"
