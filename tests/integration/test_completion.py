"""The completion scripts in the shells they are for, down to the steps of a running service."""

from __future__ import annotations

import os
import pty
import re
import select
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from cachetier_client import Client

from tests.integration.serving import Served, serving

BASH = """
source <(cachetier --completion bash)
COMP_WORDS=(cachetier "$@"); COMP_CWORD=$#; COMP_LINE="${COMP_WORDS[*]}"
compopt() { COMPREPLY=(":files"); }
_cachetier
printf '%s\\n' "${COMPREPLY[@]}"
"""
ZSH = """
compdef() { :; }
_describe() { print -rl -- "${described[@]}" | sed 's/\\\\:/%/g; s/:.*//; s/%/:/g'; }
compset() { :; }
_files() { print -- :files; }
source <(cachetier --completion zsh)
words=(cachetier "$@"); CURRENT=$#words
_cachetier
"""
FISH = """
cachetier --completion fish | source
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
            for name in ("a", "b@c"):
                client.put_shard(b"x", run="llama", step=step, name=name)
        client.put_shard(b"x", run="exp@lr=1", step=1, name="a")
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
        (["token", ""], ["create", "list", "revoke"]),
        (["flush", "--time"], ["--timeout"]),
        (["wait", "lla"], ["llama"]),
        (["wait", "llama", ""], ["100", "200"]),
        (["get", "llama", "1"], ["100"]),
        (["get", "llama", "100", "--name", ""], ["a", "b@c"]),
        (["serve", "--lo"], ["--log"]),
        (["serve", "--log", "w"], ["warning", "warning:json", "warning:console"]),
        (["config", "--set", "remote_encryption=b"], ["remote_encryption=bucket"]),
        (["serve", "--set", "compression=planes:4"], ["compression=planes:4"]),
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


# --- at the keyboard -----------------------------------------------------------------------------

TYPED = {
    "bash": r"""
source <(cachetier --completion bash)
bind 'set bell-style none'
bind -x '"\C-g": printf "<%s>" "$READLINE_LINE"'
""",
    "zsh": r"""
autoload -U compinit && compinit -u -D
unsetopt beep
source <(cachetier --completion zsh)
shown() { print -rn -- "<$BUFFER>" }
zle -N shown && bindkey '^G' shown
""",
}
COMMANDS = {"bash": ["bash", "--norc", "--noprofile", "-i"], "zsh": ["zsh", "-f", "-i"]}
SECONDS = 40.0


class Keyboard:
    """A shell on a terminal, and what was typed there."""

    def __init__(self, shell: str, environment: dict[str, str]) -> None:
        self._ours, theirs = pty.openpty()
        self._read = ""
        quiet = {"PS1": "", "PROMPT": "", "TERM": "dumb", "HISTFILE": ""}
        self._process = subprocess.Popen(
            COMMANDS[shell],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            env={**environment, **quiet},
            cwd=environment["HOME"],
            start_new_session=True,
        )
        os.close(theirs)
        self.type(f"{TYPED[shell]}echo rea''dy\n")
        self.until(r"ready\r?\n")

    def type(self, text: str) -> None:
        os.write(self._ours, text.encode())

    def until(self, wanted: str) -> re.Match[str]:
        ends_at = time.monotonic() + SECONDS
        while not (found := re.search(wanted, self._read)):
            left = ends_at - time.monotonic()
            assert left > 0 and select.select([self._ours], [], [], left)[0], self._read
            self._read += os.read(self._ours, 65536).decode(errors="replace")
        self._read = self._read[found.end() :]
        return found

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._ours)


@pytest.fixture(params=["bash", "zsh"])
def keyboard(request: pytest.FixtureRequest, environment: dict[str, str]) -> Iterator[Keyboard]:
    if shutil.which(request.param) is None:
        pytest.skip(f"{request.param} is not installed")
    Path(environment["HOME"], "settings.toml").touch()
    keyboard = Keyboard(request.param, environment)
    yield keyboard
    keyboard.close()


def test_tab_completes_words_that_a_shell_cuts_in_pieces(keyboard: Keyboard) -> None:
    for typed, wanted in [
        ("flus", "flush "),
        ("wait --level=du", "wait --level=durable "),
        ("wait exp@l", "wait exp@lr=1 "),
        ("get exp@lr=1 ", "get exp@lr=1 1 "),
        ("serve --set compression=zstd:3", "serve --set compression=zstd:3 "),
        ("serve --set compression=au", "serve --set compression=auto "),
        ("config --log=warn", "config --log=warning"),
        ("serve --config sett", "serve --config settings.toml "),
        ("serve --config=sett", "serve --config=settings.toml "),
    ]:
        keyboard.type(f"cachetier {typed}\t\x07")
        line = keyboard.until(r"<(cachetier [^>]*)>")[1]
        assert line.rstrip() == f"cachetier {wanted}".rstrip()
        keyboard.type("\x15")


def test_fish_completes_files_and_values_after_the_sign_of_an_option(
    environment: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "settings.toml").touch()
    monkeypatch.chdir(tmp_path)
    assert fish(["serve", "--config=sett"], environment) == ["--config=settings.toml"]
    assert fish(["wait", "--level=du"], environment) == ["--level=durable"]
