"""Which tests run a statement: gathered by coverage once, kept below build/, known by its text.

A statement is known as its mutants are, by path, scope and text, so that the map stays of use
while code moves. What stands in a module or a class, such as a statement of SQL, is run by those
who name it.
"""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import coverage

from tests.mutants.sample import area_of
from tests.mutants.sites import Site, Statement, statements

ROOT = Path(__file__).parents[2]
PLACE = ROOT / "build" / "mutants"
# Parts, so that gathering goes on where it was broken off; the quick tests first.
PARTS: dict[str, tuple[str, ...]] = {
    "core": tuple(
        f"tests/unit/{area}"
        for area in ("model", "drain", "local", "restore", "ingest", "objects", "steps")
    ),
    "outer": tuple(f"tests/unit/{area}" for area in ("reclaim", "fsck", "status")),
    "integration": tuple(
        f"tests/integration/test_{name}.py"
        for name in (
            *("drain", "drain_write_through", "drain_packs", "drain_damage", "drain_delete"),
            *("missing_objects", "remotes", "leaving", "whole_steps", "restore_keep"),
            *("unix_door", "s3_door_objects", "fsck", "fsck_objects", "unflushed"),
        )
    ),
    "stateful": tuple(
        f"tests/stateful/test_{name}.py"
        for name in ("objects", "races", "remotes", "shared_keys", "tier", "two_nodes")
    ),
    "crash": tuple(
        f"tests/crash/test_{name}.py"
        for name in ("failed_syncs", "log_damage", "lost_log", "object_power_loss", "power_loss")
    ),
}
FIXED = {"CI": "1", "FAULT_SLICE": "0"}  # the same seeds in each run


def gather(part: str, workers: int = 2) -> None:
    """Run the tests of a part, and keep which lines each of them runs."""
    place = PLACE / "map" / part
    place.mkdir(parents=True, exist_ok=True)
    for old in place.iterdir():
        old.unlink()
    command = [sys.executable, "-m", "pytest", "-q", "-n", str(workers), "-p", "no:cacheprovider"]
    command += ["-p", "tests.mutants.recorder", "-m", "not soak", *PARTS[part]]
    environment = {**os.environ, **FIXED, "MUTANTS_MAP": os.fspath(place)}
    subprocess.run(command, cwd=ROOT, env=environment, check=False)
    _summarize(place)


def _summarize(place: Path) -> None:
    """Write ``tests.json`` of a part: seconds of each test, and the tests of each statement."""
    costs = {}
    for file in place.glob("costs.*"):
        for line in file.read_text(encoding="utf-8").splitlines():
            seconds, _, test = line.partition("\t")
            costs[test] = float(seconds)
    numbers = {test: number for number, test in enumerate(costs)}
    found: defaultdict[str, set[int]] = defaultdict(set)
    for file in place.glob("lines.*"):
        data = coverage.CoverageData(os.fspath(file))
        data.read()
        for measured in data.measured_files():
            path = Path(measured)
            if path.is_relative_to(ROOT) and area_of(path.relative_to(ROOT).as_posix()):
                tests = {
                    line: {numbers[test] for test in contexts if test in numbers}
                    for line, contexts in data.contexts_by_lineno(measured).items()
                }
                for key, these in _tests_by_statement(path, tests):
                    found[key] |= these
    summary = {"costs": costs, "statements": {key: sorted(found[key]) for key in found}}
    (place / "tests.json").write_text(json.dumps(summary), encoding="utf-8")


def _tests_by_statement(
    path: Path, tests: Mapping[int, set[int]]
) -> Iterator[tuple[str, set[int]]]:
    name = path.relative_to(ROOT).as_posix()
    for statement in statements(ast.parse(path.read_text(encoding="utf-8"))):
        run = set[int]().union(*(tests.get(line, set()) for line in statement.lines))
        if run:
            yield _key(name, statement.scope, statement.text), run


def _key(path: str, scope: str, statement: str) -> str:
    return f"{path}::{scope}::{statement}"


