"""The one-line mutants of a module: which there are, and the text of the module with one of them.

A mutant is known by its path, the qualified name of its function, the text of its statement (of a
compound statement the header), its kind and its number among equal ones. No line number is in
that, so a mutant is found again after code moved.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

NO_EFFECT = re.compile(r"\b(log|logger|_log|tell|_tell|metrics|_metrics|warn|assert_never)\b")
# Keywords that say how a thing is built or ended.
NO_KEYWORD = frozenset(
    {"slots", "frozen", "strict", "daemon", "cancel_futures", "exc_info", "kw_only", "sort_keys"}
)
NO_FUNCTION = frozenset({"__repr__", "__str__", "__del__"})
SQL = re.compile(r"\b(SELECT|UPDATE|INSERT|DELETE|WHERE|EXISTS|NULL|AND)\b")
NO_SQL = re.compile(r"CREATE (UNIQUE )?(INDEX|TABLE)|ALTER TABLE|PRAGMA")
SQL_CHANGES = (
    (re.compile(r"\bNOT EXISTS\b"), "EXISTS"),
    (re.compile(r"\bIS NOT NULL\b"), "IS NULL"),
    (re.compile(r"\bIS NULL\b"), "IS NOT NULL"),
    (re.compile(r"\bNOT IN\b"), "IN"),
    (re.compile(r"(?<= )< (?=[\w?:(])"), "<= "),
    (re.compile(r"(?<= )<= (?=[\w?:(])"), "< "),
    (re.compile(r"(?<= )> (?=[\w?:(])"), ">= "),
    (re.compile(r"(?<= )>= (?=[\w?:(])"), "> "),
    (re.compile(r"(?<= )!= "), "= "),
    (re.compile(r"\bAND\b"), "OR"),
    (re.compile(r"(?<!INSERT )\bOR\b"), "AND"),
    (re.compile(r"'dirty'"), "'clean'"),
    (re.compile(r"'clean'"), "'dirty'"),
    (re.compile(r"'open'"), "'sealed'"),
    (re.compile(r"'sealed'"), "'open'"),
    (re.compile(r"'published'"), "'open'"),
    (re.compile(r"'quarantined'"), "'clean'"),
    (re.compile(r"'superseded'"), "'published'"),
    (re.compile(r"'refused'"), "'published'"),
    (re.compile(r"'deleted'"), "'clean'"),
    (re.compile(r"'evicted'"), "'clean'"),
)
COMPARISONS: dict[type[ast.cmpop], tuple[str, str]] = {
    ast.Lt: ("<", "<="),
    ast.LtE: ("<=", "<"),
    ast.Gt: (">", ">="),
    ast.GtE: (">=", ">"),
    ast.Eq: ("==", "!="),
    ast.NotEq: ("!=", "=="),
    ast.In: ("in", "not in"),
    ast.NotIn: (r"not\s+in", "in"),
    ast.Is: ("is", "is not"),
    ast.IsNot: (r"is\s+not", "is"),
}
Function = ast.FunctionDef | ast.AsyncFunctionDef
DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


@dataclass(frozen=True)
class Site:
    """What a mutant is known by, wherever its lines are."""

    path: str
    scope: str  # qualified name of the function; "" in a module
    statement: str
    kind: str
    number: int = 0  # among mutants of the same path, scope, statement and kind


@dataclass(frozen=True)
class Mutant:
    """One change of one span of a module's text."""

    site: Site
    start: int  # offsets in the text
    end: int
    replacement: str
    lines: range  # of the changed span
    change: str  # for people: what became what

    def applied_to(self, text: str) -> str:
        """Return the module's text with the change; nothing else differs."""
        return text[: self.start] + self.replacement + text[self.end :]


@dataclass(frozen=True)
class Statement:
    """A statement with its scope; `text` is that of the header, if it is compound."""

    node: ast.stmt
    scope: str
    text: str
    function: Function | None

    @property
    def lines(self) -> range:
        """The lines of a simple statement, or of the header."""
        body = getattr(self.node, "body", None) or getattr(self.node, "cases", None)
        end = self.node.end_lineno or self.node.lineno
        if body:
            first = body[0].pattern if isinstance(body[0], ast.match_case) else body[0]
            end = max(self.node.lineno, first.lineno - 1)
        return range(self.node.lineno, end + 1)


def statements(tree: ast.Module) -> Iterator[Statement]:
    """Yield every statement of functions, and the assignments of modules and classes."""
    yield from _statements(tree.body, "", None)


