"""`config`: the settings as they are, who set them, and what is wrong with them."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from click.testing import CliRunner

from cachetier.cli.app import app
from cachetier.config.settings import SETTINGS, Settings, load

LEAST = ["--cache-dir", "/data/cache", "--remote", "s3://bucket/prefix"]
FILE = """\
capacity = "1 TB"
allowed_uids = [1001, 1000]
max_rate = ["08:00-20:00 200 MB/s"]
when_full = "reject"

[run_weights]
"big-*" = 4

[[principal]]
name = "team-a"
uid = 1000
runs = ["a-*"]
bytes = "10 GB"

[replicas.near]
url = "s3://near"
endpoint = "http://127.0.0.1:9000"
"""


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Work where no cachetier.toml lies, and nobody has set a token."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("CACHETIER_TOKEN")


def ended(*words: str, **environment: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, ["config", *words], env=environment)
    assert result.exception is None or isinstance(result.exception, SystemExit), result
    return result.exit_code, result.stdout, result.stderr


def settings_but(settings: Settings, *names: str) -> dict[str, Any]:
    return {key: value for key, value in vars(settings).items() if key not in names}


def test_what_show_prints_gives_the_same_settings_again(tmp_path: Path) -> None:
    given, again = tmp_path / "a.toml", tmp_path / "b.toml"
    given.write_text(FILE)
    code, out, _ = ended("--config", str(given), *LEAST, "--set", "pack=on", "--origin")
    again.write_text(out)
    assert code == 0
    flags = {"cache_dir": "/data/cache", "remote": "s3://bucket/prefix", "pack": True}
    first, second = load(flags, config=given), load(config=again)
    assert settings_but(first, "socket") == settings_but(second, "socket")
    assert first.socket_path == second.socket_path


def test_show_names_who_sets_what(tmp_path: Path) -> None:
    (tmp_path / "cachetier.toml").write_text(FILE)
    _, out, _ = ended("--origin", *LEAST, CACHETIER_HTTP="127.0.0.1:1", CACHETIER_PACK="on")
    lines = dict(line.split(" ", 1) for line in out.splitlines() if not line.startswith("#"))
    for name, value, origin in (
        ("remote", '"s3://bucket/prefix"', "--remote"),
        ("http", '"127.0.0.1:1"', "CACHETIER_HTTP"),
        ("pack", "true", "CACHETIER_PACK"),
        ("capacity", '"1 TB"', "cachetier.toml, line 1"),
        ("run_weights", '{ "big-*" = 4.0 }', "cachetier.toml, line 6"),
        ("socket", '"/data/cache/cachetier.sock"', "default"),
        ("drain_workers", "8", "default"),
    ):
        shown, _, said = lines[name].rpartition("  # ")
        assert (shown.strip(" ="), said) == (value, origin)


def test_show_has_every_setting_once() -> None:
    _, out, _ = ended(*LEAST)
    names = [line.removeprefix("# ").split()[0] for line in out.splitlines()]
    assert names == list(SETTINGS)
    assert "default" not in out


@pytest.mark.parametrize("words", [[], ["--origin"], ["--json"], ["--check"]])
def test_a_token_is_never_shown(words: list[str]) -> None:
    code, out, err = ended(*words, *LEAST, CACHETIER_TOKEN="canary-of-the-token")
    assert code == 0
    assert "canary" not in out + err
    assert words == ["--check"] or "(hidden)" in out


def test_show_is_json_too() -> None:
    _, out, _ = ended("--json", *LEAST, "--capacity", "3 GB")
    shown = json.loads(out)
    assert shown["file"] is None
    assert shown["settings"]["capacity"] == {"value": "3 GB", "origin": "--capacity"}
    assert set(shown["settings"]) == set(SETTINGS)


def test_a_rate_in_bits_is_shown_in_bytes_too() -> None:
    words = (*LEAST, "--set", "max_rate=200 Mbit, 08:00-20:00 80 Mb/s")
    _, out, _ = ended("--check", *words)
    assert 'Note: `max_rate` = ["200 Mbit", "08:00-20:00 80 Mb/s"] is ' in out
    assert "is 25.0 MB/s, 80.0 MB/s." in out

    _, out, _ = ended("--origin", *words)
    assert "# 25.0 MB/s, 80.0 MB/s, --set max_rate" in out
    shown = json.loads(ended("--json", *words)[1])["settings"]["max_rate"]
    assert shown["bytes_per_second"] == 25e6


@pytest.mark.parametrize(
    ("bucket", "odd"),
    [("Check_points", True), ("data..x", True), ("192.168.1.1", True), ("check-points.1", False)],
)
def test_a_bucket_that_nobody_can_make_today_is_warned_of(bucket: str, odd: bool) -> None:
    words = ("--check", "--cache-dir", "/c", "--remote", f"s3://{bucket}/m")
    code, out, _ = ended(*words)
    assert code == 0
    assert (f"`remote`: no bucket can be made under the name {bucket}: " in out) == odd
    assert bool(json.loads(ended(*words, "--json")[1])["warnings"]) == odd


def test_show_of_wrong_settings_is_their_first_error() -> None:
    code, out, err = ended("--cache-dir", "/x")
    assert (code, out) == (2, "")
    assert "`remote` is not set" in err


def test_check_names_every_problem_with_its_place_and_the_nearest_right_name(
    tmp_path: Path,
) -> None:
    file = tmp_path / "a.toml"
    file.write_text('capcity = "1 TB"\nwhen_full = "wiat"\ndrain_workers = 0\n[replica.x]\n')
    code, out, err = ended("--check", "--config", str(file), CACHETIER_LGO="debug")
    assert (code, out) == (2, "")
    for words in (
        "environment variable CACHETIER_LGO: did you mean CACHETIER_LOG?\n",
        f"`capcity` in {file}, line 1: did you mean capacity?\n",
        f"`when_full` from {file}, line 2: 'wiat' is not 'wait', ",
        "'write_through' or 'reject': did you mean wait?\n",
        f"`drain_workers` from {file}, line 3: ",
        f"`replica` in {file}, line 4: did you mean replicas?\n",
        "`cache_dir` is not set.\n",
        "`remote` is not set.\n",
    ):
        assert words in err
    assert err.count("Error: ") == err.count("Next: ") == 7


@pytest.mark.parametrize("name", list(SETTINGS))
def test_every_misspelt_setting_is_answered_with_it(name: str, tmp_path: Path) -> None:
    middle = len(name) // 2
    slip = name[:middle] + name[middle + 1 :]
    (tmp_path / "cachetier.toml").write_text(f"{slip} = 1\n")
    _, _, err = ended("--check", *LEAST)
    assert f"`{slip}` in cachetier.toml, line 1: did you mean {name}?" in err


def test_check_says_what_it_looked_at(tmp_path: Path) -> None:
    assert ended("--check", *LEAST)[1].startswith("The settings are correct: 2 given, ")
    (tmp_path / "cachetier.toml").write_text(FILE)
    assert ended("--check", *LEAST)[1].endswith("file cachetier.toml.\n")


def test_check_warns_of_shares_that_are_more_than_there_is_and_goes_on() -> None:
    shares = [{"name": name, "bytes": "600 GB"} for name in ("a", "b")]
    code, out, _ = ended(
        "--check", *LEAST, "--capacity", "1 TB", "--set", f"principal={json.dumps(shares)}"
    )
    assert code == 0
    assert "Warning: the principals may have 1.2 TB together, `capacity` is 1.0 TB" in out
    assert "Warning" not in ended("--check", *LEAST, "--set", 'principal=[{"name": "a"}]')[1]


def test_check_is_json_too() -> None:
    code, out, _ = ended("--check", "--json", *LEAST, "--capacity", "much")
    assert code == 2
    [problem] = json.loads(out)["problems"]
    assert problem["message"].startswith("`capacity` from --capacity: ")
    assert problem["hint"]


def test_a_door_open_to_all_in_clear_text_is_found_before_the_start() -> None:
    code, _, err = ended("--check", *LEAST, "--http", "0.0.0.0:7070")
    assert code == 2
    assert "`http` to 'http://0.0.0.0:7070'" in err
    assert ended("--check", *LEAST, "--http", "http://0.0.0.0:7070")[0] == 0


def test_the_schema_takes_what_the_service_takes_and_nothing_misspelt() -> None:
    schema = json.loads(ended("--schema")[1])
    jsonschema.Draft202012Validator.check_schema(schema)
    validator = jsonschema.Draft202012Validator(schema)
    values = {**tomllib.loads(FILE), "cache_dir": "/c", "remote": "s3://bucket"}
    assert not list(validator.iter_errors(values))
    for wrong in ({"capcity": "1"}, {"when_full": "wiat"}, {"drain_workers": 0}, {"pack": 3}):
        assert list(validator.iter_errors({**values, **wrong})), wrong
