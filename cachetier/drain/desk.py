"""The side of ``serve``: hands work to the drain, and records in the catalog what it reports.

Every answer to a report means that it is synced. A report about a shard that was replaced or
deleted meanwhile is answered with NotFoundError: the drain drops that work and clears away what it
sent.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from cachetier_client import digests

from cachetier.changes import Changes
from cachetier.clock import Clock
from cachetier.drain import entries, scheduler
from cachetier.drain.agenda import Agenda
from cachetier.drain.board import Board, DrainObserver
from cachetier.drain.channel import Reply
from cachetier.drain.reports import (
    finished_of_report,
    report_of_finished,
    stored_of_report,
)
from cachetier.drain.snapshot import unfinished
from cachetier.drain.work import CONFLICT, Kind, Work, task_of
from cachetier.errors import (
    CatalogDamagedError,
    FencedError,
    IntegrityError,
    NotFoundError,
    PreconditionFailedError,
    SaveSupersededError,
    StepPublishedError,
)
from cachetier.incidents import Incidents
from cachetier.local import queries
from cachetier.local.records import Incident
from cachetier.local.store import LocalCopy, Store
from cachetier.model.checkpoint import Save, SaveState, sealed_here
from cachetier.model.lifecycle import ForbiddenTransitionError, ShardEvent, ShardState
from cachetier.model.shard import Shard
from cachetier.model.stored import Codec

Request = dict[str, Any]

PUBLISH_IN_A_HURRY_SECONDS = 2.0
PUBLISH_UNSEALED_SECONDS = 30.0
CONFLICT_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class Office:
    """Where the desk works: everything on its side of the channel."""

    store: Store
    agenda: Agenda
    board: Board
    changes: Changes
    incidents: Incidents
    clock: Clock
    observer: DrainObserver


class Desk:
    """Answers the drain's requests. Thread-safe."""

    def __init__(self, office: Office, settings: Request) -> None:
        """Make a desk; ``settings`` is what ``hello`` answers."""
        self._office = office
        self._store = office.store
        self._agenda = office.agenda
        self._board = office.board
        self._settings = settings
        self._answers: dict[str, Callable[[Request], Reply]] = {
            "hello": self._hello,
            "next_work": self._next_work,
            "open": self._open,
            "parts": self._parts,
            "entries": self._entries,
            "located": self._located,
            "upload_begun": self._upload_begun,
            "upload_gone": self._upload_gone,
            "parts_done": self._parts_done,
            "verified": self._verified,
            "damaged": self._damaged,
            "lost": self._lost,
            "part_written": self._part_written,
            "ended": self._ended,
            "removed": self._removed,
            "not_yet": self._not_yet,
            "ours": self._ours,
            "swept": self._swept,
            "failed": self._failed,
            "finish": self._finish,
            "traffic": self._traffic,
            "courtesy": self._courtesy,
            "remote": self._remote,
        }

    def answer(self, request: Request) -> Reply:
        """Do what ``request`` asks; an unknown one is a defect of ours."""
        return self._answers[request["op"]](request)

    # --- handing out work ------------------------------------------------------------------------

    def _hello(self, request: Request) -> Reply:
        self._board.courtesy(request["courtesy"])
        return Reply({"settings": self._settings})

    def _next_work(self, request: Request) -> Reply:
        if self._store.fenced is not None:
            # Nothing could be recorded.
            return Reply({"tasks": [], "due_in_seconds": None, "hurried": False})
        situation = self._agenda.situation(wants_room=self._store.space.wanted_bytes > 0)
        count = request["count"]
        views = unfinished(self._store, self._agenda.blocked(), self._row_damaged, count)
        plan = scheduler.plan(views, situation, count)
        self._agenda.handed_out(plan.fairness)
        tasks = [task for work in plan.work if (task := self._task(work)) is not None]
        hurried = situation.wants_room or self._agenda.is_hurried()
        return Reply({"tasks": tasks, "due_in_seconds": plan.due_in_seconds, "hurried": hurried})

    def _row_damaged(self, save: Save, error: CatalogDamagedError) -> None:
        if self._board.conflict(-save.number, error.message):
            self._add_incident(save, error.message, error.next_move)

    def _task(self, work: Work) -> Request | None:
        number = self._agenda.take(work)
        if number is None:
            return None
        replaced = self._store.read(lambda sql: queries.replaced_by(sql, work.save))
        return task_of(number, work, replaced).as_json()

    def _finish(self, request: Request) -> Reply:
        work = self._agenda.work(request["task"])
        if work is not None and request["done"]:
            self._agenda.forgive(work.key)
        self._agenda.finish(request["task"])
        return Reply({})

    # --- what a worker needs to know -------------------------------------------------------------

    def _open(self, request: Request) -> Reply:
        shard = self._shard(request["version"])
        if shard.state is not ShardState.DIRTY:
            raise NotFoundError(f"shard version {shard.version} is {shard.state}")
        copy = self._local_copy(shard)
        remote = self._board.remote
        progress = self._store.read(lambda sql: queries.progress_of(sql, shard.version, remote))
        fields = {
            "inline": copy.body is not None,
            "upload_id": progress.upload_id,
            "part_bytes": progress.part_bytes,
            "codec": progress.codec,
        }
        if copy.body is not None:
            return Reply(fields, copy.body)
        return Reply(fields, digests.pack(shard.content.block_digests), copy.descriptor)

    def _local_copy(self, shard: Shard) -> LocalCopy:
        try:
            copy = self._store.local_copy(shard)
        except FileNotFoundError:
            if self._shard(shard.version).file_id == shard.file_id:
                self._quarantine(shard, "its data file is missing")
            copy = None
        if copy is None:
            raise NotFoundError(f"shard version {shard.version} has no bytes here")
        return copy

    def _parts(self, request: Request) -> Reply:
        version, remote = request["version"], self._board.remote
        progress = self._store.read(lambda sql: queries.progress_of(sql, version, remote))
        parts = [report_of_finished(part) for part in progress.parts]
        return Reply({}, json.dumps(parts).encode())

    def _entries(self, request: Request) -> Reply:
        number, rank, after = request["save"], request["rank"], request["after"]
        return entries.page(self._store, self._board.remote, number, rank, after)

    # --- reports on shards -----------------------------------------------------------------------

    def _upload_begun(self, request: Request) -> Reply:
        self._store.drain_log.begin_upload(
            request["version"],
            self._board.remote,
            request["upload_id"],
            request["part_bytes"],
            Codec(request["codec"]),
        )
        return Reply({})

    def _upload_gone(self, request: Request) -> Reply:
        self._store.drain_log.forget_upload(request["version"], self._board.remote)
        return Reply({})

    def _parts_done(self, request: Request) -> Reply:
        parts = [finished_of_report(part) for part in request["parts"]]
        self._store.drain_log.record_parts(request["version"], self._board.remote, parts)
        return Reply({})

    def _verified(self, request: Request) -> Reply:
        version, remote = request["version"], self._board.remote
        shard, stored = self._shard(version), stored_of_report(request["stored"])
        try:
            self._store.drain_log.record_verified(
                version, remote, [remote], self._office.clock.now(), stored
            )
        except ForbiddenTransitionError:
            return Reply({})  # a reader met damage meanwhile: the shard stays quarantined
        size_bytes = shard.content.size_bytes
        self._board.drained(version, size_bytes, request["seconds"])
        self._board.stored(size_bytes, stored)
        self._office.observer.drained(remote, size_bytes, request["seconds"])
        self._office.observer.saved(remote, size_bytes - stored.size_bytes)
        self._office.changes.ring()
        return Reply({})

    def _damaged(self, request: Request) -> Reply:
        self._quarantine(self._shard(request["version"]), request["message"])
        return Reply({})

    def _quarantine(self, shard: Shard, what: str) -> None:
        incident = Incident(
            code="integrity",
            message=f"shard {shard.name} is damaged on this node and was not sent: {what}",
            hint="Save the step again, or restore another one.",
            run=shard.run,
            step=shard.step,
            name=shard.name,
            rank=shard.rank,
        )
        now = self._office.clock.now()
        before = self._store.catalog.move(shard.version, ShardEvent.LOCAL_DAMAGE, incident, now)
        if before.state is ShardState.CLEAN:
            self._store.drop([before])
        self._board.quarantined()
        self._office.observer.quarantined(shard.run, shard.step, shard.name)
        self._announce()

    def _lost(self, request: Request) -> Reply:
        """A shard that was verified is gone from the remote: send it again, if it is here."""
        shard = self._shard(request["version"])
        state = self._store.drain_log.record_lost(shard.version, self._board.remote)
        new = self._board.conflict(shard.version, request["message"])
        if new and state is not ShardState.DIRTY:
            hint = "Its bytes are not on this node any more: save the step again."
            self._add_incident(shard, request["message"], hint)
        return Reply({})

    # --- reports on saves ------------------------------------------------------------------------

    def _located(self, request: Request) -> Reply:
        self._store.drain_log.record_location(request["save"], request["location"])
        return Reply({})

    def _part_written(self, request: Request) -> Reply:
        self._store.drain_log.record_part_uploaded(request["save"], request["rank"])
        self._agenda.forgive((request["save"], Kind.PUBLISH, ""))
        return Reply({})

    def _ended(self, request: Request) -> Reply:
        number, state = request["save"], SaveState(request["state"])
        save = self._save(number)
        incident = _incident_of_end(save, state, request["message"])
        now = self._office.clock.now()
        self._store.drop(self._store.drain_log.record_outcome(number, state, incident, now))
        if state is SaveState.PUBLISHED and save.state is not SaveState.PUBLISHED:
            self._board.published()
            self._office.observer.published(save.run, save.step, max(0.0, now - save.started_at))
        self._announce()
        return Reply({})

    def _removed(self, request: Request) -> Reply:
        self._store.drain_log.forget_save(request["save"])
        self._announce()
        return Reply({})

    def _not_yet(self, request: Request) -> Reply:
        """A step is not whole yet: another node's part is missing. Look again, less and less."""
        save = self._save(request["save"])
        parts = self._store.read(lambda sql: queries.parts_of(sql, save.number))
        key = (save.number, Kind.PUBLISH, "")
        if self._agenda.hurried(save):
            self._agenda.recheck(key, PUBLISH_IN_A_HURRY_SECONDS)
        elif sealed_here(parts):
            self._agenda.recheck(key)
        else:
            self._agenda.put_off(key, PUBLISH_UNSEALED_SECONDS)
        return Reply({})

    def _ours(self, request: Request) -> Reply:
        """Answer which names are, or were, shards of a save here."""
        number, names = request["save"], request["names"]
        found = self._store.read(lambda sql: queries.names_of_save(sql, number, names))
        return Reply({}, json.dumps(found).encode())

    def _swept(self, request: Request) -> Reply:
        self._store.drain_log.record_swept(request["save"])
        return Reply({})

    # --- failures --------------------------------------------------------------------------------

    def _failed(self, request: Request) -> Reply:
        """Put work off; it is tried again for ever."""
        work = self._agenda.work(request["task"])
        if work is None:
            return Reply({})
        code, message = request["code"], request["message"]
        self._board.failed(work, code, message)
        self._office.observer.failed(self._board.remote, work.kind, code)
        attempt = self._count_attempt(work)
        if code == CONFLICT:
            self._agenda.put_off(work.key, CONFLICT_SECONDS)
            self._report_conflict(work, message)
        else:
            self._agenda.back_off(work.key, attempt)
        return Reply({})

    def _count_attempt(self, work: Work) -> int | None:
        if work.shard is None:
            return None
        try:
            return self._store.drain_log.count_attempt(work.shard.version, self._board.remote)
        except FencedError:
            return None

    def _report_conflict(self, work: Work, message: str) -> None:
        number = work.shard.version if work.shard is not None else -work.save.number
        if self._board.conflict(number, message):
            hint = "Move the foreign object away or delete it; draining goes on by itself."
            self._add_incident(work.shard or work.save, message, hint)

    def _traffic(self, request: Request) -> Reply:
        self._board.traffic(request["requests"], request["throttled"], request["pace"])
        self._office.observer.paced(self._board.remote, request["pace"])
        if request["throttled"]:
            self._office.observer.throttled(self._board.remote, request["throttled"])
        return Reply({})

    def _courtesy(self, request: Request) -> Reply:
        """Take how the drain behaves, and answer what it should know of training."""
        self._office.observer.slowed(self._board.courtesy(request["report"]))
        hints = self._agenda.phases.hints()
        urgent = self._store.space.wanted_bytes > 0
        return Reply({"training": {**asdict(hints), "urgent": urgent}})

    def _remote(self, request: Request) -> Reply:
        self._board.remote_state(request["state"], request["reason"])
        if request["retry"]:
            self._agenda.forgive_all()
        self._office.changes.ring()
        return Reply({})

    # --- common ----------------------------------------------------------------------------------

    def _shard(self, version: int) -> Shard:
        shard = self._store.read(lambda sql: queries.shard_by_version(sql, version))
        if shard is None:
            raise NotFoundError(f"shard version {version} was replaced or deleted")
        return shard

    def _save(self, number: int) -> Save:
        save = self._store.read(lambda sql: queries.save_by_number(sql, number))
        if save is None:
            raise NotFoundError(f"there is no save {number}")
        return save

    def _add_incident(self, of: Shard | Save, message: str, hint: str) -> None:
        name, rank = (of.name, of.rank) if isinstance(of, Shard) else (None, None)
        code = PreconditionFailedError.code if isinstance(of, Shard) else IntegrityError.code
        incident = Incident(code, message, hint, of.run, of.step, name, rank)
        self._store.drain_log.add_incident(incident, self._office.clock.now())
        self._announce()

    def _announce(self) -> None:
        self._office.incidents.refresh()
        self._office.changes.ring()


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
