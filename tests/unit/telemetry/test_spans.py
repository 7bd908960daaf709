"""Spans made of events: one trace for a save, with the right parents, and bounded."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from cachetier.telemetry import events
from cachetier.telemetry.events import tell
from cachetier.telemetry.spans import SHARDS_SHOWN, SaveSpans, provider_for

LOG = logging.getLogger("cachetier.spans_of_tests")
IDS = {"run": "r", "step": 7, "save_id": "s"}
CALLER = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
OTHER = "00-1af7651916cd43dd8448eb211c80319c-c7ad6b7169203331-01"
END = {**IDS, "remote": "durable", "decides": True, "age_seconds": 60.0}


class Node:
    """One life of a node that traces."""

    def __init__(self, directory: Path, store_id: str = "store") -> None:
        self.exporter = InMemorySpanExporter()
        self._provider: TracerProvider = provider_for(store_id, self.exporter)
        self._spans = SaveSpans(self._provider, store_id, directory / f"{store_id}.json")
        LOG.addHandler(self._spans)
        LOG.setLevel(logging.DEBUG)
        LOG.propagate = False

    def close(self) -> None:
        LOG.removeHandler(self._spans)
        self._provider.shutdown()

    def begins(self, traceparent: str | None = None) -> None:
        tell(LOG, events.PART_BEGUN, **IDS, rank=0, world_size=1, traceparent=traceparent)

    def puts(self, name: str = "a", traceparent: str | None = None) -> None:
        took = {"seconds": 3.0, "stage_seconds": 2.0, "commit_seconds": 1.0}
        what = {"name": name, "size_bytes": 4, "rank": 0, "reached": "local"}
        tell(LOG, events.SHARD_COMMITTED, **IDS, **what, **took, traceparent=traceparent)

    def drains(self, **more: Any) -> None:
        told: dict[str, Any] = {"name": "a", "size_bytes": 4, "stored_bytes": 4, "codec": "raw"}
        told |= {"remote": "durable", "seconds": 5.0, "rank": 0, **more}
        tell(LOG, events.SHARD_DRAINED, **IDS, **told)

    def publishes(self) -> None:
        counted = {"shards": 1, "size_bytes": 4, "seconds": 0.5, "world_size": 1}
        tell(LOG, events.SAVE_PUBLISHED, **END, **counted)

    @property
    def spans(self) -> list[ReadableSpan]:
        self._provider.force_flush()
        return list(self.exporter.get_finished_spans())

    def named(self, name: str) -> ReadableSpan:
        (span,) = (span for span in self.spans if span.name == name)
        return span


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Node]]:
    """Start a node; one that runs is stopped first."""
    running: list[Node] = []

    def begin(store_id: str = "store") -> Node:
        while running:
            running.pop().close()
        running.append(Node(tmp_path, store_id))
        return running[0]

    yield begin
    while running:
        running.pop().close()


def _seconds(span: ReadableSpan) -> float:
    assert span.start_time is not None and span.end_time is not None
    return (span.end_time - span.start_time) / 1e9


def _parent(span: ReadableSpan) -> int | None:
    return span.parent.span_id if span.parent is not None else None


def _context(span: ReadableSpan) -> tuple[int, int]:
    assert span.context is not None
    return span.context.trace_id, span.context.span_id


def test_a_step_is_one_trace_below_one_root(start: Callable[..., Node]) -> None:
    node = start()
    node.begins()
    node.puts()
    told = {"rank": 0, "world_size": 1, "sealed": 1, "shards": 1, "size_bytes": 4, "seconds": 0.25}
    tell(LOG, events.PART_SEALED, **IDS, **told)
    node.drains(phases={"read": [0.5, 1.5, 1.0], "send": [1.0, 4.0, 6.0]})
    counted = {"shards": 1, "size_bytes": 4, "age_seconds": 9.0, "seconds": 1.0}
    tell(LOG, events.PART_DRAINED, **IDS, rank=0, remote="durable", **counted)
    node.publishes()
    root = node.named("checkpoint")
    assert root.parent is None and _seconds(root) == pytest.approx(60)
    for name in ("put", "seal", "drain", "write_part", "publish"):
        assert _parent(node.named(name)) == _context(root)[1], name
    for outer, names in (("put", ("stage", "commit")), ("drain", ("read", "send"))):
        for name in names:
            assert _parent(node.named(name)) == _context(node.named(outer))[1], name
    assert len({_context(span)[0] for span in node.spans}) == 1


def test_spans_last_as_long_as_what_they_tell_of(start: Callable[..., Node]) -> None:
    node = start()
    node.puts()
    node.drains(phases={"send": [1.0, 4.0, 6.0]})
    lasted = {span.name: _seconds(span) for span in node.spans}
    assert lasted == pytest.approx({"put": 3, "stage": 2, "commit": 1, "drain": 5, "send": 3})
    send, drain = node.named("send"), node.named("drain")
    assert send.start_time is not None and drain.start_time is not None
    assert (send.start_time - drain.start_time) / 1e9 == pytest.approx(1)
    assert send.attributes == {"cachetier.busy_seconds": 6.0}


def test_the_root_begins_with_the_first_put(start: Callable[..., Node]) -> None:
    node = start()
    node.puts()
    tell(LOG, events.SAVE_ENDED, **{**END, "age_seconds": 0.5}, state="superseded")
    put, root = node.named("put"), node.named("checkpoint")
    assert root.start_time == put.start_time


def test_spans_tell_ids_and_bytes(start: Callable[..., Node]) -> None:
    node = start()
    node.puts("model/rank-0")
    attributes = node.named("put").attributes or {}
    assert attributes["cachetier.run"] == "r"
    assert attributes["cachetier.step"] == 7
    assert attributes["cachetier.name"] == "model/rank-0"
    assert attributes["cachetier.size_bytes"] == 4


def test_a_restart_in_the_middle_changes_no_id(start: Callable[..., Node]) -> None:
    before = start()
    before.begins()
    before.puts()
    put = before.named("put")
    after = start()
    after.drains()
    after.publishes()
    root = after.named("checkpoint")
    assert (_context(root)[0], _context(root)[1]) == (_context(put)[0], _parent(put))


def test_the_nodes_of_a_save_share_its_trace_and_each_has_a_root(
    start: Callable[..., Node],
) -> None:
    roots = []
    for store_id in ("one", "two"):
        node = start(store_id)
        node.publishes()
        roots.append(_context(node.named("checkpoint")))
    assert roots[0][0] == roots[1][0]
    assert roots[0][1] != roots[1][1]


def test_another_save_of_the_step_is_another_trace(start: Callable[..., Node]) -> None:
    node = start()
    node.publishes()
    first = _context(node.named("checkpoint"))[0]
    node.exporter.clear()
    counted = {"shards": 1, "size_bytes": 4, "seconds": 0.5, "world_size": 1}
    tell(LOG, events.SAVE_PUBLISHED, **{**END, "save_id": "t"}, **counted)
    assert _context(node.named("checkpoint"))[0] != first


def test_the_first_callers_span_is_above_the_root_also_after_a_restart(
    start: Callable[..., Node],
) -> None:
    before = start()
    before.begins(CALLER)
    before.puts(traceparent=CALLER)
    put = before.named("put")
    assert put.links == ()
    after = start()
    after.begins(OTHER)
    after.publishes()
    root = after.named("checkpoint")
    assert _context(root) == (0x0AF7651916CD43DD8448EB211C80319C, _parent(put))
    assert _parent(root) == 0xB7AD6B7169203331


def test_other_callers_are_linked(start: Callable[..., Node]) -> None:
    node = start()
    node.begins(CALLER)
    node.puts(traceparent=OTHER)
    (link,) = node.named("put").links
    assert link.context.span_id == 0xC7AD6B7169203331


def test_a_caller_who_is_not_sampled_gets_no_spans(start: Callable[..., Node]) -> None:
    node = start()
    node.begins(CALLER[:-2] + "00")
    node.puts()
    node.publishes()
    assert node.spans == []


def test_a_large_step_is_cut_and_says_so(start: Callable[..., Node]) -> None:
    node = start()
    for number in range(SHARDS_SHOWN + 10):
        node.puts(str(number))
        node.drains(name=str(number))
    node.publishes()
    names = [span.name for span in node.spans]
    assert names.count("put") == names.count("drain") == SHARDS_SHOWN
    attributes = node.named("checkpoint").attributes or {}
    assert attributes["cachetier.spans_left_out"] == 20


@pytest.mark.parametrize("event", [events.DRAIN_FAILED, events.PUT_REFUSED])
def test_what_fails_is_an_error_with_its_reason(
    start: Callable[..., Node], event: events.Event
) -> None:
    node = start()
    what = {"kind": "upload", "code": "transient", "remote": "durable", "seconds": 2.0}
    tell(LOG, event, **IDS, name="a", reason="no answer", **what)
    (span,) = node.spans
    assert span.status.status_code is StatusCode.ERROR
    assert span.status.description == "no answer"
    assert _seconds(span) == pytest.approx(2)


def test_a_save_that_is_refused_ends_its_trace_with_an_error(start: Callable[..., Node]) -> None:
    node = start()
    tell(LOG, events.SAVE_REFUSED, **END, state="refused", reason="another is published")
    assert node.named("checkpoint").status.status_code is StatusCode.ERROR


def test_a_replica_publishes_without_ending_the_trace(start: Callable[..., Node]) -> None:
    node = start()
    counted = {"shards": 1, "size_bytes": 4, "seconds": 0.5, "world_size": 1}
    tell(LOG, events.SAVE_PUBLISHED, **{**END, "decides": False, "remote": "near"}, **counted)
    assert [span.name for span in node.spans] == ["publish"]


class _Broken(SpanExporter):
    def export(self, spans: Any) -> SpanExportResult:
        raise OSError("no collector")


def test_a_span_that_cannot_be_made_harms_nobody(
    start: Callable[..., Node], caplog: pytest.LogCaptureFixture
) -> None:
    node = start()
    lacking = {"name": "a", "size_bytes": 4, "seconds": 1.0}  # how long it staged, and committed
    tell(LOG, events.SHARD_COMMITTED, **IDS, **lacking)
    assert node.spans == []
    assert "spans could not be made" in caplog.text


def test_the_service_has_a_name_that_the_environment_may_change(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert provider_for("x", _Broken()).resource.attributes["service.name"] == "cachetier"
    monkeypatch.setenv("OTEL_SERVICE_NAME", "ours")
    named = provider_for("x", _Broken()).resource.attributes
    assert (named["service.name"], named["service.instance.id"]) == ("ours", "x")
