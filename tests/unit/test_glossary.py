"""One word, one meaning: the glossary's names exist, and words that say nothing are no names."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator
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
# Files and addresses whose names begin like the packages'.
OTHER = frozenset(["db", "service", "sock", "toml"])

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


def test_each_module_that_a_docstring_or_comment_names_is_there() -> None:
    """A dotted name may end in a class and its attribute; a path counts from any folder."""
    dotted = re.compile(r"(?<![\w./])(?:cachetier|cachetier_client)(?:\.[A-Za-z_]\w*)+")
    path = re.compile(r"(?<![\w./<*-])(?:[a-z_]\w*/)+[a-z_]\w*\.py\b")
    files = [file for name, tree in TREES.items() for file in (tree / name).rglob("*.py")]
    known = "".join(f"/{file.relative_to(ROOT)}\n" for file in ROOT.glob("*/**/*.py"))
    missing = []
    for file in files:
        for text in prose_of(file):
            gone = [name for name in dotted.findall(text) if not leads_to_a_module(name)]
            gone += [name for name in path.findall(text) if f"/{name}\n" not in known]
            missing += [f"{file.relative_to(ROOT)}: {name}" for name in gone]
    assert missing == []


def prose_of(file: Path) -> Iterator[str]:
    """Yield the docstrings and comments of a module."""
    text = file.read_text(encoding="utf-8")
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, kinds) and (docstring := ast.get_docstring(node)):
            yield docstring
    yield from re.findall(r"^\s*# (.*)$", text, re.MULTILINE)


def leads_to_a_module(name: str) -> bool:
    """Return whether a dotted name begins with a module below its package, or with a name in it."""
    parts = name.split(".")
    if len(parts) == 2 and parts[1] in OTHER:
        return True
    beginnings = (parts[:length] for length in range(len(parts), 0, -1))
    module = next(each for each in beginnings if module_file(".".join(each)) is not None)
    return module == parts or is_named_in(".".join(module), parts[len(module)])


def is_named_in(module: str, name: str) -> bool:
    """Return whether a module's text has a name, as its own or handed on."""
    file = module_file(module)
    return file is not None and re.search(rf"\b{name}\b", file.read_text("utf-8")) is not None
