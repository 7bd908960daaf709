"""The simulated catalog of one node, in memory.

It is the real drain's ``RemoteState``, so what is unfinished, which parts lack and how a save ends
are asked and written down by the real code.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count, islice

from cachetier_client.bucket_format.stored import Content, InPack, Stored
from cachetier_client.identity.names import SaveIds

from cachetier.local.catalog.copies import SaveOutcome
from cachetier.local.catalog.rows import IncidentRecord
from cachetier.local.catalog.shards import ALL, ShardFilter
from cachetier.model.checkpoint import RankPart, Save, sealed_here
from cachetier.model.lifecycle import (
    KEPT_SAVES,
    OPEN_SAVES,
    REPLACED_SAVES,
    PartState,
    SaveState,
    ShardState,
)
from cachetier.model.names import DURABLE
from cachetier.model.policy import LocalStep, Policy
from cachetier.model.shard import Shard


@dataclass(slots=True)
class HeldSave:
    """A save with its parts by rank and its shards by version; ``local`` are those with bytes."""

    save: Save
    parts: dict[int, RankPart] = field(default_factory=dict)
    shards: dict[int, Shard] = field(default_factory=dict)
    dirty: dict[int, Shard] = field(default_factory=dict)
    local: dict[int, Shard] = field(default_factory=dict)

    def change(self, **changes: object) -> None:
        self.save = replace(self.save, **changes)  # type: ignore[arg-type]


class Saves:
    """All saves of a node, by number."""

    remote = DURABLE
    decides = True

    def __init__(self, policy: Policy, published: Callable[[str, int, str], None]) -> None:
        self._policy = policy
        self._published = published
        self._numbers = count(1)
        self._versions = count(1)
        self._held: dict[int, HeldSave] = {}
        self._of_step: dict[tuple[str, int], list[int]] = {}
        self._unfinished: dict[int, HeldSave] = {}
        self._save_of: dict[int, HeldSave] = {}  # by version

    # --- puts ------------------------------------------------------------------------------------

    def admitted(self, ids: SaveIds, now: float) -> HeldSave:
        """Return the save that a put belongs to; a new one replaces those of its step."""
        for save in self.of_step(ids.run, ids.step):
            if save.save_id == ids.save_id:
                return self._held[save.number]
            if save.state in OPEN_SAVES:
                self._end(self._held[save.number], SaveState.SUPERSEDED)
        local_only = self._policy.keeps_local(ids.step)
        state = SaveState.LOCAL_ONLY if local_only else SaveState.OPEN
        number = next(self._numbers)
        save = Save(
            number, ids.run, ids.step, ids.save_id, state, ids.world_size, ids.overwrite, now
        )
        held = self._held[number] = HeldSave(save)
        self._of_step.setdefault((ids.run, ids.step), []).append(number)
        if not local_only:
            self._unfinished[number] = held
        return held

    def commit(self, held: HeldSave, rank: int, name: str, size_bytes: int, now: float) -> None:
        """Take a shard that is safe here: it is dirty from now on."""
        save, version = held.save, next(self._versions)
        held.parts.setdefault(rank, RankPart(rank, PartState.OPEN, None, None, uploaded=False))
        shard = Shard(
            version,
            save.number,
            save.run,
            save.step,
            save.save_id,
            name,
            rank,
            Content(size_bytes, version, ()),  # any digest serves, if it is another
            ShardState.DIRTY,
            f"{version}",
            False,
            now,
        )
        held.shards[version] = held.local[version] = held.dirty[version] = shard
        self._save_of[version] = held

    def seal(self, held: HeldSave, rank: int, ranks_on_node: int, now: float) -> None:
        held.parts[rank] = RankPart(rank, PartState.SEALED, ranks_on_node, now, uploaded=False)

    def abort(self, held: HeldSave, rank: int) -> None:
        held.parts[rank] = RankPart(rank, PartState.ABORTED, None, None, uploaded=False)

    # --- what is there ---------------------------------------------------------------------------

    def of_step(self, run: str, step: int) -> list[Save]:
        return [self._held[number].save for number in self._of_step.get((run, step), ())]

    def shard(self, version: int) -> Shard | None:
        held = self._save_of.get(version)
        return held.shards.get(version) if held is not None else None

    def of_rank(self, number: int, rank: int, after: int, limit: int) -> list[tuple[Shard, Stored]]:
        """Return shards of a rank's part from behind the version ``after`` on, each as stored."""
        shards = self._held[number].shards.values()
        found = (shard for shard in shards if shard.rank == rank and shard.version > after)
        return [(shard, Stored.raw(shard.content)) for shard in islice(found, limit)]

    def dirty_bytes(self) -> int:
        dirty = (held.dirty.values() for held in self._unfinished.values())
        return sum(shard.content.size_bytes for each in dirty for shard in each)

    def clean(self) -> list[Shard]:
        """Return the shards whose bytes may go, oldest first."""
        held = self._held.values()
        clean = [s for each in held for s in each.local.values() if s.version not in each.dirty]
        return sorted(clean, key=lambda shard: shard.committed_at)

    def local_steps(self) -> dict[str, list[LocalStep]]:
        """Return the saves of each run that have bytes here."""
        steps: dict[str, list[LocalStep]] = {}
        for held in self._held.values():
            if held.local:
                step = LocalStep(held.save, sealed_here(list(held.parts.values())))
                steps.setdefault(held.save.run, []).append(step)
        return steps

    def drop(self, number: int, versions: Sequence[int] | None = None) -> int:
        """Let local bytes of a save go, all that are not dirty by default; return how many."""
        held = self._held[number]
        local_only = held.save.state in KEPT_SAVES
        if versions is None:
            versions = [each for each in held.local if local_only or each not in held.dirty]
        if local_only:
            held.dirty.clear()
        return sum(held.local.pop(version).content.size_bytes for version in versions)

    # --- what the drain asks and writes down -----------------------------------------------------

    def unfinished(self) -> list[Save]:
        return [held.save for held in self._unfinished.values()]

    def save(self, number: int) -> Save | None:
        held = self._held.get(number)
        return held.save if held is not None else None

    def parts(self, number: int) -> list[RankPart]:
        return list(self._held[number].parts.values())

    def wanted(self, number: int, limit: int, _shard_filter: ShardFilter = ALL) -> list[Shard]:
        return list(islice(self._held[number].dirty.values(), limit))

    def wants(self, shard: Shard) -> bool:
        return shard.version in self._save_of[shard.version].dirty

    def out_of_reach(self, _save: Save, /) -> bool:
        return False

    def locate(self, number: int, location: str) -> None:
        self._held[number].change(location=location)

    def part(self, number: int, rank: int, *, uploaded: bool) -> None:
        parts = self._held[number].parts
        parts[rank] = replace(parts[rank], uploaded=uploaded)

    def followed(self, number: int) -> None:
        parts = self._held[number].parts
        parts.update({rank: replace(part, follows=False) for rank, part in parts.items()})

    def ended(
        self, number: int, state: SaveState, _incident: IncidentRecord | None, now: float, /
    ) -> SaveOutcome:
        held = self._held[number]
        news = held.save.state is not state
        self._end(held, state, now)
        return SaveOutcome(news)

    def _end(self, held: HeldSave, state: SaveState, now: float = 0.0) -> None:
        held.change(state=state, published_at=now if state is SaveState.PUBLISHED else None)
        if state not in REPLACED_SAVES or held.save.location is None:
            self._unfinished.pop(held.save.number, None)
        if state is SaveState.PUBLISHED:
            self._published(held.save.run, held.save.step, held.save.save_id)
            skipped = self._policy.skipped_by(held.save, self._of_run(held.save.run))
            for save in skipped:
                self._unfinished.pop(save.number).change(state=SaveState.LOCAL_ONLY)
        else:
            held.dirty.clear()  # nobody drains them, and their bytes may go

    def _of_run(self, run: str) -> list[Save]:
        return [held.save for held in self._unfinished.values() if held.save.run == run]

    def want(self, number: int) -> None:
        """Have a local-only step drained after all."""
        held = self._held[number]
        held.change(state=SaveState.OPEN, wanted=True)
        self._unfinished[number] = held

    def give_up(self, _number: int, _now: float, /) -> bool:
        return False

    def verified(self, version: int, _now: float, _stored: Stored) -> None:
        self._save_of[version].dirty.pop(version, None)

    def packed(self, _packs: Mapping[int, InPack], _now: float) -> list[Shard]:
        return []

    def lost(self, versions: Sequence[int]) -> list[ShardState]:
        """Have shards sent again that are still here."""
        for version in versions:
            held = self._save_of[version]
            if version in held.local:
                held.dirty[version] = held.shards[version]
        return [ShardState.DIRTY for _ in versions]

    def removed(self, number: int) -> None:
        self._unfinished.pop(number, None)

    def swept(self, number: int) -> None:
        self._unfinished.pop(number, None)
