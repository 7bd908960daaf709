"""The audit log says who did what and how it ended; refusals that repeat are counted."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cachetier.access.audit import WINDOW_SECONDS, Audit
from cachetier.access.principals import Caller, Principal
from cachetier.access.roles import Role
from cachetier.errors import ConfigError

CALLER = Caller(Principal("team", Role.WRITE), uid=1000, pid=7)


class Time:
    monotonic = 0.0


@pytest.fixture
def time() -> Time:
    return Time()


@pytest.fixture
def audit(tmp_path: Path, time: Time) -> Iterator[Audit]:
    target = str(tmp_path / "audit.jsonl")
    opened = Audit(target, now=lambda: 12.3456, monotonic=lambda: time.monotonic)
    yield opened
    opened.close()


def lines(folder: Path, name: str = "audit.jsonl") -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / name).read_text().splitlines()]


def test_what_was_done_is_a_line(audit: Audit, tmp_path: Path) -> None:
    audit.done("put", "ok", CALLER, run="r", step=1, name="x", token=None)
    who = {"principal": "team", "uid": 1000, "pid": 7}
    what = {"operation": "put", "outcome": "ok", "run": "r", "step": 1, "name": "x"}
    assert lines(tmp_path) == [{"at": 12.346, **what, **who}]


def test_refusals_of_one_kind_are_written_once_and_then_counted(
    audit: Audit, tmp_path: Path, time: Time
) -> None:
    for number in range(5):
        audit.refused("put", "forbidden", CALLER, run=f"r-{number}")
    audit.refused("open", "forbidden", CALLER, run="r")
    assert [each["operation"] for each in lines(tmp_path)] == ["put", "open"]
    time.monotonic += WINDOW_SECONDS
    audit.refused("seal", "forbidden", CALLER, run="r")
    assert [(each["operation"], each.get("times")) for each in lines(tmp_path)[2:]] == [
        ("put", 4),
        ("seal", None),
    ]


def test_the_counts_that_are_left_are_written_at_the_end(audit: Audit, tmp_path: Path) -> None:
    for _ in range(3):
        audit.refused("hello", "forbidden", address="10.0.0.1")
    audit.close()
    assert [each.get("times") for each in lines(tmp_path)] == [None, 2]


def test_kinds_without_end_take_no_memory_without_end(audit: Audit, tmp_path: Path) -> None:
    for number in range(3_000):
        audit.refused("hello", "forbidden", address=f"10.0.{number // 256}.{number % 256}")
        audit.refused("hello", "forbidden", address=f"10.0.{number // 256}.{number % 256}")
    audit.close()
    written = lines(tmp_path)
    assert sum(each.get("times", 1) for each in written) == 6_000
    assert len(audit._refused) == 0


def test_a_file_that_was_rotated_is_begun_anew(audit: Audit, tmp_path: Path) -> None:
    audit.done("put", "ok", CALLER, run="r")
    (tmp_path / "audit.jsonl").rename(tmp_path / "audit.jsonl.1")
    audit.done("seal", "ok", CALLER, run="r")
    assert [each["operation"] for each in lines(tmp_path, "audit.jsonl.1")] == ["put"]
    assert [each["operation"] for each in lines(tmp_path)] == ["seal"]


def test_what_came_from_outside_cannot_forge_a_line_or_fill_a_disk(
    audit: Audit, tmp_path: Path
) -> None:
    audit.done("put", "ok", CALLER, run="r", name='x\n{"operation": "seal"}\x1b[2J', step=10**4000)
    audit.done("put", "ok", CALLER, run="r", name={"deep": ["x" * 10_000]})
    first, second = lines(tmp_path)
    assert len(json.dumps(first)) < 1000
    assert len(json.dumps(second)) < 1000
    assert "\x1b" not in (tmp_path / "audit.jsonl").read_text()


def test_a_file_that_cannot_be_written_is_refused_at_the_start(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot write the audit log"):
        Audit(str(tmp_path))


def test_what_cannot_be_written_later_is_told_and_fails_nobody(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "audit").mkdir()
    audit = Audit(str(tmp_path / "audit" / "log"))
    (tmp_path / "audit" / "log").unlink()
    (tmp_path / "audit").rmdir()
    with caplog.at_level(logging.ERROR):
        audit.done("put", "ok", CALLER, run="r")
    assert "a line of the audit log could not be written" in caplog.text
    audit.close()


def test_an_audit_log_that_is_off_writes_nothing(tmp_path: Path) -> None:
    audit = Audit()
    audit.refused("put", "forbidden", CALLER, run="r")
    audit.close()
    assert not audit.is_on
