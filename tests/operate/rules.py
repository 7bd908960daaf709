"""deploy/alerts.yml and deploy/dashboards as the tests read them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
RUNBOOKS = ROOT / "docs" / "runbooks"
_SELECTOR = re.compile(
    r"(?<![\w:\"])(?:instance:\w+:\w+|cachetier_\w+|ALERTS|up(?=\{))(?:\{[^}]*\})?"
)

Rule = dict[str, Any]
Panel = dict[str, Any]


def rules() -> list[Rule]:
    document = yaml.safe_load((DEPLOY / "alerts.yml").read_text(encoding="utf-8"))
    return [rule for group in document["groups"] for rule in group["rules"]]


def alerts() -> list[Rule]:
    return [rule for rule in rules() if "alert" in rule]


def dashboards() -> dict[str, Any]:
    """Return the committed dashboards by the name of their file."""
    files = sorted((DEPLOY / "dashboards").glob("*.json"))
    return {file.name: json.loads(file.read_text(encoding="utf-8")) for file in files}


def panels(dashboard: Any) -> Iterator[Panel]:
    """Yield the panels that show something: not the headings of rows."""
    return (panel for panel in dashboard["panels"] if panel["type"] != "row")


def selectors(expr: str) -> set[str]:
    """Return what an expression takes from Prometheus, without what it makes of that."""
    return set(_SELECTOR.findall(expr))


def substituted(expr: str, values: dict[str, str]) -> str:
    """Fill in a dashboard's variables; none may be left."""
    filled = re.sub(r"\$(\w+)", lambda match: values[match[1]], expr)
    assert "$" not in filled
    return filled


def page_of(alert: str) -> str:
    """Return the name of an alert's page: CachetierDrainStalled has drain-stalled.md."""
    words = re.findall("[A-Z][a-z]+", alert.removeprefix("Cachetier"))
    return "-".join(words).lower() + ".md"
