"""Files of before: each key that is gone names its successor, and no such file lets anybody in."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from cachetier.config.settings import SETTINGS, load, sourced
from cachetier.config.sources import RENAMED, RENAMED_WITHIN
from cachetier.errors import ConfigError

FILES = sorted((Path(__file__).parent / "before").glob("*.toml"))


@pytest.fixture(params=FILES, ids=lambda file: file.stem)
def file(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    copy = tmp_path / "cachetier.toml"
    copy.write_bytes(request.param.read_bytes())
    copy.chmod(0o600)
    return copy


def test_each_key_that_is_gone_names_its_successor_and_its_line(file: Path) -> None:
    keys = tomllib.loads(file.read_text())
    said = [each.message for each in sourced(config=file).problems]
    for key in keys.keys() - SETTINGS.keys():
        (line,) = (each for each in said if each.startswith(f"setting `{key}` in {file}, line "))
        assert RENAMED[key] in line
    replicas, peers = keys.get("replicas", {}).values(), keys.get("peers", {})
    within = {"replicas": replicas, "s3_mount": keys.get("s3_mount", ()), "peers": [peers]}
    for name, tables in within.items():
        for key in {key for table in tables for key in table} & RENAMED_WITHIN[name].keys():
            successor = RENAMED_WITHIN[name][key]
            assert any(f"unknown key `{key}`: did you mean {successor}?" in each for each in said)


def test_a_span_of_before_says_its_unit(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text("exposure_objective = 1800\n")
    (problem, *_) = sourced(config=tmp_path / "a.toml").problems[::-1]
    assert "'1800' has no unit: write '1800s' for seconds" in problem.message


def test_a_file_of_before_is_refused_as_a_whole_so_that_access_never_widens(file: Path) -> None:
    with pytest.raises(ConfigError):
        load(config=file)
    for key in tomllib.loads(file.read_text()).keys() - SETTINGS.keys():
        with pytest.raises(ConfigError):  # nor is a single one that is left ignored
            (file.parent / "one.toml").write_text(f"{key} = 1\n")
            load({"cache_dir": "/c", "remote": "s3://bucket"}, config=file.parent / "one.toml")


def test_whoever_moves_the_users_of_a_socket_lets_in_the_same_ones() -> None:
    least = {"cache_dir": "/c", "remote": "s3://bucket"}
    assert load(least).socket_permissions == 0o600
    shared = load({**least, "allowed_uids": [1000]})
    assert (shared.socket_permissions, shared.allowed_uids) == (0o666, frozenset({1000}))


OWNER = {"name": "owner", "role": "admin", "socket": "/run/admin"}


@pytest.mark.parametrize(
    "given",
    [
        [{**OWNER, "uid": [1000]}],
        [{**OWNER, "gid": 1000}],
        [{**OWNER, "role": "write"}],
        [{**OWNER, "runs": "a-*"}],
        [{"name": "owner", "role": "admin"}],
        [OWNER, {"name": "team", "socket": "/run/admin"}],
        [{**OWNER, "socket": "/c/cachetier.sock"}],
    ],
)
def test_the_socket_of_the_owner_is_the_service_users_alone(given: list[dict[str, object]]) -> None:
    least = {"cache_dir": "/c", "remote": "s3://bucket"}
    with pytest.raises(ConfigError):
        load({**least, "principal": given})
    settings = load({**least, "principal": [OWNER]})
    assert (settings.admin_socket, settings.tenants) == (Path("/run/admin"), ())
    assert settings.socket_permissions == 0o600
