"""Spans made of events: one trace for each save, on all its nodes and over restarts.

The ids of a trace and of each node's root span follow from the save and the store, so they need no
memory: what is put before a restart and published after it is one trace. If the first put of a save
brings a caller's span along, the trace is the caller's; which one is then kept in a small file.

Memory is bounded: of one save the first ``SHARDS_SHOWN`` puts and as many uploads become spans, and
what waits to be sent is bounded by OpenTelemetry (``OTEL_BSP_MAX_QUEUE_SIZE``).

Source: docs/logs.md, "Traces"; docs/design/0014-logs-and-traces.md.
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
import os
from collections import OrderedDict
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from opentelemetry.context import Context
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter
from opentelemetry.sdk.trace.id_generator import IdGenerator, RandomIdGenerator
from opentelemetry.sdk.trace.sampling import Decision
from opentelemetry.trace import (
    Link,
    NonRecordingSpan,
    Span,
    SpanContext,
    Status,
    StatusCode,
    TraceFlags,
    set_span_in_context,
)

from cachetier import __version__
from cachetier.telemetry import events
from cachetier.telemetry.events import Event, tell

log = logging.getLogger(__name__)

SHARDS_SHOWN = 128
SAVES_REMEMBERED = 1_000
PREFIX = "cachetier"

Fields = Mapping[str, Any]


@dataclass(slots=True)
class _Save:
    """The trace of one save: its ids, the caller's span above it, and what was counted."""

    trace_id: int
    span_id: int
    sampled: bool
    caller: SpanContext | None
    began: float = math.inf  # of the first put since the start; the catalog knows only its commit
    puts: int = 0
    drains: int = 0

    def context(self) -> Context:
        """Return the root as a parent: it has ids before it is a span."""
        flags = TraceFlags(TraceFlags.SAMPLED if self.sampled else TraceFlags.DEFAULT)
        return _below(SpanContext(self.trace_id, self.span_id, is_remote=False, trace_flags=flags))


class _Ids(RandomIdGenerator):
    """Random ids, but for a root: ``root`` says which it gets."""

    def __init__(self) -> None:
        self.root: tuple[int, int] | None = None

    def generate_trace_id(self) -> int:
        return super().generate_trace_id() if self.root is None else self.root[0]

    def generate_span_id(self) -> int:
        return super().generate_span_id() if self.root is None else self.root[1]


def provider_for(store_id: str, exporter: SpanExporter | None = None) -> TracerProvider:
    """Return what sends spans: in batches, on a thread of its own."""
    if exporter is None:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

        exporter = OTLPSpanExporter()
    attributes = {"service.version": __version__, "service.instance.id": store_id}
    if not os.environ.get("OTEL_SERVICE_NAME"):
        attributes["service.name"] = "cachetier"
    ids: IdGenerator = _Ids()
    provider = TracerProvider(resource=Resource.create(attributes), id_generator=ids)
    provider.add_span_processor(BatchSpanProcessor(exporter))
    return provider


class FirstCallers:
    """The first caller of each of the last ``limit`` saves. For one thread at a time.

    They are kept in one small file, replaced whole and never synced: if it is lost, a save that was
    under way gets a second trace, and nothing else.
    """

    def __init__(self, path: Path, limit: int) -> None:
        self._path = path
        self._limit = limit
        self._firsts = self._read()

    def first(self, save: str, traceparent: str | None) -> str | None:
        """Return the span of the save's first caller: ``traceparent`` if this is the first."""
        if save not in self._firsts:
            self._firsts[save] = traceparent
            while len(self._firsts) > self._limit:
                self._firsts.popitem(last=False)
            self._write()
        return self._firsts[save]

    def _read(self) -> OrderedDict[str, str | None]:
        try:
            with open(self._path, opener=_unfollowed) as file:
                kept = json.load(file)
            return OrderedDict((str(save), first and str(first)) for save, first in kept.items())
        except (OSError, ValueError, AttributeError):
            return OrderedDict()

    def _write(self) -> None:
        newer = self._path.with_suffix(".new")
        with suppress(OSError):
            with open(newer, "w", opener=_unfollowed) as file:
                json.dump(self._firsts, file)
            newer.replace(self._path)


def _unfollowed(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)