class LineMap:
    """The tests that run a statement, of all parts that were gathered."""

    def __init__(self, place: Path = PLACE / "map") -> None:
        self.costs: dict[str, float] = {}
        self._tests: defaultdict[str, set[str]] = defaultdict(set)
        self._known: set[tuple[str, str]] = set()  # modules and scopes that some test runs
        for file in sorted(place.glob("*/tests.json")):
            summary = json.loads(file.read_text(encoding="utf-8"))
            tests = list(summary["costs"])
            self.costs |= summary["costs"]
            for key, numbers in summary["statements"].items():
                self._tests[key].update(tests[number] for number in numbers)
                path, _, moved = key.partition("::")
                self._tests[moved].update(tests[number] for number in numbers)
                self._known.add((path, moved.partition("::")[0]))
        self._users: dict[str, list[str]] = {}

    def __bool__(self) -> bool:
        return bool(self.costs)

    def tests_of(self, site: Site, texts: Mapping[str, str]) -> list[str]:
        """Return the tests that run the statement of a site, fastest first.

        Args:
            site: Where it is now.
            texts: The modules by path, to look for those who name what a module defines.
        """
        key = _key(site.path, site.scope, site.statement)
        if (site.path, site.scope) not in self._known:
            key = key.partition("::")[2]  # it moved
        found = self._tests.get(key, set())
        named = _defined(site)
        if not found and named:
            if named not in self._users:
                self._users[named] = list(_users_of(named, texts))
            found = set[str]().union(*(self._tests.get(key, set()) for key in self._users[named]))
        return sorted(found, key=lambda test: (self.costs.get(test, 0.0), test))


def _defined(site: Site) -> str:
    """Return the constant that a statement defines; else nothing."""
    found = re.match(r"(_?[A-Z][A-Z_0-9]+)(?:: [^=]*)? = ", site.statement)
    return found[1] if found else ""


def _users_of(name: str, texts: Mapping[str, str]) -> Iterator[str]:
    """Yield the keys of statements that name it, or name a definition that does."""
    todo, seen = [name], {name}
    while todo:
        wanted = todo.pop()
        for path, text in texts.items():
            if wanted in text and area_of(path):
                for statement in statements(ast.parse(text)):
                    if not _names(statement, wanted):
                        continue
                    site = Site(path, statement.scope, statement.text, "")
                    defined = _defined(site) if statement.function is None else ""
                    if statement.function is not None:
                        yield _key(path, statement.scope, statement.text)
                    elif defined and defined not in seen:
                        seen.add(defined)
                        todo.append(defined)


def _names(statement: Statement, name: str) -> bool:
    if name not in statement.text:
        return False
    return any(
        (isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and node.id == name)
        or (isinstance(node, ast.Attribute) and node.attr == name)
        for node in ast.walk(statement.node)
    )


def batches(
    path: str, tests: Sequence[str], costs: Mapping[str, float], most: float = 240.0
) -> Iterator[list[str]]:
    """Yield tests to run at once: of the modules nearest by name, of more, then of all.

    To import a module of tests costs more than most of its tests, so a batch keeps to few modules.
    What is above the limits of seconds, ``most`` in the end, is left out.
    """
    words = set(re.findall(r"[a-z]+", path))
    by_module: defaultdict[str, list[str]] = defaultdict(list)
    for test in tests:
        by_module[test.partition("::")[0]].append(test)
    common = {module: len(words & set(re.findall(r"[a-z]+", module))) for module in by_module}
    modules = sorted(by_module, key=lambda each: (-common[each], -len(by_module[each]), each))
    done: set[str] = set()
    for width, count, seconds in ((2, 60, 8.0), (10, 200, 40.0), (len(modules), 400, most)):
        batch: list[str] = []
        spent = 0.0
        for test in (test for module in modules[:width] for test in by_module[module]):
            cost = costs.get(test, 0.0)
            if test not in done and len(batch) < count and (spent + cost <= seconds or not batch):
                batch.append(test)
                spent += cost
        done.update(batch)
        if batch:
            yield batch
