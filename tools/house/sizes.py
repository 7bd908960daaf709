"""Count source lines, small modules and shared class names: ``python -m tools.house.sizes``.

- *Source lines*: every line of each ``*.py`` in ``cachetier/`` and ``client/cachetier_client/``, as
  ``wc -l`` counts them; ``cachetier/testing`` is told apart, and in the sum.
- *Small modules*: under 60 lines, not an ``__init__``, and imported by exactly one other module of
  the two packages (``cachetier/testing`` is left out).
- *Shared names*: classes of the same name, errors apart, in two packages; a package is a folder, or
  a module at the top.
"""

from __future__ import annotations

import argparse
import ast
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import click

ROOT = Path(__file__).resolve().parents[2]
SMALL_LINES = 60
TESTING = "cachetier.testing"


@dataclass(frozen=True)
class Module:
    """One source file, by its dotted name."""

    name: str
    is_package: bool
    text: str

    @property
    def lines(self) -> int:
        return self.text.count("\n")

    @property
    def package(self) -> str:
        """The folder of the module; the module itself at the top of its distribution."""
        folder = self.name if self.is_package else self.name.rpartition(".")[0]
        return folder if "." in folder else self.name


def modules_of(tree: Path) -> dict[str, Module]:
    """Return the modules of service and client by name."""
    found = {}
    for parent, package in ((tree, "cachetier"), (tree / "client", "cachetier_client")):
        for path in sorted((parent / package).rglob("*.py")):
            parts = path.relative_to(parent).with_suffix("").parts
            is_package = parts[-1] == "__init__"
            name = ".".join(parts[:-1] if is_package else parts)
            found[name] = Module(name, is_package, path.read_text(encoding="utf-8"))
    return found


def lines_by_package(modules: Mapping[str, Module]) -> Counter[str]:
    """Return the lines of each folder, and of each module, right below the two packages."""
    counted: Counter[str] = Counter()
    for module in modules.values():
        counted[".".join(module.name.split(".")[:2])] += module.lines
    return counted


def small_modules(modules: Mapping[str, Module]) -> dict[str, str]:
    """Return the modules under 60 lines with one importer, and who that is."""
    importers: defaultdict[str, set[str]] = defaultdict(set)
    for module in modules.values():
        for name in _imports(module, modules):
            importers[name].add(module.name)
    return {
        name: next(iter(importers[name]))
        for name, module in modules.items()
        if module.lines < SMALL_LINES
        and not module.is_package
        and not name.startswith(TESTING)
        and len(importers[name]) == 1
    }


def _imports(module: Module, modules: Mapping[str, Module]) -> Iterator[str]:
    for node in ast.walk(ast.parse(module.text)):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            inner = [f"{node.module}.{alias.name}" for alias in node.names]
            names = [name for name in inner if name in modules] or [node.module]
        else:
            continue
        yield from (name for name in names if name in modules and name != module.name)


def shared_names(modules: Mapping[str, Module]) -> dict[str, list[str]]:
    """Return the names of classes, errors apart, that two packages or more define."""
    places: defaultdict[str, set[str]] = defaultdict(set)
    for module in modules.values():
        for node in ast.parse(module.text).body:
            if isinstance(node, ast.ClassDef) and not node.name.endswith("Error"):
                places[node.name].add(module.package)
    return {name: sorted(where) for name, where in sorted(places.items()) if len(where) > 1}


def main() -> None:
    parser = argparse.ArgumentParser(description="Count lines, small modules and shared names.")
    parser.add_argument("--tree", type=Path, default=ROOT, help="the checkout to count")
    parser.add_argument("--list", action="store_true", help="list what is counted")
    options = parser.parse_args()
    modules = modules_of(options.tree)
    by_package = lines_by_package(modules)
    small, shared = small_modules(modules), shared_names(modules)
    total = sum(by_package.values())
    client = sum(each.lines for each in modules.values() if each.name.startswith("cachetier_c"))
    testing = sum(each.lines for each in modules.values() if each.name.startswith(TESTING))
    click.echo(f"source lines   {total}: service {total - client}, client {client}")
    click.echo(f"               {total - testing} without {TESTING}")
    if options.list:
        for package, lines in sorted(by_package.items()):
            click.echo(f"    {lines:6} {package}")
    click.echo(f"small modules  {len(small)} under {SMALL_LINES} lines with one importer")
    if options.list:
        for name, importer in sorted(small.items()):
            click.echo(f"    {modules[name].lines:4} {name} <- {importer}")
    click.echo(f"shared names   {len(shared)} class names in two packages")
    if options.list:
        for name, where in shared.items():
            click.echo(f"    {name}: {', '.join(where)}")


if __name__ == "__main__":
    main()
