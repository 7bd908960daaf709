"""A rate limit for repeated warnings: the first is written, the others are counted for a minute.

Each that is held back is told of in a count. What differs in too many ways to be remembered, a
thousand, is told of the earlier: the oldest makes room.
"""

from __future__ import annotations

import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from cachetier.telemetry.events import LIBRARY, REPEATED, Event, record_of

WINDOW_SECONDS = 60.0
KINDS_LIMIT = 1_000
WORDS_LIMIT = 1_000  # characters of a library's text that tell it from others

Kind = tuple[object, ...]


@dataclass(slots=True)
class _Seen:
    """The events of one kind that were held back since ``since``."""

    event: Event
    like: dict[str, Any]
    since: float
    times: int = 0


class Repeats:
    """Decides which records are written, and counts the others. Called by one thread at a time."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._seen: OrderedDict[Kind, _Seen] = OrderedDict()

    def written(self, record: logging.LogRecord) -> Iterator[logging.LogRecord]:
        """Yield what is to be written now: counts that are due, and ``record`` if it is new."""
        yield from self.over()
        event = getattr(record, "event", LIBRARY)
        if record.levelno < logging.WARNING or event.alike is None:
            yield record
            return
        like = _like(record, event)
        kind: Kind = (event.name, *map(str, like.values()))
        seen = self._seen.get(kind)
        if seen is not None:
            seen.times += 1
            return
        if len(self._seen) >= KINDS_LIMIT:
            _, oldest = self._seen.popitem(last=False)
            yield from _summaries(oldest, self._monotonic())
        self._seen[kind] = _Seen(event, like, self._monotonic())
        yield record

    def over(self, *, at_the_end: bool = False) -> Iterator[logging.LogRecord]:
        """Yield how often was repeated what was held back for a minute, and begin another.

        What was not repeated is forgotten, so that it is written at once when it comes again.
        """
        now = self._monotonic()
        for kind, seen in list(self._seen.items()):
            if now - seen.since < WINDOW_SECONDS and not at_the_end:
                break  # the others are younger
            del self._seen[kind]
            if seen.times:
                self._seen[kind] = _Seen(seen.event, seen.like, now)
            yield from _summaries(seen, now)


def _like(record: logging.LogRecord, event: Event) -> dict[str, Any]:
    """Return what tells repetitions of one event apart."""
    if event is LIBRARY:
        return {"logger": record.name, "text": str(record.msg)[:WORDS_LIMIT]}
    fields = record.args if isinstance(record.args, Mapping) else {}
    return {name: fields.get(name) for name in event.alike or ()}


def _summaries(seen: _Seen, now: float) -> Iterator[logging.LogRecord]:
    """Yield the count of what was held back, if anything was."""
    if not seen.times:
        return
    fields = {
        "times": seen.times,
        "of": seen.event.name,
        "seconds": round(now - seen.since),
        "like": " ".join(f"{name}={value}" for name, value in seen.like.items()),
    }
    yield record_of(REPEATED, fields)
