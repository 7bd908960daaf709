"""Every form in which somebody may write a setting: read, or refused by name; never a traceback."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import jsonschema
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from cachetier.cli.node import written
from cachetier.config.settings import SETTINGS, Settings, load, sourced
from cachetier.config.types import schema_of, span
from cachetier.errors import ConfigError

LEAST = {"cache_dir": "/data/cache", "remote": "s3://bucket/prefix"}
VALIDATOR = jsonschema.Draft202012Validator(schema_of(Settings))

TEXTS = (
    *("", " ", "80%", "1.5 TiB", "0660", "1000, 1001", "on", "Off", "1e308", "[::1]:7070", "[::1"),
    *("s3://bucket/p", "http://[::1", "http://host", "~nobody-here/x", "08:00-20:00 0", "2 GB/s"),
    *("0-1", "zstd:3", "reject", "readback", '{"near": {"url": "s3://near"}}'),
)
SCALARS = st.one_of(
    st.booleans(),
    st.integers(-10, 100_000),
    st.integers(-(10**400), 10**400),
    st.floats(),
    st.text(max_size=20),
    st.sampled_from(TEXTS),
)
TABLES = st.dictionaries(st.text(max_size=5), SCALARS | st.lists(SCALARS, max_size=2), max_size=3)
VALUES = SCALARS | st.lists(SCALARS, max_size=3) | TABLES | TABLES.map(json.dumps)
# Those of which the schema knows all: no grammar of their own, no second setting to agree with.
PLAIN = [
    name
    for name, each in SETTINGS.items()
    if each.kind.schema.get("type") in ("integer", "number") or "anyOf" in each.kind.schema
    if name not in ("max_rate", "watermarks")
]


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Work where no cachetier.toml lies."""
    monkeypatch.chdir(tmp_path)


@given(st.sampled_from(list(SETTINGS)), VALUES)
@example("run_weights", {"\N{GRINNING FACE}": 1})
@example("remote_region", "\x7f")
@example("replicas", '{"near": {"url": "s3://near"}}')
@example("max_rate", "9" * 400)
@example("run_weights", {"a": 10**400})
@example("replicas", "[" * 9_999)
@example("cache_dir", "~nobody-here/x")
def test_whatever_is_written_is_read_or_refused_in_a_few_words(name: str, value: object) -> None:
    found = sourced({**LEAST, name: value})
    if found.settings is None:
        assert found.problems
        assert all(len(problem.message) < 500 for problem in found.problems)
        return
    shown = tomllib.loads("\n".join(written(found, with_origins=True)))
    VALIDATOR.validate(shown)
    again = sourced(shown)
    assert again.settings is not None
    secrets = dict.fromkeys(("token", "scrape_token"))
    said, back = ({**vars(each), **secrets} for each in (found.settings, again.settings))
    assert {**said, "socket": found.settings.socket_path} == back


@given(st.sampled_from(PLAIN), st.booleans() | st.integers(-2, 5_000) | st.floats(-2, 5_000))
@example("durable_every", 0)
def test_the_schema_takes_of_numbers_and_switches_what_the_service_does(
    name: str, value: float
) -> None:
    read = sourced({**LEAST, name: value}).settings is not None
    takes = VALIDATOR.is_valid({**LEAST, name: value})
    # A number for a switch is read, as variables have them; an editor may ask for the word.
    assert read == takes or (read and "boolean" in str(SETTINGS[name].kind.schema))


def problem(**given: object) -> str:
    with pytest.raises(ConfigError) as caught:
        load({**LEAST, **given})
    return caught.value.message


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("cache_dir", "~nobody-here/x", "begins with an unknown home"),
        ("cache_dir", "/a\0b", "has a NUL in it"),
        ("capacity", 0.8, "0.8 is no size: put one in quotes"),
        ("capacity", True, "True is no size"),
        ("allowed_uids", 2**32 - 1, "at most 4294967294"),
        ("durable_every", 2**63, "is too large a number"),
        ("run_weights", {"a": 10**400}, "is too large a number"),
        ("run_weights", '{"a": 1, "a": 2}', "'a' appears twice"),
        ("max_rate", f"{'9' * 400} GB/s", "is not a rate"),
        ("http", "*:7070", "'[::1]:7070'"),
        ("http", "[::1:7070", "is not an address"),
        ("http", "a host:7070", "is not an address"),
        ("remote_endpoint", "http://[::1", "is not a URL"),
        ("remote_endpoint", "http://host:99999", "is not a URL"),
        ("remote_endpoint", "http://host/?bucket=x", "is not a URL"),
        ("watermarks", [0.95, 0.9], "are not two shares, the lower first"),
    ],
)
def test_what_is_wrong_is_told_with_what_would_do(name: str, value: object, says: str) -> None:
    assert says in problem(**{name: value})


