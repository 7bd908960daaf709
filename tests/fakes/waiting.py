"""Waiting in a thread of a test's own, for what the service asks of its pool of questions."""

from __future__ import annotations

from cachetier.model.levels import Level
from cachetier.steps.operations import Checkpoints


def waited(
    checkpoints: Checkpoints,
    run: str,
    step: int,
    name: str | None,
    level: Level,
    timeout_seconds: float,
) -> float:
    """Wait until a step, or one shard of it, has reached ``level``; return its age in seconds."""
    reached = checkpoints.level_reached(run, step, name, level)
    return reached.answer(checkpoints._changes, timeout_seconds)
