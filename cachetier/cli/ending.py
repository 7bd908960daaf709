"""Verbs that write things end tidily, however they are ended."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def ended_by_signal() -> Iterator[None]:
    """Turn SIGTERM into an exception, so that what was written is removed as on Ctrl-C."""

    def end(number: int, _frame: object) -> None:
        raise SystemExit(128 + number)

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
