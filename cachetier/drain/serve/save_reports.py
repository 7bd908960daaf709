"""Answer the drain's requests and reports about saves."""

from __future__ import annotations

import logging
from typing import Any, assert_never

import msgspec

from cachetier.drain import messages
from cachetier.drain.messages import PartPage, SaveRequest, replied
from cachetier.drain.schedule.tasks import TaskKind
from cachetier.drain.serve.context import DrainContext
from cachetier.local.catalog import saves, shards, uploads
from cachetier.local.catalog.rows import IncidentRecord
from cachetier.model.checkpoint import END_ERRORS, Save, sealed_here
from cachetier.model.lifecycle import REPLACED_SAVES, SaveState
from cachetier.telemetry import events
from cachetier.telemetry.events import of, tell

log = logging.getLogger(__name__)

PUBLISH_IN_A_HURRY_SECONDS = 2.0
PUBLISH_UNSEALED_SECONDS = 30.0
UNDECIDED_SECONDS = 5.0
PAGE_SHARDS = 500
PAGE_DIGESTS = 200_000  # some 5 MB


class SaveReports:
    """Answers requests about saves. Thread-safe."""

    def __init__(self, context: DrainContext) -> None:
        self._context = context
        self._store = context.store
        self._remote_state = context.remote_state
        self._remote = context.remote_state.remote

    def answer(self, request: SaveRequest) -> object:
        """Do what ``request`` asks, and return the reply that it names."""
        match request:
            case messages.ReadPart():
                return replied(request, self._page(request))
            case messages.NamesOfSave():
                return replied(request, self._names(request))
            case messages.SaveLocated():
                self._remote_state.locate(request.save, request.location)
            case messages.PartWritten():
                self._part_written(request)
            case messages.SaveFollowed():
                self._remote_state.followed(request.save)
                self._context.changes.ring()
            case messages.SaveNotReady():
                self.not_ready(request)
            case messages.SaveEnded():
                self._ended(request)
            case messages.SaveRemoved():
                self._removed(request)
            case messages.SaveSwept():
                self._remote_state.swept(request.save)
            case _:
                assert_never(request)
        return None

    # --- what a worker needs to know -------------------------------------------------------------

    def _page(self, request: messages.ReadPart) -> PartPage:
        """Return the next shards of a rank; a version goes with each, to ask for the next."""
        which = request.save, request.rank, self._remote, request.after, PAGE_SHARDS
        found = self._store.read(shards.stored_shards_of_rank, *which)
        page = PartPage([])
        digests = 0
        for shard, stored in found:
            facts = shard.facts.without_hints()
            page.shards.append((shard.version, shard.name, shard.content, stored, facts))
            digests += len(shard.content.block_digests) + (len(stored.frames) if stored else 0)
            if digests > PAGE_DIGESTS:
                break
        more = len(page.shards) < len(found) or len(found) == PAGE_SHARDS
        return PartPage(page.shards, more)

    def _names(self, request: messages.NamesOfSave) -> list[str]:
        return self._store.read(uploads.names_of_save, request.save, request.names)

    # --- reports on saves ------------------------------------------------------------------------

    def _part_written(self, request: messages.PartWritten) -> None:
        self._remote_state.part(request.save, request.rank, uploaded=True)
        save = self._context.save(request.save)
        tell(
            log,
            events.PART_DRAINED,
            rank=request.rank,
            **of(save),
            shards=request.shards,
            size_bytes=request.size_bytes,
            seconds=request.seconds,
            remote=self._remote,
            age_seconds=self._age_seconds(save),
        )
        self._context.queue.forgive((request.save, TaskKind.PUBLISH, ""))

    def _ended(self, request: messages.SaveEnded) -> None:
        number, state = request.save, request.state
        save = self._context.save(number)
        if state is SaveState.SUPERSEDED and self._is_replaced_here(save):
            request = msgspec.structs.replace(request, message="")
        incident = _incident_of_end(save, state, request.message)
        outcome = self._remote_state.ended(number, state, incident, self._context.clock.now())
        self._store.drop(outcome.removed)
        if outcome.wait or not outcome.news:  # it lacks shards still, or was replaced meanwhile
            for kind in (TaskKind.CLAIM, TaskKind.FOLLOW, TaskKind.PUBLISH):
                self._context.queue.put_off((number, kind, ""), UNDECIDED_SECONDS)
        if outcome.news:
            self._tell_end(save, request)
        self._context.announce()

    def _is_replaced_here(self, save: Save) -> bool:
        """Return whether the step was saved again here: who did that knows, and nothing is wrong.

        The newer save may be published by a report that comes after this one.
        """
        found = self._store.read(saves.saves_of, save.run, save.step)
        newer = [each for each in found if each.number > save.number]
        return any(sealed_here(self._store.read(saves.parts_of, each.number)) for each in newer)

    def _removed(self, request: messages.SaveRemoved) -> None:
        save = self._remote_state.save(request.save)
        if not self._remote_state.removed(request.save):
            save = None
        if save is not None:
            tell(log, events.SAVE_DELETED, **self._ends(save))
        if save is not None and request.left:
            left = {"count": request.left, "key": request.example}
            tell(log, events.OBJECTS_LEFT, **of(save), remote=self._remote, **left)
        self._context.announce()

    def _tell_end(self, save: Save, request: messages.SaveEnded) -> None:
        if request.state is SaveState.PUBLISHED:
            here = self._store.read(shards.summary_of, save.number)
            decides = self._remote_state.decides
            self._context.stats.published(save, here, request.seconds, decides=decides)
            return
        fields = {**self._ends(save), "state": request.state}
        if request.message:
            tell(log, events.SAVE_REFUSED, **fields, reason=request.message)
        else:
            tell(log, events.SAVE_ENDED, **fields)

    def _ends(self, save: Save) -> dict[str, Any]:
        """Return what is told of any end; where it ``decides`` it ends the save."""
        where = {"remote": self._remote, "decides": self._remote_state.decides}
        return {**of(save), **where, "age_seconds": self._age_seconds(save)}

    def _age_seconds(self, save: Save) -> float:
        return max(0.0, self._context.clock.now() - save.started_at)

    def not_ready(self, request: messages.SaveNotReady) -> None:
        """A step is not whole yet: another node's part is missing. Look again, less and less.

        A part that was written here and is gone is written again.
        """
        save = self._context.save(request.save)
        parts = self._remote_state.parts(save.number)
        for part in parts:
            there = request.ranks is None or part.rank in request.ranks
            if part.uploaded and not there:
                self._remote_state.part(save.number, part.rank, uploaded=False)
        key = (save.number, request.kind, "")
        if self._context.queue.hurried(save):
            self._context.queue.recheck(key, PUBLISH_IN_A_HURRY_SECONDS)
        elif sealed_here(parts) or key[1] is TaskKind.FOLLOW:
            self._context.queue.recheck(key)
        else:
            self._context.queue.put_off(key, PUBLISH_UNSEALED_SECONDS)


def _incident_of_end(save: Save, state: SaveState, message: str) -> IncidentRecord | None:
    """Return what clients must hear of; ``message`` is empty where nothing went wrong."""
    if state not in REPLACED_SAVES or not message:
        return None
    kind = END_ERRORS[state]
    return IncidentRecord(kind.code, message, kind.hint, save.run, save.step)
