"""What a test costs, by ``pytest --costs=FILE``, and less of it: memory is given back.

A line is: seconds by the wall, seconds of CPU (children that ended included), MiB of memory that
this worker has gained, MiB that it holds now, the test. Where the machine is shared, judge by CPU.
"""

from __future__ import annotations

import ctypes
import gc
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
GARBAGE_BYTES = 100 << 20
_held_bytes = 0  # by this process, when garbage was last collected


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--costs", metavar="FILE", help="add a line for each test: what it cost")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    costs = item.config.getoption("--costs")
    if costs is None:
        return (yield)
    began, used, held = time.monotonic(), _cpu_seconds(), _now_held()
    try:
        return (yield)
    finally:
        now = _now_held()
        line = (
            f"{time.monotonic() - began:.2f}\t{_cpu_seconds() - used:.2f}"
            f"\t{(now - held) >> 20:+}\t{now >> 20}\t{item.nodeid}\n"
        )
        with Path(costs).open("a", encoding="utf-8") as lines:
            lines.write(line)


def pytest_collection_finish() -> None:
    """Have the collector pass over what stays: a million objects of modules and tests."""
    gc.collect()
    gc.freeze()


def pytest_runtest_logfinish() -> None:
    """Give memory back once a test has left much: bodies in circles of references, and in malloc.

    The collector counts objects, not bytes: shards of a few hundred megabytes would wait for it.
    """
    global _held_bytes
    if _now_held() > _held_bytes + GARBAGE_BYTES:
        _forget_services()
        gc.collect()
        ctypes.CDLL(None).malloc_trim(0)
        _held_bytes = _now_held()


def _forget_services() -> None:
    """Empty FastAPI's caches: they know functions of routes, and through each a whole service."""
    for cached in vars(sys.modules.get("fastapi.dependencies.models", object)).values():
        if hasattr(cached, "cache_clear"):
            cached.cache_clear()


def _cpu_seconds() -> float:
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def _now_held() -> int:
    """Return how much memory this process holds."""
    pages = Path("/proc/self/statm").read_text(encoding="ascii").split()[1]
    return int(pages) * PAGE_BYTES
