"""What each test costs: ``pytest --costs=FILE`` adds a line for each test to ``FILE``.

A line is: seconds by the wall, seconds of CPU (children that ended included), MiB of memory that
this worker has gained, MiB that it holds now, the test. Where the machine is shared, judge by CPU.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--costs", metavar="FILE", help="add a line for each test: what it cost")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    costs = item.config.getoption("--costs")
    if costs is None:
        return (yield)
    began, used, held = time.monotonic(), _cpu_seconds(), _held_mib()
    try:
        return (yield)
    finally:
        now = _held_mib()
        line = (
            f"{time.monotonic() - began:.2f}\t{_cpu_seconds() - used:.2f}"
            f"\t{now - held:+.0f}\t{now:.0f}\t{item.nodeid}\n"
        )
        with Path(costs).open("a", encoding="utf-8") as lines:
            lines.write(line)


def _cpu_seconds() -> float:
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def _held_mib() -> float:
    pages = Path("/proc/self/statm").read_text(encoding="ascii").split()[1]
    return int(pages) * PAGE_BYTES / (1 << 20)
