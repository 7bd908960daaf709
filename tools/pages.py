"""The pages of docs/ that are made from the code, whole or between two comments.

<!-- begin: settings (made by `make docs`) -->
...
<!-- end: settings -->
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"


def with_parts(path: Path, parts: dict[str, str]) -> str:
    """Return the text of a page with what lies between the comments of each part replaced.

    Raises:
        ValueError: The page lacks the comments of a part.
    """
    text = path.read_text(encoding="utf-8")
    for name, body in parts.items():
        begin, end = f"<!-- begin: {name} (made by `make docs`) -->", f"<!-- end: {name} -->"
        before, *after_begin = text.split(begin)
        if len(after_begin) != 1 or after_begin[0].count(end) != 1:
            raise ValueError(f"{path.name} needs one {begin} ... {end}")
        after = after_begin[0].partition(end)[2]
        text = f"{before}{begin}\n{body.strip()}\n{end}{after}"
    return text


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(cell(each) for each in line)} |" for line in lines)


def cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
