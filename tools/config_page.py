"""The table of settings in docs/configuration.md, from ``cachetier.config.Settings``."""

from __future__ import annotations

import json
from enum import Enum
from pathlib import Path
from typing import Any

from cachetier.config.settings import SETTINGS
from tools.pages import DOCS, table, with_parts

PAGE = DOCS / "configuration.md"


def documents() -> dict[Path, str]:
    """Return the page with its table as it should be."""
    return {PAGE: with_parts(PAGE, {"settings": settings()})}


def settings() -> str:
    """Return one row for each setting, in the order of the code."""
    rows = []
    for name, field in SETTINGS.items():
        default = "*(must be given)*" if field.required else _code(name, field.default)
        rows.append((f"`{name}`", default, str(field.description)))
    return table(("setting", "default", ""), rows)


def _code(name: str, value: Any) -> str:
    text = _text(name, value)
    return f"`{text}`" if text else ""


def _text(name: str, value: Any) -> str:
    if value is None or value == "" or (hasattr(value, "__len__") and not value):
        return ""
    if isinstance(value, bool):
        return "on" if value else "off"
    if name == "socket_mode":
        return f"{value:04o}"
    if isinstance(value, Enum):
        return str(value.value)
    return str(value) if isinstance(value, str | int | float) else json.dumps(value)
