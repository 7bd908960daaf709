"""The results of nodes: how much each got, how evenly, and how much was refused."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from statistics import mean, pvariance

from cachetier.simulate.node import SimulatedNode
from cachetier.simulate.outcome import fairness

BURST_SECONDS = 0.1


@dataclass(frozen=True, slots=True)
class SimulatedShares:
    """The results of the nodes between two instants."""

    accepted: tuple[int, ...]
    rejected: int
    seconds: float

    @property
    def fairness(self) -> float:
        """See ``fairness``."""
        return fairness(self.accepted)

    @property
    def per_second(self) -> float:
        return sum(self.accepted) / self.seconds

    @property
    def rejected_share(self) -> float:
        return self.rejected / max(1, self.rejected + sum(self.accepted))


def shares(nodes: Sequence[SimulatedNode], since: float, until: float) -> SimulatedShares:
    """Count what reached the store between two instants of a simulation."""

    def within(instants: list[float]) -> int:
        return bisect_left(instants, until) - bisect_left(instants, since)

    return SimulatedShares(
        tuple(within(node.accepted_at) for node in nodes),
        sum(within(node.rejected_at) for node in nodes),
        until - since,
    )


def burstiness(nodes: Sequence[SimulatedNode], since: float, until: float) -> float:
    """Return how uneven requests arrive: variance / mean of their number in tenths of a second.

    It is 1 where nodes ask independently of each other, and about their number where all ask in
    step.
    """
    spans = int((until - since) / BURST_SECONDS)
    arrivals = Counter(
        int((instant - since) / BURST_SECONDS)
        for node in nodes
        for instant in chain(node.accepted_at, node.rejected_at)
        if since <= instant < until
    )
    numbers = [arrivals[span] for span in range(spans)]
    return pvariance(numbers) / mean(numbers)
