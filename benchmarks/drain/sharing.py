"""Many nodes before one throttling store: do they share it evenly, and use all of it?

Simulated with the real pace of each node (``cachetier.simulate``). The nodes lie at different
distances from the store, and know nothing of each other. Those that drain start within twenty
seconds, and what they get is counted over the second half of ten minutes. Those that restore start
within one second, as the ranks of a job do, and each wants as many bytes; the ideal is what the
store allows from the first second on.
"""

from __future__ import annotations

from benchmarks.drain.simulated_shares import burstiness, shares
from benchmarks.drain.sizes import sizes_of
from benchmarks.measures import Result, at_least, at_most, median_of
from benchmarks.scratch import Bench
from cachetier.remote.call_policy import ASKING
from cachetier.simulate.events import Events
from cachetier.simulate.node import SimulatedWork, crowd
from cachetier.simulate.store import READS_PER_SECOND, WRITES_PER_SECOND, SimulatedStore

NODES = 8
RATE = 100.0
RANGE_BYTES = 8 << 20


def measure(bench: Bench) -> list[Result]:
    sizes = sizes_of(bench)
    return [
        *_draining(bench, NODES, RATE, sizes.simulations),
        *_draining(bench, sizes.crowd, WRITES_PER_SECOND, 1),
        *_restoring(bench, sizes.restoring, sizes.restored_bytes),
    ]


def _draining(bench: Bench, size: int, rate: float, simulations: int) -> list[Result]:
    seconds = sizes_of(bench).simulated_seconds
    fairness, used, rejected = [], [], []
    for seed in range(simulations):
        events = Events()
        nodes = crowd(events, SimulatedStore(events, rate), size, SimulatedWork(), seed=seed)
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


def _restoring(bench: Bench, size: int, total_bytes: int) -> list[Result]:
    sizes = sizes_of(bench)
    ranges = total_bytes // RANGE_BYTES // size
    ideal = ranges * size / READS_PER_SECOND
    work = SimulatedWork(reads=True, requests=ranges, size_bytes=RANGE_BYTES, policy=ASKING)
    times, rejected, failed, uneven = [], [], [], []
    for seed in range(sizes.simulations):
        events = Events()
        nodes = crowd(events, SimulatedStore(events), size, work, seed=seed, within_seconds=1.0)
        events.run(20 * ideal)
        ended_at = max(node.ended_at for node in nodes)
        times.append(ended_at / ideal)
        rejected.append(100 * shares(nodes, 0.0, ended_at).rejected_share)
        failed.append(sum(node.gave_up for node in nodes))
        uneven.append(burstiness(nodes, ideal / 4, ideal / 2))
        bench.say(f"{size} nodes: {ended_at:.1f} s, {rejected[-1]:.1f} %, {uneven[-1]:.2f}")
    who = f"restore by {size:,} simulated nodes at once"
    return [
        median_of(f"{who}: time / ideal", times, "", at_most(1.2)),
        median_of(f"{who}: rejected", rejected, "%"),
        median_of(f"{who}: ranges given up", failed, "", at_most(0)),
        median_of(f"{who}: variance / mean of requests in 0.1 s", uneven, ""),
    ]
