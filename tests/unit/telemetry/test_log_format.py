"""Lines of the log: what they hold, what they never hold, and what repeats."""

from __future__ import annotations

import io
import json
import logging
import subprocess
import sys
from typing import Any

import pytest

from cachetier.telemetry import events
from cachetier.telemetry.events import Event
from cachetier.telemetry.log_format import (
    ConsoleLines,
    JsonLines,
    OneStream,
    formatter_for,
    secrets_in,
)
from cachetier.telemetry.rate_limit import KINDS_LIMIT, Repeats
from tests.fakes.fake_clock import FakeClock

SECRET = "wJalrXUtnFEMIK7MDENG"


def record_of(event: Event, **fields: Any) -> logging.LogRecord:
    record = events.record_of(event, fields)
    record.created, record.msecs = 1_700_000_000.25, 250.0
    return record


def json_of(record: logging.LogRecord, *secrets: str) -> dict[str, Any]:
    line = JsonLines(secrets).format(record)
    assert "\n" not in line
    return dict(json.loads(line))


# --- lines ---------------------------------------------------------------------------------------


def test_a_json_line_has_instant_level_event_text_and_fields() -> None:
    assert json_of(record_of(events.REMOTE_WELL, remote="near")) == {
        "ts": "2023-11-14T22:13:20.250Z",
        "level": "info",
        "event": "remote.well",
        "message": "remote near has recovered",
        "remote": "near",
        "process": "serve",
    }


def test_ids_come_first_and_numbers_stay_numbers() -> None:
    fields = {"size_bytes": 3, "step": 1, "save_id": "s", "run": "r"}
    line = json_of(record_of(events.LOCAL_ONLY_REMOVED, **fields))
    assert list(line)[4:] == ["run", "step", "save_id", "size_bytes", "process"]
    assert line["step"] == 1


def test_nested_fields_stay_what_they_are() -> None:
    record = record_of(events.REMOTE_THROTTLED, remote="r", reason={"read": [0.12345678, 1]})
    assert json_of(record)["reason"] == {"read": [0.123457, 1]}


def test_a_line_of_a_library_is_an_event_as_well() -> None:
    record = logging.makeLogRecord({"name": "botocore.x", "levelno": 30, "msg": "odd %s"})
    record.args = ("thing",)
    line = json_of(record)
    assert (line["event"], line["message"], line["logger"]) == (
        "library",
        "odd thing",
        "botocore.x",
    )


def test_an_error_brings_its_traceback_in_the_same_line() -> None:
    try:
        raise RuntimeError("the reason")
    except RuntimeError:
        record = record_of(events.SESSION_FAILED)
        record.args = ()
        record.exc_info = sys.exc_info()
    line = json_of(record)
    assert line["exception"].startswith("Traceback") and "the reason" in line["exception"]


def test_a_console_line_shows_the_fields_that_its_text_does_not() -> None:
    record = record_of(events.LOCAL_ONLY_REMOVED, run="r", step=1, size_bytes=3, save_id="s")
    line = ConsoleLines(()).format(record)
    assert line.endswith("info     local_only.removed removed local-only step r/1: 3 B save_id=s")


def test_a_text_shows_sizes_and_counts_as_people_read_them_and_fields_stay_numbers() -> None:
    def line(shards: int, size_bytes: int) -> dict[str, Any]:
        ids = {"run": "r", "step": 7, "save_id": "s", "rank": 0, "world_size": 1}
        what = {"sealed": 1, "shards": shards, "size_bytes": size_bytes, "seconds": 0.1}
        return json_of(record_of(events.PART_SEALED, **ids, **what))

    assert line(1, 67_108_864)["message"].endswith("1 sealed here, 1 shard, 67.1 MB")
    assert line(2, 7)["message"].endswith("1 sealed here, 2 shards, 7 B")
    assert (line(2, 7)["shards"], line(1, 67_108_864)["size_bytes"]) == (2, 67_108_864)


def test_no_field_can_forge_a_line_of_the_console() -> None:
    record = record_of(events.REMOTE_WELL, remote="x\n2026-01-01 error \x1b[31m")
    line = ConsoleLines(()).format(record)
    assert "\n" not in line and "\x1b" not in line


