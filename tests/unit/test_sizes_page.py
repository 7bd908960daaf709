"""docs/planning.md says what `cachetier plan costs` prints; a node takes the settings it shows."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest
from cachetier_client.units import shown_size, shown_span, shown_time
from click.testing import CliRunner

from cachetier.cli.app import app
from cachetier.config.settings import load

PAGE = Path(__file__).parents[2] / "docs" / "planning.md"
TEXT = PAGE.read_text(encoding="utf-8")
USUAL = "--size 1TB --gpus 8 --interval 30min"
DRIVE_GB, REACHED = 2.0, 0.85
DRAIN_SECONDS_PER_GIB, DRAIN_RATE = 0.7, 1.2e9  # measured: benchmarks/README.md


def said(words: str) -> str:
    ended = CliRunner().invoke(app, ["plan", "costs", *shlex.split(words)])
    assert ended.exit_code == 0, ended.stderr
    return str(ended.stdout)


def test_the_commands_of_the_page_print_what_it_shows() -> None:
    shown = re.findall(r"^\$ cachetier plan costs (.+)\n((?:.+\n)+?)```", TEXT, re.MULTILINE)
    assert shown
    for words, printed in shown:
        assert said(words) == printed


@pytest.mark.parametrize("drives", [4, 8])
@pytest.mark.parametrize("gigabits", [25, 100, 400])
def test_each_row_is_an_estimate(drives: int, gigabits: int) -> None:
    nvme = f"{drives * DRIVE_GB * REACHED:.1f}GB/s"
    found = json.loads(said(f"{USUAL} --nvme {nvme} --link {gigabits}Gbit/s --json"))
    cells = (
        str(drives),
        f"{gigabits} Gbit/s",
        shown_time(found["cached_seconds"]),
        shown_time(found["drain_seconds"]),
        shown_size(found["nvme_bytes"]),
        shown_span(found["exposed_seconds"]),
    )
    assert f"| {' | '.join(cells)} |" in TEXT


def test_what_the_processor_takes_follows_from_what_was_measured() -> None:
    assert f"{1e12 / (1 << 30) * DRAIN_SECONDS_PER_GIB:.0f} s for 1 TB" in TEXT
    assert f"1 TB takes {1e12 / DRAIN_RATE / 60:.0f} min" in TEXT


def test_the_settings_of_the_page_are_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (block,) = re.findall(r"```toml\n(.+?)```", TEXT, re.DOTALL)
    (tmp_path / "c.toml").write_text(block)
    settings = load(config=tmp_path / "c.toml")
    assert settings.notice > 1e12 / DRAIN_RATE
