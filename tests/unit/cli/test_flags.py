"""The command line names what there is to name, and starts quickly."""

from __future__ import annotations

import inspect
import subprocess
import sys
from pathlib import Path

from cachetier.cli import serve
from cachetier.cli.main import app
from cachetier.config import Settings

ROOT = Path(__file__).parents[3]
VERBS = {
    *("serve", "dev", "put", "get", "ls", "latest", "seal", "wait", "flush", "delete", "status")
}


def test_serve_has_a_flag_for_every_setting_and_no_other() -> None:
    parameters = set(inspect.signature(serve.serve).parameters)
    assert parameters - {"config", "as_json"} == set(Settings.model_fields)


def test_every_verb_takes_json() -> None:
    commands = {command.name: command.callback for command in app.registered_commands}
    assert set(commands) == VERBS
    for name, callback in commands.items():
        assert callback is not None
        assert "as_json" in inspect.signature(callback).parameters, name


def test_every_verb_is_documented() -> None:
    text = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
    for name in VERBS:
        assert f"cachetier {name}" in text, name


def test_the_commands_module_imports_nothing_heavy() -> None:
    code = "import cachetier.cli.main, sys; print(*sys.modules)"
    loaded = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True, cwd=ROOT
    ).stdout.split()
    heavy = {"pydantic", "fastapi", "uvicorn", "boto3", "botocore", "apsw", "rich", "awscrt"}
    assert not heavy & set(loaded)
