"""The operator's policies: which steps need not go to S3, and how many stay on the node.

``durable_every``  only steps whose number is divisible by it are drained. A step's own number is
                   all that every node of a job knows without asking: a count of saves would differ
                   after a restart or on a node that came later, and no step would ever be whole.
``supersede``      a published step makes every older one that is not yet started local-only. Older
                   means a lower number *and* an earlier arrival: after a roll-back the new steps
                   have lower numbers than one published before, and they are the newest there are.
``keep_local``     how many complete steps of a run stay on the node.
``local_every``    of what was put in memory, only steps that it divides are copied to the disk; the
                   others stay in memory while there is room.

A *local-only* step is whole and restorable here and is not drained, until ``flush`` of that very
step asks for it. Policies must be the same on every node of a job.

Source: docs/drain.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from cachetier.model.checkpoint import Save
from cachetier.model.lifecycle import DRAINED_SAVES, DURABLE_SAVES, KEPT_SAVES


@dataclass(frozen=True, slots=True)
class Policy:
    """The settings; as they are by default, every step is drained and stays while there is room."""

    durable_every: int = 1
    supersede: bool = False
    keep_local: int = 0
    local_every: int = 1

    def keeps_in_memory(self, step: int) -> bool:
        """Return whether a shard of ``step`` that was put in memory stays there."""
        return step % self.local_every != 0

    def keeps_local(self, step: int) -> bool:
        """Return whether a save of ``step`` is local-only from its beginning."""
        return step % self.durable_every != 0

    def skipped_by(self, published: Save, saves: Iterable[Save]) -> list[Save]:
        """Return the saves of a run that become local-only because ``published`` is published."""
        if not self.supersede:
            return []
        return [save for save in saves if _not_started(save) and _is_older(save, published)]


DRAIN_ALL = Policy()


@dataclass(frozen=True, slots=True)
class LocalStep:
    """A save with bytes on this node; ``complete``: sealed by every rank here, and sound."""

    save: Save
    complete: bool


def surplus(steps: Sequence[LocalStep], keep: int) -> list[Save]:
    """Return the saves of one run whose local bytes are not wanted any more, oldest first.

    The ``keep`` newest complete ones stay, by step number and by arrival, and so does the newest
    published one: the newest step at any level is never among the others. What is neither published
    nor local-only stays in any case.
    """
    kept = _kept(steps, max(1, keep))
    return [
        step.save
        for step in sorted(steps, key=lambda step: step.save.number)
        if step.save not in kept and _may_go(step, kept)
    ]


def _kept(steps: Sequence[LocalStep], keep: int) -> list[Save]:
    complete = [step.save for step in steps if step.complete]
    published = [step.save for step in steps if step.save.state in DURABLE_SAVES]
    by_step = sorted(complete, key=lambda save: (save.step, save.number))
    by_arrival = sorted(complete, key=lambda save: save.number)
    newest = sorted(published, key=lambda save: (save.step, save.number))
    return [*by_step[-keep:], *by_arrival[-keep:], *newest[-1:]]


def _may_go(step: LocalStep, kept: Sequence[Save]) -> bool:
    if step.save.state in DURABLE_SAVES:
        return True
    if step.save.state not in KEPT_SAVES:
        return False
    # What was never completed goes once its ranks have completed something newer.
    return step.complete or (bool(kept) and all(_is_older(step.save, other) for other in kept))


def _not_started(save: Save) -> bool:
    return save.state in DRAINED_SAVES and save.location is None and not save.wanted


def _is_older(save: Save, other: Save) -> bool:
    return save.step < other.step and save.number < other.number
