"""What cachetier must do, as a dictionary: the oracle of the stateful and the crash tests.

It knows saves, parts and bytes, and answers each call with the code it must end with; it knows
nothing of files, catalogs or remotes.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, field

from cachetier_client.identity.names import SaveIds

OK = "ok"
OPEN, LOCAL_ONLY, PUBLISHED, SUPERSEDED, REFUSED, DELETED = (
    "open",
    "local_only",
    "published",
    "superseded",
    "refused",
    "deleted",
)
SEALED, ABORTED = "sealed", "aborted"
FOLLOWING = "following"  # sealed as soon as rank 0 is
WRITABLE = (OPEN, LOCAL_ONLY)
ENDED_CODES = {SUPERSEDED: "save_superseded", REFUSED: "step_published", DELETED: "aborted"}


@dataclass(slots=True)
class ModelShard:
    """``quarantined``: its only bytes were found damaged."""

    rank: int
    data: bytes
    quarantined: bool = False


@dataclass(slots=True)
class ModelSave:
    save_id: str
    world_size: int
    overwrite: bool
    state: str = OPEN
    shards: dict[str, ModelShard] = field(default_factory=dict)
    parts: dict[int, str] = field(default_factory=dict)
    number: int = 0

    def sealed(self) -> set[int]:
        return {rank for rank, state in self.parts.items() if state in (SEALED, FOLLOWING)}

    def whole(self) -> bool:
        return self.sealed() == set(range(self.world_size))


class Model:
    """Every step's saves, in the order in which they came.

    Steps that ``durable_every`` does not divide are local-only until they are flushed.
    """

    def __init__(self, durable_every: int = 1) -> None:
        self.durable_every = durable_every
        self.arrived = 0
        self.steps: dict[tuple[str, int], list[ModelSave]] = {}
        self.pinned: set[tuple[str, int]] = set()
        self.passed_over: dict[tuple[str, int], set[int]] = {}  # forgotten by a restart
        self.objects: dict[str, bytes] = {}
        self.uploads: dict[str, dict[int, bytes]] = {}  # by key, of which there is one

    def copy(self) -> Model:
        return copy.deepcopy(self)

    def visible(self, run: str, step: int, *, reads: bool = False) -> ModelSave | None:
        """Return the save that stands for a step: the newest that is published or whole.

        Else the newest open one. Who ``reads`` gets the save that ``latest`` named before a whole
        one beside it.
        """
        saves = self.steps.get((run, step), [])
        passed = self.passed_over.get((run, step), set()) if reads else set()
        final = [
            save
            for save in saves
            if save.state == PUBLISHED
            or (save.state in WRITABLE and save.whole() and save.number not in passed)
        ]
        candidates = final or [save for save in saves if save.state in WRITABLE]
        return max(candidates, key=lambda save: save.number, default=None)

    def published(self, run: str, step: int) -> ModelSave | None:
        """Return the save that the bucket has published."""
        saves = [each for each in self.steps.get((run, step), []) if each.state == PUBLISHED]
        return max(saves, key=lambda save: save.number, default=None)

    def named(self, run: str, step: int, save_id: str) -> None:
        """Note that ``latest`` named a save."""
        self.passed_over[run, step] = {
            save.number
            for save in self.steps[run, step]
            if save.state in WRITABLE and save.whole() and save.save_id != save_id
        }

    def readable(self, run: str, step: int) -> dict[str, bytes]:
        """Return what a reader of the step must get; a damaged shard is missing."""
        save = self.visible(run, step)
        shards = save.shards if save is not None else {}
        return {name: shard.data for name, shard in shards.items() if not shard.quarantined}

    def save_named(self, run: str, step: int, save_id: str) -> ModelSave | None:
        saves = self.steps.get((run, step), [])
        return next((save for save in saves if save.save_id == save_id), None)

    # --- calls -----------------------------------------------------------------------------------

    def put(self, ids: SaveIds, name: str, data: bytes) -> str:
        refusal = self.refusal(ids)
        if refusal != OK:
            return refusal
        known = self.save_named(ids.run, ids.step, ids.save_id)
        if known is not None:
            existing = known.shards.get(name)
            if existing is not None and existing.data == data and not existing.quarantined:
                return OK
            if existing is not None and existing.rank != ids.rank:
                return SEALED
            if known.parts.get(ids.rank) == SEALED or known.state not in WRITABLE:
                return SEALED
        save = self._begun(ids)
        save.parts[ids.rank] = OPEN
        save.shards[name] = ModelShard(ids.rank, data)
        return OK

    def seal(self, ids: SaveIds) -> str:
        refusal = self.refusal(ids)
        if refusal == OK:
            save = self._begun(ids)
            save.parts[ids.rank] = SEALED
            if ids.rank == 0:
                parts = save.parts
                parts.update({rank: SEALED for rank in parts if parts[rank] == FOLLOWING})
            self._replace_local_only(save, ids)
        return refusal

    def follow(self, ids: SaveIds) -> str:
        """Seal a part that counts once rank 0 has sealed."""
        refusal = self.refusal(ids)
        if refusal == OK:
            save = self._begun(ids)
            parts = save.parts
            if parts.get(ids.rank) != SEALED:
                parts[ids.rank] = SEALED if parts.get(0) == SEALED else FOLLOWING
            self._replace_local_only(save, ids)
        return refusal

    def _replace_local_only(self, save: ModelSave, ids: SaveIds) -> None:
        for other in self.steps[ids.run, ids.step]:
            kept_here = {save.state, other.state} == {LOCAL_ONLY}
            if kept_here and save.whole() and other.number < save.number:
                other.state = SUPERSEDED

    def abort(self, ids: SaveIds) -> str:
        save = self.save_named(ids.run, ids.step, ids.save_id)
        if save is None:
            return OK
        if save.parts.get(ids.rank) == SEALED:
            return SEALED
        save.shards = {n: shard for n, shard in save.shards.items() if shard.rank != ids.rank}
        save.parts[ids.rank] = ABORTED
        return OK

    def delete_step(self, run: str, step: int) -> str:
        if (run, step) in self.pinned:
            return "pinned"
        saves = self.steps.get((run, step), [])
        for save in saves:
            save.state = DELETED
            save.shards, save.parts = {}, {}
        return OK if saves else "not_found"

    def pin(self, run: str, step: int) -> str:
        if self.visible(run, step) is None:
            return "not_found"
        self.pinned.add((run, step))
        return OK

    def flush_step(self, run: str, step: int) -> str:
        """Ask for one step: a policy that kept it here does not count any more."""
        save = self.visible(run, step)
        saves = self.steps.get((run, step), [])
        if not saves:
            return "not_found"
        if save is None:
            return ENDED_CODES[saves[-1].state]
        if save.state == LOCAL_ONLY:
            save.state = OPEN
        return OK

    def remove(self, save: ModelSave, run: str, step: int) -> None:
        """Retention gave up a step: it must have been local-only, and not the newest."""
        assert save.state == LOCAL_ONLY
        assert (run, step) not in self.pinned, "a pinned step was removed"
        others = [
            (of_step, other.number)
            for (of, of_step), saves in self.steps.items()
            if of == run
            for other in saves
            if other is not save and other.state in (*WRITABLE, PUBLISHED) and other.sealed()
        ]
        assert any(number > save.number for _, number in others), "the newest was removed"
        assert any(other > step for other, _ in others), "the highest was removed"
        save.state = DELETED
        save.shards, save.parts = {}, {}

    def collect(self, run: str, step: int, save_id: str) -> ModelSave:
        """Rubbish was collected: a save that was replaced, or that nobody could complete."""
        save = self.save_named(run, step, save_id)
        assert save is not None
        if save.state in WRITABLE:
            assert (run, step) not in self.pinned, "a pinned step was collected"
            assert not save.whole(), "a whole save was collected"
            assert self._is_published_after(run, step), "the newest of a run was collected"
            save.state = DELETED
        assert save.state != PUBLISHED, "a published save was collected"
        save.shards, save.parts = {}, {}
        return save

    def _is_published_after(self, run: str, step: int) -> bool:
        return any(
            save.state == PUBLISHED
            for (of, of_step), saves in self.steps.items()
            if of == run and of_step > step
            for save in saves
        )

    def publish(self, save: ModelSave, run: str, step: int) -> None:
        for other in self.steps[run, step]:
            older = other.state in WRITABLE and other.number < save.number
            if other is not save and (other.state == PUBLISHED or older):
                other.state = SUPERSEDED
        save.state = PUBLISHED

    # --- rules -----------------------------------------------------------------------------------

    def refusal(self, ids: SaveIds) -> str:
        """Return OK, or the code that a put or seal by ``ids`` is refused with."""
        saves = self.steps.get((ids.run, ids.step), [])
        known = self.save_named(ids.run, ids.step, ids.save_id)
        if known is None:
            published = any(save.state == PUBLISHED for save in saves)
            return "step_published" if published and not ids.overwrite else OK
        if known.world_size != ids.world_size:
            return "invalid_request"
        return ENDED_CODES.get(known.state, OK)

    def _begun(self, ids: SaveIds) -> ModelSave:
        known = self.save_named(ids.run, ids.step, ids.save_id)
        if known is not None:
            return known
        saves = self.steps.setdefault((ids.run, ids.step), [])
        for save in saves:
            if save.state in WRITABLE and not save.whole():
                save.state = SUPERSEDED
        self.arrived += 1
        state = LOCAL_ONLY if ids.step % self.durable_every else OPEN
        saves.append(
            ModelSave(ids.save_id, ids.world_size, ids.overwrite, state, number=self.arrived)
        )
        return saves[-1]

    # --- objects ---------------------------------------------------------------------------------

    def put_object(self, key: str, data: bytes) -> str:
        self.objects[key] = data
        return OK

    def delete_objects(self, keys: Sequence[str]) -> str:
        for key in keys:
            self.objects.pop(key, None)
        return OK

    def begin_upload(self, key: str) -> str:
        self.uploads[key] = {}
        return OK

    def put_part(self, key: str, number: int, data: bytes) -> str:
        self.uploads[key][number] = data
        return OK

    def complete_upload(self, key: str, numbers: Sequence[int]) -> str:
        parts = self.uploads.pop(key)
        self.objects[key] = b"".join(parts[number] for number in numbers)
        return OK

    def abort_upload(self, key: str) -> str:
        del self.uploads[key]
        return OK
