"""The dispatcher: hands tasks to one drain process and records its reports in the catalog.

Every answer to a report means that it is synced. A report about a shard that was replaced or
deleted meanwhile is answered with NotFoundError: the drain drops that work and clears away what it
sent.
"""

from __future__ import annotations

import logging
from dataclasses import asdict

from cachetier.drain.channel import Reply
from cachetier.drain.schedule import scheduler
from cachetier.drain.schedule.scheduler import SaveView
from cachetier.drain.schedule.tasks import CONFLICT, Work, task_of
from cachetier.drain.serve.context import Answers, DrainContext, Request
from cachetier.drain.serve.donors import Donors
from cachetier.drain.serve.pack_reports import PackReports
from cachetier.drain.serve.save_reports import SaveReports
from cachetier.drain.serve.shard_reports import ShardReports
from cachetier.drain.serve.snapshot import out_of_reach, unfinished
from cachetier.errors import (
    CatalogDamagedError,
    FencedError,
)
from cachetier.local.catalog import drain_writes, queries
from cachetier.model.checkpoint import Save
from cachetier.model.compression import UNCOMPRESSED, Rules
from cachetier.telemetry import events
from cachetier.telemetry.events import of, tell

log = logging.getLogger(__name__)

CONFLICT_SECONDS = 30.0


class Dispatcher:
    """Answers the drain's requests. Thread-safe."""

    def __init__(
        self, context: DrainContext, settings: Request, rules: Rules = UNCOMPRESSED
    ) -> None:
        """``settings`` is what ``hello`` answers, ``rules`` say how to compress."""
        self._rules = rules
        self._context = context
        self._store = context.store
        self._queue = context.queue
        self._stats = context.stats
        self._settings = settings
        self._answers: Answers = {
            **ShardReports(context).answers(),
            **SaveReports(context).answers(),
            **Donors(context).answers(),
            **PackReports(context).answers(),
            "hello": self._hello,
            "next_work": self._next_work,
            "failed": self._failed,
            "finish": self._finish,
            "traffic": self._traffic,
            "compression": self._compression,
            "copies": self._copies,
            "courtesy": self._courtesy,
            "remote": self._remote,
        }

    def answer(self, request: Request) -> Reply:
        """Do what ``request`` asks; an unknown one is a defect of ours."""
        return self._answers[request["op"]](request)

    # --- handing out work ------------------------------------------------------------------------

    def _hello(self, request: Request) -> Reply:
        self._stats.courtesy(request["courtesy"])
        return Reply({"settings": self._settings})

    def _next_work(self, request: Request) -> Reply:
        if self._store.fenced is not None:
            # Nothing could be recorded.
            return Reply({"tasks": [], "due_in_seconds": None, "hurried": False})
        situation = self._queue.situation(wants_room=self._store.space.wanted_bytes > 0)
        count = request["count"]
        views = self._unfinished(count)
        plan = scheduler.plan(views, situation, count)
        self._queue.handed_out(plan.fairness)
        tasks = [task for work in plan.work if (task := self._task(work)) is not None]
        hurried = situation.wants_room or self._queue.is_hurried()
        return Reply({"tasks": tasks, "due_in_seconds": plan.due_in_seconds, "hurried": hurried})

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
        lost = out_of_reach(remote_state, views)
        for save in lost:
            if remote_state.give_up(save.number, self._context.clock.now()):
                self._stats.gave_up(save)
        return [view for view in views if view.save not in lost]

    def _row_damaged(self, save: Save, error: CatalogDamagedError) -> None:
        if self._stats.conflict(-save.number, error.message) and self._context.remote_state.decides:
            self._context.add_incident(save, error.message, error.hint)

    def _task(self, work: Work) -> Request | None:
        number = self._queue.take(work)
        if number is None:
            return None
        replaced = self._store.read(lambda sql: queries.replaced_by(sql, work.save))
        name = work.shard.name if work.shard is not None else ""
        mode = self._rules.mode_of(work.save.run, name)
        return task_of(number, work, replaced, mode).as_json()

    def _finish(self, request: Request) -> Reply:
        work = self._queue.work(request["task"])
        if work is not None and request["done"]:
            self._queue.succeeded(work.key)
        self._queue.finish(request["task"])
        return Reply({})

    # --- failures --------------------------------------------------------------------------------

    def _failed(self, request: Request) -> Reply:
        """Put work off; it is tried again for ever."""
        work = self._queue.work(request["task"])
        if work is None:
            return Reply({})
        code, message = request["code"], request["message"]
        attempt = self._count_attempt(work)
        self._stats.failed(work, code, message, attempt, request.get("seconds"))
        if code == CONFLICT:
            self._queue.put_off(work.key, CONFLICT_SECONDS)
            self._report_conflict(work, message)
        else:
            self._queue.back_off(work.key, attempt)
        return Reply({})

    def _count_attempt(self, work: Work) -> int | None:
        if work.shard is None:
            return None
        try:
            return self._store.write(
                drain_writes.count_attempt, work.shard.version, self._stats.remote
            )
        except FencedError:
            return None

    def _report_conflict(self, work: Work, message: str) -> None:
        number = work.shard.version if work.shard is not None else -work.save.number
        if self._stats.conflict(number, message) and self._context.remote_state.decides:
            name = work.shard.name if work.shard is not None else None
            where = {"name": name, "remote": self._stats.remote}
            tell(log, events.SHARD_CONFLICT, **of(work.save), reason=message, **where)
            hint = "Move the foreign object away or delete it; draining goes on by itself."
            self._context.add_incident(work.shard or work.save, message, hint)

    def _traffic(self, request: Request) -> Reply:
        requests, throttled = request["requests"], request["throttled"]
        self._stats.traffic(requests, throttled, request["sent_bytes"], request["pace"])
        return Reply({})

    def _copies(self, request: Request) -> Reply:
        self._stats.copied(request["state"], request["copied_bytes"])
        return Reply({})

    def _compression(self, request: Request) -> Reply:
        self._stats.decided(request["news"])
        return Reply({})

    def _courtesy(self, request: Request) -> Reply:
        """Take how the drain behaves, and answer what it should know of training."""
        self._stats.courtesy(request["report"])
        hints = self._queue.phases.hints()
        urgent = self._store.space.wanted_bytes > 0
        return Reply({"training": {**asdict(hints), "urgent": urgent}})

    def _remote(self, request: Request) -> Reply:
        self._stats.remote_health(request["state"], request["reason"])
        if request["retry"]:
            self._queue.forgive_all()
        self._context.changes.ring()
        return Reply({})
