"""Operations on whole steps, the same for every door: seal, look, wait, flush, delete.

``latest`` at ``local`` is this node's truth: the newest step whose every rank expected here has
sealed and whose bytes are sound. ``latest`` at ``durable`` is the bucket's: the newest published
manifest.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from cachetier.changes import Changes
from cachetier.clock import Clock
from cachetier.errors import (
    AbortedError,
    IntegrityError,
    InvalidRequestError,
    LocalOnlyError,
    NotDurableError,
    NotFoundError,
    SaveSupersededError,
    StepPublishedError,
)
from cachetier.local import queries
from cachetier.local.records import Summary
from cachetier.local.store import Store
from cachetier.model import names
from cachetier.model.checkpoint import (
    OPEN_STATES,
    PartState,
    RankPart,
    Save,
    SaveState,
    sealed_here,
    visible_save,
)
from cachetier.model.documents import Manifest
from cachetier.model.levels import Level
from cachetier.model.lifecycle import ShardState
from cachetier.model.shard import SaveIds, Shard
from cachetier.pending import Pending, pending_of
from cachetier.remote.bucket import Bucket

# Another node may publish the step, which rings no bell here.
LOOK_AT_BUCKET_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class ShardView:
    """A shard as a listing shows it."""

    name: str
    rank: int
    size_bytes: int
    digest: str
    state: str


@dataclass(frozen=True, slots=True)
class StepView:
    """A step as every door shows it; see docs/protocol.md, "Step object"."""

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

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


class Checkpoints:
    """Looks at and changes whole steps. Thread-safe."""

    def __init__(
        self,
        store: Store,
        bucket: Bucket,
        changes: Changes,
        clock: Clock,
        *,
        hurry: Callable[[str | None, int | None], None] = lambda _run, _step: None,
    ) -> None:
        self._store = store
        self._bucket = bucket
        self._changes = changes
        self._clock = clock
        self._hurry = hurry

    # --- changing --------------------------------------------------------------------------------

    def seal(self, ids: SaveIds, ranks_on_node: int | None) -> list[int]:
        """Seal a rank's part; return the ranks sealed here under its save."""
        sealed = self._store.catalog.seal(ids.checked(), ranks_on_node, self._clock.now())
        self._changes.ring()
        return sealed

    def abort_rank(self, ids: SaveIds) -> None:
        """Take back what a rank put, unless it sealed."""
        self._store.drop(self._store.catalog.abort_rank(ids.checked()))
        self._changes.ring()

    def delete_shard(self, run: str, step: int, name: str) -> None:
        """Remove one shard of an unsealed part."""
        self._store.drop([self._store.catalog.delete_shard(run, step, name)])

    def delete_step(self, run: str, step: int) -> int:
        """Delete a step here at once, and remotely as soon as the drain gets to it.

        Raises:
            NotFoundError: Neither this node nor the bucket knows the step.
        """
        saves = self._store.read(lambda sql: queries.saves_of(sql, run, step))
        if visible_save(saves) is None:
            self._adopt_published(run, step, must_exist=not saves)
        shards = self._store.catalog.delete_step(run, step)
        self._store.drop(shards)
        self._changes.ring()
        return len(shards)

    def _adopt_published(self, run: str, step: int, *, must_exist: bool) -> None:
        manifest = self._published(run, step)
        if manifest is not None:
            self._store.catalog.adopt(save_of(manifest), (), self._clock.now())
        elif must_exist:
            raise NotFoundError(f"run {run} has no step {step}", run=run, step=step)

    def _published(self, run: str, step: int) -> Manifest | None:
        """Return the bucket's manifest of a published step; None if it was deleted here already."""
        manifest = self._bucket.published(run, step)
        if manifest is None:
            return None
        save_id = manifest.save_id
        save = self._store.read(lambda sql: queries.save_named(sql, run, step, save_id))
        return None if save is not None and save.state is SaveState.DELETED else manifest

    # --- looking ---------------------------------------------------------------------------------

    def runs(self) -> list[str]:
        """Return the runs this node knows."""
        return self._store.read(queries.runs)

    def steps(self, run: str, level: Level | None = None) -> list[StepView]:
        """Return the run's steps, ascending: this node's, and at ``durable`` the bucket's."""
        names.checked_run(run)
        if level is Level.DURABLE:
            manifests = (self._published(run, step) for step in self._bucket.steps(run))
            return [view_of_manifest(manifest) for manifest in manifests if manifest is not None]
        views = self._local_views(run)
        return [view for view in views if level is None or level in view.levels]

    def latest(self, run: str, level: Level) -> StepView | None:
        """Return the newest step restorable at ``level``, or None."""
        names.checked_run(run)
        if level is Level.DURABLE:
            newest_first = reversed(self._bucket.steps(run))
            manifests = (self._published(run, step) for step in newest_first)
            return next((view_of_manifest(found) for found in manifests if found), None)
        views = (self._view(save) for save in reversed(self._shown_saves(run)))
        return next((view for view in views if level in view.levels), None)

    def step(self, run: str, step: int) -> tuple[StepView, list[ShardView]]:
        """Return one step with its shards, from this node or else from the bucket.

        Raises:
            NotFoundError: Neither knows it.
        """
        save = visible_save(self._store.read(lambda sql: queries.saves_of(sql, run, step)))
        if save is not None:
            view = self._view(save)
            number = save.number
            shards = self._store.read(lambda sql: queries.shards_of(sql, number))
            if save.state is not SaveState.PUBLISHED or view.shards:
                return view, [_shard_view(shard) for shard in shards]
        manifest = self._published(run, step)
        if manifest is None:
            raise NotFoundError(f"run {run} has no step {step}", run=run, step=step)
        return view_of_manifest(manifest), [
            ShardView(s.name, s.rank, s.size_bytes, s.digest, "remote") for s in manifest.shards
        ]

    def _local_views(self, run: str) -> list[StepView]:
        return [self._view(save) for save in self._shown_saves(run)]

    def _shown_saves(self, run: str) -> list[Save]:
        """Return the save that stands for each step, ascending by step."""
        saves = self._store.read(lambda sql: queries.saves_of_run(sql, run))
        by_step: dict[int, list[Save]] = {}
        for save in saves:
            if save.state is not SaveState.DELETED:
                by_step.setdefault(save.step, []).append(save)
        return [visible_save(group) or group[-1] for _, group in sorted(by_step.items())]

    def _view(self, save: Save) -> StepView:
        parts = self._store.read(lambda sql: queries.parts_of(sql, save.number))
        summary = self._store.read(lambda sql: queries.summary_of(sql, save.number))
        return view_of_save(save, parts, summary)

    # --- waiting ---------------------------------------------------------------------------------

    def wait(
        self, run: str, step: int, name: str | None, level: Level, timeout_seconds: float
    ) -> float:
        """Wait until a step, or one shard of it, has reached ``level``; return its age in seconds.

        Raises:
            NotDurableError: Not in time.
            IntegrityError, SaveSupersededError, StepPublishedError, AbortedError: It never will.
            LocalOnlyError: It will not unless it is flushed.
            NotFoundError: There is no such step or shard.
        """
        if level is Level.DURABLE:
            self._hurry(run, step)

        def reached() -> bool:
            if name is not None:
                return self._shard_reached(run, step, name, level)
            return self._step_reached(run, step, level)

        if not self._changes.wait_for(reached, timeout_seconds, LOOK_AT_BUCKET_SECONDS):
            what = f"step {step}" if name is None else f"shard {name} of step {step}"
            raise NotDurableError(
                f"{what} is not {level} after {timeout_seconds:g} s", run=run, step=step, name=name
            )
        return self._age(run, step)

    def flush(self, run: str | None, step: int | None, timeout_seconds: float) -> Pending:
        """Wait until nothing dirty is left (of a run, of a step).

        A step that is named is drained even if a policy would keep it here. Return what is pending
        at the deadline.

        Raises:
            AbortedError, SaveSupersededError, StepPublishedError: The step named never will be.
        """
        if step is not None:
            self._want(run, step)
        self._hurry(run, step)
        pending = Pending()

        def drained() -> bool:
            nonlocal pending
            pending = pending_of(self._store, run, step)
            return not pending

        self._changes.wait_for(drained, timeout_seconds, LOOK_AT_BUCKET_SECONDS)
        return pending

    def _want(self, run: str | None, step: int) -> None:
        if run is None:
            raise InvalidRequestError("a step can only be flushed with its run", step=step)
        saves = self._store.read(lambda sql: queries.saves_of(sql, run, step))
        save = visible_save(saves)
        if save is None and saves:
            raise _ended(saves[-1])
        if save is not None and save.state in OPEN_STATES and not save.wanted:
            self._store.policy_log.want(save.number)

    def _shard_reached(self, run: str, step: int, name: str, level: Level) -> bool:
        shard = self._store.read(lambda sql: queries.visible_shard(sql, run, step, name))
        if shard is None:
            raise NotFoundError(f"no shard {name} in step {step}", run=run, step=step, name=name)
        if shard.state is ShardState.QUARANTINED:
            raise IntegrityError(f"shard {name} is damaged", run=run, step=step, name=name)
        if level is Level.LOCAL or shard.state in (ShardState.CLEAN, ShardState.EVICTED):
            return True
        self._refuse_local_only(run, step)
        return False

    def _refuse_local_only(self, run: str, step: int) -> None:
        save = visible_save(self._store.read(lambda sql: queries.saves_of(sql, run, step)))
        if save is not None and save.state is SaveState.LOCAL_ONLY:
            raise LocalOnlyError(
                f"a policy keeps step {step} of {run} on this node only", run=run, step=step
            )

    def _step_reached(self, run: str, step: int, level: Level) -> bool:
        saves = self._store.read(lambda sql: queries.saves_of(sql, run, step))
        save = visible_save(saves)
        if save is None:
            if saves:
                raise _ended(saves[-1])
            if level is Level.DURABLE and self._bucket.published(run, step) is not None:
                return True
            raise NotFoundError(f"run {run} has no step {step}", run=run, step=step)
        view = self._view(save)
        if view.state == "damaged":
            raise IntegrityError(f"step {step} has damaged shards", run=run, step=step)
        if level is Level.DURABLE:
            self._refuse_local_only(run, step)
        return level in view.levels

    def _age(self, run: str, step: int) -> float:
        save = visible_save(self._store.read(lambda sql: queries.saves_of(sql, run, step)))
        return max(0.0, self._clock.now() - save.started_at) if save is not None else 0.0


