"""What one start of the training job did, as its ranks wrote it down."""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field

from examples.demo.events import Event

RANKS = 2
STEPS = 55
SAVE_EVERY = 8  # and STEPS is no multiple: the newest checkpoint lies before the end
SAVES = tuple(range(SAVE_EVERY, STEPS, SAVE_EVERY))


def _no_events() -> dict[int, list[Event]]:
    return {rank: [] for rank in range(RANKS)}


@dataclass(slots=True)
class Record:
    """Each rank's events, in order."""

    events: dict[int, list[Event]] = field(default_factory=_no_events)

    def of(self, kind: str, rank: int = 0) -> list[Event]:
        """Return a rank's events of a kind."""
        return [event for event in self.events[rank] if event["kind"] == kind]

    def ends(self) -> dict[int, float]:
        """Return when each step ended, on rank 0."""
        return {int(event["step"]): float(event["at"]) for event in self.of("step")}

    def mean_loss(self, until: int, steps: int) -> float | None:
        """Return the mean loss over the last steps, once all ranks have taken them."""
        took = [each for rank in self.events for each in self.of("step", rank)]
        losses = [e["loss"] for e in took if until - steps < e["step"] <= until]
        if sum(event["step"] == until for event in took) < RANKS:
            return None
        return statistics.mean(map(float.fromhex, losses))

    def saves(self, step: int) -> list[Event]:
        """Return the acknowledged saves of a step, at most one for each rank."""
        saves = (event for rank in self.events for event in self.of("saved", rank))
        return [event for event in saves if event["step"] == step]

    def saved(self, step: int) -> bool:
        """Say whether all ranks have had their acknowledgement for a step."""
        return len(self.saves(step)) == RANKS

    def newest_saved(self) -> int:
        """Return the newest step that all ranks have had their acknowledgement for."""
        return max(filter(self.saved, SAVES))

    def finished(self) -> bool:
        """Say whether all ranks came to the last step."""
        return all(self.of("finished", rank) for rank in self.events)

    # --- of one save, all ranks together ------------------------------------------------------

    def size_bytes(self, step: int) -> int:
        """Return the bytes of a checkpoint."""
        return sum(event["size_bytes"] for event in self.saves(step))

    def began_at(self, step: int) -> float:
        """Return when the first rank began to save."""
        return min(float(event["began_at"]) for event in self.saves(step))

    def acknowledged_at(self, step: int) -> float:
        """Return when the last rank had its acknowledgement."""
        return max(float(event["at"]) for event in self.saves(step))

    def call_seconds(self, step: int) -> float:
        """Return how long the call that saves took, on the rank where it took longest."""
        return max(float(event["at"] - event["began_at"]) for event in self.saves(step))
