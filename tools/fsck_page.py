"""The tables of docs/recovery.md: what ``cachetier fsck`` can find, and what it does about it."""

from __future__ import annotations

from pathlib import Path

from cachetier.fsck.findings import NOTE, PROBLEM, FindingKind
from tools.pages import DOCS, table, with_parts

PAGE = DOCS / "recovery.md"


def documents() -> dict[Path, str]:
    """Return the page with a table of the problems, and one of the notes."""
    parts = {"problems": _table(PROBLEM), "notes": _table(NOTE)}
    return {PAGE: with_parts(PAGE, parts)}


def _table(severity: str) -> str:
    kinds = [kind for kind in FindingKind if kind.is_problem == (severity == PROBLEM)]
    rows = [(f"`{kind}`", kind.means, kind.repair) for kind in kinds]
    return table((severity, "means", "`--repair`"), rows)
