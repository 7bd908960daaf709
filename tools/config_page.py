"""The table of settings in docs/configuration.md, from ``cachetier.config.Settings``."""

from __future__ import annotations

from pathlib import Path

from cachetier.config.settings import NAMED, SETTINGS
from cachetier.config.tables import BUCKET_NAMES
from cachetier.config.types import Declared
from tools.pages import DOCS, table, with_parts

PAGE = DOCS / "configuration.md"


def documents() -> dict[Path, str]:
    """Return the page with its table as it should be."""
    return {PAGE: with_parts(PAGE, {"settings": settings()})}


def settings() -> str:
    """Return one row for each setting, in the order of the code."""
    rows = []
    nested = {one: f"remote.{key}" for key, one in BUCKET_NAMES.items()}
    of_remote = {nested[name]: field for name, field in NAMED.items() if name in nested}
    shown = dict[str, Declared]()
    for name, field in SETTINGS.items():
        shown |= {name: field} | (of_remote if name == "remote" else {})
    for name, field in shown.items():
        usual = f"`{field.shown_default}`" if field.shown_default else ""
        default = "*(must be given)*" if field.required else usual
        rows.append((f"`{name}`", default, field.description))
    return table(("setting", "default", ""), rows)