def test_a_console_traceback_is_indented_below_its_line() -> None:
    record = record_of(events.SESSION_FAILED)
    record.args, record.exc_text = (), "Traceback\nValueError: x"
    assert ConsoleLines(()).format(record).splitlines()[1:] == [
        "    Traceback",
        "    ValueError: x",
    ]


def test_long_texts_are_cut() -> None:
    line = json_of(record_of(events.REMOTE_WELL, remote="x" * 100_000))
    assert len(line["remote"]) < 5_000 and line["remote"].endswith("(100000 characters)")


@pytest.mark.parametrize(
    ("form", "terminal", "kind"),
    [
        ("auto", True, ConsoleLines),
        ("auto", False, JsonLines),
        ("json", True, JsonLines),
        ("console", False, ConsoleLines),
    ],
)
def test_auto_is_text_on_a_terminal_and_json_elsewhere(
    form: str, terminal: bool, kind: type[logging.Formatter]
) -> None:
    assert isinstance(formatter_for(form, (), terminal=terminal), kind)


def test_only_a_terminal_gets_colours() -> None:
    record = record_of(events.REMOTE_UNREACHABLE, remote="r", reason="x")
    assert "\x1b[33m" in formatter_for("console", (), terminal=True).format(record)
    assert "\x1b" not in formatter_for("console", (), terminal=False).format(record)


# --- secrets -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        f"{{'Authorization': 'Bearer {SECRET}'}}",
        f"Authorization: AWS4-HMAC-SHA256 Credential=x, Signature={SECRET}",
        f"https://s3/b/k?X-Amz-Signature={SECRET}&x=1",
        f"http://user:{SECRET}@host/",
    ],
)
@pytest.mark.parametrize("known", [(), (SECRET,)])
@pytest.mark.parametrize("form", ["json", "console"])
def test_secrets_are_blotted_out(form: str, known: tuple[str, ...], text: str) -> None:
    formatter = formatter_for(form, known, terminal=False)
    record = record_of(events.REMOTE_UNREACHABLE, remote="r", reason=text)
    record.exc_text = f"Traceback {text}"
    line = formatter.format(record)
    assert SECRET not in line and "***" in line


@pytest.mark.parametrize("form", ["json", "console"])
def test_what_is_known_to_be_secret_is_blotted_out_anywhere(form: str) -> None:
    formatter = formatter_for(form, (SECRET, "ab"), terminal=False)
    line = formatter.format(record_of(events.REMOTE_WELL, remote=f"a cab {SECRET}"))
    assert "a cab ***" in line  # two letters are no secret


def test_a_secret_is_found_where_json_writes_it_differently() -> None:
    secret = 'quote"and\\slash'
    line = JsonLines((secret,)).format(record_of(events.REMOTE_WELL, remote=f"x {secret}"))
    assert json.loads(line)["remote"] == "x ***"


def test_the_secrets_of_an_environment_are_known_by_their_names() -> None:
    environment = {
        "AWS_SECRET_ACCESS_KEY": "a",
        "AWS_SESSION_TOKEN": "b",
        "CACHETIER_TOKEN": "c",
        "OTEL_EXPORTER_OTLP_HEADERS": "d",
        "HOME": "e",
    }
    assert list(secrets_in(environment)) == ["a", "b", "c", "d"]


# --- repetitions ---------------------------------------------------------------------------------


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def repeats(clock: FakeClock) -> Repeats:
    return Repeats(clock.monotonic)


def failed(name: str, code: str = "transient") -> logging.LogRecord:
    ids = {"run": "r", "step": 1, "name": name, "kind": "upload", "reason": "no answer"}
    return record_of(events.DRAIN_FAILED, **ids, remote="durable", code=code)


def admits(repeats: Repeats, record: logging.LogRecord) -> bool:
    return record in list(repeats.written(record))


def test_the_first_warning_is_written_at_once_and_repetitions_are_counted(
    repeats: Repeats, clock: FakeClock
) -> None:
    assert [admits(repeats, failed(f"shard-{n}")) for n in range(5)] == [True] + 4 * [False]
    assert list(repeats.over()) == []
    clock.advance(61)
    (summary,) = repeats.over()
    assert summary.getMessage() == "4 more events of drain.failed in 61 s were not written"
    assert "code=transient" in str(summary.args)