def _statements(body: list[ast.stmt], scope: str, function: Function | None) -> Iterator[Statement]:
    for node in body:
        if isinstance(node, DEFINITIONS):
            inner = f"{scope}.{node.name}" if scope else node.name
            within = function if isinstance(node, ast.ClassDef) else node
            if node.name not in NO_FUNCTION:
                yield from _statements(node.body, inner, within)
            continue
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            continue
        yield Statement(node, scope, _header(node), function)
        for field in ("body", "orelse", "finalbody"):
            yield from _statements(getattr(node, field, []), scope, function)
        for part in [*getattr(node, "handlers", []), *getattr(node, "cases", [])]:
            yield from _statements(part.body, scope, function)


def _header(node: ast.stmt) -> str:
    if isinstance(node, ast.Match):
        return f"match {ast.unparse(node.subject)}:"
    if not hasattr(node, "body"):
        return ast.unparse(node)
    return ast.unparse(node).partition(":\n")[0] + ":"


class Text:
    """A module's text, with offsets for the positions of its syntax tree."""

    def __init__(self, text: str) -> None:
        self.text = text
        self._lines = text.splitlines(keepends=True)
        self._starts = [0]
        for line in self._lines:
            self._starts.append(self._starts[-1] + len(line))

    def span(self, node: ast.AST) -> tuple[int, int]:
        """Return where the node begins and ends, in characters; a tree counts bytes."""
        assert isinstance(node, ast.expr | ast.stmt)
        assert node.end_lineno is not None and node.end_col_offset is not None
        return (
            self._offset(node.lineno, node.col_offset),
            self._offset(node.end_lineno, node.end_col_offset),
        )

    def _offset(self, line: int, column: int) -> int:
        before = self._lines[line - 1].encode()[:column].decode()
        return self._starts[line - 1] + len(before)

    def of(self, node: ast.AST) -> str:
        start, end = self.span(node)
        return self.text[start:end]

    def lines(self, start: int, end: int) -> range:
        first = self.text.count("\n", 0, start) + 1
        return range(first, first + self.text.count("\n", start, end) + 1)


Part = ast.expr | ast.comprehension
Change = tuple[str, int, int, str]  # kind, start, end, replacement


def mutants_of(path: str, text: str) -> list[Mutant]:
    """Return every mutant of a module, in the order of its text."""
    found = []
    seen: Counter[Site] = Counter()
    source = Text(text)
    for statement in statements(ast.parse(text)):
        for kind, start, end, replacement in _changes(statement, source):
            site = Site(path, statement.scope, statement.text, kind)
            number = seen[site]
            seen[site] += 1
            numbered = Site(path, statement.scope, statement.text, kind, number)
            change = f"{_short(text[start:end])} -> {_short(replacement)}"
            lines = source.lines(start, end)
            found.append(Mutant(numbered, start, end, replacement, lines, change))
    return found


def _short(text: str) -> str:
    joined = " ".join(text.split())
    return joined if len(joined) <= 90 else f"{joined[:60]} ... {joined[-25:]}"


def _changes(statement: Statement, source: Text) -> Iterator[Change]:
    node = statement.node
    if isinstance(node, ast.Raise | ast.Assert | ast.Import | ast.ImportFrom):
        return
    if isinstance(node, ast.Expr):
        call = node.value.value if isinstance(node.value, ast.Await) else node.value
        if not isinstance(call, ast.Call) or NO_EFFECT.search(ast.unparse(call.func)):
            return
        if statement.function is not None:
            yield ("dropped", *source.span(node), "pass")
    if isinstance(node, ast.If | ast.While):
        yield from _turned(node.test, source)
    if isinstance(node, ast.Match):
        for case in node.cases:
            if case.guard:
                yield from _turned(case.guard, source)
                yield from _inside(case.guard, source)
    if isinstance(node, ast.Return):
        yield from _returned(node, statement.function, source)
    for expression in _expressions(node):
        if statement.function is None:
            yield from _sql(expression, source)
        else:
            yield from _inside(expression, source)


def _expressions(node: ast.stmt) -> Iterator[ast.expr]:
    """Yield what a statement evaluates itself; annotations and targets are left out."""
    if isinstance(node, ast.With | ast.AsyncWith):
        yield from (item.context_expr for item in node.items)
    elif isinstance(node, ast.For | ast.AsyncFor):
        yield node.iter
    elif isinstance(node, ast.Match):
        yield node.subject
    elif not isinstance(node, ast.Delete):
        for field in ("value", "test"):
            value = getattr(node, field, None)
            if value is not None:
                yield value


