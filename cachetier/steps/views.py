"""The views of steps and shards, the same at every door."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from cachetier_client.bucket_format.documents import PartReference, ShardSummary
from cachetier_client.bucket_format.stored import ShardFacts
from cachetier_client.io.digests import to_hex
from cachetier_client.results import UnflushedStep

from cachetier.local.catalog.figures import RankProgress, ShardCount
from cachetier.local.catalog.rows import Summary
from cachetier.model.checkpoint import RankPart, Save, sealed_here
from cachetier.model.levels import Level
from cachetier.model.lifecycle import (
    CONFIRMED_SAVES,
    DURABLE_SAVES,
    KEPT_SAVES,
    OPEN_SAVES,
    PartState,
    SaveState,
)
from cachetier.model.shard import Shard
from cachetier.restore.published import FoundStep


@dataclass(frozen=True, slots=True)
class ShardView:
    """A shard as a listing shows it."""

    name: str
    rank: int
    size_bytes: int
    digest: str
    state: str
    facts: ShardFacts

    @classmethod
    def of_shard(cls, shard: Shard) -> ShardView:
        size_bytes, digest = shard.content.size_bytes, to_hex(shard.content.digest)
        return cls(shard.name, shard.rank, size_bytes, digest, shard.state, shard.facts)

    @classmethod
    def of_entry(cls, entry: ShardSummary) -> ShardView:
        """Return the view of a shard that a remote has."""
        what = entry.name, entry.rank, entry.size_bytes, entry.digest
        return cls(*what, "remote", entry.known_facts())

    def as_json(self) -> dict[str, Any]:
        known = {"name": self.name, "rank": self.rank, "size_bytes": self.size_bytes}
        return {**known, "digest": self.digest, "state": self.state, **self.facts.recorded()}


@dataclass(frozen=True, slots=True)
class StepView:
    """A step as every door shows it; see docs/protocol.md, "Operations".

    ``checked_at``: when the bucket was last asked about a published step, if it ever was.
    """

    run: str
    step: int
    save_id: str
    state: str
    levels: tuple[str, ...]
    ranks: tuple[int, ...]
    world_size: int
    shards: int
    size_bytes: int
    dirty_bytes: int
    started_at: float
    sealed_at: float | None
    published_at: float | None
    pinned: bool = False
    checked_at: float | None = None

    def as_json(self) -> dict[str, Any]:
        return asdict(self)

    def has_reached(self, level: Level) -> bool:
        """Return whether it can be restored from ``level``; what is local need not be in memory."""
        return level in self.levels or (level is Level.MEMORY and Level.LOCAL in self.levels)


@dataclass(frozen=True, slots=True)
class StepProgress:
    """How far a step is on this node, rank by rank."""

    save: Save
    view: StepView
    parts: list[RankPart]
    ranks: list[RankProgress]
    shards: list[ShardCount]


@dataclass(frozen=True, slots=True)
class NewestSteps:
    """The newest step restorable at a level, and a newer one that this node can restore.

    At ``local`` that is ``newer_remote`` instead: one whose bytes made room here, or never came.
    ``unflushed`` are newer ones that other nodes hold; None if nobody was asked, or can say.
    """

    step: StepView | None
    newer_local: int | None = None
    newer_remote: int | None = None
    unflushed: tuple[UnflushedStep, ...] | None = None

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def view_of_save(
    save: Save,
    parts: list[RankPart],
    summary: Summary,
    *,
    replicated: bool = False,
    pinned: bool = False,
    whole_ranks: Sequence[int] = (),
) -> StepView:
    """Return how this node shows a save; ``replicated``: it is published at a replica.

    What remotes have is local while all is here that this node knows of: what ranks sealed here,
    and what came back of others. ``whole_ranks`` are those of which every known shard is here.
    """
    sealed = [part for part in parts if part.state is PartState.SEALED]
    ranks = {part.rank for part in sealed}
    damaged = summary.quarantined_shards > 0
    if save.state in CONFIRMED_SAVES:
        ranks.update(whole_ranks)
        known = sealed_here(parts) if parts else bool(whole_ranks)
        here = known and not damaged and not summary.evicted_shards
    else:
        here = sealed_here(parts) and not damaged and save.state in OPEN_SAVES
    durable = save.state in DURABLE_SAVES
    there = (replicated and save.state in OPEN_SAVES) or save.state is SaveState.REPLICATED
    return StepView(
        run=save.run,
        step=save.step,
        save_id=save.save_id,
        state=_state(save, parts, damaged),
        levels=_levels(here, there, durable, in_memory=summary.memory_shards > 0),
        ranks=tuple(sorted(ranks)),
        world_size=save.world_size,
        shards=summary.shards,
        size_bytes=summary.size_bytes,
        dirty_bytes=summary.dirty_bytes,
        started_at=save.started_at,
        sealed_at=max((part.sealed_at or 0.0 for part in sealed), default=None),
        published_at=save.published_at,
        pinned=pinned,
    )


def view_of_found(found: FoundStep) -> StepView:
    """Return how the remotes show a published step."""
    manifest, durable = found.manifest, found.durable
    return StepView(
        run=manifest.run,
        step=manifest.step,
        save_id=manifest.save_id,
        state="published" if durable else "replicated",
        levels=_levels(False, True, durable),
        ranks=tuple(part.rank for part in manifest.parts),
        world_size=manifest.world_size,
        shards=len(manifest.shards),
        size_bytes=sum(shard.size_bytes for shard in manifest.shards),
        dirty_bytes=0,
        started_at=manifest.started_at,
        sealed_at=None,
        published_at=manifest.published_at,
    )


def with_parts(view: StepView, parts: Sequence[PartReference]) -> StepView:
    """Return the view of a step that this node knows from its manifest alone."""
    return replace(
        view,
        ranks=tuple(part.rank for part in parts),
        shards=sum(part.shards for part in parts),
        size_bytes=sum(part.size_bytes for part in parts),
    )


def _levels(
    here: bool, replicated: bool, durable: bool, *, in_memory: bool = False
) -> tuple[str, ...]:
    """Name the levels; what is durable is at a remote, and so replicated."""
    reached = {
        Level.MEMORY: here and in_memory,
        Level.LOCAL: here and not in_memory,
        Level.REPLICATED: replicated or durable,
        Level.DURABLE: durable,
    }
    return tuple(level for level, ok in reached.items() if ok)


def _state(save: Save, parts: list[RankPart], damaged: bool) -> str:
    if save.state not in OPEN_SAVES:
        return str(save.state)
    if damaged:
        return "damaged"
    if any(part.state is PartState.ABORTED for part in parts):
        return "aborted"
    if not sealed_here(parts):
        return "open"
    return "local_only" if save.state in KEPT_SAVES else "sealed"


def remote_shards(found: FoundStep) -> list[ShardView]:
    """Return the shards of a step that remotes have."""
    return [ShardView.of_entry(entry) for entry in found.manifest.shards]