def test_what_differs_in_what_matters_is_no_repetition(repeats: Repeats) -> None:
    assert admits(repeats, failed("a"))
    assert admits(repeats, failed("a", code="forbidden"))


def test_a_steady_stream_gives_one_summary_a_minute(repeats: Repeats, clock: FakeClock) -> None:
    written = 0
    for _ in range(600):
        written += len(list(repeats.written(failed("a"))))
        clock.advance(1)
    assert written == 10


def test_what_was_not_repeated_for_a_minute_is_written_at_once_again(
    repeats: Repeats, clock: FakeClock
) -> None:
    assert admits(repeats, failed("a"))
    clock.advance(61)
    assert list(repeats.over()) == []
    assert admits(repeats, failed("a"))


def test_events_that_each_matter_are_never_held_back(repeats: Repeats) -> None:
    ids = {"run": "r", "step": 1, "name": "a", "reason": "x"}
    damaged = record_of(events.SHARD_QUARANTINED, **ids)
    assert all(admits(repeats, damaged) for _ in range(3))
    assert all(admits(repeats, record_of(events.REMOTE_WELL, remote="r")) for _ in range(3))


def test_warnings_of_libraries_repeat_by_their_words(repeats: Repeats) -> None:
    def said(name: str, number: int) -> logging.LogRecord:
        fields = {"name": name, "levelno": 30, "msg": "retry %d", "args": (number,)}
        return logging.makeLogRecord(fields)

    assert [admits(repeats, said("a", n)) for n in (1, 2)] == [True, False]
    assert admits(repeats, said("b", 3))


def test_the_memory_of_repetitions_is_bounded(repeats: Repeats) -> None:
    for number in range(2 * KINDS_LIMIT):
        admits(repeats, failed("a", code=str(number)))
    assert len(repeats._seen) == KINDS_LIMIT


def test_what_makes_room_for_another_kind_is_told_of_with_its_count(
    repeats: Repeats, clock: FakeClock
) -> None:
    assert [admits(repeats, failed("a", code="first")) for _ in range(4)] == [True] + 3 * [False]
    clock.advance(7)
    told = [
        each.getMessage()
        for number in range(2 * KINDS_LIMIT)
        for each in repeats.written(failed("a", code=str(number)))
        if each.args and "times" in each.args
    ]
    assert told == ["3 more events of drain.failed in 7 s were not written"]


def test_no_repetition_is_lost_from_the_counts_however_many_kinds_there_are(
    repeats: Repeats, clock: FakeClock
) -> None:
    written: list[logging.LogRecord] = []
    for number in range(5 * KINDS_LIMIT):
        for _ in range(1 + number % 3):
            written += repeats.written(failed("a", code=str(number % (2 * KINDS_LIMIT))))
        clock.advance(0.01)
    written += repeats.over(at_the_end=True)
    counts = [int(json_of(each).get("times", 1)) for each in written]
    assert sum(counts) == sum(1 + number % 3 for number in range(5 * KINDS_LIMIT))


def lines_of(stream: io.StringIO) -> list[tuple[str, int | None]]:
    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    return [(line["event"], line.get("times")) for line in lines]


def test_closing_the_stream_writes_what_was_counted() -> None:
    stream = io.StringIO()
    handler = OneStream(stream, JsonLines(()), "info")
    for _ in range(3):
        handler.handle(failed("a"))
    handler.close()
    assert lines_of(stream) == [("drain.failed", None), ("log.repeated", 2)]


def test_a_count_is_written_in_its_time_though_nothing_else_is_logged(
    repeats: Repeats, clock: FakeClock
) -> None:
    stream = io.StringIO()
    handler = OneStream(stream, JsonLines(()), "info", repeats)
    for _ in range(3):
        handler.handle(failed("a"))
    clock.advance(59)
    handler.write_counts()
    assert lines_of(stream) == [("drain.failed", None)]
    clock.advance(2)
    handler.write_counts()
    assert lines_of(stream) == [("drain.failed", None), ("log.repeated", 2)]


# --- a whole process -----------------------------------------------------------------------------

