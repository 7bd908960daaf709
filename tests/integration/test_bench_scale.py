"""`make scale` works at a tiny size, also from nothing but wheels and a Python."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from benchmarks.scale import bare
from benchmarks.scratch import DIRECTORY_VARIABLE, ROOT


def test_the_environment_has_what_was_carried_before_what_the_machine_has(tmp_path: Path) -> None:
    (tmp_path / "wheels").mkdir()
    with zipfile.ZipFile(tmp_path / "wheels" / "click-0-py3-none-any.whl", "w") as wheel:
        wheel.writestr("click.py", "version = 'carried'")
    python = bare.environment(tmp_path)
    asked = "import benchmarks, cachetier, cachetier_client, click, pytest; print(click.version)"
    told = subprocess.run([python, "-c", asked], capture_output=True, text=True, check=True)
    assert told.stdout == "carried\n"
    assert os.access(python.with_name("cachetier"), os.X_OK)


@pytest.mark.soak
@pytest.mark.slow
def test_every_figure_is_kept_with_what_each_process_took(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "benchmarks.scale", "--quick", str(tmp_path / "results")]
    scratch = {DIRECTORY_VARIABLE: str(tmp_path / "scratch")}
    subprocess.run(command, cwd=ROOT, env={**os.environ, **scratch}, check=True, timeout=560)
    lines = (tmp_path / "results" / "scale.json").read_text().splitlines()
    machine, *rows = map(json.loads, lines)
    assert machine["machine"]
    assert rows[0]["what"] == "plain sockets up, plain"
    assert all(row["GB/s"] > 0 for row in rows if "carriers" in row)
    assert all(row["serve s/GiB"] for row in rows if row.get("carriers"))
