"""Mutants: drawing them, changing one span, finding one after code moved, killing one."""

from __future__ import annotations

import ast
import textwrap
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from tests.mutants import sample
from tests.mutants.line_map import LineMap, batches
from tests.mutants.sample import KILLED, NOT_RUN, SURVIVED, Mutants, Result
from tests.mutants.sites import Mutant, Site, mutants_of
from tests.mutants.worker import Worker

ROOT = Path(__file__).parents[3]
SQL = """
CLEAN = "SELECT size FROM shards WHERE state = 'clean' AND part IS NULL"
"""


def changes(text: str) -> list[tuple[str, str]]:
    found = mutants_of("a.py", textwrap.dedent(text))
    return [(mutant.site.kind, mutant.change) for mutant in found]


def in_function(*lines: str) -> str:
    return "def f(a, b):\n" + "".join(f"    {line}\n" for line in lines)


@pytest.mark.parametrize(
    ("line", "kind", "change"),
    [
        ("if a: b()", "turned", "a -> not (a)"),
        ("x = a < b", "compared", "< -> <="),
        ("x = (a) is  not (b)", "compared", "is not -> is"),
        ("x = a and b", "swapped", "and -> or"),
        ("a.keep(b)", "dropped", "a.keep(b) -> pass"),
        ("x = a[1]", "moved", "1 -> (1 + 1)"),
        ("x = f(last=True)", "moved", "True -> False"),
        ("return a.b", "returned", "a.b -> None"),
        ("a('SELECT 1 WHERE NOT EXISTS (x)')", "sql", "NOT EXISTS -> EXISTS"),
    ],
)
def test_each_kind_of_change_is_found(line: str, kind: str, change: str) -> None:
    assert (kind, change) in changes(in_function(line))


@pytest.mark.parametrize(
    "text",
    [
        in_function('"""A docstring of 3 lines."""'),
        in_function("log.info('a', 1)", "tell(a, limit=1)"),
        in_function("raise ValueError(1 if a else 2)"),
        "LIMIT = 5\n",
        "if TYPE_CHECKING:\n    from a import b\n",
        "def __repr__(self):\n    return self.a < 1\n",
    ],
)
def test_what_nobody_could_notice_is_left_out(text: str) -> None:
    assert changes(text) == []


def test_sql_of_a_module_is_changed_too() -> None:
    found = [change for _, change in changes(SQL)]
    assert found == ["IS NULL -> IS NOT NULL", "AND -> OR", "'clean' -> 'dirty'"]


def test_a_function_of_bool_returns_the_opposite() -> None:
    assert changes("def f(a) -> bool:\n    return a.b\n") == [("returned", "a.b -> not (a.b)")]


def test_only_the_changed_span_differs_even_behind_characters_of_many_bytes() -> None:
    text = 'def f(a):\n    x = "é€" if a < 1 else ""  # ü\n    return x\n'
    mutant = next(each for each in mutants_of("a.py", text) if each.site.kind == "compared")
    assert mutant.applied_to(text) == text.replace("<", "<=")


def test_every_mutant_of_the_sample_is_python_and_another_program() -> None:
    mutants = Mutants(ROOT)
    for result in sample.read():
        mutant = mutants.find(result)
        if mutant is not None:
            text = mutants.texts[mutant.site.path]
            assert ast.dump(ast.parse(mutant.applied_to(text))) != ast.dump(ast.parse(text))


def test_the_sample_is_drawn_the_same_each_time() -> None:
    mutants = [
        mutant
        for path in ("cachetier/ingest/a.py", "cachetier/steps/b.py")
        for mutant in mutants_of(path, "\n".join(in_function(f"a({n})") for n in range(60)))
    ]
    drawn = sample.draw(mutants)
    assert drawn == sample.draw(mutants) != sample.draw(mutants, seed=36)
    assert Counter(sample.area_of(each.site.path) for each in drawn) == {"ingest": 30, "steps": 30}
    assert {each.outcome for each in drawn} == {NOT_RUN}


def tree_with(root: Path, **modules: str) -> Mutants:
    for name, text in modules.items():
        path = root / "cachetier" / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        (path.parent / "__init__.py").touch()
        path.write_text(text, encoding="utf-8")
    return Mutants(root)


def one_of(mutants: Mutants, change: str) -> Mutant:
    return next(mutant for mutant in mutants if mutant.change == change)


def test_a_statement_that_moved_is_found_again(tmp_path: Path) -> None:
    text = in_function("if a < 1:", "    return b")
    mutant = one_of(tree_with(tmp_path / "old", one=text), "< -> <=")
    known = Result(mutant.site, mutant.change)
    lower = tree_with(tmp_path / "lower", one=f"import x\n\n\n{text}").find(known)
    assert lower is not None and lower.lines == range(5, 6)
    other = tree_with(tmp_path / "other", two=text).find(known)
    assert other is not None and other.site.path == "cachetier/two.py"
    renamed = tree_with(tmp_path / "renamed", two=text.replace("def f", "def g")).find(known)
    assert renamed is not None and renamed.site.scope == "g"
    assert tree_with(tmp_path / "gone", two=text.replace("<", ">")).find(known) is None