_PROCESS = """
import logging, threading, warnings
from cachetier.telemetry import events, log_format
log_format.set_up("info", "json", secrets=("a-long-secret",))
logging.getLogger("botocore.auth").debug("Authorization: a-long-secret")
logging.getLogger("urllib3").warning("a warning with a-long-secret")
warnings.warn("old ways")
events.tell(logging.getLogger("cachetier.x"), events.SERVICE_STOPPED)
dying = threading.Thread(target=lambda: 1 / 0, name="worker-3")
dying.start(); dying.join()
raise RuntimeError("the end")
"""


def test_every_line_of_a_process_is_json_whoever_wrote_it() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", _PROCESS], capture_output=True, text=True, timeout=50, check=False
    )
    lines = [json.loads(line) for line in ended.stderr.splitlines()]
    assert [line["event"] for line in lines] == [
        *("library", "library", "service.stopped", "defect", "defect")
    ]
    assert "old ways" in lines[1]["message"]
    assert lines[3]["thread"] == "worker-3" and "ZeroDivisionError" in lines[3]["exception"]
    assert lines[4]["thread"] == "main" and "the end" in lines[4]["exception"]
    assert "a-long-secret" not in ended.stderr
    assert ended.returncode == 1


_STORM_AND_SILENCE = """
import logging, sys
from cachetier.telemetry import events, log_format, rate_limit
rate_limit.WINDOW_SECONDS = log_format.COUNT_EVERY_SECONDS = 0.05
log_format.set_up("info", "json")
for _ in range(3):
    events.tell(logging.getLogger("cachetier.x"), events.ROOM_FAILED)
sys.stdin.read()
"""


def test_after_a_storm_its_count_comes_in_the_silence() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", _STORM_AND_SILENCE],
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdin is not None and process.stderr is not None
        first, second = (json.loads(process.stderr.readline()) for _ in range(2))
        process.stdin.close()
    assert (first["event"], second["event"], second["times"]) == ("room.failed", "log.repeated", 2)
    assert process.returncode == 0


# --- what nobody meant to log --------------------------------------------------------------------


@pytest.mark.parametrize("form", [JsonLines, ConsoleLines])
def test_no_half_of_a_secret_is_left_where_a_text_is_cut(
    form: type[JsonLines | ConsoleLines],
) -> None:
    record = record_of(events.REMOTE_REFUSED, remote="x", reason="r" * 3_950 + SECRET * 20)
    assert SECRET[:6] not in form((SECRET,)).format(record)


def test_no_traceback_can_move_the_cursor_of_a_terminal() -> None:
    record = record_of(events.SESSION_FAILED)
    record.args, record.exc_text = (), "Traceback\nValueError: \x1b[2Jx"
    assert ConsoleLines(()).format(record).splitlines()[-1] == "    ValueError: \\x1b[2Jx"


def test_no_field_can_turn_a_line_of_the_console_around() -> None:
    record = record_of(events.REMOTE_WELL, remote="a\u2028b\u202ec\u2066d")
    assert "a\\u2028b\\u202ec\\u2066d" in ConsoleLines(()).format(record)


def test_a_number_that_json_has_no_word_for_is_text() -> None:
    record = record_of(events.SERVICE_STOPPING, grace_seconds=float("inf"))
    assert json_of(record)["grace_seconds"] == "inf"


def test_a_mistake_where_something_is_logged_costs_neither_the_line_nor_its_form() -> None:
    stream = io.StringIO()
    stream_of_ours = OneStream(stream, JsonLines(()), "debug")
    stream_of_ours.handle(record_of(events.DRAIN_TASK_BROKEN, kind="upload"))
    stream_of_ours.handle(
        logging.makeLogRecord({"name": "lib", "levelno": 30, "msg": "%d", "args": ("no number",)})
    )
    first, second = (json.loads(line) for line in stream.getvalue().splitlines())
    assert (first["event"], first["kind"]) == ("drain.task_broken", "upload")
    assert second["message"] == "%d ('no number',)"


def test_what_is_remembered_of_a_long_warning_is_short(repeats: Repeats, clock: FakeClock) -> None:
    long = logging.makeLogRecord({"name": "lib", "levelno": 30, "msg": "x" * 1_000_000})
    assert [admits(repeats, long) for _ in range(2)] == [True, False]
    clock.advance(61.0)
    (summary,) = repeats.over()
    assert isinstance(summary.args, dict) and len(summary.args["like"]) < 2_000