def _returned(node: ast.Return, function: Function | None, source: Text) -> Iterator[Change]:
    value, annotation = node.value, getattr(function, "returns", None)
    if value is None or isinstance(value, ast.Constant):
        return
    start, end = source.span(value)
    if isinstance(annotation, ast.Name) and annotation.id == "bool":
        if not isinstance(value, ast.Compare | ast.BoolOp) or not _equality(value):
            yield "returned", start, end, f"not ({source.text[start:end]})"
    else:
        yield "returned", start, end, "None"


def _equality(node: ast.expr) -> bool:
    """Is this one comparison whose moved one is its opposite?"""
    opposites = (ast.Eq, ast.NotEq, ast.In, ast.NotIn, ast.Is, ast.IsNot)
    return (
        isinstance(node, ast.Compare) and len(node.ops) == 1 and isinstance(node.ops[0], opposites)
    )


def _turned(test: ast.expr, source: Text) -> Iterator[Change]:
    if not isinstance(test, ast.Constant) and not _equality(test):
        start, end = source.span(test)
        yield "turned", start, end, f"not ({source.text[start:end]})"


def _inside(node: Part, source: Text) -> Iterator[Change]:
    """Yield the changes in an expression; not in texts for people, nor in what a log gets."""
    if isinstance(node, ast.JoinedStr) or (
        isinstance(node, ast.Constant) and isinstance(node.value, str)
    ):
        yield from _sql(node, source)
        return
    if isinstance(node, ast.Call) and NO_EFFECT.search(ast.unparse(node.func)):
        return
    if isinstance(node, ast.Constant):
        yield from _moved(node, source)
    elif isinstance(node, ast.IfExp):
        yield from _turned(node.test, source)
    elif isinstance(node, ast.Compare):
        yield from _compared(node, source)
    elif isinstance(node, ast.BoolOp):
        word, other = ("and", "or") if isinstance(node.op, ast.And) else ("or", "and")
        for left, right in zip(node.values, node.values[1:], strict=False):
            yield from _between("swapped", left, right, (word, other), source)
    elif isinstance(node, ast.comprehension):
        for test in node.ifs:
            yield from _turned(test, source)
    for child in _children(node):
        yield from _inside(child, source)


def _moved(node: ast.Constant, source: Text) -> Iterator[Change]:
    start, end = source.span(node)
    if isinstance(node.value, bool):
        yield "moved", start, end, str(not node.value)
    elif isinstance(node.value, int):
        yield "moved", start, end, f"({node.value} + 1)"


def _children(node: ast.AST) -> Iterator[Part]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.keyword):
            if child.arg not in NO_KEYWORD:
                yield child.value
        elif isinstance(child, ast.expr | ast.comprehension):
            yield child


def _compared(node: ast.Compare, source: Text) -> Iterator[Change]:
    parts = [node.left, *node.comparators]
    for operator, left, right in zip(node.ops, parts, parts[1:], strict=False):
        yield from _between("compared", left, right, COMPARISONS[type(operator)], source)


def _between(
    kind: str, left: ast.expr, right: ast.expr, words: tuple[str, str], source: Text
) -> Iterator[Change]:
    """Yield the change of the operator between two operands, past brackets and comments."""
    start, end = source.span(left)[1], source.span(right)[0]
    gap = re.sub(r"#[^\n]*", lambda comment: " " * len(comment[0]), source.text[start:end])
    pattern = rf"\b{words[0]}\b" if words[0][0].isalpha() else re.escape(words[0])
    found = re.search(pattern, gap)
    if found:
        yield kind, start + found.start(), start + found.end(), words[1]


def _sql(node: ast.AST, source: Text) -> Iterator[Change]:
    for part in ast.walk(node):
        joined = isinstance(part, ast.JoinedStr)
        if not joined and not (isinstance(part, ast.Constant) and isinstance(part.value, str)):
            continue
        if part is not node and isinstance(node, ast.JoinedStr):
            continue  # a part of it has the position of the whole
        start, end = source.span(part)
        text = source.text[start:end]
        if not SQL.search(text) or NO_SQL.search(text):
            continue
        for pattern, replacement in SQL_CHANGES:
            for found in pattern.finditer(text):
                before = text[: found.start()]
                if "BETWEEN" not in before[-40:] and not before.endswith("NOT "):
                    yield "sql", start + found.start(), start + found.end(), replacement
