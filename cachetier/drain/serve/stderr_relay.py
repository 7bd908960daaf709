"""Relay a drain process's standard error into the log of ``serve``.

So there is one log, written by one process: no line of one tears a line of the other, and what
repeats is counted once. A line that is no event of ours, as of a crash, is told as ``drain.said``.
"""

from __future__ import annotations

import json
import logging
import threading
from datetime import datetime
from typing import IO, Any

from cachetier.telemetry.events import DRAIN_OUTPUT, EVENTS, LIBRARY, Fields

LINE_BYTES = 256 << 10

log = logging.getLogger(__name__)


class StderrRelay:
    """Listens to one drain process, on a thread, until its standard error closes."""

    def __init__(self, pipe: IO[bytes], remote: str) -> None:
        self._pipe = pipe
        self._remote = remote
        self._thread = threading.Thread(target=self._listen, name="drain-said", daemon=True)
        self._thread.start()

    def close(self, timeout_seconds: float = 2.0) -> None:
        """Return once everything is told; the process has ended before."""
        self._thread.join(timeout_seconds)
        if not self._thread.is_alive():
            self._pipe.close()

    def _listen(self) -> None:
        while line := self._pipe.readline(LINE_BYTES):
            text = line.decode(errors="replace").strip()
            if text:
                logging.getLogger(log.name).handle(record_of(text, self._remote))


def record_of(line: str, remote: str) -> logging.LogRecord:
    """Return the record that a drain made ``line`` of."""
    try:
        record = json.loads(line)
        return _record_of_event(record, remote)
    except Exception:  # whatever it is: who no longer listens lets the drain hang on a full pipe
        fields = {"text": line, "remote": remote}
        return _record(
            DRAIN_OUTPUT.level, remote, event=DRAIN_OUTPUT, msg=DRAIN_OUTPUT.text, args=fields
        )


def _record_of_event(record: dict[str, Any], remote: str) -> logging.LogRecord:
    event = EVENTS[record.pop("event")]
    level = logging.getLevelNamesMapping()[record.pop("level").upper()]
    created = datetime.fromisoformat(record.pop("ts")).timestamp()
    message, exception = record.pop("message"), record.pop("exception", None)
    del record["process"]
    given = {"created": created, "exc_text": exception and str(exception)}
    if event is LIBRARY:
        return _record(level, remote, name=record["logger"], msg=message, args=(), **given)
    return _record(level, remote, event=event, msg=event.text, args=Fields(record), **given)


def _record(level: int, remote: str, **given: Any) -> logging.LogRecord:
    name = logging.getLevelName(level)
    written_by = f"drain-{remote}"
    return logging.makeLogRecord(
        {"name": log.name, "levelno": level, "levelname": name, "written_by": written_by, **given}
    )
