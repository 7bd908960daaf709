"""What ``make stores`` tells of a run, and the line of the table that comes of it."""

from __future__ import annotations

import json
from pathlib import Path

from tests.stores.__main__ import RESULTS, outcome_of
from tests.stores.servers import STORES
from tools.stores_page import row

SHORT = {r"^copied": "no copies"}
REPORT = """
<testsuites><testsuite>
  <testcase name="a"/><testcase name="b"/>
  <testcase name="copied_c"><failure message="no etag"/></testcase>
  <testcase name="copied_d"><failure message="no etag"/></testcase>
  <testcase name="e"><skipped type="pytest.skip" message="no reader"/></testcase>
  <testcase name="f"><failure message="1 == 2"/></testcase>
  <testcase name="f"><error message="teardown"/></testcase>
</testsuite></testsuites>
"""


def test_a_shortfall_that_is_known_is_told_apart_from_a_failure_and_a_skip(tmp_path: Path) -> None:
    (tmp_path / "report.xml").write_text(REPORT)

    assert outcome_of(tmp_path / "report.xml", SHORT) == {
        "passed": 2,
        "short": 2,
        "failed": 2,
        "skipped": 1,
        "causes": {"no copies": 2},
        "names of failed": ["f"],
    }


def test_the_line_of_a_server_has_what_passed_of_what_applies_and_each_cause_once(
    tmp_path: Path,
) -> None:
    (tmp_path / "report.xml").write_text(REPORT)
    part = outcome_of(tmp_path / "report.xml", SHORT) | {"cells": 0}
    faults = {"passed": 5, "short": 0, "failed": 0, "causes": {}, "names of failed": []}
    parts = {"conformance": part, "faults": faults | {"cells": 15}}
    store = {"title": "one", "version": "1.2", "settings": "none", "parts": parts}

    assert row(store) == (
        "one",
        "1.2",
        "2 of 6",
        "5 of 5 (15 cells)",
        "not run",
        "none",
        "no copies; failed: `f`",
    )


def test_the_table_tells_the_settings_that_each_server_is_run_with() -> None:
    kept = json.loads(RESULTS.read_text(encoding="utf-8"))
    told = {name: each["settings"] for name, each in kept.items()}
    assert told == {name: each.settings for name, each in STORES.items()}
