"""The errors for a step that is not there, or whose save has ended."""

from __future__ import annotations

from cachetier.errors import NotFoundError
from cachetier.model.checkpoint import END_ERRORS, Save
from cachetier.model.lifecycle import SaveState


def no_step(run: str, step: int) -> NotFoundError:
    return NotFoundError(f"run {run} has no step {step}", run=run, step=step)


def ended(save: Save) -> Exception:
    message = f"save {save.save_id} of step {save.step} is {save.state}"
    if save.state is SaveState.DELETED and save.local_only_at is not None and not save.wanted:
        message += "; a policy had kept it on this node only"
    return END_ERRORS[save.state](message, run=save.run, step=save.step)
