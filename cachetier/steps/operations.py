"""Operations on whole steps, the same for every door: seal, look, wait, flush, delete, pin.

``latest`` at ``local`` is this node's truth: the newest step whose every rank expected here has
sealed and whose bytes are sound. ``latest`` at ``durable`` is the bucket's: the newest published
manifest. At ``replicated`` it is what the remotes that answer say together, and this node.

A pin keeps what is on the node there until the person who pinned it lets it go, whatever room is
wanted and whatever ``keep_local`` says, and no call deletes the step. It brings nothing back that
has gone before.

Source for pins: docs/design/0013-pins.md.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

from cachetier_client.bucket_format.publication import is_whole
from cachetier_client.clock import Clock
from cachetier_client.identity import names
from cachetier_client.identity.names import SaveIds
from cachetier_client.identity.places import has_one_step
from cachetier_client.trace_context import brought_along

from cachetier.errors import (
    BackpressureError,
    FencedError,
    IntegrityError,
    InvalidRequestError,
    LocalOnlyError,
    NotDurableError,
    NotFoundError,
    RemoteError,
)
from cachetier.local.catalog import copies, figures, manifests, notes, parts, saves, shards
from cachetier.local.catalog.figures import ShardPlace
from cachetier.local.catalog.notes import Pin
from cachetier.local.store import Store
from cachetier.model.checkpoint import Save
from cachetier.model.levels import HERE, Level
from cachetier.model.lifecycle import (
    CONFIRMED_SAVES,
    DURABLE_SAVES,
    KEPT_SAVES,
    OPEN_SAVES,
    CopyState,
    SaveState,
    ShardState,
)
from cachetier.model.names import DURABLE
from cachetier.notifier import Changes
from cachetier.remote.bucket import Bucket, Remote
from cachetier.restore.adopt import save_of
from cachetier.restore.knowledge import Knowledge, max_age_of
from cachetier.restore.published import FoundStep, PublishedSteps
from cachetier.steps.pending import Pending, drained, pending_of
from cachetier.steps.refusals import ended, no_step
from cachetier.steps.unflushed import UnflushedSteps
from cachetier.steps.views import (
    NewestSteps,
    ShardView,
    StepProgress,
    StepView,
    remote_shards,
    view_of_found,
    view_of_save,
    with_parts,
)
from cachetier.steps.waits import AskBucket, Question
from cachetier.telemetry import events
from cachetier.telemetry.events import of, tell

log = logging.getLogger(__name__)

BRANCHES_AT_ONCE = 16  # each of them some requests to a remote

Hurry = Callable[[str | None, int | None], None]


@dataclass(frozen=True, slots=True)
class Replication:
    """The copies that somebody waits for: at ``replicated``.

    ``hurry`` has the drains bring a step first to the replicas; ``refusals`` says of each remote
    why, since an instant, it takes nothing of a step, or None. ``rejects``: if none takes it those
    who wait are told so at once.
    """

    hurry: Hurry = lambda _run, _step: None
    refusals: Callable[[str, int, float], list[str | None]] = lambda _run, _step, _since: []
    rejects: bool = False


class Checkpoints:
    """Looks at and changes whole steps. Thread-safe.

    ``unflushed`` says what other nodes hold that is not durable.

    Args:
        store: What is here.
        bucket: The durable remote, which the catalog calls ``remote``.
        changes: Rung by whoever changes anything.
        clock: For rows and deadlines.
        hurry: Has the drain bring a step first to where it must be.
        replication: The copies that somebody waits for.
        published: What all remotes say; of the durable one alone by default.
        remote: See ``bucket``.
    """

    def __init__(
        self,
        store: Store,
        bucket: Bucket,
        changes: Changes,
        clock: Clock,
        *,
        hurry: Hurry = lambda _run, _step: None,
        replication: Replication = Replication(),
        published: PublishedSteps | None = None,
        remote: str = DURABLE,
    ) -> None:
        self._store = store
        self._changes = changes
        self._clock = clock
        self._hurry = hurry
        self._replication = replication
        durable = Remote(remote, bucket)
        knowledge = published.knowledge if published else Knowledge(store, durable, clock)
        self._published = published or PublishedSteps(store, durable, knowledge=knowledge)
        self._knowledge = knowledge
        self.unflushed = UnflushedSteps(store, bucket, self._published, clock)
        self._remote = remote

    # --- changing --------------------------------------------------------------------------------

    def seal(self, ids: SaveIds, ranks_on_node: int | None, *, follows: bool = False) -> list[int]:
        """Seal a rank's part; return the ranks sealed here under its save.

        One that ``follows`` may still grow until rank 0 has sealed, and counts only then.
        """
        began_at, now = self._clock.monotonic(), self._clock.now()

        def sealing() -> list[int]:
            what = self._store.policy, ids, ranks_on_node, now
            return self._store.write(parts.seal, *what, follows=follows)

        sealed = self._knowledge.after_asking(ids.run, ids.step, sealing)
        self._changes.ring()
        seconds = self._clock.monotonic() - began_at
        here = self._store.read(saves.summary_named, ids)
        who = {"rank": ids.rank, "world_size": ids.world_size, "sealed": len(sealed)}
        what = {"shards": here.shards, "size_bytes": here.size_bytes, "seconds": seconds}
        tell(log, events.PART_SEALED, **of(ids), **who, **what, **brought_along())
        return sealed

    def abort_rank(self, ids: SaveIds) -> None:
        """Take back what a rank put, unless it sealed."""
        self._store.drop(self._store.write(parts.abort_rank, ids))
        self._changes.ring()

    def take_over(self, ids: SaveIds, replaces: Sequence[str]) -> None:
        """Begin another node's part, of a save that it saw replace others, before it is put here.

        Raises:
            StepPublishedError: Another save is published that it is not known to replace.
        """
        what = self._store.policy, ids, replaces, self._clock.now()
        self._store.drop(self._store.write(parts.take_over, *what))

    def delete_shard(self, run: str, step: int, name: str) -> None:
        """Remove one shard of an unsealed part."""
        self._store.drop([self._store.write(parts.delete_shard, run, step, name)])

    def delete_step(self, run: str, step: int) -> int:
        """Delete a step here at once, and at every remote as soon as the drains get to it.

        Raises:
            NotFoundError: Neither this node nor the bucket knows the step.
            PinnedError: It is pinned here.
        """
        self._knowledge.refresh(run, step)
        found = self._store.read(saves.saves_of, run, step)
        visible = self._store.read(saves.shown_of, found)
        if visible is None or visible.state is SaveState.REPLICATED:
            self._adopt_published(run, step, must_exist=not found)
        shards = self._store.write(saves.delete_step, run, step)
        self._store.drop(shards)
        self._changes.ring()
        return len(shards)

    def _adopt_published(self, run: str, step: int, *, must_exist: bool) -> None:
        """Learn of the step's save from the remotes, so that it can be deleted there.

        The durable remote must answer: what is deleted at the replicas only would come back.
        """
        manifest = self._published.durable(run, step)
        found = FoundStep(manifest, durable=True) if manifest else self._published.find(run, step)
        if found is not None:
            self._store.write(
                manifests.adopt, self._store.policy, save_of(found), (), self._clock.now()
            )
        elif must_exist:
            raise no_step(run, step)

    # --- pinning ---------------------------------------------------------------------------------

    def pin(self, run: str, step: int) -> Pin:
        """Keep a step on this node until it is unpinned; return what is here of it.

        Raises:
            NotFoundError: This node knows no such step.
        """
        where = names.checked_run(run), names.checked_step(step)
        return self._store.write(saves.pin, *where, self._clock.now())

    def unpin(self, run: str, step: int) -> bool:
        """Let a step go again; return whether it was pinned."""
        return self._store.write(notes.unpin, names.checked_run(run), names.checked_step(step))

    def pins(self) -> list[Pin]:
        """Return the pinned steps, by run and step."""
        return self._store.read(notes.pins)

    # --- looking ---------------------------------------------------------------------------------

    def runs(self) -> list[str]:
        """Return the runs this node knows a step of, deleted ones left aside."""
        return self._store.read(saves.runs_with_steps)

    def steps(self, run: str, level: Level | None = None) -> list[StepView]:
        """Return the run's steps, ascending: this node's, and at ``durable`` the bucket's.

        At ``replicated`` they are both, and those of the replicas.
        """
        names.checked_run(run)
        if level is Level.DURABLE:
            views = list(self._durable(run))
            for view in views:
                self._knowledge.named(run, view.step, view.save_id)
            return views[::-1]
        if level is Level.REPLICATED:
            return self._replicated(run)
        views = [self._view(save) for save in self._refreshed(run)]
        return [view for view in views if level is None or view.has_reached(level)]

    def listed(self, run: str, level: Level | None, *, count_elsewhere: bool) -> dict[str, Any]:
        """Return ``steps`` as JSON, and if asked how many more S3 has (null: it is silent)."""
        found: dict[str, Any] = {"steps": [view.as_json() for view in self.steps(run, level)]}
        return {**found, "elsewhere": self._elsewhere(run)} if count_elsewhere else found

    def newest_steps(self, run: str, limit: int) -> list[StepView]:
        """Return up to ``limit`` steps of a run that this node knows, the newest first."""
        newest = self._refreshed(names.checked_run(run), limit)
        return [self._view(save) for save in reversed(newest)]

    def durable_elsewhere(self, run: str, limit: int) -> list[StepView]:
        """Return up to ``limit`` durable steps that this node has nothing of, the newest first.

        Raises:
            RemoteError: The bucket cannot be asked.
        """
        known = {save.step for save in self._shown_saves(names.checked_run(run))}
        return list(islice(self._durable(run, known), limit))

    def _elsewhere(self, run: str) -> int | None:
        """Return how many steps S3 has that this node knows nothing of; None if it is silent."""
        known = {save.step for save in self._store.read(saves.saves_of_run, run)}
        found = self._knowledge.listed(run, known)
        return None if found is None else len(found)

    def _durable(self, run: str, besides: Collection[int] = ()) -> Iterator[StepView]:
        for manifest in self._published.durable_steps(run, besides):
            yield self._found(FoundStep(manifest, durable=True))

    def _found(self, found: FoundStep) -> StepView:
        """Return how the remotes that were just asked show a step."""
        checked_at = self._clock.now() if found.durable else None
        return replace(view_of_found(found), checked_at=checked_at)

    def _refreshed(self, run: str, limit: int = 0) -> list[Save]:
        """Return what ``_shown_saves`` does, the ``limit`` newest, once the bucket was asked."""
        shown = self._shown_saves(run)[-limit:]
        steps = [save.step for save in reversed(shown) if save.state in CONFIRMED_SAVES]
        asked = self._knowledge.refresh_listed(run, steps)
        return self._shown_saves(run)[-limit:] if asked else shown

    def progress(self, run: str, step: int) -> StepProgress | None:
        """Return how far each rank of a step is here, or None where this node knows no such step.

        For people who watch it: nobody who saves or restores waits for that.
        """
        self._knowledge.refresh(run, step)
        save = self._store.look(saves.shown_save, run, step)
        if save is None:
            return None
        parts = self._store.look(saves.parts_of, save.number)
        ranks = self._store.look(figures.rank_progress, save.number, self._remote)
        shards = self._store.look(figures.shard_counts, save.number, self._remote)
        return StepProgress(save, self._view(save), parts, ranks, shards)

    def places(self, save: Save, start: int, limit: int) -> list[ShardPlace]:
        """Return where ``limit`` shards of a save are, from ``start`` on, by rank and arrival."""
        where = save.number, self._remote, start, limit
        return self._store.look(figures.shard_places, *where)

    def place(self, run: str, step: int, version: int) -> ShardPlace:
        """Return where one shard of a step is.

        Raises:
            NotFoundError: It is not here any more, or was put again since.
        """
        save = self._store.look(saves.shown_save, run, step)
        where = save and (save.number, self._remote, version)
        found = self._store.look(figures.shard_place, *where) if where else None
        if found is None:
            raise NotFoundError(f"this shard of {run}/{step} was deleted or replaced", run=run)
        return found

    def branches(self, run: str, level: Level | None = None) -> list[StepView]:
        """Return the steps of all branches of a run, by branch and step; levels as for ``steps``.

        Raises:
            RemoteError: At a level of remotes none answers, and nothing of the run is here.
        """
        names.checked_run(run)
        known = set(self._store.read(saves.branches_with_steps, run))
        if level is None or level in HERE:
            return [view for branch in sorted(known) for view in self.steps(branch, level)]
        try:
            known |= self._published.branches(run)
        except RemoteError:
            if not known or level is Level.DURABLE:
                raise
        found = {branch: self._whole_here(branch) for branch in sorted(known)}
        asked = [branch for branch, views in found.items() if not views]
        if asked:
            with ThreadPoolExecutor(min(len(asked), BRANCHES_AT_ONCE)) as pool:
                answers = pool.map(lambda branch: self.steps(branch, level), asked)
                found.update(zip(asked, answers, strict=True))
        return [view for views in found.values() for view in views if level in view.levels]

    def _whole_here(self, branch: str) -> list[StepView]:
        """Return the one step of a branch that has no more, if it is whole: no remote is asked."""
        shown = self._shown_saves(branch) if has_one_step(branch) else []
        return [view for save in shown if (view := self._view(save)).levels]

    def latest(self, run: str, level: Level) -> StepView | None:
        """Return the newest step restorable at ``level``, or None: readers get its save."""
        found = self._latest(names.checked_run(run), level)
        if found is not None:
            self._knowledge.named(run, found.step, found.save_id)
        return found

    def _latest(self, run: str, level: Level) -> StepView | None:
        if level is Level.DURABLE:
            return next(self._durable(run), None)
        if level is Level.REPLICATED:
            return next(reversed(self._replicated(run, 1)), None)
        while True:  # another step is the newest if that one was deleted elsewhere
            views = (self._view(save) for save in reversed(self._shown_saves(run)))
            found = next((view for view in views if view.has_reached(level)), None)
            if found is None or found.state not in DURABLE_SAVES:
                return found
            if self._knowledge.is_fresh(run, found.step):
                return found
            if self._knowledge.refresh(run, found.step) is not None:
                return found

    def newest(self, run: str, level: Level) -> NewestSteps:
        """Return ``latest``, and newer steps: of this node, of remotes, of other nodes."""
        run = names.checked_run(run)
        heard = None if level in HERE else self.unflushed.heard(run)
        found = self.latest(run, level)
        number, save_id = (found.step, found.save_id) if found is not None else (-1, "")
        if level in HERE:
            shown = [save for save in self._shown_saves(run) if save.state in CONFIRMED_SAVES]
            there = max((save.step for save in shown), default=number)
            return NewestSteps(found, newer_remote=there if there > number else None)
        elsewhere = heard and tuple(each for each in heard if each.is_newer(number, save_id))
        here = self._latest(run, Level.MEMORY)
        newer = here.step if here is not None and here.step > number else None
        return NewestSteps(found, newer_local=newer, unflushed=elsewhere)

    def step(self, run: str, step: int) -> tuple[StepView, list[ShardView]]:
        """Return one step with its shards, from this node or else from the bucket.

        Raises:
            NotFoundError: Neither knows it.
        """
        save, stale = self._store.read(saves.shown_save, run, step), None
        if save is not None:  # else the bucket is asked anyway
            stale = self._knowledge.refresh(run, step, max_age_of(run))
            save = self._store.read(saves.shown_save, run, step)
        if save is not None:
            view = self._view(save)
            listed = self._store.read(shards.shards_of, save.number)
            if save.state in OPEN_SAVES or view.shards:
                here = [ShardView.of_shard(shard) for shard in listed]
                return view, here + ([] if stale else self._shards_elsewhere(save, view, here))
        found = self._published.find(run, step)
        if found is None:
            raise no_step(run, step)
        return self._found(found), remote_shards(found)

    def _shards_elsewhere(
        self, save: Save, view: StepView, here: list[ShardView]
    ) -> list[ShardView]:
        """Return what other nodes put into a published save; nothing while no remote answers."""
        if save.state not in DURABLE_SAVES or is_whole(save.world_size, view.ranks):
            return []
        try:
            found = self._published.find(save.run, save.step)
        except RemoteError:
            return []
        if found is None or found.manifest.save_id != save.save_id:
            return []
        names = {shard.name for shard in here}
        return [shard for shard in remote_shards(found) if shard.name not in names]

    def _replicated(self, run: str, limit: int | None = None) -> list[StepView]:
        """Return the steps that some remote has published, this node's view of each first.

        Ascending; with ``limit`` the newest that is here and so many newest ones of the remotes.
        """
        asked, failure = list[FoundStep](), None
        try:
            asked = list(islice(self._published.steps(run), limit))
        except RemoteError as error:
            failure = error  # what this node knows to be there is still true
        shown = (self._view(save) for save in reversed(self._shown_saves(run)))
        here = list(islice((view for view in shown if Level.REPLICATED in view.levels), limit))
        if failure is not None and not here:
            raise failure
        views = {found.manifest.step: self._found(found) for found in asked}
        views.update({view.step: view for view in here})
        return [views[step] for step in sorted(views)]

    def _shown_saves(self, run: str) -> list[Save]:
        """Return the save that stands for each step, ascending by step."""
        found = self._store.read(saves.saves_of_run, run)
        by_step: dict[int, list[Save]] = {}
        for save in found:
            if save.state is not SaveState.DELETED:
                by_step.setdefault(save.step, []).append(save)
        return [
            self._store.read(saves.shown_of, group) or group[-1]
            for _, group in sorted(by_step.items())
        ]

    def _view(self, save: Save) -> StepView:
        parts = self._store.read(saves.parts_of, save.number)
        summary = self._store.read(shards.summary_of, save.number)
        there = self._store.read(copies.copies_at_replicas, save.number)
        replicated = any(each.state is CopyState.PUBLISHED for each in there)
        pinned = self._store.read(notes.is_pinned, save.run, save.step)
        confirmed = save.state in CONFIRMED_SAVES
        whole = self._store.read(shards.whole_ranks, save.number) if confirmed else ()
        known = save, parts, summary
        view = view_of_save(*known, replicated=replicated, pinned=pinned, whole_ranks=whole)
        look = self._knowledge.look(save.run, save.step)
        if look is not None and confirmed:
            view = replace(view, checked_at=look.checked_at)
            if look.seen and look.seen.manifest.save_id == save.save_id and not summary.shards:
                view = with_parts(view, look.seen.manifest.parts)
        if summary.dirty_shards:
            lost = self._store.read(copies.saves_to_send_again, self._remote)
            if any(save.number == each.number for each in lost):
                return replace(view, levels=tuple(each for each in view.levels if each in HERE))
        return view

    # --- waiting ---------------------------------------------------------------------------------

    def level_reached(self, run: str, step: int, name: str | None, level: Level) -> Question[float]:
        """Hurry a step, and return the question when it, or one shard of it, reaches ``level``.

        The answer is its age in seconds, or one of these:

        Raises:
            NotDurableError: Not in time.
            BackpressureError: No remote takes it, and those who wait are told so at once.
            IntegrityError, SaveSupersededError, StepPublishedError, AbortedError: It never will.
            LocalOnlyError: It will not unless it is flushed.
            NotFoundError: There is no such step or shard.
        """
        if level is Level.LOCAL and self._store.kept_in_memory:
            self._store.bring_to_disk()
            self._changes.ring()
        if level not in HERE:
            self._hurry(run, step)
        if level is Level.REPLICATED:
            self._replication.hurry(run, step)

        what = f"step {step}" if name is None else f"shard {name} of step {step}"
        since = self._clock.now()

        def refusals() -> list[str | None]:
            return self._replication.refusals(run, step, since) if level is Level.REPLICATED else []

        def look() -> float | AskBucket[float] | None:
            found: float | AskBucket[float] | None = None
            if name is None:
                found = self._step_reached(run, step, level)
            elif self._shard_reached(run, step, name, level):
                found = self._age(run, step)
            if (
                found is None
                and self._replication.rejects
                and (why := refusals())
                and None not in why
            ):
                raise BackpressureError(
                    "; ".join([f"{what} is not {level}", *map(str, why)]),
                    hint="Call again once a remote is back or has room: `cachetier status` tells.",
                    run=run,
                    step=step,
                )
            return found

        def late(seconds: float) -> float:
            text = "; ".join(
                [f"{what} is not {level} after {seconds:g} s", *filter(None, refusals())]
            )
            raise NotDurableError(text, run=run, step=step, name=name)

        return Question(("level", run, step, name, level), look, late)

    def flush(self, run: str | None, step: int | None, timeout_seconds: float) -> Pending:
        """Wait until nothing dirty is left (of a run, of a step); return what is at the deadline.

        Raises as ``drained`` does.
        """
        return self.drained(run, step).answer(self._changes, timeout_seconds)

    def drained(self, run: str | None, step: int | None) -> Question[Pending]:
        """Hurry what is dirty, and return the question that ``flush`` asks, to be asked elsewhere.

        A step that is named is drained even if a policy would keep it here. The answer about a run
        or step that this node does not know comes from the bucket, and may be one of these too:

        Raises:
            AbortedError, SaveSupersededError, StepPublishedError: The step named never will be.
            FencedError: The disk failed: what is drained cannot be recorded.
            NotFoundError: Neither this node nor the bucket knows what was named.
            NotDurableError: This node does not, and the bucket has not answered in time.
        """
        if step is not None:
            self._want(run, step)
        self._hurry(run, step)
        if self._store.fenced is not None and pending_of(self._store, run, step):
            raise FencedError(self._store.fenced)
        return drained(self._store, run, step, lambda: self._is_durable_elsewhere(run, step))

    def _is_durable_elsewhere(self, run: str | None, step: int | None) -> bool:
        """Return whether the bucket has what this node knows nothing of."""
        assert run is not None
        steps = self._durable(run) if step is None else [self._published.durable(run, step)]
        if next(iter(steps), None) is not None:
            return True
        return any(step in (None, view.step) for view in self.branches(run, Level.DURABLE))

    def _want(self, run: str | None, step: int) -> None:
        if run is None:
            raise InvalidRequestError("a step can only be flushed with its run", step=step)
        found = self._store.read(saves.saves_of, run, step)
        save = self._store.read(saves.shown_of, found)
        if save is None and found:
            raise ended(found[-1])
        if save is not None and save.state is SaveState.REPLICATED:
            raise NotDurableError(
                f"step {step} of {run} is known from a replica alone: this node has none of it",
                run=run,
                step=step,
            )
        if save is not None and save.state in OPEN_SAVES and not save.wanted:
            self._store.write(saves.want, save.number)

    def _shard_reached(self, run: str, step: int, name: str, level: Level) -> bool:
        shard = self._store.read(saves.visible_shard, run, step, name)
        if shard is None:
            raise NotFoundError(f"no shard {name} in step {step}", run=run, step=step, name=name)
        verified = self._store.read(shards.present_remotes, shard.version, self._remote)
        if self._remote in verified or (verified and level is Level.REPLICATED):
            return True
        if shard.state is ShardState.QUARANTINED:
            raise IntegrityError(f"shard {name} is damaged", run=run, step=step, name=name)
        if level in HERE:
            return level is Level.MEMORY or not shard.in_memory
        self._refuse_local_only(run, step)
        return False

    def _refuse_local_only(self, run: str, step: int) -> None:
        save = self._store.read(saves.shown_save, run, step)
        if save is not None and save.state in KEPT_SAVES:
            raise LocalOnlyError(
                f"a policy keeps step {step} of {run} on this node only", run=run, step=step
            )

    def _step_reached(self, run: str, step: int, level: Level) -> float | AskBucket[float] | None:
        found = self._store.read(saves.saves_of, run, step)
        save = self._store.read(saves.shown_of, found)
        if save is None:
            if found:
                raise ended(found[-1])
            if level not in HERE:
                return AskBucket(lambda: self._age_elsewhere(run, step, level))
            raise no_step(run, step)
        view = self._view(save)
        if view.state == "damaged":
            raise IntegrityError(f"step {step} has damaged shards", run=run, step=step)
        if view.has_reached(level) or (level in HERE and save.state in CONFIRMED_SAVES):
            return self._age(run, step)
        if level not in HERE:
            self._refuse_local_only(run, step)
        if save.state is SaveState.REPLICATED:
            return AskBucket(lambda: self._age_elsewhere(run, step, level))
        return None

    def _age_elsewhere(self, run: str, step: int, level: Level) -> float | None:
        """Return the age of a step of which nobody here knows, if it is published."""
        if self._is_published(run, step, level):
            return self._age(run, step)
        if self._store.read(saves.shown_save, run, step) is None:
            raise no_step(run, step)
        return None

    def _is_published(self, run: str, step: int, level: Level) -> bool:
        if level is Level.DURABLE:
            return self._published.durable(run, step) is not None
        return self._published.find(run, step) is not None

    def _age(self, run: str, step: int) -> float:
        save = self._store.read(saves.shown_save, run, step)
        return max(0.0, self._clock.now() - save.started_at) if save is not None else 0.0
