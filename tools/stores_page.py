"""The table of docs/remotes.md that ``make stores`` has the figures of, from its result file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tools.pages import DOCS, table, with_parts

PAGE = DOCS / "remotes.md"
RESULTS = DOCS / "stores-results.json"
_HEAD = ("server", "version", "conformance", "fault matrices", "order", "settings", "falls short")


def documents() -> dict[Path, str]:
    """Return the page with its table."""
    found = json.loads(RESULTS.read_text(encoding="utf-8"))
    return {PAGE: with_parts(PAGE, {"stores": table(_HEAD, map(row, found.values()))})}


def row(store: dict[str, Any]) -> tuple[str, ...]:
    """Return the line of one server."""
    parts = store["parts"]
    matrices = [parts[each] for each in ("faults", "faults of objects") if each in parts]
    causes = sorted({cause for part in parts.values() for cause in part["causes"]})
    causes += [f"failed: `{name}`" for part in parts.values() for name in part["names of failed"]]
    return (
        store["title"],
        store.get("version", store.get("reason", "")),
        _share(parts.get("conformance")),
        ", ".join(f"{_share(each)} ({each['cells']} cells)" for each in matrices) or "not run",
        _share(parts.get("order")),
        store["settings"],
        "; ".join(causes) or "nothing",
    )


def _share(part: dict[str, Any] | None) -> str:
    """Return how many of the tests that apply have passed."""
    if part is None:
        return "not run"
    return f"{part['passed']} of {part['passed'] + part['short'] + part['failed']}"
