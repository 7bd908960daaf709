"""``python -m tools.house.words``: find openings and words that texts for people avoid.

It reads the prose of the pages, every text of ``tools.house.messages`` and the first sentence of
every docstring of service and client. ``[tool.cachetier.words]`` in ``pyproject.toml`` excepts
a line: the file and a part of the text, with the reason. An exception without use is an error.
"""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import click

from tools.house import messages
from tools.house.sizes import ROOT

LONG_SENTENCE_WORDS = 30
# Each pattern, and what to write in its place.
RULES = {
    r"^(?:What|Who|Whoever|Whose|Those who|As what)\b(?![^.]*\?)": "begin with the subject",
    r"\bwhoever\b|\bwhosoever\b": "the caller, the operator, anybody who",
    r"\bas what\b": "how, in which form",
    r"\b(?:is|are|was|were) none of\b": "is not one of",
    r"\bsuch as (?:is|are|has|have)\b": "name the thing",
    r"\b(?:was|were|is|are|be) (?:[\w-]+ ){0,3}of before\b": "earlier, previous",
    r"\b(?:anew|aught|befallen|befell|hitherto|lest|thereof|whereof)\b": "again, until now, …",
    r"\band its kin\b": "name them",
    r"\bwhat is said of\b": "the description of, the fields of",
}
_MADE = re.compile(r"<!-- begin:.*?<!-- end:[^>]*-->", re.DOTALL)
_CODE = re.compile(r"^ *```.*?^ *```|^    .*$", re.DOTALL | re.MULTILINE)
_CITED = re.compile(r"`[^`\n]*`|\]\([^)]*\)|<[^>]+>")
_END = re.compile(r"(?<=[.!?])[*_)\"]*\s+(?=[\"*`\[(A-Z])")


class Sentence(NamedTuple):
    """A sentence that people read, and the file that has it."""

    file: str
    text: str


def pages() -> list[Path]:
    """Return the pages that users and contributors read; design notes are history."""
    found = [page for page in (ROOT / "docs").rglob("*.md") if page.parent.name != "design"]
    return [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(found)]


def sentences(page: str) -> list[str]:
    """Return the sentences of a page's paragraphs, list items and table cells."""
    text = _CODE.sub("\n\n", _MADE.sub("\n\n", page))
    text = re.sub(r"^#.*$", "\n", text, flags=re.MULTILINE)
    text = re.sub(r"^\s*(?:[-*]|\d+\.) ", "\n\n", text, flags=re.MULTILINE)
    text = re.sub(r"^\|(.*)\|$", r"\n\n\1\n\n", text, flags=re.MULTILINE)
    blocks = re.split(r"\n\s*\n| \| ", _CITED.sub("`x`", text))
    parts = (" ".join(part.split()) for block in blocks for part in _END.split(block))
    return [part for part in parts if re.search(r"[a-z]{2}", part.replace("`x`", ""))]


def first_sentences() -> Iterator[Sentence]:
    """Yield the first sentence of every docstring of service and client."""
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    for tree in messages.TREES:
        for path in sorted((ROOT / tree).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, kinds) and (text := ast.get_docstring(node)):
                    first = " ".join(text.partition("\n\n")[0].split())
                    yield Sentence(str(path.relative_to(ROOT)), _END.split(first)[0])


def read() -> Iterator[Sentence]:
    """Yield everything that is checked."""
    for page in pages():
        name = str(page.relative_to(ROOT))
        for text in sentences(page.read_text(encoding="utf-8")):
            yield Sentence(name, text)
    for each in messages.texts():
        yield Sentence(each.file, each.text)
    yield from first_sentences()


def excepted() -> Mapping[str, str]:
    """Return the exceptions, each as ``file: part of the text``, with its reason."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    found: dict[str, str] = settings["tool"]["cachetier"]["words"]
    return found


def found() -> list[str]:
    """Return every breach of a rule that no exception covers, and each exception without use."""
    compiled = {
        re.compile(rule, 0 if rule[0] == "^" or "none" in rule else re.IGNORECASE): rule
        for rule in RULES
    }
    unused, breaches = set(excepted()), []
    for file, text in read():
        for pattern, rule in compiled.items():
            if not (match := pattern.search(text)):
                continue
            covers = {
                each
                for each in excepted()
                if each.startswith(f"{file}: ") and each.partition(": ")[2] in text
            }
            unused -= covers
            if not covers:
                breaches.append(f"{file}: {match[0]!r} ({RULES[rule]}): {text}")
    return sorted(set(breaches)) + [f"pyproject.toml: excepts nothing: {each}" for each in unused]


def main() -> int:
    """Print each breach; return 1 if there is one."""
    breaches = found()
    for each in breaches:
        click.echo(each)
    return 1 if breaches else 0


if __name__ == "__main__":
    sys.exit(main())
