"""Saves and parts: what makes a step restorable here, and which save of a step counts.

A *save* is one attempt to write a step; its id is compared only for equality. On a node, saves are
ordered by arrival: a new one supersedes every older save of the step that is not published. Across
nodes ``publication`` decides.

Source: docs/architecture.md, "State in the bucket".
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from cachetier_client.bucket_format.documents import Manifest, ManifestState
from cachetier_client.bucket_format.publication import Claimant
from cachetier_client.identity.names import SaveIds

from cachetier.errors import (
    AbortedError,
    CachetierError,
    InvalidRequestError,
    SaveSupersededError,
    StepPublishedError,
)
from cachetier.model.lifecycle import (
    CANDIDATE_SAVES,
    CONFIRMED_SAVES,
    DURABLE_SAVES,
    OPEN_SAVES,
    PartState,
    SaveState,
)

# What its clients hear of a save that ended so.
END_ERRORS: Mapping[SaveState, type[CachetierError]] = {
    SaveState.SUPERSEDED: SaveSupersededError,
    SaveState.REFUSED: StepPublishedError,
    SaveState.DELETED: AbortedError,
}


@dataclass(frozen=True, slots=True)
class Save:
    """One save of a step as this node knows it; ``number`` orders saves by arrival here.

    ``local_only_at``: when a policy last kept it from S3. ``wanted``: a flush asked for this very
    save, so no policy may. ``replaces``: ids of saves that another node saw it replace.
    """

    number: int
    run: str
    step: int
    save_id: str
    state: SaveState
    world_size: int
    overwrite: bool
    started_at: float
    location: str | None = None
    published_at: float | None = None
    local_only_at: float | None = None
    wanted: bool = False
    replaces: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class RankPart:
    """One rank's part of a save on this node.

    ``follows``: sealed, but only as soon as rank 0 is. Until that is known here it may still grow,
    and no part document is written.
    """

    rank: int
    state: PartState
    ranks_on_node: int | None
    sealed_at: float | None
    uploaded: bool
    follows: bool = False

    @property
    def final(self) -> bool:
        """Whether nothing is added to it any more."""
        return self.state is PartState.SEALED and not self.follows


def claimant_of(save: Save, saves: Sequence[Save] = ()) -> Claimant:
    """Return ``save`` as the bucket's arbitration knows it; ``saves`` are those of its step."""
    earlier = [each for each in saves if each.number < save.number]
    candidates = [each.save_id for each in earlier if each.state in CANDIDATE_SAVES]
    return Claimant(
        run=save.run,
        step=save.step,
        save_id=save.save_id,
        world_size=save.world_size,
        overwrite=save.overwrite,
        started_at=save.started_at,
        replaced=tuple(each.save_id for each in earlier if each.state not in CANDIDATE_SAVES),
        preceding=(*save.replaces, *candidates),
    )


def ended_by(save: Save, seen: Manifest | None) -> SaveState | None:
    """Return how a save has ended by the manifest of its step; None if it has not.

    One that is open has not ended for all that: the drain decides, which knows the order of saves
    here.
    """
    if seen is None:
        return None
    if seen.save_id == save.save_id:
        return SaveState.DELETED if seen.state is ManifestState.DELETED else None
    came_after = seen.state is ManifestState.PUBLISHED or save.save_id in seen.replaces
    return SaveState.SUPERSEDED if came_after else None


def learned_state(save: Save, seen: Manifest) -> SaveState:
    """Return the state of a save here once the manifest of its step is known.

    A save that was deleted here stays deleted, as the drain deletes it in the bucket as well.
    """
    if save.state is SaveState.DELETED:
        return save.state
    ours = seen.save_id == save.save_id
    if ours and seen.state is ManifestState.PUBLISHED:
        return SaveState.PUBLISHED
    if ours or save.state in CONFIRMED_SAVES:
        return ended_by(save, seen) or save.state
    return save.state


