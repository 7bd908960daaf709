"""The table of all events of the log: each has a name, a level, a text and its fields.

An event's name never changes its meaning; its fields are what a program reads, its text what a
person does. Nothing else is logged: see ``tell``. The spans of a trace are made of the same events.

Source: docs/logs.md, which lists them.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol

from cachetier_client.units import counted, shown_size

EVENTS: dict[str, Event] = {}

_PLACES = re.compile(r"%\((\w+)[^)]*\)")


class Event(NamedTuple):
    """One kind of event.

    ``fields`` are all it may have. Those of ``alike`` tell repetitions apart: a warning that is the
    same in them is written once, and then counted. None of them: every one is written.
    """

    name: str
    level: int
    text: str
    fields: tuple[str, ...]
    alike: tuple[str, ...] | None


class Fields(dict[str, Any]):
    """The fields of one event, which know how a text shows them to people.

    A place ``%(size_bytes size)s`` shows ``67.1 MB``, and ``%(shards shard)s`` shows ``1 shard`` or
    ``2 shards``; a program finds the numbers under ``size_bytes`` and ``shards``.
    """

    def __missing__(self, place: str) -> str:
        name, _, noun = place.partition(" ")
        if not noun:
            raise KeyError(place)
        return shown_size(self[name]) if noun == "size" else counted(self[name], noun)


class OfSave(Protocol):
    """Whatever belongs to one save of one step."""

    @property
    def run(self) -> str: ...
    @property
    def step(self) -> int: ...
    @property
    def save_id(self) -> str: ...


def of(thing: OfSave) -> dict[str, Any]:
    """Return the ids of a save, a part or a shard, as the fields ``run``, ``step``, ``save_id``."""
    return {"run": thing.run, "step": thing.step, "save_id": thing.save_id}


def tell(log: logging.Logger, event: Event, /, **fields: Any) -> None:
    """Log ``event``; fields that are None are left out.

    ``error``, which is no field, is what was caught: it comes with its traceback.
    """
    if log.isEnabledFor(event.level):
        error = fields.pop("error", None)
        given = {name: value for name, value in fields.items() if value is not None}
        args = (Fields(given),) if given else ()
        extra = {"event": event}
        log.log(event.level, event.text, *args, exc_info=error, extra=extra, stacklevel=2)


def record_of(event: Event, fields: Mapping[str, Any]) -> logging.LogRecord:
    """Return the record of an event that no logger was told."""
    return logging.makeLogRecord(
        {
            "name": __name__,
            "levelno": event.level,
            "levelname": logging.getLevelName(event.level),
            "msg": event.text,
            "args": Fields(fields),
            "event": event,
        }
    )


def fields_in(text: str) -> list[str]:
    """Return the fields that an event's text has a place for."""
    return list(dict.fromkeys(_PLACES.findall(text)))


def _event(
    name: str, level: int, text: str, *more: str, alike: tuple[str, ...] | None = None
) -> Event:
    """Add an event; the fields that its text has no place for are ``more``."""
    assert name not in EVENTS, name
    fields = (*fields_in(text), *more)
    EVENTS[name] = Event(name, level, text, fields, alike)
    return EVENTS[name]


def _debug(name: str, text: str, *more: str) -> Event:
    return _event(name, logging.DEBUG, text, *more)


def _info(name: str, text: str, *more: str) -> Event:
    return _event(name, logging.INFO, text, *more)


def _warning(name: str, text: str, *more: str, alike: tuple[str, ...] | None = None) -> Event:
    return _event(name, logging.WARNING, text, *more, alike=alike)


def _error(name: str, text: str, *more: str, alike: tuple[str, ...] | None = None) -> Event:
    return _event(name, logging.ERROR, text, *more, alike=alike)


# --- the service ---------------------------------------------------------------------------------

