"""What is live on each page: its sections by name, each rendered of the node as it is now."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any

from cachetier_client.identity.names import base_run
from markupsafe import Markup

from cachetier.access.principals import Caller
from cachetier.console import grid, steps, timeline
from cachetier.console.history import History
from cachetier.console.rendering import rendered
from cachetier.doors.http.console.visit import sees_node
from cachetier.doors.http.pools import Pools
from cachetier.doors.operations import Operations
from cachetier.model.names import is_hidden
from cachetier.status import view
from cachetier.steps.views import StepProgress
from cachetier.telemetry.recent_events import RecentEvent

EVENTS_SHOWN = 40
FIRST_ROWS = 24
PENDING_ROWS = 12

Sections = Mapping[str, Markup]
Lines = tuple[grid.GridWindow, tuple[grid.Line, ...]]


@dataclass(frozen=True, slots=True)
class Live:
    """Renders the sections of pages, as far as a caller may see them."""

    node: Operations
    pools: Pools
    history: History

    async def of_node(self, caller: Caller) -> Sections:
        """Return the sections of the page of the node; of a tenant only what is about its runs."""
        found = await self.pools.quick(self.node.checkpoints.runs)
        seen = (base_run(run) for run in found if not is_hidden(run) and caller.principal.sees(run))
        runs = list(dict.fromkeys(seen))
        events = rendered("events.html", events=self._events(caller))
        if not sees_node(self.node.access, caller):
            mounts = view.mounts([{"mount": name} for name in self.node.s3.seen_by(caller)])
            rows = rendered("runs.html", runs=view.runs(None, runs), mounts=mounts)
            return {"runs": rows, "events": events}
        look = await self.history.look()
        status, rates = look.status, look.rates
        codecs, totals = view.codecs(status)
        mounts = view.mounts(status["mounts"], status["exposure_objective_seconds"])
        pending = view.pending(status, look.at).without("dirty").first(PENDING_ROWS)
        return {
            "exposure": rendered("exposure.html", exposure=view.verdict(status), status=status),
            "troubles": rendered("troubles.html", troubles=view.troubles(status, look.at)),
            "tiles": rendered("tiles.html", tiles=view.tiles(status, rates)),
            "runs": rendered("runs.html", runs=view.runs(status, runs), mounts=mounts),
            "remotes": rendered("remotes.html", remotes=view.remotes(status, rates)),
            "pending": rendered("pending.html", pending=pending),
            "codecs": rendered("codecs.html", codecs=codecs, totals=totals),
            "events": events,
        }

    async def of_run(self, caller: Caller, run: str) -> Sections:
        """Return the sections of the page of a run."""
        with self.node.access.doing(caller, "steps", run):
            views = await self.pools.patient(
                self.node.checkpoints.newest_steps, run, steps.STEPS_SHOWN
            )
            known = await self.pools.quick(self.node.checkpoints.runs)
        rows = steps.step_rows(views, time.time())
        paths = [each for each in known if each != run and base_run(each) == run]
        return {"steps": rendered("steps.html", run=run, rows=rows, paths=paths)}

    async def in_bucket(self, caller: Caller, run: str) -> list[steps.StepRow]:
        """Return the newest steps that the bucket has of a run, and this node has nothing of."""
        with self.node.access.doing(caller, "steps", run):
            where = run, steps.ELSEWHERE_SHOWN
            views = await self.pools.patient(self.node.checkpoints.durable_elsewhere, *where)
        return steps.step_rows(views, time.time())

    async def of_step(self, caller: Caller, run: str, step: int) -> Sections:
        """Return the sections of the page of a step.

        Raises:
            NotFoundError: Neither this node nor the bucket knows it.
        """
        found, now = await self.progress(caller, run, step), time.time()
        if found is None:
            view, _ = await self.pools.patient(self.node.checkpoints.step, run, step)
            row, line, counts = steps.step_row(view, now), None, {}
        else:
            row, counts = steps.step_row(found.view, now), grid.counts_of(found.shards)
            own = timeline.saved_here(found.save, found.parts, found.ranks)
            seen = own or found.parts
            line = timeline.timeline_of(found.save, found.parts, own, now) if seen else None
        return {
            "step": rendered("step_head.html", run=run, row=row),
            "timeline": rendered("timeline.html", line=line),
            "legend": rendered("legend.html", counts=counts, levels=grid.LEVELS),
        }

    async def progress(self, caller: Caller, run: str, step: int) -> StepProgress | None:
        with self.node.access.doing(caller, "step", run, step=step):
            return await self.pools.patient(self.node.checkpoints.progress, run, step)

    async def lines(self, caller: Caller, run: str, step: int, first: int, rows: int) -> Lines:
        """Return some lines of a step's grid; none where this node knows no such step."""
        found = await self.progress(caller, run, step)
        if found is None:
            return grid.window_of((), 0, rows), ()
        window = grid.window_of(found.ranks, first, rows)
        where = found.save, window.start, window.shards
        shards = await self.pools.patient(self.node.checkpoints.places, *where)
        return window, grid.filled(window, shards, self._uploading(run, step), time.time())

    async def shard(self, caller: Caller, run: str, step: int, version: int) -> dict[str, Any]:
        """Return one shard, and its level.

        Raises:
            NotFoundError: It is not what the step has now.
        """
        with self.node.access.doing(caller, "step", run, step=step):
            found = await self.pools.patient(self.node.checkpoints.place, run, step, version)
        level = grid.level_of(found, self._uploading(run, step))
        return {"shard": found, "level": level, "words": grid.LEVELS[level], "now": time.time()}

    def _uploading(self, run: str, step: int) -> set[str]:
        latest = self.history.latest
        sent = latest.status["drain"].get("uploading", ()) if latest is not None else ()
        return {str(each["name"]) for each in sent if (each["run"], each["step"]) == (run, step)}

    def _events(self, caller: Caller) -> list[RecentEvent]:
        principal = caller.principal
        seen = (
            each
            for each in self.node.recent_events()
            if principal.sees_all or (each.run is not None and principal.sees(base_run(each.run)))
        )
        return list(islice(seen, EVENTS_SHOWN))
