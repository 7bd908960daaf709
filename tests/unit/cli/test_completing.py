"""What a shell is offered after TAB; without a service nothing, and no noise."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from typer.testing import CliRunner

from cachetier.cli import output
from cachetier.cli.completing import candidates
from cachetier.cli.group import built
from cachetier.cli.main import app
from cachetier.cli.verbs import GROUPS, VERBS


class FakeClient:
    """Knows two runs, and the steps of one."""

    def runs(self, **_options: Any) -> list[str]:
        return ["llama-7b", "llama-70b"]

    def steps(self, run: str, **_options: Any) -> list[Any]:
        found = [type("Step", (), {"step": step, "state": "published"}) for step in (100, 200)]
        return found if run == "llama-7b" else []


@pytest.fixture
def service(monkeypatch: pytest.MonkeyPatch) -> None:
    @contextmanager
    def reached(_url: str | None) -> Iterator[FakeClient]:
        yield FakeClient()

    monkeypatch.setattr(output, "reach", reached)


def offered(*words: str) -> list[str]:
    return [each.partition("\t")[0] for each in candidates(words)]


def test_first_come_the_verbs() -> None:
    first = {name for name in VERBS if " " not in name} | set(GROUPS)
    assert set(offered("")) == first
    assert len(offered("")) == len(first)
    assert offered("fl") == ["flush"]


def test_each_comes_with_what_it_does() -> None:
    assert list(candidates(["flu"])) == [f"flush\t{VERBS['flush'][1]}"]


def test_a_group_has_its_verbs() -> None:
    assert offered("config", "") == ["show", "check", "schema"]
    assert offered("config", "sc") == ["schema"]


@pytest.mark.parametrize("verb", VERBS)
def test_every_option_of_every_verb_is_offered(verb: str) -> None:
    names = [name for each in built(verb).params for name in each.opts if name.startswith("-")]
    assert set(offered(*verb.split(), "-")) == {*names, "--help"}


@pytest.mark.usefixtures("service")
@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        (["latest", ""], ["llama-7b", "llama-70b"]),
        (["latest", "llama-70"], ["llama-70b"]),
        (["latest", "llama-7b", ""], []),
        (["wait", "llama-7b", ""], ["100", "200"]),
        (["wait", "--json", "llama-7b", "2"], ["200"]),
        (["wait", "--timeout", "3", "llama-7b", ""], ["100", "200"]),
        (["wait", "llama-70b", ""], []),
        (["get", "--run", ""], ["llama-7b", "llama-70b"]),
        (["get", "--run", "llama-7b", "--step", ""], ["100", "200"]),
        (["wait", "llama-7b", "100", "--level", ""], ["local", "replicated", "durable"]),
        (["completion", ""], ["bash", "zsh", "fish"]),
        (["put", ""], [":files"]),
        (["serve", "--config", ""], [":files"]),
        (["serve", "--capacity", ""], []),
        (["nothing", ""], []),
    ],
    ids=" ".join,
)
def test_values_are_offered_where_they_are_known(words: list[str], wanted: list[str]) -> None:
    assert offered(*words) == wanted


def test_without_a_service_there_is_nothing_and_no_noise() -> None:
    words = ["completion", "words", "--", "latest", "--url", "unix:///nobody", ""]
    result = CliRunner().invoke(app, words)
    assert (result.exit_code, result.stdout, result.stderr) == (0, "", "")


def test_a_shell_that_there_is_not_is_answered_with_the_nearest() -> None:
    result = CliRunner().invoke(app, ["completion", "bsh"])
    assert result.exit_code == 2
    assert "Did you mean bash?" in result.stderr
