"""The events of docs/logs.md, from ``cachetier.events``."""

from __future__ import annotations

import logging
import re
from pathlib import Path

from cachetier.events import EVENTS, Event
from tools.pages import DOCS, table, with_parts

PAGE = DOCS / "logs.md"

_PLACE = re.compile(r"%\((\w+)\)[-+#0-9.]*[a-z]")


def documents() -> dict[Path, str]:
    """Return the page with the events that there are."""
    rows = [
        (f"`{event.name}`", logging.getLevelName(event.level).lower(), _text(event), _more(event))
        for event in EVENTS.values()
    ]
    events = table(("event", "level", "text", "further fields"), rows)
    return {PAGE: with_parts(PAGE, {"events": events})}


def _text(event: Event) -> str:
    return _PLACE.sub(r"*\1*", event.text)


def _more(event: Event) -> str:
    """Return the fields that the text has no place for."""
    placed = {place.group(1) for place in _PLACE.finditer(event.text)}
    return ", ".join(f"`{field}`" for field in event.fields if field not in placed)
