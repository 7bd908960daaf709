"""Eight nodes before one throttling store: do they share it evenly, and use all of it?

Simulated with the real pace of each node: ``benchmarks.drain.throttled_bucket``. The nodes start
within twenty seconds, at different distances from the store, and know nothing of each other. What
they get is counted over the second half of ten minutes.
"""

from __future__ import annotations

from benchmarks.drain.sizes import sizes_of
from benchmarks.drain.throttled_bucket import Simulation, TokenBucket, crowd, shares
from benchmarks.measures import Result, at_least, median_of
from benchmarks.scratch import Bench

NODES = 8
RATE = 100.0


def measure(bench: Bench) -> list[Result]:
    sizes = sizes_of(bench)
    fairness, used, rejected = [], [], []
    for seed in range(sizes.simulations):
        nodes = crowd(NODES, seed=seed)
        simulation = Simulation(nodes, TokenBucket(RATE, RATE), seed=seed)
        simulation.run(sizes.simulated_seconds)
        found = shares(nodes, sizes.simulated_seconds / 2, sizes.simulated_seconds)
        bench.say(f"{found.accepted}, {found.rejected} rejected")
        fairness.append(found.fairness)
        used.append(found.per_second / RATE)
        rejected.append(100 * found.rejected_share)
    return [
        median_of("8 simulated nodes: Jain's fairness index", fairness, "", at_least(0.95)),
        median_of("8 simulated nodes: sum / rate of the bucket", used, "", at_least(0.9)),
        median_of("8 simulated nodes: rejected", rejected, "%"),
    ]
