"""Warnings that repeat: the first is written at once, the others are counted for a minute."""

from __future__ import annotations

import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from cachetier.events import LIBRARY, REPEATED, Event

WINDOW_SECONDS = 60.0
KINDS_LIMIT = 1_000
WORDS_LIMIT = 1_000  # characters of a library's text that tell it from others

Kind = tuple[object, ...]


@dataclass(slots=True)
class _Seen:
    """What of one kind was held back since ``since``."""

    event: Event
    like: dict[str, Any]
    since: float
    times: int = 0


class Repeats:
    """Decides which records are written. Called by one thread at a time."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._seen: OrderedDict[Kind, _Seen] = OrderedDict()

    def admits(self, record: logging.LogRecord) -> bool:
        """Return whether ``record`` is to be written; else it is counted."""
        event = getattr(record, "event", LIBRARY)
        if record.levelno < logging.WARNING or event.alike is None:
            return True
        like = _like(record, event)
        kind: Kind = (event.name, *map(str, like.values()))
        seen = self._seen.get(kind)
        if seen is not None:
            seen.times += 1
            return False
        self._seen[kind] = _Seen(event, like, self._monotonic())
        if len(self._seen) > KINDS_LIMIT:
            self._seen.popitem(last=False)
        return True

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
                yield _summary(seen, now)


def _like(record: logging.LogRecord, event: Event) -> dict[str, Any]:
    """Return what tells repetitions of one event apart."""
    if event is LIBRARY:
        return {"logger": record.name, "text": str(record.msg)[:WORDS_LIMIT]}
    fields = record.args if isinstance(record.args, Mapping) else {}
    return {name: fields.get(name) for name in event.alike or ()}


def _summary(seen: _Seen, now: float) -> logging.LogRecord:
    fields = {
        "times": seen.times,
        "of": seen.event.name,
        "seconds": round(now - seen.since),
        "like": " ".join(f"{name}={value}" for name, value in seen.like.items()),
    }
    return logging.makeLogRecord(
        {
            "name": __name__,
            "levelno": REPEATED.level,
            "levelname": logging.getLevelName(REPEATED.level),
            "msg": REPEATED.text,
            "args": fields,
            "event": REPEATED,
        }
    )