class SaveSpans(logging.Handler):
    """Makes spans of the events that it handles; a span ends when its event is logged."""

    def __init__(self, provider: TracerProvider, store_id: str, callers: Path) -> None:
        super().__init__(logging.DEBUG)
        assert isinstance(provider.id_generator, _Ids)
        self._ids = provider.id_generator
        self._sampler = provider.sampler
        self._tracer = provider.get_tracer(PREFIX, __version__)
        self._store_id = store_id
        self._callers = FirstCallers(callers, SAVES_REMEMBERED)
        self._saves: OrderedDict[tuple[str, int, str], _Save] = OrderedDict()

    def emit(self, record: logging.LogRecord) -> None:
        event = getattr(record, "event", None)
        fields = record.args
        if not isinstance(event, Event) or not isinstance(fields, Mapping):
            return
        make = _MAKERS.get(event.name)
        if make is None:
            return
        try:
            make(self, fields, record.created)
        except Exception as error:  # whoever told of the event must not suffer from its span
            tell(log, events.TRACE_FAILED, reason=repr(error))

    # --- which trace -----------------------------------------------------------------------------

    def _save(self, fields: Fields) -> _Save:
        """Return the trace of the save that ``fields`` are about."""
        key = (str(fields["run"]), int(fields["step"]), str(fields["save_id"]))
        save = self._saves.get(key)
        if save is None:
            save = self._saves[key] = self._begun("/".join(map(str, key)), fields)
            if len(self._saves) > SAVES_REMEMBERED:
                self._saves.popitem(last=False)
        self._saves.move_to_end(key)
        return save

    def _begun(self, name: str, fields: Fields) -> _Save:
        caller = _span_of(self._callers.first(name, fields.get("traceparent")))
        trace_id = caller.trace_id if caller is not None else _hashed(name, 16)
        span_id = _hashed(f"{trace_id:032x}/{name}/{self._store_id}", 8)
        above = None if caller is None else _below(caller)
        verdict = self._sampler.should_sample(above, trace_id, "checkpoint")
        return _Save(trace_id, span_id, verdict.decision is Decision.RECORD_AND_SAMPLE, caller)

    # --- spans -----------------------------------------------------------------------------------

    def _span(
        self,
        name: str,
        fields: Fields,
        ended: float,
        *,
        failed: bool = False,
        links: tuple[Link, ...] = (),
    ) -> Span:
        """Make a span below the root of its save; the caller ends it."""
        above = self._save(fields).context()
        began = _nanoseconds(ended - float(fields.get("seconds") or 0.0))
        span = self._tracer.start_span(
            name, above, start_time=began, attributes=_attributes(fields), links=links
        )
        if failed:
            span.set_status(Status(StatusCode.ERROR, str(fields.get("reason"))))
        return span

    def _inside(self, outer: Span, name: str, began: float, ended: float, **more: float) -> None:
        """Make a span inside another one, from and to an instant."""
        inner = self._tracer.start_span(
            name,
            set_span_in_context(outer),
            start_time=_nanoseconds(began),
            attributes={f"{PREFIX}.{key}": value for key, value in more.items()},
        )
        inner.end(_nanoseconds(ended))

    def _begin(self, fields: Fields, _at: float) -> None:
        self._save(fields)

    def _put(self, fields: Fields, at: float) -> None:
        save = self._save(fields)
        save.puts += 1
        save.began = min(save.began, at - float(fields["seconds"]))
        if save.puts > SHARDS_SHOWN:
            return
        span = self._span("put", fields, at, links=_links(save, fields))
        commits = at - float(fields["commit_seconds"])
        self._inside(span, "stage", at - float(fields["seconds"]), commits)
        self._inside(span, "commit", commits, at)
        span.end(_nanoseconds(at))

    def _drained(self, fields: Fields, at: float) -> None:
        save = self._save(fields)
        save.drains += 1
        if save.drains > SHARDS_SHOWN:
            return
        span = self._span("drain", fields, at)
        began = at - float(fields["seconds"])
        for name, (first, last, busy) in (fields.get("phases") or {}).items():
            self._inside(span, name, began + first, began + last, busy_seconds=busy)
        span.end(_nanoseconds(at))

    def _failed(self, fields: Fields, at: float) -> None:
        save = self._save(fields)
        save.drains += 1
        if save.drains <= SHARDS_SHOWN:
            self._span("drain", fields, at, failed=True).end(_nanoseconds(at))

    def _refused(self, fields: Fields, at: float) -> None:
        save = self._save(fields)
        save.puts += 1
        if save.puts <= SHARDS_SHOWN:
            self._span("put", fields, at, failed=True).end(_nanoseconds(at))

    def _sealed(self, fields: Fields, at: float) -> None:
        links = _links(self._save(fields), fields)
        self._span("seal", fields, at, links=links).end(_nanoseconds(at))

    def _part(self, fields: Fields, at: float) -> None:
        self._span("write_part", fields, at).end(_nanoseconds(at))

    def _published(self, fields: Fields, at: float) -> None:
        self._span("publish", fields, at).end(_nanoseconds(at))
        self._root(fields, at, "published")

    def _ended(self, fields: Fields, at: float) -> None:
        self._root(fields, at, str(fields.get("state", "deleted")), failed="reason" in fields)

    def _root(self, fields: Fields, at: float, state: str, *, failed: bool = False) -> None:
        """Make the root, now that the save has ended where that is decided."""
        if not fields["decides"]:
            return
        save = self._save(fields)
        above = Context() if save.caller is None else _below(save.caller)
        self._ids.root = (save.trace_id, save.span_id)  # the handler's lock is held
        try:
            began = _nanoseconds(min(save.began, at - float(fields["age_seconds"])))
            root = self._tracer.start_span("checkpoint", above, start_time=began)
        finally:
            self._ids.root = None
        attributes = {name: fields[name] for name in fields if name not in ("decides", "seconds")}
        left_out = max(0, save.puts - SHARDS_SHOWN) + max(0, save.drains - SHARDS_SHOWN)
        root.set_attributes(_attributes({**attributes, "state": state, "spans_left_out": left_out}))
        if failed:
            root.set_status(Status(StatusCode.ERROR, str(fields["reason"])))
        root.end(_nanoseconds(at))


