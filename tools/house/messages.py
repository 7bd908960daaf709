"""``make messages``: list every text that the service and the client show to people.

A text is a string of three words or more in the code that is no docstring and no SQL, a line of
the console's templates, or an annotation of an alert. Each is printed below its kind and its file,
so that a person can read all texts of one kind in a row (``ARGS=hint``: one kind).
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

import click
import yaml

from cachetier.telemetry.events import EVENTS
from tools.house.sizes import ROOT

TREES = ("cachetier", "client/cachetier_client")
_PACKAGES = ("doctor", "fsck", "status", "console", "simulate", "cli")
_SQL = re.compile(
    r"\s*(?:SELECT|INSERT|UPDATE|DELETE|WITH|CREATE|DROP|ALTER|PRAGMA|FROM|WHERE|AND|OR|JOIN|LEFT"
    r"|ORDER|GROUP|UNION|SAVEPOINT|RELEASE|ROLLBACK|BEGIN|ATTACH|VALUES|SET|NOT|EXISTS|CHECK|CASE"
    r"|ON|LIMIT|IIF|RETURNING|REPLACE)\b|.*\b(?:SELECT|WHERE|IS NOT NULL|NOT IN|FROM [a-z_]+ )\b"
)
_WORDS = re.compile(r"(?:[^\W\d_][\w'-]*[,:;.]? +){2,}[^\W\d_]")


class Text(NamedTuple):
    """A text that people read: its kind, the file that has it, the line there."""

    kind: str
    file: str
    line: int
    text: str


def texts(root: Path = ROOT) -> list[Text]:
    """Return every text, by kind, file and line."""
    found = [
        each
        for tree in TREES
        for path in sorted((root / tree).rglob("*.py"))
        for each in _of_module(path, str(path.relative_to(root)))
    ]
    for path in sorted((root / "cachetier/console/templates").glob("*.html")):
        lines = _Lines(path.read_text(encoding="utf-8")).found
        found += [Text("console", str(path.relative_to(root)), *each) for each in lines]
    found += _of_alerts(root / "deploy/alerts.yml", "deploy/alerts.yml")
    found += [
        Text("event", "cachetier/telemetry/events.py", 0, each.text) for each in EVENTS.values()
    ]
    return sorted(set(found))


def shown(node: ast.expr) -> str | None:
    """Return a string or an f-string as people see it, its values in braces; None if it is none."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(
            str(each.value)
            if isinstance(each, ast.Constant)
            else f"{{{ast.unparse(each.value if isinstance(each, ast.FormattedValue) else each)}}}"
            for each in node.values
        )
    return None


def _of_module(path: Path, name: str) -> Iterator[Text]:
    yield from _below(ast.parse(path.read_text(encoding="utf-8")), _kind_of_file(name), name)


def _kind_of_file(name: str) -> str:
    package = name.split("/")[1]
    return package if package in _PACKAGES else "other"


def _below(node: ast.AST, kind: str, name: str) -> Iterator[Text]:
    """Yield the texts below a node, whose kind the innermost call or keyword decides."""
    if isinstance(node, ast.expr) and (text := shown(node)) is not None:
        if _WORDS.search(text) and not _SQL.match(text):
            yield Text(kind, name, node.lineno, " ".join(text.split()))
        return
    if isinstance(node, ast.Call):
        kind = _kind_of_call(node, kind)
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Expr) and isinstance(child.value, ast.Constant):
            continue  # a docstring
        inner = kind
        if isinstance(child, ast.keyword) and child.arg in ("hint", "help"):
            inner = child.arg
        elif isinstance(child, ast.Assign) and ast.unparse(child.targets[0]).endswith("hint"):
            inner = "hint"
        yield from _below(child, inner, name)


def _kind_of_call(node: ast.Call, kind: str) -> str:
    called = ast.unparse(node.func).rpartition(".")[2]
    if called.endswith("Error"):
        return "error"
    return "warning" if called == "warn" else kind


class _Lines(HTMLParser):
    """The texts of a template, each with its line; what Jinja does between them is left out."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[int, str]] = []
        self.feed(re.sub(r"\{%.*?%\}|\{#.*?#\}", "", text, flags=re.DOTALL))

    def handle_data(self, data: str) -> None:
        if _WORDS.search(data):
            self.found.append((self.getpos()[0], " ".join(data.split())))


def _of_alerts(path: Path, name: str) -> Iterator[Text]:
    for group in yaml.safe_load(path.read_text(encoding="utf-8"))["groups"]:
        for rule in group["rules"]:
            for text in rule.get("annotations", {}).values():
                if _WORDS.search(text):
                    yield Text("alert", f"{name}:{rule['alert']}", 0, " ".join(text.split()))


def main() -> None:
    wanted = sys.argv[1:]
    for kind, of_kind in groupby(texts(), key=lambda each: each.kind):
        if wanted and kind not in wanted:
            continue
        click.echo(f"\n# {kind}")
        for file, there in groupby(of_kind, key=lambda each: each.file):
            click.echo(f"\n{file}")
            for each in there:
                click.echo(f"  {each.text}")


if __name__ == "__main__":
    main()
