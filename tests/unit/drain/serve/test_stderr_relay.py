"""What a drain process says on its standard error, in the log of ``serve``."""

from __future__ import annotations

import io
import json
import logging
import os
from collections.abc import Iterator

import pytest

from cachetier.drain.serve.stderr_relay import StderrRelay, record_of
from cachetier.telemetry import events
from cachetier.telemetry.events import tell
from cachetier.telemetry.log_format import JsonLines

DRAIN = logging.getLogger("cachetier.drain.of_tests")


@pytest.fixture
def drain_log() -> Iterator[io.StringIO]:
    """Lend what the drain writes."""
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(JsonLines(()))
    DRAIN.addHandler(handler)
    level = DRAIN.level
    DRAIN.setLevel(logging.DEBUG)
    yield stream
    DRAIN.removeHandler(handler)
    DRAIN.setLevel(level)


def test_an_event_of_the_drain_is_the_same_event_here(drain_log: io.StringIO) -> None:
    tell(DRAIN, events.COPIES_REFUSED, reason="AccessDenied")
    record = record_of(drain_log.getvalue(), "near")
    line = json.loads(JsonLines(()).format(record))
    said = json.loads(drain_log.getvalue())
    assert line == {**said, "process": "drain-near"}
    assert record.event is events.COPIES_REFUSED  # type: ignore[attr-defined]


def test_its_traceback_comes_along(drain_log: io.StringIO) -> None:
    try:
        raise RuntimeError("the reason")
    except RuntimeError as error:
        tell(DRAIN, events.DRAIN_BROKEN, task=3, error=error)
    line = json.loads(JsonLines(()).format(record_of(drain_log.getvalue(), "near")))
    assert line["task"] == 3 and "the reason" in line["exception"]


def test_what_a_library_warned_of_there_keeps_its_logger(drain_log: io.StringIO) -> None:
    DRAIN.warning("100%% of %s", "it")
    record = record_of(drain_log.getvalue(), "near")
    assert (record.name, record.getMessage()) == (DRAIN.name, "100% of it")


@pytest.mark.parametrize(
    "line",
    [
        "Fatal Python error: Segmentation fault",
        '{"event": "no.such"}',
        '{"event": "service.stopped", "level": "info", "ts": "never"}',
        "[1, 2]",
        "null",
        pytest.param("[" * 3_900, id="deep"),
    ],
)
def test_what_is_no_event_is_told_in_its_own_words(line: str) -> None:
    record = json.loads(JsonLines(()).format(record_of(line, "near")))
    assert (record["event"], record["text"], record["remote"]) == ("drain.said", line, "near")


def test_everything_is_told_until_the_process_has_ended(caplog: pytest.LogCaptureFixture) -> None:
    reading, writing = os.pipe()
    said = StderrRelay(os.fdopen(reading, "rb"), "near")
    os.write(writing, b"one\n\ntwo\nthe last, cut o")
    os.close(writing)
    said.close(30.0)
    assert [record.getMessage() for record in caplog.records] == ["one", "two", "the last, cut o"]


def test_no_line_stops_the_listening(caplog: pytest.LogCaptureFixture) -> None:
    known = b'{"event": "remote.well", "level": "info", "ts": "2026-01-01T00:00:00Z", '
    odd = [
        b"[" * 200_000,  # too deep for a parser
        b"\xff\xfe\x00",
        b"x" * 3_000_000,
        known + b'"message": "", "process": "", "exception": 7}',
    ]
    reading, writing = os.pipe()
    said = StderrRelay(os.fdopen(reading, "rb"), "near")
    with os.fdopen(writing, "wb") as drain:
        drain.write(b"\n".join([*odd, b"the last"]))
    said.close(30.0)
    assert caplog.records[-1].getMessage() == "the last"
    assert all(JsonLines(()).format(record) for record in caplog.records)


def test_the_pipe_of_a_process_that_still_speaks_is_left_to_its_reader() -> None:
    reader, writer = os.pipe()
    pipe = os.fdopen(reader, "rb")
    relay = StderrRelay(pipe, "near")

    relay.close(0.0)
    assert not pipe.closed

    os.close(writer)
    relay.close(30.0)
    assert pipe.closed
