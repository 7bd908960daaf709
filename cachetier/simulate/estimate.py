"""The costs of checkpoints before the first save: size, requests, waiting, disk, exposure.

Everything follows from a ``Plan``: how large the state is, how many save it and how often, and what
disk, link and bucket take. One save is spread evenly over the nodes; each GPU is a rank. *Direct*
is what a rank pays that waits for its own requests to S3, *cached* what it pays that waits for the
node's disk.

Source: docs/planning.md.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from cachetier_client.cadence import FAILURES_PER_NODE_DAY, OVERHEAD_CAP, Cadence, Figure
from cachetier_client.cadence import cadence_of as cadence_from
from cachetier_client.errors import InvalidRequestError

DAY_SECONDS = 86_400.0
HOUR_SECONDS = 3_600.0
# A byte a second that no wire or disk of one node carries: 100 Tbit/s.
FASTEST = 12.5e12
PUTS_PER_PRICE = 1000
# A put of few bytes through the service: benchmarks/README.md, group `core`.
CACHED_PUT_SECONDS = 0.0006


@dataclass(frozen=True, slots=True)
class SimulatedState:
    """The bytes that each parameter has in a checkpoint, component by component.

    By default what mixed-precision training with Adam keeps: bf16 weights, and weights and both
    moments in fp32. That is 14 bytes.
    """

    weights: float = 2.0
    master: float = 4.0
    first_moment: float = 4.0
    second_moment: float = 4.0

    @property
    def bytes_per_parameter(self) -> float:
        return self.weights + self.master + self.first_moment + self.second_moment


@dataclass(frozen=True, slots=True)
class Plan:
    """The inputs of an estimate: sizes, intervals, links; rates are bytes a second of one node.

    Args:
        size_bytes: Of one checkpoint of one job; 0 where only the waiting for requests counts.
        jobs: That save, each as often and as much.
        gpus: Of one job.
        gpus_per_node: Of them on a node.
        per_day: Saves of a job a day.
        part_bytes: Of one request.
        put_seconds: Until S3 has answered one.
        connections: Requests that a node has under way at once.
        each_connection: What S3 takes through one of them.
        link: Of a node.
        nvme: What its disk takes, synced.
        prefix_puts: Writes a second that one prefix of the bucket takes.
        price: Of a thousand writes, in dollars.
        keep_local: Steps that stay on the node.
        mtbf_seconds: Between failures of a job; None: by its nodes.
        blocked_seconds, durable_seconds: Measured ones, in place of those that follow.
    """

    size_bytes: float = 0.0
    jobs: int = 1
    gpus: int = 8
    gpus_per_node: int = 8
    per_day: float = 144.0
    part_bytes: float = 64e6
    put_seconds: float = 0.035
    connections: int = 128
    each_connection: float = 90e6
    link: float = 3.125e9
    nvme: float = 6e9
    prefix_puts: float = 3500.0
    price: float = 0.005
    keep_local: int = 2
    mtbf_seconds: float | None = None
    overhead_cap: float = OVERHEAD_CAP
    blocked_seconds: Figure | None = None
    durable_seconds: Figure | None = None

    def check(self) -> None:
        """Refuse what cannot be.

        Raises:
            InvalidRequestError: Names the field, by its option.
        """
        for name, least in _LEAST.items():
            value = getattr(self, name)
            if value is not None and not least <= value < math.inf:
                raise _impossible(name, value, f"at least {least:g}")
        for name in ("per_day", "part_bytes", "each_connection", "link", "nvme", "prefix_puts"):
            if not 0 < getattr(self, name) < math.inf:
                raise _impossible(name, getattr(self, name), "above 0")
        for name in ("each_connection", "link", "nvme"):
            if getattr(self, name) > FASTEST:
                raise _impossible(
                    name, getattr(self, name), "what a node's wires carry: 100 Tbit/s"
                )

    @property
    def nodes(self) -> int:
        return -(-self.gpus // self.gpus_per_node)

    @property
    def interval_seconds(self) -> float:
        return DAY_SECONDS / self.per_day


_LEAST = {
    "size_bytes": 0,
    "jobs": 1,
    "gpus": 1,
    "gpus_per_node": 1,
    "put_seconds": 0,
    "connections": 1,
    "price": 0,
    "keep_local": 1,
}
_OPTIONS = {"size_bytes": "size", "put_seconds": "put-time", "part_bytes": "part"}


@dataclass(frozen=True, slots=True)
class Estimate:
    """The costs of a plan.

    Attributes:
        size_bytes: Of a checkpoint; ``node_bytes`` is the share of one node.
        puts: Requests of a checkpoint, one for each rank where nothing is said of its size;
            ``puts_per_day`` of all jobs, with what they cost.
        prefix_seconds: The least that a checkpoint takes on one prefix.
        direct_seconds, cached_seconds: How long one save blocks its ranks.
        direct_gpu_hours, cached_gpu_hours: GPU-hours that all saves of a day block.
        drain_seconds: How long a checkpoint takes to the bucket.
        keeps_up: Whether that is over before the next one begins.
        nvme_bytes: What the disk of a node needs; None where it never ends.
        exposed_seconds: Work that is lost with a node, on average.
        cadence: How often to save, by the rule of ``plan interval``.
    """

    size_bytes: float
    node_bytes: float
    nodes: int
    puts: int
    puts_per_day: float
    dollars_per_day: float
    prefix_seconds: float
    direct_seconds: float
    cached_seconds: float
    direct_gpu_hours: float
    cached_gpu_hours: float
    drain_seconds: float
    interval_seconds: float
    keeps_up: bool
    nvme_bytes: float | None
    exposed_seconds: float
    cadence: Cadence


def estimate_of(plan: Plan) -> Estimate:
    """Return what ``plan`` comes to.

    Raises:
        InvalidRequestError: It cannot be; names the field.
    """
    plan.check()
    node_bytes = plan.size_bytes / plan.nodes
    puts = math.ceil(plan.size_bytes / plan.part_bytes) if plan.size_bytes else plan.gpus
    drain_seconds = _drain_seconds(plan, puts)
    blocked = plan.blocked_seconds or _assumed(_cached_seconds(plan), "the node's bytes at --nvme")
    durable = plan.durable_seconds or _assumed(blocked.seconds + drain_seconds, "at --link")
    behind = math.ceil(durable.seconds / plan.interval_seconds)
    keeps_up = durable.seconds <= plan.interval_seconds
    kept = plan.keep_local + behind
    saves = plan.jobs * plan.per_day
    direct_seconds = _direct_seconds(plan, puts)
    advice = cadence_from(
        blocked,
        durable,
        _mtbf(plan),
        overhead_cap=plan.overhead_cap,
    )
    return Estimate(
        size_bytes=plan.size_bytes,
        node_bytes=node_bytes,
        nodes=plan.nodes,
        puts=puts,
        puts_per_day=puts * saves,
        dollars_per_day=puts * saves * plan.price / PUTS_PER_PRICE,
        prefix_seconds=puts / plan.prefix_puts,
        direct_seconds=direct_seconds,
        cached_seconds=blocked.seconds,
        direct_gpu_hours=plan.gpus * saves * direct_seconds / HOUR_SECONDS,
        cached_gpu_hours=plan.gpus * saves * blocked.seconds / HOUR_SECONDS,
        drain_seconds=drain_seconds,
        interval_seconds=plan.interval_seconds,
        keeps_up=keeps_up,
        nvme_bytes=node_bytes * kept if keeps_up else None,
        exposed_seconds=plan.interval_seconds / 2 + durable.seconds,
        cadence=advice,
    )


def sweep(plan: Plan, intervals: Iterable[float]) -> Iterator[tuple[float, float, float]]:
    """Yield (interval, share of time lost when saving direct, the same when cached), for a plot.

    Lost is what saves block, and what a failure costs: half an interval and, of a node that is
    lost, what was not in the bucket yet.
    """
    estimate, mtbf = estimate_of(plan), _mtbf(plan).seconds
    durable = estimate.cadence.durable.seconds
    for interval in intervals:
        lost = [
            blocked / interval + (interval / 2 + late) / mtbf
            for blocked, late in (
                (estimate.direct_seconds, 0.0),
                (estimate.cached_seconds, durable),
            )
        ]
        yield interval, lost[0], lost[1]


def _direct_seconds(plan: Plan, puts: int) -> float:
    """Return what a rank waits that sends its own bytes: in waves, each of them answered late."""
    if not plan.size_bytes:
        return plan.put_seconds
    waves = math.ceil(puts / plan.nodes / plan.connections)
    return max(waves * plan.put_seconds + _wire_seconds(plan), puts / plan.prefix_puts)


def _drain_seconds(plan: Plan, puts: int) -> float:
    """Return how long a checkpoint is on its way, at the rate of link and bucket."""
    return max(plan.put_seconds + _wire_seconds(plan), puts / plan.prefix_puts)


def _wire_seconds(plan: Plan) -> float:
    rate = min(plan.link, plan.connections * plan.each_connection)
    return plan.size_bytes / plan.nodes / rate


def _cached_seconds(plan: Plan) -> float:
    return CACHED_PUT_SECONDS + plan.size_bytes / plan.nodes / plan.nvme


def _assumed(seconds: float, about: str) -> Figure:
    return Figure(seconds, "assumed", about)


def _mtbf(plan: Plan) -> Figure:
    if plan.mtbf_seconds is not None:
        return Figure(plan.mtbf_seconds)
    per_day = plan.nodes * FAILURES_PER_NODE_DAY
    about = f"{plan.nodes} nodes at {FAILURES_PER_NODE_DAY:g} failures per node-day"
    return Figure(DAY_SECONDS / per_day, "assumed", about)


def _impossible(name: str, value: float, wanted: str) -> InvalidRequestError:
    option = _OPTIONS.get(name, name.replace("_", "-"))
    return InvalidRequestError(f"--{option}: {value:g} is impossible", hint=f"Give {wanted}.")
