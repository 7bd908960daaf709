"""The live sections of each page, by name, each rendered from the node as it is now."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cachetier_client.identity.names import base_run
from markupsafe import Markup

from cachetier.access.principals import Caller
from cachetier.console import steps
from cachetier.console.history import History
from cachetier.console.rendering import rendered
from cachetier.doors.http.console.actions import ACTIONS
from cachetier.doors.http.console.visit import is_admin, sees_node
from cachetier.doors.http.pools import Pools
from cachetier.doors.operations import Operations
from cachetier.errors import RemoteError
from cachetier.model.names import is_hidden
from cachetier.status import view
from cachetier.steps.views import StepProgress, StepView
from cachetier.telemetry.recent_events import RecentEvent

EVENTS_SHOWN, PAGE_EVENTS = 12, 100
GRAVE = frozenset(("warning", "error", "critical"))
FIRST_ROWS = 24
AGES_SECONDS = 10
PENDING_ROWS = 12

Sections = Mapping[str, Markup]


@dataclass(frozen=True, slots=True)
class Live:
    """Renders the sections of pages, as far as a caller may see them."""

    node: Operations
    pools: Pools
    history: History

    async def of_page(self, caller: Caller, run: str | None, step: int | None) -> Sections:
        """Return the sections of the page of a step or a run, or of the node if there is none."""
        if run is None:
            return await self.of_node(caller)
        return await (self.of_run(caller, run) if step is None else self.of_step(caller, run, step))

    async def of_node(self, caller: Caller) -> Sections:
        """Return the sections of the page of the node; of a tenant only what is about its runs."""
        found = await self.pools.quick(self.node.checkpoints.runs)
        seen = (base_run(run) for run in found if not is_hidden(run) and caller.principal.sees(run))
        runs = list(dict.fromkeys(seen))
        events = rendered("events.html", events=self.events(caller)[:EVENTS_SHOWN])
        if not sees_node(caller):
            mounts = view.mounts([{"mount": name} for name in self.node.s3.seen_by(caller)])
            rows = rendered("runs.html", runs=view.runs(None, runs), mounts=mounts)
            return {"runs": rows, "events": events}
        look = await self.history.look()
        status, rates = look.status, look.rates
        codecs, totals = view.codecs(status)
        mounts = view.mounts(status["mounts"], status["exposure_objective_seconds"])
        pending = view.pending(status, look.at).without("dirty").first(PENDING_ROWS)
        return {
            "actions": _buttons(caller, "", None, "flush", "retry", "rate"),
            "exposure": rendered("exposure.html", exposure=view.verdict(status), status=status),
            "troubles": rendered("troubles.html", troubles=view.troubles(status, look.at)),
            "tiles": rendered("tiles.html", tiles=view.tiles(status, rates)),
            "runs": rendered("runs.html", runs=view.runs(status, runs), mounts=mounts),
            "remotes": rendered("remotes.html", remotes=view.remotes(status, rates)),
            "pending": rendered("pending.html", pending=pending),
            "codecs": rendered("codecs.html", codecs=codecs, totals=totals),
            "events": events,
            "sample": Markup(json.dumps(look.sample())),  # for the charts
        }

    async def of_run(self, caller: Caller, run: str) -> Sections:
        """Return the sections of the page of a run."""
        with self.node.access.doing(caller, "steps", run):
            views = await self.pools.patient(
                self.node.checkpoints.newest_steps, run, steps.STEPS_SHOWN
            )
            known = await self.pools.quick(self.node.checkpoints.runs)
        table = steps.step_table(views, time.time())
        paths = [each for each in known if each != run and base_run(each) == run]
        return {
            "actions": _buttons(caller, run, None, *(["flush"] if views or paths else [])),
            "steps": rendered("steps.html", steps=table, paths=paths),
        }

    async def in_bucket(self, caller: Caller, run: str) -> tuple[view.Table, str]:
        """Return the newest steps that the bucket has of a run, and this node has nothing of.

        Why the bucket cannot be asked stands beside them; empty if it could be.
        """
        found, trouble = list[StepView](), ""
        try:
            with self.node.access.doing(caller, "steps", run):
                where = run, steps.ELSEWHERE_SHOWN
                found = await self.pools.patient(self.node.checkpoints.durable_elsewhere, *where)
        except RemoteError as error:
            trouble = error.message
        return steps.step_table(found, time.time()), trouble

    async def is_known(self, caller: Caller, run: str) -> bool:
        """Return whether this node or the bucket has a run, or the bucket cannot be asked."""
        known = await self.pools.quick(self.node.checkpoints.runs)
        if any(run in (each, base_run(each)) for each in known):
            return True
        found, trouble = await self.in_bucket(caller, run)
        return bool(found.rows or trouble)

    async def of_step(self, caller: Caller, run: str, step: int) -> Sections:
        """Return the sections of the page of a step.

        Raises:
            NotFoundError: Neither this node nor the bucket knows it.
        """
        found, now = await self.progress(caller, run, step), time.time()
        if found is None:
            seen, _ = await self.pools.patient(self.node.checkpoints.step, run, step)
            line, counts = None, {}
        else:
            seen, counts = found.view, steps.counts_of(found.shards)
            own = steps.saved_here(found.save, found.parts, found.ranks)
            known = own or found.parts
            line = steps.timeline_of(found.save, found.parts, own, now) if known else None
        troubles, restores = list[str](), ""
        is_coming = self.node.whole_steps.is_coming(run, step)
        if sees_node(caller) and (seen.published_at is None or is_coming):
            look = await self.history.look()
            troubles = view.s3_troubles(look.status, look.at) if seen.published_at is None else []
            restores = view.restore_note(look.status) if is_coming else ""
        table = steps.step_table([seen], now)
        pin = "unpin" if seen.pinned else "pin"
        drawn = rendered("timeline.html", line=line)
        legend = rendered("legend.html", counts=counts, levels=steps.LEVELS)
        return {
            "actions": _buttons(caller, run, step, "flush", "restore", pin, "delete"),
            "troubles": rendered("troubles.html", troubles=troubles),
            "step": rendered("step_head.html", steps=table, seen=seen, restores=restores),
            "timeline": drawn,
            "legend": legend,
            # Another value lets the page ask for the grid; its ages go on where nothing changes.
            "grid": Markup(hash(legend + drawn + str(now // AGES_SECONDS))),
        }

    async def progress(self, caller: Caller, run: str, step: int) -> StepProgress | None:
        with self.node.access.doing(caller, "step", run, step=step):
            return await self.pools.patient(self.node.checkpoints.progress, run, step)

    async def lines(
        self, caller: Caller, run: str, step: int, first: int, rows: int
    ) -> dict[str, Any]:
        """Return some lines of a step's grid; none where this node knows no such step."""
        found = await self.progress(caller, run, step)
        window = steps.window_of(found.ranks if found is not None else (), first, rows)
        if found is None:
            return {"window": window, "lines": ()}
        where = found.save, window.start, window.shards
        shards = await self.pools.patient(self.node.checkpoints.places, *where)
        lines = steps.filled(window, shards, self._uploading(run, step), time.time())
        return {"window": window, "lines": lines}

    async def shard(self, caller: Caller, run: str, step: int, version: int) -> dict[str, Any]:
        """Return one shard, and its level.

        Raises:
            NotFoundError: It is not what the step has now.
        """
        with self.node.access.doing(caller, "step", run, step=step):
            found = await self.pools.patient(self.node.checkpoints.place, run, step, version)
        level = steps.level_of(found, self._uploading(run, step))
        return {"shard": found, "level": level, "words": steps.LEVELS[level], "now": time.time()}

    def _uploading(self, run: str, step: int) -> set[str]:
        latest = self.history.latest
        sent = latest.status["drain"].get("uploading", ()) if latest is not None else ()
        return {str(each["name"]) for each in sent if (each["run"], each["step"]) == (run, step)}

    def events(
        self, caller: Caller, words: str = "", before: int = 0, *, grave: bool = False
    ) -> list[RecentEvent]:
        """Return the events that a caller may see, have all ``words``, and came ``before`` one."""
        principal, wanted = caller.principal, words.lower().split()
        return [
            each
            for each in self.node.recent_events()
            if principal.sees_all or (each.run is not None and principal.sees(base_run(each.run)))
            if not before or each.number < before
            if not grave or each.level in GRAVE
            if all(word in f"{each.level} {each.name} {each.message}".lower() for word in wanted)
        ]


def _buttons(caller: Caller, run: str, step: int | None, *names: str) -> Markup:
    """Return the buttons of some actions; none where the caller is no admin."""
    actions = {name: f"{ACTIONS[name].button}…" for name in names if is_admin(caller)}
    return rendered("actions.html", run=run, step=step, actions=actions)
