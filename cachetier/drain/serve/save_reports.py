"""Answer the drain's requests and reports about saves."""

from __future__ import annotations

import json
import logging
from typing import Any

from cachetier.drain.channel import Reply
from cachetier.drain.schedule.tasks import TaskKind
from cachetier.drain.serve.context import Answers, DrainContext, Request
from cachetier.drain.upload import part_entries
from cachetier.errors import SaveSupersededError, StepPublishedError
from cachetier.local.catalog import queries
from cachetier.local.catalog.records import IncidentRecord
from cachetier.model.checkpoint import Save, SaveState, sealed_here
from cachetier.telemetry import events
from cachetier.telemetry.events import of, tell

log = logging.getLogger(__name__)

PUBLISH_IN_A_HURRY_SECONDS = 2.0
PUBLISH_UNSEALED_SECONDS = 30.0
UNDECIDED_SECONDS = 5.0


class SaveReports:
    """Answers requests about saves. Thread-safe."""

    def __init__(self, context: DrainContext) -> None:
        self._context = context
        self._store = context.store
        self._remote_state = context.remote_state

    def answers(self) -> Answers:
        """Return what is answered, by the name of the request."""
        return {
            "entries": self._entries,
            "located": self._located,
            "part_written": self._part_written,
            "followed": self._followed,
            "ended": self._ended,
            "removed": self._removed,
            "not_yet": self._not_yet,
            "ours": self._ours,
            "swept": self._swept,
        }

    def _entries(self, request: Request) -> Reply:
        number, rank, after = request["save"], request["rank"], request["after"]
        return part_entries.page(self._store, self._context.remote, number, rank, after)

    def _located(self, request: Request) -> Reply:
        self._remote_state.locate(request["save"], request["location"])
        return Reply({})

    def _part_written(self, request: Request) -> Reply:
        self._remote_state.part_uploaded(request["save"], request["rank"])
        self._tell_part(request)
        self._context.queue.forgive((request["save"], TaskKind.PUBLISH, ""))
        return Reply({})

    def _followed(self, request: Request) -> Reply:
        self._remote_state.followed(request["save"])
        self._context.changes.ring()
        return Reply({})

    def _ended(self, request: Request) -> Reply:
        number, state = request["save"], SaveState(request["state"])
        save = self._context.save(number)
        incident = _incident_of_end(save, state, request["message"])
        outcome = self._remote_state.ended(number, state, incident, self._context.clock.now())
        self._store.drop(outcome.removed)
        if outcome.wait:
            for kind in (TaskKind.CLAIM, TaskKind.FOLLOW, TaskKind.PUBLISH):
                self._context.queue.put_off((number, kind, ""), UNDECIDED_SECONDS)
        if outcome.news:
            self._tell_end(save, state, request)
        self._context.announce()
        return Reply({})

    def _removed(self, request: Request) -> Reply:
        save = self._remote_state.save(request["save"])
        self._remote_state.removed(request["save"])
        if save is not None:
            tell(log, events.SAVE_DELETED, **self._ends(save))
        if save is not None and request["left"]:
            left = {"count": request["left"], "key": request["example"]}
            tell(log, events.OBJECTS_LEFT, **of(save), remote=self._context.remote, **left)
        self._context.announce()
        return Reply({})

    def _tell_part(self, request: Request) -> None:
        save = self._context.save(request["save"])
        counted = {name: request.get(name, 0) for name in ("shards", "size_bytes", "seconds")}
        fields = {"remote": self._context.remote, "age_seconds": self._age_seconds(save)}
        tell(log, events.PART_DRAINED, rank=request["rank"], **of(save), **counted, **fields)

    def _tell_end(self, save: Save, state: SaveState, request: Request) -> None:
        if state is SaveState.PUBLISHED:
            here = self._store.read(lambda sql: queries.summary_of(sql, save.number))
            seconds, decides = request.get("seconds"), self._remote_state.decides
            self._context.stats.published(save, here, seconds, decides=decides)
            return
        fields = {**self._ends(save), "state": state}
        if request["message"]:
            tell(log, events.SAVE_REFUSED, **fields, reason=request["message"])
        else:
            tell(log, events.SAVE_ENDED, **fields)

    def _ends(self, save: Save) -> dict[str, Any]:
        """Return what is told of any end; where it ``decides`` it ends the save."""
        where = {"remote": self._context.remote, "decides": self._remote_state.decides}
        return {**of(save), **where, "age_seconds": self._age_seconds(save)}

    def _age_seconds(self, save: Save) -> float:
        return max(0.0, self._context.clock.now() - save.started_at)

    def _not_yet(self, request: Request) -> Reply:
        """A step is not whole yet: another node's part is missing. Look again, less and less."""
        save = self._context.save(request["save"])
        parts = self._remote_state.parts(save.number)
        key = (save.number, TaskKind(request["kind"]), "")
        if self._context.queue.hurried(save):
            self._context.queue.recheck(key, PUBLISH_IN_A_HURRY_SECONDS)
        elif sealed_here(parts) or key[1] is TaskKind.FOLLOW:
            self._context.queue.recheck(key)
        else:
            self._context.queue.put_off(key, PUBLISH_UNSEALED_SECONDS)
        return Reply({})

    def _ours(self, request: Request) -> Reply:
        """Answer which names are, or were, shards of a save here."""
        number, names = request["save"], request["names"]
        found = self._store.read(lambda sql: queries.names_of_save(sql, number, names))
        return Reply({}, json.dumps(found).encode())

    def _swept(self, request: Request) -> Reply:
        self._remote_state.swept(request["save"])
        return Reply({})


def _incident_of_end(save: Save, state: SaveState, message: str) -> IncidentRecord | None:
    """Return what clients must hear of; ``message`` is empty where nothing went wrong."""
    kinds = {
        SaveState.SUPERSEDED: SaveSupersededError,
        SaveState.REFUSED: StepPublishedError,
    }
    if state not in kinds or not message:
        return None
    kind = kinds[state]
    return IncidentRecord(kind.code, message, kind.hint, save.run, save.step)
