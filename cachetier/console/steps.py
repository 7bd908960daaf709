"""The pages of a run and of a step: their levels and ages in words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from cachetier_client.units import shown_size, shown_span

from cachetier.model.levels import Level
from cachetier.status.words import unchecked
from cachetier.steps.views import StepView

STEPS_SHOWN = 100
ELSEWHERE_SHOWN = 20  # each is a request to the bucket
TONES = {
    "published": "good",
    "replicated": "good",
    "damaged": "bad",
    "aborted": "bad",
    "refused": "bad",
}


@dataclass(frozen=True, slots=True)
class StepRow:
    """A step; ``levels`` are all there are, each with whether it is reached."""

    step: int
    state: str
    tone: str
    levels: tuple[tuple[str, bool], ...]
    age: str
    ranks: str
    shards: int
    size: str
    share: float
    pinned: bool
    save_id: str
    unchecked: str

    @property
    def restorable(self) -> bool:
        return any(reached for _, reached in self.levels)


def step_row(view: StepView, now: float) -> StepRow:
    """Return a step as its row, and its page's head, show it."""
    size_bytes = max(1, view.size_bytes)
    published = str(Level.REPLICATED) in view.levels  # nothing is before every rank has sealed
    sealed = view.world_size if published else len(view.ranks)
    return StepRow(
        step=view.step,
        state=view.state.replace("_", " "),
        tone=TONES.get(view.state, ""),
        levels=tuple((str(level), str(level) in view.levels) for level in _SHOWN_LEVELS),
        age=shown_span(max(0.0, now - view.started_at)),
        ranks=f"{sealed}/{view.world_size}",
        shards=view.shards,
        size=shown_size(view.size_bytes),
        share=1 - min(1.0, view.dirty_bytes / size_bytes),
        pinned=view.pinned,
        save_id=view.save_id,
        unchecked=unchecked(view.state, view.checked_at, now),
    )


def step_rows(views: Sequence[StepView], now: float) -> list[StepRow]:
    """Return the steps of a run, the newest first."""
    return [step_row(view, now) for view in sorted(views, key=lambda view: -view.step)]


_SHOWN_LEVELS = (Level.LOCAL, Level.REPLICATED, Level.DURABLE)