SERVICE_RECOVERED = _info(
    "service.recovered",
    "recovered %(directory)s: %(rubbish_files unacknowledged file)s removed, "
    "%(set_aside_files)d set aside, %(lost_shards shard)s without bytes",
    "store_id",
)
MEMORY_LOST = _warning(
    "memory.lost",
    "step %(run)s/%(step)d lost %(shards shard)s, %(size_bytes size)s: they were in memory only, "
    "which the machine lost",
    "save_id",
)
WRITE_BACK_FAILED = _warning(
    "memory.write_back_failed",
    "a shard stays in memory, as it cannot be copied to the disk: %(reason)s",
    alike=("reason",),
)
SERVICE_READY = _info(
    "service.ready",
    "cachetier %(version)s serves %(directory)s at %(socket)s",
    *("http", "s3", "store_id"),
)
SERVICE_NOT_STARTED = _event(
    "service.not_started", logging.CRITICAL, "cannot start: %(reason)s", *("hint", "code")
)
SERVICE_STOPPING = _info(
    "service.stopping", "stopping: in flight requests have %(grace_seconds)g s"
)
SERVICE_STOPPED = _info("service.stopped", "stopped")
SERVICE_FENCED = _event(
    "service.fenced", logging.CRITICAL, "no more writes are taken: %(reason)s", alike=()
)
CATALOG_UNREADABLE = _error(
    "catalog.unreadable", "the catalog cannot be read: %(reason)s", alike=("reason",)
)
NODE_LEAVING = _info(
    "node.leaving", "leaving the node: no more puts are taken, every step is flushed"
)
NODE_STAYS = _info("node.stays", "leaving was cancelled: the node takes puts again")
NODE_STEP_BEHIND = _warning(
    "node.step_behind", "the newest step of %(run)s may not become durable: %(reason)s"
)
NODE_BEHIND = _error(
    "node.behind",
    "left behind, safe on this node only: %(left)s",
    *("shards", "size_bytes"),
)
NODE_LEFT = _info("node.left", "everything that was to be drained is durable")

# --- the life of a checkpoint --------------------------------------------------------------------

