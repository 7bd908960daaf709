"""The table of events against the code that tells of them: a name in a log is a promise."""

from __future__ import annotations

import ast
import logging
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from cachetier_client.identity.names import SaveIds

from cachetier.telemetry import events
from cachetier.telemetry.events import EVENTS, Event, of, tell

pytestmark = pytest.mark.xdist_group("events")  # each file is parsed once

PACKAGE = Path(events.__file__).parents[1]
OF_SAVE = {"run", "step", "save_id"}
RESERVED = {"ts", "level", "event", "message", "process", "exception", "error"}
# Told by the log itself, by no call.
BY_THE_LOG = {"library", "drain.said", "log.repeated"}
BARE = {"debug", "info", "warning", "error", "exception", "critical"}


@cache
def _trees() -> list[tuple[Path, ast.Module]]:
    paths = [path for path in sorted(PACKAGE.rglob("*.py")) if "testing" not in path.parts]
    return [(path, ast.parse(path.read_text())) for path in paths]


def _calls(tree: ast.AST) -> Iterator[ast.Call]:
    return (node for node in ast.walk(tree) if isinstance(node, ast.Call))


def _tells() -> Iterator[tuple[str, ast.FunctionDef, ast.Call]]:
    """Yield each call of ``tell`` with where it is."""
    for path, tree in _trees():
        functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
        for function in functions:
            for call in _calls(function):
                if isinstance(call.func, ast.Name) and call.func.id == "tell":
                    yield f"{path.name}:{function.name}", function, call


def _names_of(event: ast.expr) -> set[str]:
    """Return which events an expression may be: of a choice, all that the module names."""
    return {
        node.attr if isinstance(node, ast.Attribute) else node.id
        for node in ast.walk(event)
        if isinstance(node, ast.Attribute | ast.Name)
        and re.fullmatch(r"[A-Z][A-Z_]+", node.attr if isinstance(node, ast.Attribute) else node.id)
    }


def test_nothing_is_logged_that_is_no_event() -> None:
    bare = [
        f"{path.name}:{call.lineno}"
        for path, tree in _trees()
        for call in _calls(tree)
        if isinstance(call.func, ast.Attribute)
        and call.func.attr in BARE
        and isinstance(call.func.value, ast.Name)
        and call.func.value.id in ("log", "logger", "_log", "logging")
    ]
    assert bare == []


def test_every_event_is_told_somewhere() -> None:
    source = "\n".join(
        path.read_text() for path in PACKAGE.rglob("*.py") if path.name != "events.py"
    )
    constants = {name for name in vars(events) if isinstance(getattr(events, name), Event)}
    untold = {
        getattr(events, name).name for name in constants if not re.search(rf"\b{name}\b", source)
    }
    assert untold <= BY_THE_LOG


def test_calls_give_only_fields_of_their_event() -> None:
    found = 0
    for where, _function, call in _tells():
        given = {keyword.arg for keyword in call.keywords if keyword.arg is not None} - {"error"}
        for name in _names_of(call.args[1]):
            event = getattr(events, name, None)
            if isinstance(event, Event):
                found += 1
                assert given <= set(event.fields), (where, name)
    assert found > 40


def test_calls_that_give_all_fields_by_name_leave_none_out_of_the_text() -> None:
    for where, _function, call in _tells():
        if any(keyword.arg is None for keyword in call.keywords):
            continue
        given = {keyword.arg for keyword in call.keywords}
        for name in _names_of(call.args[1]):
            event = getattr(events, name, None)
            if isinstance(event, Event):
                assert set(events.fields_in(event.text)) <= given, (where, name)


@pytest.mark.parametrize("event", EVENTS.values(), ids=lambda event: event.name)
def test_events_are_well_formed(event: Event) -> None:
    assert re.fullmatch(r"[a-z_]+(\.[a-z_]+)?", event.name)
    assert not set(event.fields) & RESERVED
    assert len(set(event.fields)) == len(event.fields)
    assert set(event.alike or ()) <= set(event.fields)
    fields = events.Fields(dict.fromkeys(event.fields, 1))
    assert event.text % fields if event.fields else event.text


def test_a_told_event_is_a_record_with_its_fields(caplog: pytest.LogCaptureFixture) -> None:
    log = logging.getLogger("cachetier.somewhere")
    with caplog.at_level(logging.INFO, "cachetier"):
        ids = of(SaveIds("r", 7, "s"))
        tell(log, events.LOCAL_ONLY_REMOVED, **ids, size_bytes=3, nothing=None)
    (record,) = caplog.records
    assert record.getMessage() == "removed local-only step r/7: 3 B"
    assert record.args == {"run": "r", "step": 7, "save_id": "s", "size_bytes": 3}


def test_an_event_below_the_level_costs_no_record(caplog: pytest.LogCaptureFixture) -> None:
    log = logging.getLogger("cachetier.somewhere")
    with caplog.at_level(logging.WARNING, "cachetier"):
        tell(log, events.SERVICE_STOPPED)
    assert caplog.records == []
