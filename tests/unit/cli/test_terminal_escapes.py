"""Whatever others wrote into names, keys and messages: no control of a terminal reaches one."""

from __future__ import annotations

import ast
import contextlib
import io
import json
import logging
import re
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import pytest
from cachetier_client import NotFoundError, PinInfo, ShardInfo, StepInfo
from cachetier_client.results import ObjectListed
from hypothesis import given, settings
from hypothesis import strategies as st

from cachetier.cli import doctor, fsck, output, steps
from cachetier.cli.main import _tell_of_defect
from cachetier.cli.screen import drawn, rendered
from cachetier.doctor.findings import warn
from cachetier.fsck.findings import Finding, FindingKind, FsckReport
from cachetier.telemetry.log_format import formatter_for
from cachetier.visible import visible
from tests.unit.cli.test_output import status
from tests.unit.cli.test_screen import answer, node, pending, remote, run

ROOT = Path(__file__).parents[3]
FORBIDDEN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
EVIL = "\x1b\x9b\x07\x08\r\x00\x7f\x85\u202e\u2066\u2028\ud800\n\t[]0;mJ\\a/é"
texts = st.text(st.sampled_from(EVIL) | st.characters(), max_size=12)


def written(render: Callable[[], object]) -> str:
    """Return what a verb writes to either stream."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
        with contextlib.suppress(click.exceptions.Exit):
            render()
    return out.getvalue()


def everywhere(document: Any, text: str) -> Any:
    """Return a document with ``text`` after each text in it that is no word of ours."""
    if isinstance(document, dict):
        return {key: everywhere(value, text) for key, value in document.items()}
    if isinstance(document, list):
        return [everywhere(each, text) for each in document]
    return f"{document}{text}" if isinstance(document, str) else document


def an_error(text: str, as_json: bool) -> None:
    with output.reported(as_json):
        raise NotFoundError(f"no {text}", hint=f"Look {text}.", run=text, step=1, name=text)


def a_step(text: str) -> StepInfo:
    shard = ShardInfo(**{**_blank(ShardInfo, text), "size_bytes": 1, "rank": 0})
    numbers = {"step": 1, "world_size": 1, "ranks": (0,), "shards": (shard,), "levels": ("local",)}
    return StepInfo(**{**_blank(StepInfo, text), **numbers, "size_bytes": 1, "dirty_bytes": 0})


def a_pin(text: str) -> PinInfo:
    numbers = dict.fromkeys(("step", "shards", "local_shards", "size_bytes", "local_bytes"), 1)
    return PinInfo(**{**_blank(PinInfo, text), **numbers, "pinned_at": 1.0})


def _blank(kind: Any, text: str) -> dict[str, Any]:
    """Return a value for each field: ``text`` for texts, nothing for the rest."""
    blanks = {"str": text, "int": 0, "float": 0.0, "bool": False}
    return {
        name: blanks.get(str(field.type).partition(" ")[0], ())
        for name, field in kind.__dataclass_fields__.items()
    }


def rubbish(text: str) -> dict[str, Any]:
    what = {"kind": text, "what": text, "why": text, "size_bytes": 1, "objects": 1}
    left = {"what": text, "why": text, "command": text}
    sums = {"found": 1, "size_bytes": 1, "objects": 1, "dry_run": True}
    return {**sums, "rubbish": [what], "left": [left], "unanswered": [text]}


def a_report(text: str) -> FsckReport:
    report = FsckReport.__new__(FsckReport)
    finding = Finding(next(iter(FindingKind)), text, text)
    report.findings, report.unanswered, report.outcomes = [finding], [text], []
    return report


def a_log_line(form: str, text: str) -> None:
    record = logging.LogRecord(text, logging.WARNING, "", 1, text, (), None)
    sys.stdout.write(formatter_for(form, (), terminal=False).format(record))


def a_defect(text: str) -> None:
    try:
        raise RuntimeError(text)
    except RuntimeError as error:
        _tell_of_defect(RuntimeError, error, error.__traceback__)


def full_answer(text: str) -> dict[str, Any]:
    found = answer(
        exposure=[run("r", 60.0)], pending=[pending("r", 10)], remotes=[remote(reason="why")]
    )
    changed = everywhere({**found, "warnings": ["look"], "reason": "fenced"}, text)
    assert isinstance(changed, dict)
    return changed


RENDERINGS: dict[str, Callable[[str], object]] = {
    "a line": output.echo,
    "a result": lambda text: output.show(False, {}, text),
    "JSON": lambda text: output.print_json({text: [text]}),
    "an error": lambda text: an_error(text, False),
    "an error in JSON": lambda text: an_error(text, True),
    "a refusal": lambda text: output.fail(False, "invalid_request", text, text),
    "a table": lambda text: output.console().print(_a_table(text)),
    "status": lambda text: output.console().print(rendered(everywhere(status(), text), 1e9)),
    "top": lambda text: output.console().print(
        drawn([node(f"http://{text}", **full_answer(text))], 80, 24, 1.0)
    ),
    "top of many": lambda text: output.console().print(
        drawn([node(f"http://{text}", **full_answer(text))] * 2, 80, 24, 1.0)
    ),
    "ls": lambda text: steps._show_runs([text], [text], False),
    "ls s3:MOUNT": lambda text: steps._show_objects(
        [ObjectListed(text, 1, text, text, 0.0)], text, False
    ),
    "ls RUN": lambda text: steps._show_steps(text, [a_step(text)], None, False),
    "ls RUN STEP": lambda text: steps._show_step(a_step(text), False),
    "pin": lambda text: steps._show_pin(a_pin(text), False),
    "pin --list": lambda text: steps._show_pins([a_pin(text)], False),
    "prune": lambda text: fsck._show_collected(rubbish(text)),
    "fsck": lambda text: fsck._show_found(a_report(text)),
    "doctor": lambda text: doctor._print([(text, replace(warn(text, f"{text}."), remote=text))]),
    "the log": lambda text: a_log_line("console", text),
    "the log in JSON": lambda text: a_log_line("json", text),
    "a defect": a_defect,
}


def _a_table(text: str) -> Any:
    shown = output.table("~name")
    shown.add_row(text)
    shown.add_row("[link=http://evil]here[/link] [/none]")
    return shown


@pytest.mark.parametrize("what", RENDERINGS)
@settings(max_examples=25)
@given(text=texts)
def test_no_control_of_a_terminal_comes_through(what: str, text: str) -> None:
    shown = written(lambda: RENDERINGS[what](text))
    without_style = re.sub(r"\x1b\[[0-9;]*m", "", shown) if what == "doctor" else shown
    assert not FORBIDDEN.search(without_style)


@given(text=texts)
def test_a_document_in_json_says_what_was_meant(text: str) -> None:
    assert json.loads(written(lambda: output.print_json([text]))) == [text]


@given(text=texts)
def test_what_is_visible_stays_as_it_is(text: str) -> None:
    assert visible(visible(text)) == visible(text)
    assert visible("ordinary/näme-1\n") == "ordinary/näme-1\n"


def test_nothing_but_the_one_place_writes_to_the_terminal() -> None:
    """Or a new verb would forget it: `echo` and `console` are for that."""
    own = {"output.py", "app.py", "main.py"}  # app: its own help and version
    for path in (ROOT / "cachetier" / "cli").glob("*.py"):
        if path.name in own:
            continue
        for each in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            called = ast.unparse(each.func) if isinstance(each, ast.Call) else ""
            assert called not in ("click.echo", "click.secho", "print", "Console"), path.name
