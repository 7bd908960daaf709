"""The command line names what there is to name, and starts quickly."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from cachetier.cli.app import app, built
from cachetier.cli.verbs import ALSO_CALLED, GROUPS, SECTIONS, VERBS
from cachetier.config.settings import NAMED
from cachetier.config.sources import OPTIONS

ROOT = Path(__file__).parents[3]
# What takes longer to import than all that a verb needs before its first answer.
HEAVY = {
    *("pydantic", "pydantic_core", "fastapi", "uvicorn", "boto3", "botocore", "apsw"),
    *("rich", "awscrt", "asyncio", "http.client", "importlib.metadata", "prometheus_client"),
}

SETTINGS_GIVEN = ("--cache-dir", "/nowhere", "--remote", "s3://bucket")


def parameters(verb: str) -> list[Any]:
    return list(built(verb).params)


def test_serve_has_options_for_the_first_settings_and_one_for_all() -> None:
    names = {each.name for each in parameters("serve")}
    assert names - {"config", "as_json", "given"} == set(OPTIONS)
    assert set(OPTIONS) <= set(NAMED)


def test_the_options_of_all_verbs_are_few() -> None:
    spelt = {name for verb in VERBS for each in parameters(verb) for name in each.opts}
    assert len({name for name in spelt if name.startswith("--")}) <= 90


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_takes_json_and_says_what_it_prints(verb: str) -> None:
    assert any("--json" in each.opts for each in parameters(verb))
    assert "JSON: " in (built(verb).help or "")


@pytest.mark.parametrize("verb", VERBS)
def test_every_option_of_a_verb_says_what_it_is(verb: str) -> None:
    for each in parameters(verb):
        assert each.help or each.hidden, each.name


@pytest.mark.parametrize("verb", VERBS)
def test_every_option_in_seconds_takes_a_span(verb: str) -> None:
    named = re.compile(r"timeout|deadline|interval|seconds|quiet")
    for each in parameters(verb):
        is_time = each.type.name in ("NUMBER", "DURATION") and named.search(each.name)
        assert not is_time or each.type.name == "DURATION", each.name


def test_help_shows_every_verb_once_with_its_line_in_eighty_columns() -> None:
    shown = CliRunner().invoke(app, ["help", "all"]).stdout
    lines = {line.split()[0]: line for line in shown.splitlines() if line.startswith("  ")}
    for title, verbs in SECTIONS.items():
        assert f"{title}:" in shown
        for name, (_, said) in verbs.items():
            first, _, rest = name.partition(" ")
            assert lines[first].endswith(GROUPS[first] if rest else said), name
    assert max(map(len, shown.splitlines())) <= 80


def test_the_first_page_has_nine_verbs_and_names_the_others() -> None:
    shown = CliRunner().invoke(app, ["--help"]).stdout
    first, *others = SECTIONS.values()
    assert len(first) == 9
    assert all(f"  {name} " in shown and said in shown for name, (_, said) in first.items())
    more = shown.partition("More, ")[2]
    assert all(name.split()[0] in more for verbs in others for name in verbs)
    assert max(map(len, shown.splitlines())) <= 80


@pytest.mark.parametrize("words", [["put", "-h"], ["help", "put"]], ids=" ".join)
def test_the_help_of_a_verb_is_found_by_other_words_too(words: list[str]) -> None:
    assert (
        CliRunner().invoke(app, words).stdout == CliRunner().invoke(app, ["put", "--help"]).stdout
    )


def test_help_alone_is_the_first_page_and_of_a_group_its_own() -> None:
    first = CliRunner().invoke(app, ["--help"]).stdout
    assert CliRunner().invoke(app, ["help"]).stdout == first
    assert "revoke" in CliRunner().invoke(app, ["help", "token"]).stdout


def test_a_group_shows_its_verbs() -> None:
    shown = CliRunner().invoke(app, ["token", "--help"]).stdout
    assert [word for word in ("create", "list", "revoke") if f"  {word} " in shown] == [
        *("create", "list", "revoke")
    ]


def test_other_words_for_a_verb_lead_to_one_that_there_is() -> None:
    assert set(ALSO_CALLED.values()) <= set(VERBS)
    assert not set(ALSO_CALLED) & set(VERBS)


def loaded_by(*arguments: str, **variables: str) -> set[str]:
    """Return the modules that a run of the command has imported when it ends."""
    code = (
        "import sys, atexit\n"
        "atexit.register(lambda: print('loaded', *sys.modules))\n"
        "from cachetier.cli.main import main\n"
        "main()"
    )
    command = [sys.executable, "-c", code, *arguments]
    ran = subprocess.run(
        command,
        check=False,
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**os.environ, **variables},
    )
    return set(ran.stdout.rpartition("loaded")[2].split())


@pytest.mark.parametrize(
    "arguments",
    [
        ["--help"],
        ["--version"],
        ["token", "--help"],
        ["--completion", "bash"],
        ["status", "--url", "unix:///nobody"],
        ["ls", "run", "7", "--url", "unix:///nobody"],
        ["ls", "run", "--latest", "--url", "unix:///nobody", "--json"],
        ["delete", "run", "7", "--yes", "--url", "unix:///nobody"],
        ["wait", "run", "7", "--timeout", "0.1s", "--url", "unix:///nobody"],
        ["put", "/nothing", "r", "1", "--name", "n", "--url", "unix:///nobody"],
        ["pin", "run", "7", "--url", "unix:///nobody"],
        ["config", "--origin", *SETTINGS_GIVEN],
        ["config", "--check", "--config", "/nowhere.toml"],
        ["config", "--schema"],
        ["doctor", "--only", "nothing", *SETTINGS_GIVEN],
        ["doctor", "--skip-remote"],  # without `cache_dir`
        ["serve", *SETTINGS_GIVEN, "--http", "nowhere"],
    ],
    ids=" ".join,
)
def test_a_verb_imports_nothing_heavy_before_it_is_needed(arguments: list[str]) -> None:
    loaded = loaded_by(*arguments)
    assert "click" in loaded
    assert HEAVY & loaded == set()


def test_a_shell_that_asks_for_candidates_imports_nothing_heavy() -> None:
    loaded = loaded_by("status", "--", _CACHETIER_COMPLETE="bash_complete")
    assert "cachetier.cli.app" in loaded
    assert HEAVY & loaded == set()


def test_ctrl_c_while_the_command_still_imports_ends_it_without_a_traceback(
    tmp_path: Path,
) -> None:
    (tmp_path / "click.py").write_text("raise KeyboardInterrupt")
    ran = subprocess.run(
        [sys.executable, "-m", "cachetier", "status"],
        check=False,
        capture_output=True,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
    )
    assert (ran.returncode, ran.stdout, ran.stderr) == (130, b"", b"")


def test_settings_and_what_is_wrong_with_them_need_no_client_either() -> None:
    loaded = loaded_by("config", *SETTINGS_GIVEN)
    assert "cachetier.config.settings" in loaded
    unneeded = {
        "cachetier_client.client",
        "cachetier_client.transport.wire",
        "cachetier.service.service",
    }
    assert unneeded & loaded == set()


def test_the_checks_of_the_node_load_no_store() -> None:
    loaded = loaded_by("doctor", "--only", "memory", "--skip-remote", *SETTINGS_GIVEN)
    assert "cachetier.doctor.node" in loaded
    assert not (HEAVY | {"cachetier_client.client"}) & loaded


def test_a_service_loads_its_web_framework_only_with_its_http_door() -> None:
    code = "import sys, cachetier.service; print(*sys.modules)"
    ran = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert not {"fastapi", "starlette", "uvicorn"} & set(ran.stdout.split())


@pytest.mark.parametrize("verb", [name for name in VERBS if " " not in name])
def test_the_help_of_a_verb_imports_nothing_heavy(verb: str) -> None:
    assert HEAVY & loaded_by(verb, "--help") == set()