_MAKERS: dict[str, Callable[[SaveSpans, Fields, float], None]] = {
    events.PART_BEGUN.name: SaveSpans._begin,
    events.SHARD_COMMITTED.name: SaveSpans._put,
    events.PUT_REFUSED.name: SaveSpans._refused,
    events.PART_SEALED.name: SaveSpans._sealed,
    events.SHARD_DRAINED.name: SaveSpans._drained,
    events.DRAIN_FAILED.name: SaveSpans._failed,
    events.PART_DRAINED.name: SaveSpans._part,
    events.SAVE_PUBLISHED.name: SaveSpans._published,
    events.SAVE_REFUSED.name: SaveSpans._ended,
    events.SAVE_ENDED.name: SaveSpans._ended,
    events.SAVE_DELETED.name: SaveSpans._ended,
}


def _below(span: SpanContext) -> Context:
    return set_span_in_context(NonRecordingSpan(span), Context())


def _links(save: _Save, fields: Fields) -> tuple[Link, ...]:
    """Return a link to the caller's span, unless that is above the trace anyway."""
    caller = _span_of(fields.get("traceparent"))
    return () if caller is None or caller == save.caller else (Link(caller),)


def _span_of(traceparent: str | None) -> SpanContext | None:
    """Return the caller's span; ``callers`` has checked its form."""
    if traceparent is None:
        return None
    _version, trace_id, span_id, flags = traceparent.split("-")
    sampled = TraceFlags(int(flags, 16) & TraceFlags.SAMPLED)
    return SpanContext(int(trace_id, 16), int(span_id, 16), is_remote=True, trace_flags=sampled)


def _hashed(text: str, size_bytes: int) -> int:
    """Return an id that follows from ``text``; not 0, which is none."""
    digest = hashlib.blake2b(text.encode(), digest_size=size_bytes).digest()
    return int.from_bytes(digest, "big") or 1


def _nanoseconds(at: float) -> int:
    return int(at * 1e9)


def _attributes(fields: Fields) -> dict[str, str | bool | int | float]:
    """Return what a span tells of its event: all that is one value."""
    hidden = ("seconds", "stage_seconds", "commit_seconds", "phases", "traceparent")
    return {
        f"{PREFIX}.{name}": value if isinstance(value, bool | int | float) else str(value)
        for name, value in fields.items()
        if name not in hidden and value is not None
    }
