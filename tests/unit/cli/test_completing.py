"""What a shell is offered after TAB; without a service nothing, and no noise."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from cachetier.cli import connection, options
from cachetier.cli.app import app, built, candidates
from cachetier.cli.options import Word, type_of_setting
from cachetier.cli.verbs import GROUPS, VERBS
from cachetier.config.settings import SETTINGS


class FakeClient:
    """Knows two runs, and the steps of one."""

    def runs(self, **_options: Any) -> list[str]:
        return ["llama-7b", "llama-70b"]

    def steps(self, run: str, **_options: Any) -> list[Any]:
        found = [type("Step", (), {"step": step, "state": "published"}) for step in (100, 200)]
        return found if run == "llama-7b" else []

    def step(self, run: str, step: int, **_options: Any) -> Any:
        assert (run, step) == ("llama-7b", 100)
        shards = [type("Shard", (), {"name": name, "rank": 0}) for name in ("model/0", "optim/0")]
        return type("Step", (), {"shards": shards})


@pytest.fixture
def service(monkeypatch: pytest.MonkeyPatch) -> None:
    @contextmanager
    def reached(_url: str | None, seconds: float | None) -> Iterator[FakeClient]:
        assert seconds is None  # it must not say that it waits
        yield FakeClient()

    monkeypatch.setattr(connection, "reach", reached)


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
    assert offered("token", "") == ["create", "list", "revoke"]
    assert offered("token", "li") == ["list"]


@pytest.mark.parametrize("verb", VERBS)
def test_every_option_of_every_verb_is_offered(verb: str) -> None:
    names = [name for each in built(verb).params for name in each.opts if name.startswith("-")]
    assert set(offered(*verb.split(), "-")) == {*names, "-h", "--help"}


WHEN_FULL = [f"when_full={word}" for word in ("wait", "write_through", "reject")]


@pytest.mark.usefixtures("service")
@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        (["forget", "node", ""], ["llama-7b", "llama-70b"]),
        (["forget", "node", "llama-70"], ["llama-70b"]),
        (["forget", "node", "llama-7b", ""], []),
        (["wait", "llama-7b", ""], ["100", "200"]),
        (["wait", "--json", "llama-7b", "2"], ["200"]),
        (["wait", "--timeout", "3s", "llama-7b", ""], ["100", "200"]),
        (["wait", "llama-70b", ""], []),
        (["get", ""], ["llama-7b", "llama-70b"]),
        (["get", "llama-7b", ""], ["100", "200"]),
        (["put", "file", "llama-7b", ""], ["100", "200"]),
        (["get", "llama-7b/"], ["llama-7b/100", "llama-7b/200"]),
        (["put", "file", "llama-7b/2"], ["llama-7b/200"]),
        (["get", "llama-7b/100/o"], ["llama-7b/100/optim/0"]),
        (["get", "llama-7b/some/"], []),
        (["get", "llama-7b", "100", "--name", "o"], ["optim/0"]),
        (["wait", "llama-7b", "100", "--name", ""], ["model/0", "optim/0"]),
        (["wait", "llama-7b", "some", "--name", ""], []),
        (["wait", "llama-7b", "100", "--level", ""], ["memory", "local", "replicated", "durable"]),
        (["wait", "llama-7b", "100", "--level=re"], ["--level=replicated"]),
        (["put", "--level", "d"], ["durable"]),
        (["put", "--element-size", ""], ["2", "4", "8"]),
        (["serve", "--set", "compression=zstd:19"], ["compression=zstd:19"]),
        (["doctor", "--only", "cred"], ["credentials"]),
        (["dev", "--log", "d"], ["debug", "debug:json", "debug:console"]),
        (["config", "--set", "when_full="], ["when_full=", *WHEN_FULL]),
        (["config", "--check", "--set=pack=of"], ["--set=pack=off"]),
        (["serve", "--cache-dir", ""], [":files"]),
        (["serve", "--socket=/run/"], [":files"]),
        (["serve", "--nothing=x"], []),
        (["--completion", ""], ["bash", "zsh", "fish"]),
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
    ran = subprocess.run(
        [sys.executable, "-m", "cachetier", "forget", "--url", "unix:///nobody", "node", ""],
        check=False,
        capture_output=True,
        env={**os.environ, "_CACHETIER_COMPLETE": "bash_complete"},
    )
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, b"", b"")


def test_a_shell_that_there_is_not_is_answered_with_the_nearest() -> None:
    result = CliRunner().invoke(app, ["--completion", "bsh"])
    assert result.exit_code == 2
    assert "Did you mean bash?" in result.stderr


def test_every_setting_that_is_one_of_a_few_words_offers_them_with_its_default() -> None:
    kinds_of = {name: type_of_setting(name) for name in SETTINGS}
    offered_of = {
        name: kind.offers({}) if isinstance(kind, Word) else [] for name, kind in kinds_of.items()
    }
    for name, setting in SETTINGS.items():
        kinds = (setting.kind.schema, *setting.kind.schema.get("anyOf", ()))
        words = {word for kind in kinds for word in kind.get("enum", ())}
        offers = offered_of[name]
        if words:
            assert {word for word, _ in offers} == words, name
            assert [told for _, told in offers].count("the default") == 1, name
    assert {word for word, _ in offered_of["compression"]} >= {"off", "auto", "planes:3"}


def test_the_replicas_of_a_settings_file_are_offered(tmp_path: Path) -> None:
    file = tmp_path / "c.toml"
    file.write_text('remote = "s3://bucket"\n[replicas.near]\nurl = "s3://near-by/p"\n')
    assert offered("bench", "--config", str(file), "--replica", "") == ["near"]
    file.write_text("remote = 3 [")
    assert offered("bench", "--config", str(file), "--replica", "") == []


@pytest.mark.usefixtures("service")
def test_the_run_of_the_environment_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CACHETIER_RUN", "llama-7b")
    assert offered("get", "") == ["llama-7b", "llama-70b", "100", "200"]


def test_a_service_that_never_answers_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    ended = threading.Event()

    @contextmanager
    def stuck(_url: str | None, seconds: float | None) -> Iterator[FakeClient]:
        ended.wait(50)
        yield FakeClient()

    monkeypatch.setattr(connection, "reach", stuck)
    monkeypatch.setattr(options, "SECONDS", 0.01)
    assert offered("forget", "node", "") == []
    ended.set()
