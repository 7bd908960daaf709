"""The dispatcher: hands tasks to one drain process and records its reports in the catalog.

Every answer to a report means that it is synced. A report about a shard that was replaced or
deleted meanwhile is answered with NotFoundError: the drain drops that work and clears away what it
sent.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import assert_never

from cachetier.drain import messages
from cachetier.drain.messages import AnyRequest, DrainOrders, Handout, replied
from cachetier.drain.priority.policy import Training
from cachetier.drain.schedule import scheduler
from cachetier.drain.schedule.scheduler import SaveView
from cachetier.drain.schedule.tasks import CONFLICT, Task, Work, object_task, task_of
from cachetier.drain.serve.context import DrainContext
from cachetier.drain.serve.object_reports import ObjectReports
from cachetier.drain.serve.save_reports import SaveReports
from cachetier.drain.serve.shard_reports import ShardReports
from cachetier.drain.serve.snapshot import mounts_to_show, unfinished
from cachetier.errors import BackpressureError, CatalogDamagedError, FencedError
from cachetier.local.catalog import copies, notes, saves, uploads
from cachetier.model.checkpoint import Save
from cachetier.model.compression import UNCOMPRESSED, Rules, mode_like
from cachetier.model.lifecycle import DRAINED_SAVES
from cachetier.telemetry import events
from cachetier.telemetry.events import of, tell

log = logging.getLogger(__name__)

CONFLICT_SECONDS = 30.0


class Dispatcher:
    """Answers the drain's requests. Thread-safe."""

    def __init__(
        self, context: DrainContext, orders: DrainOrders, rules: Rules = UNCOMPRESSED
    ) -> None:
        """``orders`` are the answer to ``Hello``, ``rules`` say how to compress."""
        self._rules = rules
        self._context = context
        self._store = context.store
        self._queue = context.queue
        self._stats = context.stats
        self._orders = orders
        self._shards = ShardReports(context)
        self._saves = SaveReports(context)
        self._objects = ObjectReports(context)
        # Puts that come before the remote is asked would hide that the catalog is an older one.
        own = context.store.read(notes.own_claim, context.stats.remote)
        self._counter_at_start: int | None = own.counter

    def answer(self, request: AnyRequest) -> object:
        """Do what ``request`` asks, and return the reply that it names."""
        if isinstance(request, messages.ShardRequest):
            return self._shards.answer(request)
        if isinstance(request, messages.ObjectRequest):
            return self._objects.answer(request)
        if isinstance(request, messages.SaveRequest):
            return self._saves.answer(request)
        match request:
            case messages.Hello():
                self._stats.courtesy(request.courtesy)
                return replied(request, self._orders)
            case messages.NextWork():
                return replied(request, self._next_work(request.count))
            case messages.FinishTask():
                self._queue.finish(request.task, done=request.done)
            case messages.FailTask():
                self._failed(request)
            case messages.ReportCourtesy():
                return replied(request, self._courtesy(request))
            case messages.ReportHealth():
                self._health(request)
            case messages.ReportTraffic() | messages.ReportCopies() | messages.ReportCompression():
                self._stats.report(request)
            case messages.ReadClaim() | messages.IntendClaim():
                return self._claim(request)
            case _:
                assert_never(request)
        return None

    # --- handing out work ------------------------------------------------------------------------

    def _next_work(self, count: int) -> Handout:
        wants_room, rate_limit = self._store.space.wanted_bytes > 0, self._queue.rate_limit
        if self._store.fenced is not None or not count:  # nothing could be recorded
            hurried = wants_room or self._queue.is_hurried()
            return Handout(hurried=hurried, rate_limit=rate_limit)
        situation = self._queue.situation(wants_room=wants_room)
        views = self._unfinished(count)
        plan = scheduler.plan(views, situation, count)
        self._queue.handed_out(plan.fairness)
        tasks = tuple(task for work in plan.work if (task := self._task(work)) is not None)
        hurried = wants_room or self._queue.is_hurried()
        return Handout(tasks, plan.due_in_seconds, hurried, rate_limit)

    def _unfinished(self, count: int) -> list[SaveView]:
        """Return what is to be done, less what the remote can never get whole."""
        remote_state = self._context.remote_state
        views = unfinished(
            self._store,
            remote_state,
            self._queue.blocked(),
            self._row_damaged,
            count,
            beside_packs=self._queue.names_in_flight if self._context.packing else None,
            copying=self._stats.copies == "on",
        )
        for view in views[:]:
            save = view.save
            if save.state in DRAINED_SAVES and remote_state.out_of_reach(save):
                views.remove(view)
                if remote_state.give_up(save.number, self._context.clock.now()):
                    self._stats.gave_up(save)
        mounts = self._context.mounts
        if mounts:
            blocked, damaged = self._queue.blocked(), self._row_damaged
            views += mounts_to_show(self._store, remote_state, mounts, blocked, damaged, count)
        return views

    def _row_damaged(self, save: Save, error: CatalogDamagedError) -> None:
        if self._stats.conflict(-save.number, error.message) and self._context.remote_state.decides:
            self._context.add_incident(save, error.message, error.hint)

    def _task(self, work: Work) -> Task | None:
        number = self._queue.take(work)
        if number is None:
            return None
        if work.version is not None:
            return object_task(number, work, self._context.mounts[work.save.run].bucket)
        claimant = self._store.read(saves.claimant, work.save)
        shard = work.shard
        mode = self._rules.mode_of(work.save.run, shard.name if shard is not None else "")
        if shard is not None:
            remote = self._context.remote_state.remote
            lost = self._store.read(copies.lost_as, shard.version, remote)
            mode = mode_like(mode, lost.codec) if lost is not None else mode
        return task_of(number, work, claimant, mode)

    # --- failures --------------------------------------------------------------------------------

    def _failed(self, request: messages.FailTask) -> None:
        """Put work off; it is tried again for ever."""
        work = self._queue.work(request.task)
        if work is None:
            return
        self._stats.count_failure(work, request.code, request.message)
        attempt = self._count_attempt(work)
        self._stats.tell_failure(work, request, attempt)
        if request.code == CONFLICT:
            self._queue.put_off(work.key, CONFLICT_SECONDS)
            self._report_conflict(work, request.message)
        else:
            self._queue.back_off(work.key, attempt)

    def _count_attempt(self, work: Work) -> int | None:
        """Count a failed attempt at a shard; None where that is not in the catalog, or cannot be.

        That must not keep the work from being put off: it would be sent again at once, for ever.
        """
        if work.shard is None:
            return None
        try:
            return self._store.write(uploads.count_attempt, work.shard.version, self._stats.remote)
        except (FencedError, BackpressureError):
            return None

    def _report_conflict(self, work: Work, message: str) -> None:
        number = work.shard.version if work.shard is not None else -work.save.number
        if self._stats.conflict(number, message) and self._context.remote_state.decides:
            name = work.shard.name if work.shard is not None else None
            where = {"name": name, "remote": self._stats.remote}
            tell(log, events.SHARD_CONFLICT, **of(work.save), reason=message, **where)
            hint = (
                "Move the foreign object away or delete it, unless a manifest names it: then save "
                "the step again. Draining goes on by itself."
            )
            self._context.add_incident(work.shard or work.save, message, hint)

    # --- how drain and remote are ----------------------------------------------------------------

    def _courtesy(self, request: messages.ReportCourtesy) -> Training:
        """Take how the drain behaves, and return what it should know of training."""
        self._stats.courtesy(request.report)
        hints = self._queue.phases.hints()
        urgent = self._store.space.wanted_bytes > 0
        return Training(hints.hinting_ranks, hints.busy_ranks, urgent)

    def _health(self, request: messages.ReportHealth) -> None:
        self._stats.remote_health(request.state, request.reason)
        if request.retry:
            self._queue.forgive_all()
        self._context.changes.ring()

    def _claim(self, request: messages.ReadClaim | messages.IntendClaim) -> notes.OwnClaim | None:
        """Return what is claimed of the store id, or write down what is about to be."""
        remote, at_start = self._stats.remote, self._counter_at_start
        own = self._store.read(notes.own_claim, remote)
        if isinstance(request, messages.ReadClaim):
            return replied(request, own if at_start is None else replace(own, counter=at_start))
        what = request.epoch, request.nonce, request.before
        self._store.write(notes.intend_claim, remote, *what, self._context.clock.now())
        self._counter_at_start = None
        if request.epoch != own.epoch:
            where = {"remote": remote, "store_id": self._store.store_id}
            tell(log, events.STORE_NOT_ALONE, **where, epoch=request.epoch)
        return None