PART_BEGUN = _info(
    "part.begun",
    "rank %(rank)d of %(world_size)d puts %(run)s/%(step)d",
    *("save_id", "traceparent"),
)
SHARD_COMMITTED = _debug(
    "shard.committed",
    "%(run)s/%(step)d %(name)s is safe here: %(size_bytes size)s in %(seconds).3f s",
    *("save_id", "rank", "reached", "stage_seconds", "commit_seconds", "traceparent"),
)
PUT_REFUSED = _warning(
    "put.refused",
    "refused a put of %(run)s/%(step)d %(name)s: %(reason)s",
    *("save_id", "rank", "seconds"),
    alike=("run",),
)
PART_SEALED = _info(
    "part.sealed",
    "rank %(rank)d of %(world_size)d has sealed %(run)s/%(step)d: "
    "%(sealed)d sealed here, %(shards shard)s, %(size_bytes size)s",
    *("save_id", "seconds", "traceparent"),
)
SHARD_DRAINED = _debug(
    "shard.drained",
    "%(run)s/%(step)d %(name)s is verified at %(remote)s: "
    "%(stored_bytes size)s for %(size_bytes size)s in %(seconds).3f s",
    *("save_id", "rank", "codec", "pack", "phases"),
)
OBJECT_SHOWN = _debug(
    "object.shown",
    "%(run)s %(name)s is visible in its bucket: %(size_bytes size)s, %(age_seconds).1f s after it "
    "was put",
    *("deleted", "seconds", "phases"),
)
OBJECT_CONFLICT = _error(
    "object.conflict", "an operator must decide about an object of %(run)s: %(reason)s", "name"
)
OBJECT_SUPERSEDED = _warning(
    "object.superseded", "%(name)s of %(run)s could not be written to its bucket: %(reason)s"
)
MARKER_RELEASED = _warning(
    "marker.released",
    "%(run)s %(name)s no longer waits for earlier puts of other nodes",
    "by_itself",
)
ORDER_PUT_OFF = _warning(
    "order.put_off",
    "the order of %(run)s across nodes cannot be checked; this is retried: %(reason)s",
    "code",
    alike=("run", "code"),
)
UNFLUSHED_PUT_OFF = _warning(
    "unflushed.put_off",
    "the notes about steps that are not durable could not be written to the bucket; this is "
    "retried: %(reason)s",
    "code",
    alike=("code",),
)
UNFLUSHED_UNREADABLE = _warning(
    "unflushed.unreadable",
    "%(key)s is not the note of a node and is ignored: %(reason)s",
    alike=("key",),
)
DRAIN_FAILED = _warning(
    "drain.failed",
    "%(kind)s of %(run)s/%(step)d failed at %(remote)s and will be retried: %(reason)s (%(code)s)",
    *("save_id", "rank", "name", "attempt", "seconds"),
    alike=("remote", "code", "kind"),
)
SHARD_QUARANTINED = _error(
    "shard.quarantined",
    "%(run)s/%(step)d %(name)s is damaged on this node and was not sent: %(reason)s",
    *("save_id", "rank"),
)
SHARD_CONFLICT = _error(
    "shard.conflict", "an operator must look at %(run)s/%(step)d: %(reason)s", "name", "remote"
)
PART_DRAINED = _info(
    "part.drained",
    "rank %(rank)d of %(run)s/%(step)d is at %(remote)s: %(shards shard)s, %(size_bytes size)s, "
    "%(age_seconds).1f s after its save began",
    *("save_id", "seconds"),
)
SAVE_PUBLISHED = _info(
    "save.published",
    "%(run)s/%(step)d is published at %(remote)s, %(age_seconds).1f s after its save began: "
    "%(shards shard)s, %(size_bytes size)s of it from here",
    *("save_id", "world_size", "decides", "seconds"),
)
SAVE_REFUSED = _warning(
    "save.refused",
    "%(run)s/%(step)d is %(state)s at %(remote)s: %(reason)s",
    *("save_id", "age_seconds", "decides"),
)
SAVE_ENDED = _info(
    "save.ended",
    "%(run)s/%(step)d is %(state)s at %(remote)s",
    *("save_id", "age_seconds", "decides"),
)
SAVE_DELETED = _info(
    "save.deleted", "%(run)s/%(step)d is deleted at %(remote)s", "save_id", "age_seconds", "decides"
)
OBJECTS_LEFT = _info(
    "objects.left",
    "%(run)s/%(step)d is deleted at %(remote)s, except for %(count object)s that cachetier did "
    "not write, such as %(key)s",
    "save_id",
)
STORE_NOT_ALONE = _warning(
    "store.not_alone",
    "the cache directory of store %(store_id)s is older than remote %(remote)s, or in use by "
    "another node too: it was restored or copied; see docs/recovery.md",
    "epoch",
)
OBJECTS_MISSING = _error("objects.missing", "%(run)s/%(step)d: %(reason)s", *("save_id",))
OBJECT_GONE = _warning(
    "object.gone",
    "%(key)s of %(run)s was deleted in the bucket by somebody else. Its bytes stay here for an "
    "hour; `cachetier fsck --repair` sends them again",
)
OBJECT_REPLACED = _info(
    "object.replaced",
    "%(key)s of %(run)s was replaced in the bucket by another writer: our copy is removed",
)
SAVE_ENDED_ELSEWHERE = _info(
    "save.ended_elsewhere",
    "%(run)s/%(step)d was %(state)s by another node: our copy is removed",
    "save_id",
)
SAVE_GIVEN_UP = _warning(
    "save.given_up",
    "remote %(remote)s will never have %(run)s/%(step)d: some bytes were evicted here before "
    "they were sent there",
    "save_id",
)
PART_MENDED = _info(
    "part.mended",
    "sealed rank %(rank)d of %(run)s/%(step)d for its client: %(shards shard)s had gone straight "
    "to S3",
    "save_id",
)
PART_TAKEN_BACK = _warning(
    "part.taken_back",
    "rank %(rank)d of %(run)s/%(step)d was sealed without %(names)s, which are removed",
    "save_id",
)
PART_WAITS = _warning(
    "part.waits",
    "rank %(rank)d of %(run)s/%(step)d waits for the service that has its shard %(name)s",
    "save_id",
    alike=("run", "step", "rank", "name"),
)
PENDING_SEAL_LATER = _warning(
    "pending_seal.later", "the search for a pending seal is repeated later: %(reason)s", alike=()
)
PENDING_SEAL_REFUSED = _error(
    "pending_seal.refused",
    "the pending seal of rank %(rank)d of %(run)s/%(step)d: %(reason)s",
    "save_id",
    alike=("run", "step", "rank"),
)
PENDING_SEAL_UNSOUND = _warning(
    "pending_seal.unsound", "%(key)s is not in the bucket as a client verified it", alike=("key",)
)
PENDING_SEALS_FAILED = _error(
    "pending_seals.failed", "the search for pending seals failed and will be retried", alike=()
)
PENDING_SEALS_LEFT = _error(
    "pending_seals.left", "finished pending seals could not be removed; they do no harm"
)

