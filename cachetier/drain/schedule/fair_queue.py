"""Start-time fair queueing between runs, by bytes handed out, as an immutable value.

Each *flow* (a run, or a class of work) has a weight. An item of a flow starts when its last item
finished, in virtual time, or now if the flow was idle; the flow that starts first is next. Over any
span in which two flows have work, the bytes they get differ from the ratio of their weights by no
more than an item each; who was idle neither saves up nor owes.

Source: P. Goyal, H. Vin, H. Cheng, "Start-time Fair Queuing", SIGCOMM 1996.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

# What an item costs beside its bytes: a request takes its time whatever it carries.
ITEM_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Shares:
    """How far each flow has got; ``now`` is the virtual time, ``ends`` when each is through."""

    now: float = 0.0
    ends: Mapping[str, float] = field(default_factory=dict)

    def start(self, flow: str) -> float:
        """Return when the next item of ``flow`` starts: the lowest is next."""
        return max(self.now, self.ends.get(flow, 0.0))

    def after(self, flow: str, size_bytes: int, weight: float) -> Shares:
        """Return the shares once ``flow`` was handed an item of ``size_bytes``."""
        now = self.start(flow)
        ends = {name: end for name, end in self.ends.items() if end > now}
        ends[flow] = now + (size_bytes + ITEM_BYTES) / weight
        return Shares(now, ends)


@dataclass(frozen=True, slots=True)
class Weights:
    """The share of each run: that of the first pattern it matches, 1 if there is none."""

    patterns: tuple[tuple[str, float], ...] = ()

    def of(self, run: str) -> float:
        return next((weight for glob, weight in self.patterns if fnmatchcase(run, glob)), 1.0)


EQUAL = Weights()


@dataclass(frozen=True, slots=True)
class Fairness:
    """What was handed out so far: to each run, and of what is urgent to each of its classes."""

    runs: Shares = field(default_factory=Shares)
    urgent: Shares = field(default_factory=Shares)
