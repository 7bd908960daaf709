"""The completion scripts in the shells they are for, down to the steps of a running service."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from cachetier_client import Client

from tests.integration.serving import Served, serving

BASH = """
source <(cachetier completion bash)
COMP_WORDS=(cachetier "$@"); COMP_CWORD=$#
compopt() { COMPREPLY=(":files"); }
_cachetier
printf '%s\\n' "${COMPREPLY[@]}"
"""
ZSH = """
compdef() { :; }
_describe() { print -l -- "${described[@]%%:*}"; }
_files() { print -- :files; }
source <(cachetier completion zsh)
words=(cachetier "$@"); CURRENT=$#words
_cachetier
"""
FISH = """
cachetier completion fish | source
complete -C "cachetier $argv" | string replace -r '\\t.*' ''
true
"""


def bash(words: list[str], environment: dict[str, str]) -> list[str]:
    return answer(["bash", "--norc", "-c", BASH, "bash", *words], environment)


def zsh(words: list[str], environment: dict[str, str]) -> list[str]:
    return answer(["zsh", "-f", "-c", ZSH, "zsh", *words], environment)


def fish(words: list[str], environment: dict[str, str]) -> list[str]:
    return answer(["fish", "--no-config", "-c", FISH, *words], environment)


def answer(command: list[str], environment: dict[str, str]) -> list[str]:
    if shutil.which(command[0]) is None:
        pytest.skip(f"{command[0]} is not installed")
    ran = subprocess.run(command, check=True, capture_output=True, text=True, env=environment)
    assert ran.stderr == ""
    return ran.stdout.split()


Shell = Callable[[list[str], dict[str, str]], list[str]]
SHELLS = pytest.mark.parametrize("shell", [bash, zsh, fish])


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    with serving() as served, Client(served.unix_url) as client:
        for step in (100, 200):
            client.put_shard(b"x", run="llama", step=step, name="a")
        yield served


@pytest.fixture
def environment(served: Served, tmp_path: Path) -> dict[str, str]:
    places = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return {**os.environ, "PATH": places, "HOME": str(tmp_path), "CACHETIER_URL": served.unix_url}


@SHELLS
@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        (["stat"], ["status"]),
        (["config", ""], ["show", "check", "schema"]),
        (["flush", "--dead"], ["--deadline"]),
        (["wait", "lla"], ["llama"]),
        (["wait", "llama", ""], ["100", "200"]),
        (["get", "--run", "llama", "--step", "1"], ["100"]),
    ],
    ids=str,
)
def test_a_shell_completes_what_is_meant(
    shell: Shell, words: list[str], wanted: list[str], environment: dict[str, str]
) -> None:
    assert sorted(shell(words, environment)) == sorted(wanted)


@SHELLS
def test_a_shell_completes_files_by_itself(
    shell: Shell, environment: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "weights.bin").touch()
    monkeypatch.chdir(tmp_path)
    assert shell(["put", "wei"], environment) == (["weights.bin"] if shell is fish else [":files"])
