"""The audit log: who did what to which run, when, and how it ended; one JSON object a line.

It goes to a file of its own, which others may rotate, or to standard output. Refusals repeat when
somebody tries doors: of each kind the first is written, and every minute how many there were.

Source: docs/security.md, "The audit log".
"""

from __future__ import annotations

import json
import logging
import logging.handlers
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cachetier_client.identity.names import COUNT_LIMIT

from cachetier.access.principals import Caller
from cachetier.errors import ConfigError
from cachetier.parsers import network_of
from cachetier.telemetry import events
from cachetier.telemetry.events import tell

log = logging.getLogger(__name__)

OFF, STANDARD_OUTPUT = "", "-"
WINDOW_SECONDS = 60.0
KINDS_LIMIT = 1_000
TEXT_CHARACTERS = 200


@dataclass(slots=True)
class _Refused:
    since: float
    entry: dict[str, Any]
    times: int = 0


class Audit:
    """Writes the audit log. Thread-safe; what it cannot write is told in the service's log."""

    def __init__(
        self,
        target: str = OFF,
        *,
        now: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """Write to the file ``target``, to standard output (``-``), or nowhere.

        Raises:
            ConfigError: The file cannot be written.
        """
        self._handler = _handler_for(target)
        self.is_on = self._handler is not None
        self._now = now
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._refused: dict[tuple[object, ...], _Refused] = {}

    def done(self, operation: str, outcome: str, caller: Caller, **what: Any) -> None:
        """Write that ``caller`` was let do something; ``outcome`` is ``ok``, or an error's code."""
        self._write({"operation": operation, "outcome": outcome, **_who(caller), **what})

    def refused(self, operation: str, code: str, caller: Caller | None = None, **what: Any) -> None:
        """Write, or count, that somebody was not let in, or not let do something."""
        if self._handler is None:
            return
        who = {} if caller is None else _who(caller)
        entry = {"operation": operation, "outcome": code, "refused": True, **who, **what}
        alike = {**entry, "address": network_of(str(entry.get("address")))}
        kind = tuple(item for item in alike.items() if item[0] not in ("pid", "run"))
        with self._lock:
            self._tell_counts()
            seen = self._refused.get(kind)
            if seen is not None:
                seen.times += 1
                return
            if len(self._refused) >= KINDS_LIMIT:
                self._tell_count(next(iter(self._refused)))
            self._refused[kind] = _Refused(self._monotonic(), entry)
            self._write(entry)

    def close(self) -> None:
        """Write the counts that are left, and close."""
        with self._lock:
            self._tell_counts(at_the_end=True)
        if self._handler is not None:
            self._handler.close()

    def _tell_counts(self, *, at_the_end: bool = False) -> None:
        now = self._monotonic()
        for kind, seen in list(self._refused.items()):
            if now - seen.since < WINDOW_SECONDS and not at_the_end:
                break  # the others are younger
            self._tell_count(kind)

    def _tell_count(self, kind: tuple[object, ...]) -> None:
        seen = self._refused.pop(kind)
        if seen.times:
            seconds = round(self._monotonic() - seen.since)
            self._write({**seen.entry, "times": seen.times, "seconds": seconds})

    def _write(self, entry: dict[str, Any]) -> None:
        if self._handler is None:
            return
        given = {name: _bounded(value) for name, value in entry.items() if value is not None}
        line = json.dumps({"at": round(self._now(), 3), **given})
        try:
            self._handler.handle(logging.makeLogRecord({"msg": line}))
        except OSError as error:  # nothing that was done is undone for lack of its line
            tell(log, events.AUDIT_FAILED, error=error)


def _bounded(value: Any) -> Any:
    """Return what a request said as no request can fill the log with."""
    small = isinstance(value, float | int) and abs(value) < COUNT_LIMIT
    return value if small else str(value)[:TEXT_CHARACTERS]


def _who(caller: Caller) -> dict[str, Any]:
    return {"principal": caller.principal.name, **caller.known}


def _handler_for(target: str) -> logging.Handler | None:
    if target == OFF:
        return None
    if target == STANDARD_OUTPUT:
        return _reporting(logging.StreamHandler(sys.stdout))
    try:
        return _reporting(logging.handlers.WatchedFileHandler(Path(target), encoding="ascii"))
    except OSError as error:
        raise ConfigError(
            f"cannot write the audit log {target}: {error.strerror}",
            hint="Set `audit` to a file that the service may write, `-`, or nothing.",
        ) from error


def _reporting(handler: logging.Handler) -> logging.Handler:
    """Have ``handler`` tell the service's log what it cannot write, instead of standard error."""

    def failed(record: logging.LogRecord) -> None:  # noqa: ARG001  as logging calls it
        tell(log, events.AUDIT_FAILED, error=sys.exc_info()[1])

    handler.handleError = failed  # type: ignore[method-assign]
    return handler
