"""Modules and functions stay small; an exception is listed in pyproject.toml with its reason."""

from __future__ import annotations

import ast
import tomllib
from functools import cache
from pathlib import Path

import pytest

pytestmark = pytest.mark.xdist_group("sizes")  # each file is parsed once

ROOT = Path(__file__).parents[2]
TREES = ("cachetier", "client", "tests", "benchmarks", "examples")
MODULE_LINES = 900
TEST_MODULE_LINES = 900
FUNCTION_LINES = 60

SETTINGS = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
EXCEPTIONS: dict[str, str] = SETTINGS["tool"].get("cachetier", {}).get("sizes", {})


def modules() -> list[str]:
    return sorted(
        str(path.relative_to(ROOT)) for tree in TREES for path in (ROOT / tree).rglob("*.py")
    )


def oversized(name: str) -> list[str]:
    """Name the module, or those of its functions, that exceed the limits."""
    text = (ROOT / name).read_text(encoding="utf-8")
    limit = TEST_MODULE_LINES if name.startswith("tests/") else MODULE_LINES
    found = [name] if text.count("\n") > limit else []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            found += [f"{name}:{node.name}"] if lines > FUNCTION_LINES else []
    return found


@cache
def all_oversized() -> set[str]:
    return {found for name in modules() for found in oversized(name)}


def test_modules_and_functions_are_within_the_limits() -> None:
    assert all_oversized() - set(EXCEPTIONS) == set()


def test_every_listed_exception_is_still_needed_and_has_a_reason() -> None:
    assert set(EXCEPTIONS) <= all_oversized()
    assert all(EXCEPTIONS.values())