# --- reading, room and policies ------------------------------------------------------------------

COPY_PASSED_OVER = _warning(
    "copy.passed_over",
    "restore skips %(key)s at %(remote)s: %(reason)s",
    *("run", "step", "name"),
    alike=("remote", "key"),
)
PEERS_KNOWN = _info(
    "peers.known", "%(peers peer)s of %(listed)d addresses answer; this node's own is %(own)s"
)
PEERS_TROUBLE = _warning("peers.trouble", "%(problem)s", alike=("problem",))
PART_FINISHED = _warning(
    "peers.part_finished",
    "rank %(rank)d of step %(step)d of %(run)s is drained here: the node that saved it is gone, or "
    "back without it",
)
PEER_SKIPPED = _warning(
    "peer.skipped",
    "restore skips the peer %(peer)s: %(reason)s",
    *("run", "step", "name"),
    alike=("peer", "run", "step"),
)
STEP_RESTORED = _info(
    "step.restored",
    "%(run)s/%(step)d was restored to this node: %(shards shard)s, %(size_bytes size)s in "
    "%(seconds).1f s",
)
STEP_NOT_RESTORED = _warning(
    "step.not_restored",
    "%(run)s/%(step)d was not restored to this node, or only in part: %(reason)s",
)
ROOM_FAILED = _error(
    "room.failed", "eviction failed and will be retried at the next change", alike=()
)
LOCAL_ONLY_DRAINED = _warning(
    "local_only.drained",
    "the cache is full: local-only step %(run)s/%(step)d is drained",
    "save_id",
)
LOCAL_ONLY_KEPT = _warning(
    "local_only.kept",
    "step %(run)s/%(step)d is kept because its rows are damaged: %(reason)s",
    "save_id",
    alike=("run", "step"),
)
LOCAL_ONLY_REMOVED = _info(
    "local_only.removed",
    "removed local-only step %(run)s/%(step)d: %(size_bytes size)s",
    "save_id",
)
FILE_STUCK = _warning(
    "file.stuck", "data file %(file_id)s cannot be removed: %(reason)s", alike=("file_id",)
)
RESERVATION_EXCEEDED = _warning(  # a client's doing, and the disk is safe: no defect
    "reservation.exceeded",
    "a put of %(by)s was refused and its file removed: %(reason)s",
    alike=("by",),
)
LOOK_FAILED = _error(
    "look.failed", "the open files could not be measured; this is retried at once", alike=()
)

# --- the remotes and the drain -------------------------------------------------------------------

