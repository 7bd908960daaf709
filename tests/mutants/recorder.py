"""A plugin of pytest that records which tests run which lines: ``-p tests.mutants.recorder``.

Each process of xdist writes, into the folder that the environment names, the coverage of its tests,
with a test's id as the context, and a line ``seconds<TAB>test`` for each that passed. Lines that
run in another process, or while a module is imported, belong to no test.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import coverage
import pytest

FOLDER = "MUTANTS_MAP"  # not of CACHETIER_*, which tests/conftest.py drops
_PLACE = Path(os.environ[FOLDER])
_OURS = f"{os.getpid()}"

_lines = coverage.Coverage(
    data_file=os.fspath(_PLACE / f"lines.{_OURS}"),
    config_file=False,
    source_pkgs=["cachetier"],
    concurrency=["thread", "greenlet"],
    messages=False,
)
_lines.start()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    began = time.monotonic()
    _lines.switch_context(item.nodeid)
    try:
        return (yield)
    finally:
        _lines.switch_context("")
        with (_PLACE / f"costs.{_OURS}").open("a", encoding="utf-8") as costs:
            costs.write(f"{time.monotonic() - began:.3f}\t{item.nodeid}\n")


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish() -> None:
    _lines.stop()
    _lines.save()
