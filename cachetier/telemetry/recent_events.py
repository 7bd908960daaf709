"""The last events of the log, kept in memory for those who watch the node in a browser."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from cachetier.telemetry import log_format
from cachetier.telemetry.log_format import ConsoleLines, parts_of
from cachetier.telemetry.rate_limit import Repeats

KEPT = 500


@dataclass(frozen=True, slots=True)
class RecentEvent:
    """One event; ``number`` grows, ``at`` is UTC seconds. ``run``: which it is about, or None."""

    number: int
    at: float
    level: str
    name: str
    message: str
    run: str | None
    step: int | None


class RecentEvents(logging.Handler):
    """Keeps the last ``KEPT`` events from level info on; repeats are counted. Thread-safe."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self._form = ConsoleLines(())
        self._repeats = Repeats()
        self._events: deque[RecentEvent] = deque(maxlen=KEPT)
        self._number = 0

    def emit(self, record: logging.LogRecord) -> None:
        # The handler's lock is held, which lets its own thread in again: what is collected here may
        # tell of its end.
        self._events += map(self._event, self._repeats.written(record))

    def _event(self, record: logging.LogRecord) -> RecentEvent:
        event, message, fields = parts_of(record)
        run, step = fields.get("run"), fields.get("step")
        self._number += 1
        return RecentEvent(
            self._number,
            record.created,
            record.levelname.lower(),
            event.name,
            self._form.blotted(message)[:1000],
            None if run is None else str(run),
            step if isinstance(step, int) else None,
        )

    def newest_first(self) -> list[RecentEvent]:
        assert self.lock is not None
        with self.lock:
            return list(reversed(self._events))

    def listen(self) -> Callable[[], None]:
        """Hear of our own events, also where the log is set to say less; return what ends it."""
        return log_format.listen(self, logging.INFO)
