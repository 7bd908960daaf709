"""An installation says what it does and how long it took, and is quiet about the rest."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tools.pages import ROOT

NOISE = "WARNING: Location 'file:///x/' is ignored"


def program(path: Path, body: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)


def installed(folder: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    path = f"{folder / 'path'}:/usr/bin:/bin"
    return subprocess.run(
        [ROOT / "tools" / "installing.sh", folder / "venv", "everything", "--requirement", "x"],
        env={**os.environ, "PATH": path, **variables},
        check=False,
        capture_output=True,
        text=True,
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    program(tmp_path / "venv" / "bin" / "python", f'echo "Collecting x"; echo "{NOISE}"; echo "$@"')
    return tmp_path


def test_what_the_installer_says_is_in_the_log_alone(folder: Path) -> None:
    ended = installed(folder)
    assert ended.returncode == 0
    assert ended.stdout.startswith("==> installing everything\n    done in ")
    assert ended.stderr == ""
    log = (folder / "venv" / "setup.log").read_text()
    assert NOISE in log
    assert "install --requirement x" in log


def test_a_failure_shows_its_end_and_names_the_log(folder: Path) -> None:
    program(folder / "venv" / "bin" / "python", f'echo "ERROR: no x"; echo "{NOISE}"; exit 3')
    ended = installed(folder)
    assert ended.returncode == 3
    assert "ERROR: no x" in ended.stderr
    assert NOISE not in ended.stderr
    assert f"is in {folder / 'venv' / 'setup.log'}" in ended.stderr


@pytest.mark.parametrize(
    ("uv", "variables", "by_pip"),
    [("exit 0", {}, False), ("exit 1", {}, True), ("exit 0", {"ONLY": "pip"}, True)],
)
def test_uv_installs_where_it_can_and_pip_the_rest(
    folder: Path, uv: str, variables: dict[str, str], by_pip: bool
) -> None:
    program(folder / "path" / "uv", f'echo "uv was asked: $@"; {uv}')
    assert installed(folder, **variables).returncode == 0
    log = (folder / "venv" / "setup.log").read_text()
    assert ("uv was asked: pip install" in log) == ("ONLY" not in variables)
    assert ("-m pip" in log) == by_pip