def save_of(manifest: Manifest) -> Save:
    """Return the save that a published manifest describes, as a node that never saw it knows it."""
    return Save(
        number=0,
        run=manifest.run,
        step=manifest.step,
        save_id=manifest.save_id,
        state=SaveState.PUBLISHED,
        world_size=manifest.world_size,
        overwrite=False,
        started_at=manifest.started_at,
        location=manifest.location,
        published_at=manifest.published_at,
    )


def view_of_save(save: Save, parts: list[RankPart], summary: Summary) -> StepView:
    """Return how this node shows a save."""
    sealed = [part for part in parts if part.state is PartState.SEALED]
    damaged = summary.quarantined_shards > 0
    here = sealed_here(parts) and not damaged and save.state in (*OPEN_STATES, SaveState.PUBLISHED)
    durable = save.state is SaveState.PUBLISHED
    return StepView(
        run=save.run,
        step=save.step,
        save_id=save.save_id,
        state=_state(save, parts, damaged),
        levels=tuple(level for level, ok in ((Level.LOCAL, here), (Level.DURABLE, durable)) if ok),
        ranks=tuple(part.rank for part in sealed),
        world_size=save.world_size,
        shards=summary.shards,
        size_bytes=summary.size_bytes,
        dirty_bytes=summary.dirty_bytes,
        started_at=save.started_at,
        sealed_at=max((part.sealed_at or 0.0 for part in sealed), default=None),
        published_at=save.published_at,
    )