def admitted_save(
    saves: Sequence[Save], ids: SaveIds, replaces: Collection[str] = ()
) -> Save | None:
    """Return the save of ``ids``, or None when it may begin.

    It may, too, over a published one that it is known to have replaced: ``replaces``.

    Raises:
        SaveSupersededError: ``ids`` belongs to a save that a newer one replaced.
        AbortedError: The save was deleted.
        InvalidRequestError: The save has another world size.
        StepPublishedError: Another save is published and ``overwrite`` is not set.
    """
    for save in saves:
        if save.save_id == ids.save_id:
            return _still_writable(save, ids)
    published = [s for s in saves if s.state in DURABLE_SAVES and s.save_id not in replaces]
    if published and not ids.overwrite:
        raise StepPublishedError(
            f"step {ids.step} is published already (save {published[0].save_id})", **ids.context
        )
    return None


def _still_writable(save: Save, ids: SaveIds) -> Save:
    if save.world_size != ids.world_size:
        raise InvalidRequestError(
            f"save {save.save_id} has world_size {save.world_size}, not {ids.world_size}",
            hint="Give each save of a job an id of its own: see docs/architecture.md.",
            **ids.context,
        )
    if save.state is SaveState.SUPERSEDED:
        raise SaveSupersededError(
            f"save {save.save_id} of step {save.step} was superseded by a newer save", **ids.context
        )
    if save.state is SaveState.REFUSED:
        raise StepPublishedError(
            f"step {save.step} was published by another save before {save.save_id}", **ids.context
        )
    if save.state is SaveState.DELETED:
        raise AbortedError(f"save {save.save_id} of step {save.step} was deleted", **ids.context)
    return save


def visible_save(
    saves: Sequence[Save], sealed: Collection[int] = (), whole: Collection[int] = ()
) -> Save | None:
    """Return the save that readers see: the newest published one, else the newest still open.

    Of open ones those of ``sealed``, the numbers of the saves that are sealed here, go first. One
    of ``whole``, whose ranks have all sealed here, counts as if it were published: who writes a
    file again reads what was written. If it overwrites it goes before whatever is published, as a
    save that was learned of from the bucket has a later number here than it came; and before
    those that another node saw it replace. An open save that is not whole never goes before a
    published one. Where there is neither, the newest known from a replica.
    """
    final = [save for save in saves if save.state in DURABLE_SAVES or save.number in whole]
    if final:
        replaced = {save_id for save in final for save_id in save.replaces}
        final = [save for save in final if save.save_id not in replaced]
        return max(final, key=lambda save: (save.number in whole and save.overwrite, save.number))
    for states in (OPEN_SAVES, (SaveState.REPLICATED,)):
        candidates = [save for save in saves if save.state in states]
        if candidates:
            return max(candidates, key=lambda save: (save.number in sealed, save.number))
    return None


@dataclass(frozen=True, slots=True)
class PartCounts:
    """The parts of a save on this node, counted.

    ``expected``: the most ranks that any sealed one said the node has, None where none did.
    ``final``: whether any is sealed and does not follow.
    """

    seen: int
    sealed: int
    expected: int | None
    final: bool


def sealed_ranks(parts: Sequence[RankPart]) -> set[int]:
    """Return the ranks whose parts are sealed."""
    return {part.rank for part in parts if part.state is PartState.SEALED}


def sealed_here(parts: Sequence[RankPart]) -> bool:
    """Return whether every rank expected on this node has sealed; see ``all_sealed``."""
    sealed = [part for part in parts if part.state is PartState.SEALED]
    expected = [part.ranks_on_node for part in sealed if part.ranks_on_node is not None]
    final = any(part.final for part in sealed)
    return all_sealed(PartCounts(len(parts), len(sealed), max(expected, default=None), final))


def all_sealed(counts: PartCounts) -> bool:
    """Return whether every rank expected on this node has sealed.

    The ranks say at seal how many of them the node has; where none did, every rank seen must have
    sealed, and rank 0 have done so wherever it is.
    """
    if counts.expected is not None:
        return counts.sealed >= counts.expected
    return counts.final and counts.sealed == counts.seen