@pytest.mark.parametrize("text", ["0s", "1.5s", "250ms", "90s", "5400s", "2h", "36h", "3d"])
def test_a_span_of_time_is_written_as_it_can_be_read_again(text: str) -> None:
    kind = span()
    assert kind.read(str(kind.read(text))) == kind.read(text)
    assert kind.written(kind.read(text)) == {"5400s": "90min", "250ms": "0.25s"}.get(text, text)


def test_a_long_text_given_by_mistake_is_not_repeated_whole() -> None:
    message = problem(replicas="a secret file\n" * 1000)
    assert len(message) < 500
    assert message.endswith("""is not JSON such as '{"name": "value"}'""")


@pytest.mark.parametrize("name", ["remote_endpoint", "replicas"])
@pytest.mark.parametrize("url", ["http://me:canary@host:1", "HTTPS://canary@host"])
def test_credentials_in_an_endpoint_are_refused_and_not_shown(name: str, url: str) -> None:
    value = url if name == "remote_endpoint" else {"near": {"url": "s3://two", "endpoint": url}}
    message = problem(**{name: value})
    assert "has credentials in it" in message
    assert "canary" not in message


@pytest.mark.parametrize("token", ["canary key", "canary\n", "canary-é", "\tcanary"])
def test_a_token_that_no_header_can_carry_is_refused_and_not_shown(token: str) -> None:
    message = problem(token=token)
    assert "a header cannot carry it" in message
    assert "canary" not in message


def test_the_line_of_what_is_wrong_in_a_table_is_named(tmp_path: Path) -> None:
    (tmp_path / "cachetier.toml").write_text(
        'log = "info"\n[replicas.near]\nurl = "s3://near"\nendpoint = "http://near"\n\n'
        '[replicas.far]\nurl = "s3://far"\nendpoint = "far:1"\nrequired = "perhaps"\n\n'
        '[run_weights]\n"a" = 1\n"a.b-*" = 0\n'
    )
    found = sourced(LEAST)
    places = [each.message.partition(" from ")[2].partition(": ")[0] for each in found.problems]
    assert sorted(places) == [f"cachetier.toml, line {line}" for line in (13, 8, 9)]


def test_a_value_in_an_inline_table_or_a_dotted_key_has_its_line(tmp_path: Path) -> None:
    (tmp_path / "cachetier.toml").write_text(
        'run_weights = { "a" = 0 }\nreplicas.near.url = "s3://near"\nreplicas.near.assume = "no"'
    )
    messages = [each.message for each in sourced(LEAST).problems]
    assert "`run_weights` from cachetier.toml, line 1: a: 0 is not above 0" in messages
    assert any(each.startswith("`replicas` from cachetier.toml, line 3: ") for each in messages)


@pytest.mark.parametrize("value", ["9" * 5_000, f"{'[' * 5_000}{']' * 5_000}"])
def test_a_file_that_no_parser_can_take_is_refused_alone(tmp_path: Path, value: str) -> None:
    (tmp_path / "cachetier.toml").write_text(f"drain_workers = {value}\n")
    (only,) = sourced({}).problems  # not that it lacks `cache_dir`: it may well have it
    assert only.message.startswith("cachetier.toml cannot be read as TOML: ")


def test_a_byte_order_mark_is_no_part_of_the_first_key(tmp_path: Path) -> None:
    (tmp_path / "cachetier.toml").write_text('capacity = "1 GB"\n', encoding="utf-8-sig")
    assert load(LEAST).capacity == "1 GB"


def test_what_kubernetes_tells_of_a_service_is_no_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (
        ("SERVICE_HOST", "10.0.0.1"),
        ("SERVICE_PORT", "7070"),
        ("SERVICE_PORT_HTTP", "7070"),
        ("PORT", "tcp://10.0.0.1:7070"),
        ("PORT_7070_TCP", "tcp://10.0.0.1:7070"),
        ("PORT_7070_TCP_ADDR", "10.0.0.1"),
        ("METRICS_SERVICE_HOST", "10.0.0.1"),
        ("METRICS_PORT", "tcp://10.0.0.1:7070"),
    ):
        monkeypatch.setenv(f"CACHETIER_{name}", value)
    load(LEAST)
    monkeypatch.setenv("CACHETIER_PORT", "7070")
    assert "unknown environment variable CACHETIER_PORT" in problem()


def test_numbers_in_text_are_read_exactly() -> None:
    assert load({**LEAST, "durable_every": str(2**53 + 1)}).policy.durable_every == 2**53 + 1


@pytest.mark.parametrize("name", ["cache_dir", "socket"])
def test_paths_know_homes_but_no_variables(
    name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    assert getattr(load({**LEAST, name: "~/x"}), name) == Path("/home/me/x")
    assert getattr(load({**LEAST, name: "$HOME/x"}), name) == tmp_path / "$HOME" / "x"