def view_of_manifest(manifest: Manifest) -> StepView:
    """Return how the bucket shows a published step."""
    return StepView(
        run=manifest.run,
        step=manifest.step,
        save_id=manifest.save_id,
        state="published",
        levels=(Level.DURABLE,),
        ranks=tuple(part.rank for part in manifest.parts),
        world_size=manifest.world_size,
        shards=len(manifest.shards),
        size_bytes=sum(shard.size_bytes for shard in manifest.shards),
        dirty_bytes=0,
        started_at=manifest.started_at,
        sealed_at=None,
        published_at=manifest.published_at,
    )


def _state(save: Save, parts: list[RankPart], damaged: bool) -> str:
    if save.state not in OPEN_STATES:
        return str(save.state)
    if damaged:
        return "damaged"
    if any(part.state is PartState.ABORTED for part in parts):
        return "aborted"
    if not sealed_here(parts):
        return "open"
    return "local_only" if save.state is SaveState.LOCAL_ONLY else "sealed"


def _ended(save: Save) -> Exception:
    message = f"save {save.save_id} of step {save.step} is {save.state}"
    if save.state is SaveState.DELETED and save.local_only_at is not None and not save.wanted:
        message += "; a policy had kept it on this node only"
    kinds = {
        SaveState.SUPERSEDED: SaveSupersededError,
        SaveState.REFUSED: StepPublishedError,
        SaveState.DELETED: AbortedError,
    }
    return kinds[save.state](message, run=save.run, step=save.step)


def _shard_view(shard: Shard) -> ShardView:
    content = shard.content
    return ShardView(
        shard.name, shard.rank, content.size_bytes, f"{content.digest:016x}", shard.state
    )
