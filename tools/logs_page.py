"""The events of docs/logs.md, from ``cachetier.telemetry.events``."""

from __future__ import annotations

import logging
import re
from pathlib import Path

from cachetier.telemetry.events import EVENTS, Event, fields_in
from tools.pages import DOCS, table, with_parts

PAGE = DOCS / "logs.md"

_PLACE = re.compile(r"%\((\w+)(?: ([^)]+))?\)[-+#0-9.]*[a-z]")


def documents() -> dict[Path, str]:
    """Return the page with the events that there are."""
    rows = [
        (f"`{event.name}`", logging.getLevelName(event.level).lower(), _text(event), _more(event))
        for event in EVENTS.values()
    ]
    events = table(("event", "level", "text", "further fields"), rows)
    return {PAGE: with_parts(PAGE, {"events": events})}


def _text(event: Event) -> str:
    return _PLACE.sub(lambda place: f"*{place[1]}*{_counted(place[2])}", event.text)


def _counted(noun: str | None) -> str:
    return "" if noun in (None, "size") else f" {noun}s"


def _more(event: Event) -> str:
    """Return the fields that the text has no place for."""
    placed = fields_in(event.text)
    return ", ".join(f"`{field}`" for field in event.fields if field not in placed)
