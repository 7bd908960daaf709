"""Many nodes before one throttling store: do they share it evenly, and use all of it?

Simulated with the real pace of each node (``cachetier.simulate``). The nodes lie at different
distances from the store, and know nothing of each other. They start within twenty seconds, and
what they get is counted over the second half of ten minutes.
"""

from __future__ import annotations

from benchmarks.drain.sizes import sizes_of
from benchmarks.measures import Result, at_least, median_of
from benchmarks.scratch import Bench
from cachetier.simulate.events import Events
from cachetier.simulate.node import Work, crowd
from cachetier.simulate.results import shares
from cachetier.simulate.store import WRITES_PER_SECOND, Store

NODES = 8
RATE = 100.0


def measure(bench: Bench) -> list[Result]:
    sizes = sizes_of(bench)
    return [
        *_draining(bench, NODES, RATE, sizes.simulations),
        *_draining(bench, sizes.crowd, WRITES_PER_SECOND, 1),
    ]


def _draining(bench: Bench, size: int, rate: float, simulations: int) -> list[Result]:
    seconds = sizes_of(bench).simulated_seconds
    fairness, used, rejected = [], [], []
    for seed in range(simulations):
        events = Events()
        nodes = crowd(events, Store(events, rate), size, Work(), seed=seed)
        events.run(seconds)
        found = shares(nodes, seconds / 2, seconds)
        bench.say(
            f"{size} nodes: {found.fairness:.3f}, {100 * found.rejected_share:.1f} % rejected"
        )
        fairness.append(found.fairness)
        used.append(found.per_second / rate)
        rejected.append(100 * found.rejected_share)
    who = f"{size:,} simulated nodes"
    return [
        median_of(f"{who}: Jain's fairness index", fairness, "", at_least(0.95)),
        median_of(f"{who}: sum / rate of the bucket", used, "", at_least(0.9)),
        median_of(f"{who}: rejected", rejected, "%"),
    ]
