"""The man page and the completions that the wheel brings: whole, and what their readers take."""

from __future__ import annotations

import shutil
import subprocess

import pytest

from cachetier.cli.output import EXITS
from cachetier.cli.verbs import VERBS
from tools.share import COMPLETIONS, SHARE
from tools.versions import PLACES, documents, version

PAGE = SHARE / "man" / "man1" / "cachetier.1"


def test_the_man_page_has_every_verb_and_every_exit_status() -> None:
    text = PAGE.read_text(encoding="utf-8")

    assert [name for name in VERBS if f'.SS "cachetier {name}' not in text] == []
    assert [code for code in EXITS if f".B {code}\n" not in text] == []
    assert f'"cachetier {version()}"' in text


@pytest.mark.skipif(not shutil.which("groff"), reason="no groff here")
def test_groff_takes_the_man_page_without_a_warning() -> None:
    command = ("groff", "-man", "-Tutf8", "-ww", str(PAGE))
    done = subprocess.run(command, capture_output=True, text=True, timeout=50, check=True)

    assert done.stderr == ""


def test_the_shell_takes_the_completion() -> None:
    subprocess.run(("bash", "-n", str(SHARE / COMPLETIONS["bash"])), timeout=50, check=True)


def test_the_version_of_pyproject_is_everywhere_that_says_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("tools.versions.version", lambda: "7.8.9")

    made = documents()

    assert len(made) == len(PLACES)
    assert [path.name for path, text in made.items() if "7.8.9" not in text] == []
