"""What a run of faults has counted: tests tell it with ``count``, ``make faults`` writes it down.

A test says ``count(request, "kills", 5, seed=3)`` for what it has done; a part of ``make faults``
runs pytest with ``--faults-found=FILE`` and finds there, for each kind, the number and the seeds.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

PROPERTY = "faults"


def count(request: pytest.FixtureRequest, kind: str, number: int, seed: int | None = None) -> None:
    """Tell the report that this test has met ``number`` faults of a kind."""
    request.node.user_properties.append((PROPERTY, [kind, number, seed]))


class Found:
    """Gathers, in the process that the workers report to, what the tests have counted."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._kinds: dict[str, dict[str, Any]] = {}
        self._passed = 0
        self._failed: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self._failed.append(report.nodeid)
        if report.when != "call":
            return
        self._passed += report.passed
        for name, counted in report.user_properties:
            if name == PROPERTY and report.passed:
                self._add(counted)

    def _add(self, counted: Any) -> None:
        kind, number, seed = counted
        of_kind = self._kinds.setdefault(kind, {"number": 0, "seeds": []})
        of_kind["number"] += number
        if seed is not None:
            of_kind["seeds"] = sorted({*of_kind["seeds"], seed})

    def pytest_sessionfinish(self) -> None:
        found = {"passed": self._passed, "failed": self._failed, "kinds": self._kinds}
        self._path.write_text(json.dumps(found), encoding="utf-8")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--faults-found", metavar="FILE", help="write there what faults were met")


def pytest_configure(config: pytest.Config) -> None:
    path = config.getoption("--faults-found")
    if path is not None and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Found(Path(path)))
