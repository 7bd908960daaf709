"""What happened in the demo, for the report and for whoever reads ``report.json``."""

from __future__ import annotations

from dataclasses import dataclass, field

from cachetier_client import StepInfo

from examples.demo.measure import Cost
from examples.demo.record import Record
from examples.demo.verdict import Comparison, all_held


@dataclass(frozen=True, slots=True)
class Kill:
    """SIGKILL in mid-drain; ``only_here`` are acknowledged shards that the bucket had not got."""

    step: int
    trainers: list[int]
    service: int
    drain: int
    dirty_bytes: int
    dirty_shards: int
    pending_steps: list[int]
    only_here: list[str]
    steps_again: int


@dataclass(frozen=True, slots=True)
class NodeLoss:
    """The cache directory deleted: what it held, and what was restored from the bucket instead."""

    files: int
    size_bytes: int
    resumed_from: int
    restore_seconds: float


@dataclass(slots=True)
class Outcome:
    """All that the report tells."""

    reference: Record = field(default_factory=Record)
    direct: list[Cost] = field(default_factory=list)
    saves: list[Cost] = field(default_factory=list)
    steps: dict[int, StepInfo] = field(default_factory=dict)
    kill: Kill | None = None
    node_loss: NodeLoss | None = None
    comparisons: list[Comparison] = field(default_factory=list)
    seconds: float = 0.0
    load_before: float = 0.0

    def compare(self, what: str, held: bool) -> None:
        """Note whether something held."""
        self.comparisons.append(Comparison(what, held))

    @property
    def held(self) -> bool:
        """Whether everything did; without any comparison nothing was shown."""
        return all_held(self.comparisons)