REMOTE_READBACK = _info(
    "remote.readback",
    "remote %(remote)s keeps no CRC-64/NVME: objects are read back before they are durable",
)
REMOTE_UNREACHABLE = _warning(
    "remote.unreachable",
    "remote %(remote)s is unreachable, everything is kept: %(reason)s",
    alike=("remote",),
)
REMOTE_REFUSED = _warning(
    "remote.refused",
    "remote %(remote)s refuses this node, everything is kept: %(reason)s",
    alike=("remote",),
)
REMOTE_THROTTLED = _warning(
    "remote.throttled",
    "remote %(remote)s throttles this node",
    "times",
    "reason",
    alike=("remote",),
)
REMOTE_WELL = _info("remote.well", "remote %(remote)s has recovered")
COPIES_REFUSED = _warning(
    "copies.refused",
    "the remote does not copy inside the bucket, so bytes are sent: %(reason)s",
    alike=(),
)
DRAIN_STARTED = _info("drain.started", "the drain to %(remote)s is process %(pid)d")
DRAIN_DIED = _error(
    "drain.died",
    "the drain to %(remote)s exited unexpectedly (%(status)d) and is restarted",
    "pid",
)
DRAIN_NOT_STARTED = _error(
    "drain.not_started", "the drain cannot be started; this is retried", "remote", alike=()
)
DRAIN_BROKEN = _error("drain.broken", "the drain cannot go on after task %(task)d")
DRAIN_TASK_BROKEN = _error(
    "drain.task_broken",
    "%(kind)s of %(run)s/%(step)d %(name)s failed because of a defect in cachetier",
    "save_id",
    alike=("kind",),
)
DRAIN_NO_WORK = _warning(
    "drain.no_work", "the drain could not get work from the service: %(reason)s", alike=()
)
DRAIN_UNREPORTED = _warning(
    "drain.unreported", "the drain could not report its state: %(reason)s", alike=()
)
DRAIN_REQUEST_FAILED = _error(
    "drain.request_failed", "the drain's request %(operation)s failed", alike=("operation",)
)
DRAIN_ANSWER_TOO_LARGE = _error(
    "drain.answer_too_large", "an answer to the drain is too large: %(reason)s", alike=()
)
DRAIN_OUTPUT = _warning("drain.said", "%(text)s", "remote")

# --- the doors -----------------------------------------------------------------------------------

REQUEST_FAILED = _error(
    "request.failed", "%(door)s request %(operation)r failed", alike=("door", "operation")
)
ANSWER_CUT_OFF = _error("answer.cut_off", "an answer was cut off: %(reason)s", "code")
SESSION_FAILED = _error("session.failed", "a session ended because of a defect in cachetier")
STAGED_LEFT = _error("staged.left", "a staged shard could not be dropped")
ACCEPT_FAILED = _error("accept.failed", "accepting a connection failed", alike=())
SCRAPE_FAILED = _error(
    "scrape.failed",
    "a scrape has no gauges of the %(source)s: %(reason)s",
    alike=("source",),
)
TLS_READ = _event("tls.read", logging.INFO, "the TLS files changed and were read again")
TLS_REFUSED = _warning(
    "tls.refused",
    "the TLS files changed and cannot be used; the earlier ones stay in use: %(reason)s",
)
HTTP_FAILED = _error("http.failed", "the %(door)s door failed", alike=("door",))
TOKENS_UNREADABLE = _error(
    "tokens.unreadable",
    "the tokens in %(path)s cannot be read; the earlier ones stay valid: %(reason)s",
    alike=("path",),
)
AUDIT_FAILED = _error("audit.failed", "a line of the audit log could not be written", alike=())

# --- the log itself ------------------------------------------------------------------------------

LIBRARY = _event("library", logging.WARNING, "%(text)s", "logger", alike=("logger", "text"))
DEFECT = _error("defect", "thread %(thread)s ended because of a defect in cachetier")
REPEATED = _warning(
    "log.repeated", "%(times)d more events of %(of)s in %(seconds)d s were not written", "like"
)
TRACE_FAILED = _warning("trace.failed", "spans could not be made: %(reason)s", alike=())
