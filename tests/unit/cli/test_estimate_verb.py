"""`plan costs`: what a person and a program read, and which option is named when one is wrong."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from cachetier.cli.app import app


def ended(*words: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, ["plan", "costs", *words])
    assert result.exception is None or isinstance(result.exception, SystemExit), result
    return result.exit_code, result.stdout, result.stderr


def test_a_person_reads_what_checkpoints_cost_in_a_table() -> None:
    code, out, _ = ended("--params", "13B", "--gpus", "64", "--link", "25Gbit/s")
    assert code == 0
    assert "a checkpoint     182 GB, 22.8 GB a node" in out
    assert "blocked, direct  7.4 s a save" in out


def test_without_a_size_only_the_requests_count() -> None:
    _, out, _ = ended("--jobs", "200", "--gpus", "64", "--per-day", "144", "--put-time", "35ms")
    assert "17.92 GPU-hours a day" in out
    assert "a checkpoint" not in out


def test_a_program_reads_json() -> None:
    _, out, _ = ended("--size", "15TB", "--gpus", "1024", "--interval", "10min", "--json")
    found = json.loads(out)
    assert found["puts"] == 234_375
    assert found["cadence"]["bound"] in ("young-daly", "overhead", "drain")


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (("--gpus", "0"), "--gpus: 0 is impossible"),
        (("--link", "400Tbit/s"), "--link: 5e+13 is impossible"),
        (("--link", "fast"), "--link: 'fast' is not a rate"),
        (("--params", "many"), "--params: 'many' is not a number of parameters"),
        (("--interval", "0s"), "--interval: '0s' is less than 1"),
        (("--per-day", "3", "--interval", "1h"), "--per-day and --interval"),
        (("--size", "1TB", "--plot", "cost.pdf"), "--plot: cost.pdf"),
    ],
)
def test_the_option_that_is_wrong_is_named(words: tuple[str, ...], named: str) -> None:
    code, _, err = ended(*words)
    assert code == 2
    assert named in err


@pytest.mark.parametrize(("name", "begins"), [("a.png", b"\x89PNG"), ("a.svg", b"<?xml")])
def test_a_plot_is_drawn(tmp_path: Path, name: str, begins: bytes) -> None:
    assert ended("--size", "15TB", "--gpus", "1024", "--plot", str(tmp_path / name))[0] == 0
    assert (tmp_path / name).read_bytes().startswith(begins)
