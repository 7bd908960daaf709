"""The log's format: one line for each event, as JSON for programs or as text for a terminal.

One handler writes everything to standard error, so that no line is torn: what libraries say, what
threads die of, and what the drain processes tell (``drain/serve/stderr_relay.py``). Warnings that
repeat are written once and then counted; secrets are blotted out.

Source: docs/logs.md.
"""

from __future__ import annotations

import json
import logging
import math
import re
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from types import TracebackType
from typing import Any, TextIO

from cachetier_client.identity.names import GENERATION_MARK
from cachetier_client.identity.places import place_of
from cachetier_client.identity.step_names import StepName

from cachetier.telemetry.events import DEFECT, LIBRARY, Event, fields_in, tell
from cachetier.telemetry.rate_limit import Repeats
from cachetier.visible import on_one_line

OURS = "cachetier"
FORMS = ("auto", "console", "json")
TEXT_LIMIT = 4_000
TRACEBACK_LIMIT = 16_000
COUNT_EVERY_SECONDS = 5.0
IDS = ("run", "step", "save_id", "rank", "name", "remote")
SECRET_FROM_CHARACTERS = 8  # shorter ones would blot out ordinary words

_SECRETS_BY_FORM = (
    re.compile(r"(?i)(authorization\W{1,6})[^\"'}\n]+"),
    re.compile(r"(?i)(x-amz-(?:signature|security-token|credential)\W{1,6})[^\s&\"',}]+"),
    re.compile(r"\b(ct_(?:owner|[0-9a-f]{8})_)[\w-]{20,}"),  # our own tokens
    re.compile(r"(://)[^/\s:@\"]+:[^/\s@\"]+(?=@)"),
)
_BLOT = "***"
_LEVEL_COLOURS = {"warning": "33", "error": "31", "critical": "31;1"}

log = logging.getLogger(OURS)


def set_up(
    level: str, form: str = "auto", *, secrets: Sequence[str] = (), stream: TextIO | None = None
) -> None:
    """Write the log of this process to standard error, from ``level`` on.

    ``form`` is one of ``FORMS``: ``auto`` is text on a terminal and JSON elsewhere. Of libraries
    only warnings are written, whatever the level: what they say below that holds request headers.
    """
    stream = stream or sys.stderr
    formatter = formatter_for(form, secrets, terminal=stream.isatty())
    handler = OneStream(stream, formatter, level)
    logging.basicConfig(level=logging.WARNING, handlers=[handler])
    threading.Thread(target=handler.write_counts_in_time, name="log-counts", daemon=True).start()
    set_level(level)
    logging.captureWarnings(True)
    threading.excepthook = _tell_of_thread
    sys.excepthook = _tell_of_end


def set_level(level: str) -> None:
    """Make our own events from ``level`` on; what is written of them is the handler's choice."""
    log.setLevel(level.upper())


def listen(handler: logging.Handler, level: int) -> Callable[[], None]:
    """Have ``handler`` hear of our own events from ``level`` on; return what ends it.

    They are made even where the log is set to say less; what is written is its handler's choice.
    """
    level_before = log.level
    if log.getEffectiveLevel() > level:
        log.setLevel(level)
    log.addHandler(handler)

    def end() -> None:
        log.removeHandler(handler)
        log.setLevel(level_before)

    return end


def level() -> str:
    """Return from which level on our own events are made."""
    return logging.getLevelName(log.getEffectiveLevel()).lower()


def formatter_for(form: str, secrets: Sequence[str], *, terminal: bool) -> logging.Formatter:
    """Return what makes a line of a record."""
    as_json = form == "json" or (form == "auto" and not terminal)
    return JsonLines(secrets) if as_json else ConsoleLines(secrets, colours=terminal)


class OneStream(logging.StreamHandler[TextIO]):
    """Writes records to one stream, each in one piece; repeated warnings are counted instead."""

    def __init__(
        self,
        stream: TextIO,
        formatter: logging.Formatter,
        level: str,
        repeats: Repeats | None = None,
    ) -> None:
        super().__init__(stream)
        self.setFormatter(formatter)
        self.setLevel(level.upper())
        self._repeats = repeats or Repeats()
        self._is_closed = threading.Event()

    def emit(self, record: logging.LogRecord) -> None:
        for each in self._repeats.written(record):
            super().emit(each)

    def write_counts(self, *, at_the_end: bool = False) -> None:
        """Write how often was repeated what was held back for a minute."""
        with self.lock or threading.RLock():
            for count in self._repeats.over(at_the_end=at_the_end):
                super().emit(count)

    def write_counts_in_time(self) -> None:
        """Write each count when it is due, whether or not anything else is logged; until closed."""
        while not self._is_closed.wait(COUNT_EVERY_SECONDS):
            self.write_counts()

    def close(self) -> None:
        """Write what was counted so far."""
        self._is_closed.set()
        self.write_counts(at_the_end=True)
        super().close()


# --- lines ---------------------------------------------------------------------------------------