def test_equal_statements_keep_their_order(tmp_path: Path) -> None:
    mutants = tree_with(tmp_path, one=in_function("a(b, 1)", "a(b, 1)", "a(b, 1)"))
    third = [mutant for mutant in mutants if mutant.site.kind == "dropped"][2]
    assert mutants.find(Result(third.site, third.change)) == third
    assert third.lines == range(4, 5)


def test_a_planted_mutant_is_killed_and_the_tree_stays_as_it_was(tmp_path: Path) -> None:
    text = "def least(a: int, b: int) -> int:\n    return a if a < b else b\n"
    mutants = tree_with(tmp_path, one=text)
    (tmp_path / "test_one.py").write_text(
        "from cachetier.one import least\n\n\n"
        "def test_equal() -> None:\n    assert least(1, 1) == 1\n\n\n"
        "def test_less() -> None:\n    assert least(1, 2) == 1\n",
        encoding="utf-8",
    )
    tests = ["test_one.py::test_equal", "test_one.py::test_less"]
    worker = Worker(tmp_path, {})
    try:
        assert worker.first_failure(tests, 60.0) == ""
        with worker.mutated(one_of(mutants, "a < b -> not (a < b)")):
            assert worker.first_failure(tests, 60.0) == "test_one.py::test_less"
        with worker.mutated(one_of(mutants, "< -> <=")):
            assert worker.first_failure(tests, 60.0) == ""
        assert worker.failures(tests, 60.0) == set()
    finally:
        worker.close()
    assert (tmp_path / "cachetier" / "one.py").read_text(encoding="utf-8") == text
    assert not worker.place.exists()


def test_tests_are_known_by_the_text_of_a_statement_and_run_fastest_first(tmp_path: Path) -> None:
    (tmp_path / "core").mkdir()
    (tmp_path / "core" / "tests.json").write_text(
        '{"costs": {"t::slow": 9.0, "t::quick": 0.1},'
        ' "statements": {"cachetier/steps/a.py::f::return LIMIT": [0, 1]}}',
        encoding="utf-8",
    )
    lines = LineMap(tmp_path)
    assert lines.tests_of(Site("elsewhere.py", "f", "return LIMIT", ""), {}) == [
        "t::quick",
        "t::slow",
    ]
    texts = {"cachetier/steps/a.py": "LIMIT = 5\ndef f():\n    return LIMIT\n"}
    named = Site("cachetier/steps/a.py", "", "LIMIT = 5", "sql")
    assert lines.tests_of(named, texts) == ["t::quick", "t::slow"]


def test_the_tests_of_the_nearest_module_run_first() -> None:
    costs = {"t/test_a.py::one": 0.1, "t/test_steps.py::quick": 0.1, "t/test_steps.py::slow": 9.0}
    assert list(batches("cachetier/steps/b.py", list(costs), costs)) == [
        ["t/test_steps.py::quick", "t/test_a.py::one"],
        ["t/test_steps.py::slow"],
    ]


def test_a_killed_mutant_that_survives_is_written_down_only_when_accepted() -> None:
    killed = Result(Site("a.py", "f", "a()", "dropped"), "", KILLED, "tests/a.py::test")
    survived = replace(killed, outcome=SURVIVED, by="gap")
    assert sample.kept(killed, survived) == killed
    assert sample.kept(killed, survived, accept=True) == survived
    explained = replace(survived, by="equivalent: both are the same")
    moved = replace(survived, site=replace(killed.site, path="b.py"))
    assert sample.kept(explained, moved) == replace(moved, by=explained.by)
    assert sample.killed_share([killed, explained]) == 1.0
    assert sample.killed_share([killed, survived]) == 0.5


def test_a_mutant_whose_statement_is_gone_has_the_most_alike_of_its_area_as_heir(
    tmp_path: Path,
) -> None:
    place = tmp_path / "cachetier/restore"
    place.mkdir(parents=True)
    module = place / "a.py"
    module.write_text("def f(a, b):\n    x = a.size < b.most\n    y = a < b\n")
    site = Site("cachetier/restore/a.py", "f", "x = a.size < b.limit", "compared")
    gone = Result(site, "< -> <=", KILLED, "tests/a.py::test")
    stays = Result(replace(site, statement="y = a < b"), "< -> <=", SURVIVED, "gap")

    heir, kept = sample.inherited([gone, stays], Mutants(tmp_path))

    assert heir == replace(gone, site=replace(site, statement="x = a.size < b.most"))
    assert kept == stays
