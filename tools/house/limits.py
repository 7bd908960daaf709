"""Count what may not grow by itself: ``python -m tools.house.limits``.

Each count has a limit in ``pyproject.toml`` (``[tool.cachetier.limits]``), and a test fails when it
is passed by more than two per cent. Whoever makes something smaller lowers its limit.

- *statements*: nodes of the syntax trees of service and client that are statements, docstrings
  apart; *core_statements*: of the packages that keep and carry bytes (``CORE``).
- *classes*, *shared_names*, *small_modules*: see ``sizes``.
- *settings*, *verbs*: what users can set and call; of the keys of a nested table each counts once
  for each kind of table.
- *put_files*, *put_functions* and so on: what runs on a byte's way, see ``byte_path``; of
  several tries what ran in each.
- *words*: of ``docs`` and of the pages at the top, as ``wc -w`` counts them.
"""

from __future__ import annotations

import ast
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path

import click

from tools.house import sizes
from tools.house.sizes import ROOT

CORE = (
    *("codec", "drain", "fsck", "ingest", "local", "model"),
    *("objects", "reclaim", "remote", "restore", "steps"),
)
LEEWAY = 1.02
WAYS = tuple(
    f"{way}_{what}" for way in ("put", "get", "publish") for what in ("files", "functions")
)


def counts(tree: Path = ROOT) -> dict[str, int]:
    """Return what is counted in a checkout, by name."""
    from cachetier.cli.verbs import VERBS
    from cachetier.config.settings import Settings
    from cachetier.config.types import leaves_of

    modules = sizes.modules_of(tree)
    core = [each for name, each in modules.items() if _is_core(name)]
    trees = [ast.parse(each.text) for each in modules.values()]
    return {
        "statements": sum(map(_statements, trees)),
        "core_statements": sum(_statements(ast.parse(each.text)) for each in core),
        "classes": sum(isinstance(node, ast.ClassDef) for each in trees for node in ast.walk(each)),
        "shared_names": len(sizes.shared_names(modules)),
        "small_modules": len(sizes.small_modules(modules)),
        "settings": len(leaves_of(Settings)),
        "verbs": len(VERBS),
        "words": sum(len(page.read_text(encoding="utf-8").split()) for page in _pages(tree)),
    }


def ways(passes: Mapping[str, set[tuple[str, int, str]]]) -> dict[str, int]:
    """Return how many files and functions run on each of a byte's ways, as ``byte_path`` saw it."""
    found = {}
    for way, functions in passes.items():
        found[f"{way}_files"] = len({path for path, _line, _function in functions})
        found[f"{way}_functions"] = len(functions)
    return found


def limits() -> Mapping[str, int]:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    found: dict[str, int] = settings["tool"]["cachetier"]["limits"]
    return found


def passed(counted: Mapping[str, int]) -> list[str]:
    """Say which limits are passed, and by how much."""
    allowed = limits()
    return [
        f"{name}: {count}, where {allowed[name]} is the limit"
        for name, count in counted.items()
        if count > allowed[name] * LEEWAY
    ]


def _is_core(name: str) -> bool:
    package, _, rest = name.partition(".")
    return package == "cachetier" and rest.split(".")[0] in CORE


def _statements(module: ast.Module) -> int:
    return sum(isinstance(node, ast.stmt) and not _is_text(node) for node in ast.walk(module))


def _is_text(node: ast.stmt) -> bool:
    """Return whether a statement is a text alone: a docstring."""
    if not isinstance(node, ast.Expr) or not isinstance(node.value, ast.Constant):
        return False
    return isinstance(node.value.value, str)


def _pages(tree: Path) -> Iterable[Path]:
    yield from sorted((tree / "docs").rglob("*.md"))
    yield from sorted(tree.glob("*.md"))


def main() -> None:
    allowed = limits()
    for name, count in counts().items():
        click.echo(f"{name:16} {count:7}  at most {allowed[name]}")


if __name__ == "__main__":
    main()
