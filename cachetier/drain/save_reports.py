"""What the drain asks and reports of saves, as ``serve`` answers it."""

from __future__ import annotations

import json

from cachetier.drain import entries
from cachetier.drain.channel import Reply
from cachetier.drain.office import Answers, Office, Request
from cachetier.drain.work import Kind
from cachetier.errors import SaveSupersededError, StepPublishedError
from cachetier.local import queries
from cachetier.local.records import Incident
from cachetier.model.checkpoint import Save, SaveState, sealed_here

PUBLISH_IN_A_HURRY_SECONDS = 2.0
PUBLISH_UNSEALED_SECONDS = 30.0
UNDECIDED_SECONDS = 5.0


class SaveReports:
    """Answers requests about saves. Thread-safe."""

    def __init__(self, office: Office) -> None:
        self._office = office
        self._store = office.store
        self._books = office.books

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
        return entries.page(self._store, self._office.remote, number, rank, after)

    def _located(self, request: Request) -> Reply:
        self._books.locate(request["save"], request["location"])
        return Reply({})

    def _part_written(self, request: Request) -> Reply:
        self._books.part_uploaded(request["save"], request["rank"])
        self._office.agenda.forgive((request["save"], Kind.PUBLISH, ""))
        return Reply({})

    def _followed(self, request: Request) -> Reply:
        self._books.followed(request["save"])
        self._office.changes.ring()
        return Reply({})

    def _ended(self, request: Request) -> Reply:
        number, state = request["save"], SaveState(request["state"])
        save = self._office.save(number)
        incident = _incident_of_end(save, state, request["message"])
        now = self._office.clock.now()
        outcome = self._books.ended(number, state, incident, now)
        self._store.drop(outcome.removed)
        if outcome.wait:
            for kind in (Kind.CLAIM, Kind.FOLLOW, Kind.PUBLISH):
                self._office.agenda.put_off((number, kind, ""), UNDECIDED_SECONDS)
        if state is SaveState.PUBLISHED and outcome.news:
            self._office.board.published()
            if self._books.decides:
                age_seconds = max(0.0, now - save.started_at)
                self._office.observer.published(save.run, save.step, age_seconds)
        self._office.announce()
        return Reply({})

    def _removed(self, request: Request) -> Reply:
        self._books.removed(request["save"])
        self._office.announce()
        return Reply({})

    def _not_yet(self, request: Request) -> Reply:
        """A step is not whole yet: another node's part is missing. Look again, less and less."""
        save = self._office.save(request["save"])
        parts = self._books.parts(save.number)
        key = (save.number, Kind(request["kind"]), "")
        if self._office.agenda.hurried(save):
            self._office.agenda.recheck(key, PUBLISH_IN_A_HURRY_SECONDS)
        elif sealed_here(parts) or key[1] is Kind.FOLLOW:
            self._office.agenda.recheck(key)
        else:
            self._office.agenda.put_off(key, PUBLISH_UNSEALED_SECONDS)
        return Reply({})

    def _ours(self, request: Request) -> Reply:
        """Answer which names are, or were, shards of a save here."""
        number, names = request["save"], request["names"]
        found = self._store.read(lambda sql: queries.names_of_save(sql, number, names))
        return Reply({}, json.dumps(found).encode())

    def _swept(self, request: Request) -> Reply:
        self._books.swept(request["save"])
        return Reply({})


def _incident_of_end(save: Save, state: SaveState, message: str) -> Incident | None:
    """Return what clients must hear of; ``message`` is empty where nothing went wrong."""
    kinds = {
        SaveState.SUPERSEDED: SaveSupersededError,
        SaveState.REFUSED: StepPublishedError,
    }
    if state not in kinds or not message:
        return None
    kind = kinds[state]
    return Incident(kind.code, message, kind.hint, save.run, save.step)