class _Lines(logging.Formatter):
    """The base of both log formats."""

    def __init__(self, secrets: Sequence[str]) -> None:
        super().__init__()
        known = {secret for secret in secrets if len(secret) >= SECRET_FROM_CHARACTERS}
        self._secrets = sorted(known | {json.dumps(secret)[1:-1] for secret in known}, key=len)

    def blotted(self, text: str) -> str:
        for secret in reversed(self._secrets):
            text = text.replace(secret, _BLOT)
        for form in _SECRETS_BY_FORM:
            text = form.sub(rf"\1{_BLOT}", text)
        return text

    def traceback_of(self, record: logging.LogRecord) -> str | None:
        if record.exc_info and record.exc_info[0] is not None and not record.exc_text:
            record.exc_text = self.formatException(record.exc_info)
        return _cut(self.blotted(record.exc_text), TRACEBACK_LIMIT) if record.exc_text else None


class JsonLines(_Lines):
    """``ts``, ``level``, ``event``, ``message``, the event's fields, ``process``."""

    def format(self, record: logging.LogRecord) -> str:
        event, message, fields = parts_of(record)
        line = {
            "ts": _instant(record).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "event": event.name,
            "message": _cut(self.blotted(message)),
            **{name: self._plain(fields[name]) for name in sorted(fields, key=_place)},
            "process": str(getattr(record, "written_by", "serve")),  # or the drain of a remote
        }
        traceback = self.traceback_of(record)
        if traceback is not None:
            line["exception"] = traceback
        return json.dumps(line, default=str).replace("\x7f", "\\u007f")

    def _plain(self, value: object) -> object:
        if isinstance(value, float):
            return round(value, 6) if math.isfinite(value) else str(value)
        if value is None or isinstance(value, bool | int):
            return value
        if isinstance(value, list | tuple):
            return [self._plain(each) for each in value]
        if isinstance(value, Mapping):
            return {str(key): self._plain(each) for key, each in value.items()}
        return _cut(self.blotted(str(value)))  # in this order: half a secret is not known


class ConsoleLines(_Lines):
    """Time, level, event and text; then the fields that are not in the text."""

    def __init__(self, secrets: Sequence[str], *, colours: bool = False) -> None:
        super().__init__(secrets)
        self._colours = colours

    def format(self, record: logging.LogRecord) -> str:
        event, message, fields = parts_of(record)
        level = record.levelname.lower()
        at = _instant(record).astimezone().strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]
        placed = fields_in(event.text)
        rest = {name: value for name, value in fields.items() if name not in placed}
        shown = "".join(
            f" {name}={_cut(self.blotted(_short(value)))}" for name, value in rest.items()
        )
        head = f"{at} {level:<8} {event.name:<18} "
        line = on_one_line(f"{_cut(self.blotted(message))}{shown}")
        traceback = self.traceback_of(record)
        if traceback is not None:
            line += "".join(f"\n    {on_one_line(each)}" for each in traceback.splitlines())
        return self._coloured(level, f"{head}{line}")

    def _coloured(self, level: str, line: str) -> str:
        colour = _LEVEL_COLOURS.get(level) if self._colours else None
        return line if colour is None else f"\x1b[{colour}m{line}\x1b[0m"


def parts_of(record: logging.LogRecord) -> tuple[Event, str, Mapping[str, Any]]:
    """Return the event of a record, its text and its fields; of a library all are its own words."""
    event = getattr(record, "event", None)
    message = _message_of(record)
    if isinstance(event, Event):
        return event, message, record.args if isinstance(record.args, Mapping) else {}
    return LIBRARY, message, {"logger": record.name}


def _message_of(record: logging.LogRecord) -> str:
    """Return the text; what was saved by path is called by that path, as people wrote it."""
    ids: Mapping[str, Any] = record.args if isinstance(record.args, Mapping) else {}
    try:
        message = record.getMessage()
        if GENERATION_MARK in str(ids.get("run")) and "step" in ids:
            path = place_of(ids["run"], ids["step"], StepName()).path
            message = message.replace(f"{ids['run']}/{ids['step']}", path)
    except Exception:  # a mistake where it was logged must not tear the log, nor hide the event
        return f"{record.msg} {record.args}"
    return message


def _short(value: object) -> str:
    return f"{value:.3f}" if isinstance(value, float) else str(value)


def _place(field: str) -> int:
    """Return where a field stands in a line: ids first, the others as they were told."""
    return IDS.index(field) if field in IDS else len(IDS)


def _instant(record: logging.LogRecord) -> datetime:
    return datetime.fromtimestamp(record.created, UTC)


def _cut(text: str, limit: int = TEXT_LIMIT) -> str:
    return text if len(text) <= limit else f"{text[:limit]}... ({len(text)} characters)"


# --- what nobody caught --------------------------------------------------------------------------


def _tell_of_thread(ended: threading.ExceptHookArgs) -> None:
    if ended.exc_type is not SystemExit:
        name = ended.thread.name if ended.thread is not None else "unknown"
        tell(log, DEFECT, thread=name, error=ended.exc_value)


def _tell_of_end(
    kind: type[BaseException], error: BaseException, traceback: TracebackType | None
) -> None:
    if issubclass(kind, KeyboardInterrupt):
        sys.__excepthook__(kind, error, traceback)
        return
    tell(log, DEFECT, thread="main", error=error.with_traceback(traceback))


def secrets_in(environment: Mapping[str, str]) -> Iterator[str]:
    """Yield what must not be written of an environment."""
    for name, value in environment.items():
        if names_secret(name):
            yield value


def names_secret(variable: str) -> bool:
    """Return whether a variable of that name holds what is not for everybody."""
    return re.search(r"(SECRET|TOKEN|PASSWORD|API_KEY|OTLP_\w*HEADERS)", variable) is not None
