"""One word, one meaning: the glossary's names exist, and words that say nothing are no names."""

from __future__ import annotations

import ast
import re
from collections import Counter
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "glossary.md"
TREES = {"cachetier": ROOT, "cachetier_client": ROOT / "client"}
FORBIDDEN = frozenset(
    [
        "agenda",
        "among",
        "belongings",
        "board",
        "books",
        "desk",
        "judged",
        "office",
        "said",
        "standing",
        "told",
    ]
)

ROW = re.compile(r"^\| (?!term \||-)(.+?) \| (.+?) \| (.+?) \|$", re.MULTILINE)
WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])|\d+")


@cache
def rows() -> list[tuple[str, str, str]]:
    """Return term, meaning and place in the code of each row."""
    return ROW.findall(PAGE.read_text(encoding="utf-8"))


def module_file(dotted: str) -> Path | None:
    """Return the file of a module or package; None where there is none."""
    package = dotted.partition(".")[0]
    path = TREES[package].joinpath(*dotted.split("."))
    files = (path.with_suffix(".py"), path / "__init__.py")
    return next((file for file in files if file.is_file()), None)


def defined_in(file: Path) -> set[str]:
    """Return what a module defines at its top: classes, functions and values."""
    names = set()
    for node in ast.parse(file.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            names.add(node.name)
        elif isinstance(node, ast.Assign):
            names |= {each.id for each in node.targets if isinstance(each, ast.Name)}
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            names.add(node.target.id)
    return names


def is_there(reference: str) -> bool:
    """Return whether ``package.module`` or ``package.module.Name`` exists."""
    if module_file(reference) is not None:
        return True
    module, _, name = reference.rpartition(".")
    file = module_file(module)
    return file is not None and name in defined_in(file)


def test_each_term_has_one_row_with_one_sentence() -> None:
    assert 40 <= len(rows()) <= 50
    twice = [term for term, count in Counter(term for term, _, _ in rows()).items() if count > 1]
    assert twice == []
    long = [term for term, meaning, _ in rows() if not meaning.endswith(".") or ". " in meaning]
    assert long == []


def test_each_term_is_where_the_glossary_says() -> None:
    unknown = [
        f"{term}: {place}"
        for term, _, place in rows()
        if not (place.startswith("`") and place.endswith("`") and is_there(place.strip("`")))
    ]
    assert unknown == []


def test_a_reference_to_nothing_is_noticed() -> None:
    assert is_there("cachetier.model.shard.Shard")
    assert not is_there("cachetier.model.shard.Nothing")
    assert not is_there("cachetier.nothing.Shard")


def forbidden_names(file: Path) -> set[str]:
    """Return the names that ``file`` gives, its own too, with a word that says nothing."""
    given = {file.stem}
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        match node:
            case ast.ClassDef(name=name) | ast.FunctionDef(name=name):
                given.add(name)
            case ast.arg(arg=name) | ast.Name(id=name, ctx=ast.Store()):
                given.add(name)
            case ast.Attribute(attr=name, ctx=ast.Store()):
                given.add(name)
    return {name for name in given if {word.lower() for word in WORD.findall(name)} & FORBIDDEN}


@pytest.mark.parametrize("package", TREES)
def test_no_name_needs_its_docstring_to_be_understood(package: str) -> None:
    found = {
        str(file.relative_to(TREES[package])): names
        for file in sorted((TREES[package] / package).rglob("*.py"))
        if (names := forbidden_names(file))
    }
    assert found == {}


def test_a_part_of_an_upload_is_not_called_part_alone() -> None:
    """``RankPart`` and ``PartDocument`` are a rank's; what S3 calls a part says so."""
    bare = re.compile(r"^_?Parts?$|^_?(Finished|Sent|Direct)Part$|^_?PartRange$")
    names = {
        f"{file.relative_to(ROOT)}: {name}"
        for package, root in TREES.items()
        for file in (root / package).rglob("*.py")
        for name in defined_in(file)
        if bare.match(name)
    }
    assert names == set()
