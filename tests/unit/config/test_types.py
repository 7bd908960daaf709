"""What each kind of setting reads from a file, a variable or a flag, and what it refuses."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from cachetier.config.settings import SETTINGS, Settings, load
from cachetier.config.types import (
    FLAG,
    SECRET,
    TEXT,
    SettingType,
    WrongValueError,
    listed,
    number,
    one_of,
    optional,
    plain,
    read_values,
    required,
    schema_of,
    setting,
    table,
    whole,
)
from cachetier.errors import ConfigError

LEAST = {"cache_dir": "/data/cache", "remote": "s3://bucket/prefix"}


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Work where no cachetier.toml lies."""
    monkeypatch.chdir(tmp_path)


def refusal(kind: SettingType[Any], value: object) -> str:
    with pytest.raises(ValueError) as caught:
        kind.read(value)
    return str(caught.value)


@pytest.mark.parametrize(
    ("kind", "value", "read"),
    [
        (FLAG, "on", True),
        (FLAG, "Off", False),
        (FLAG, "1", True),
        (FLAG, 0, False),
        (FLAG, True, True),
        (whole(1), "8", 8),
        (whole(1), 8.0, 8),
        (whole(0), 2**60 + 1, 2**60 + 1),
        (number(above=0), "0.5", 0.5),
        (number(at_least=0), 3, 3.0),
        (optional(whole(1)), "", None),
        (optional(TEXT), "x", "x"),
        (listed(whole(0), ","), "1, 2,", (1, 2)),
        (listed(whole(0), ","), [1, "2"], (1, 2)),
        (listed(whole(0), ","), 7, (7,)),
        (table(number(above=0)), '{"a": 2}', {"a": 2.0}),
        (table(TEXT), "", {}),
        (one_of("wait", "reject"), "wait", "wait"),
    ],
)
def test_text_and_what_a_file_knows_are_read_alike(
    kind: SettingType[Any], value: object, read: object
) -> None:
    found = kind.read(value)
    assert found == read
    assert type(found) is type(read)


@pytest.mark.parametrize(
    ("kind", "value", "says"),
    [
        (FLAG, "perhaps", "'perhaps' is neither 'on' nor 'off'"),
        (FLAG, 3, "3 is neither 'on' nor 'off'"),
        (FLAG, [], "[] is neither 'on' nor 'off'"),
        (TEXT, 7070, "7070 is not a string: put it in quotes"),
        (whole(1), "many", "'many' is not a number"),
        (whole(1), True, "True is not a number"),
        (whole(1), "1.5", "'1.5' is not a whole number"),
        (whole(1), 0, "0 is not at least 1"),
        (whole(1, 64), "65", "65 is not at least 1 and at most 64"),
        (number(above=0, at_most=1), "0", "0 is not above 0 and at most 1"),
        (number(above=0), "nan", "'nan' is not a number"),
        (number(above=0), float("inf"), "inf is not a number"),
        (listed(whole(0), ","), "1,root", "'root' is not a number"),
        (table(TEXT), "[4]", "[4] is no table"),
        (table(TEXT), "big=4", "'big=4' is not JSON"),
        (one_of("wait", "reject"), "wiat", "'wiat' is not 'wait' or 'reject': did you mean wait?"),
        (one_of("a", "b", "c"), 9, "'9' is not 'a', 'b' or 'c'"),
    ],
)
def test_what_is_none_is_refused_with_what_would_do(
    kind: SettingType[Any], value: object, says: str
) -> None:
    assert says in refusal(kind, value)


def test_a_secret_is_shown_neither_itself_nor_by_its_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = SECRET.read("canary-of-sixteen")
    assert repr(secret) == plain(secret) == "(hidden)"
    assert secret.reveal() == "canary-of-sixteen"
    monkeypatch.delenv("CACHETIER_TOKEN")
    (tmp_path / "cachetier.toml").write_text("token = 424242\n")
    with pytest.raises(ConfigError) as caught:
        load(LEAST)
    assert "`token` from cachetier.toml, line 1: it is not a string" in caught.value.message
    assert "424242" not in caught.value.message + caught.value.hint


def test_an_empty_path_is_not_the_working_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CACHETIER_CACHE_DIR", "")
    with pytest.raises(ConfigError) as caught:
        load({"remote": "s3://bucket"})
    assert "`cache_dir` from CACHETIER_CACHE_DIR: '' is no path" in caught.value.message


@dataclass(frozen=True, kw_only=True)
class Pair:
    left: int = required(whole(0), "The left one.")
    right: dict[str, float] = setting(table(number(above=0)), {"a": 1.0})


def test_all_that_is_wrong_is_told_each_with_the_keys_that_lead_to_it() -> None:
    with pytest.raises(WrongValueError) as caught:
        table(table(table(whole(0)))).read({"x": {"y": {"z": "?", "ok": 1}, "v": 3}})
    assert caught.value.causes == (("x.y.z", "'?' is not a number"), ("x.v", "3 is no table"))


def test_a_default_table_belongs_to_its_settings_alone() -> None:
    first, second = Pair(left=1), Pair(left=2)
    first.right["b"] = 2.0
    assert second.right == {"a": 1.0}


def test_a_table_of_fields_has_a_schema_with_its_words_bounds_and_defaults() -> None:
    assert schema_of(Pair) == {
        "type": "object",
        "properties": {
            "left": {"type": "integer", "minimum": 0, "description": "The left one."},
            "right": {
                "type": "object",
                "additionalProperties": {"type": "number", "exclusiveMinimum": 0},
                "default": {"a": 1.0},
            },
        },
        "required": ["left"],
        "additionalProperties": False,
    }


def test_each_default_is_what_its_own_kind_would_read_and_its_schema_takes() -> None:
    schema = schema_of(Settings)
    for name, each in SETTINGS.items():
        if each.required or each.default is None:
            continue
        said = json.loads(json.dumps(plain(each.default)))
        assert read_values(SETTINGS, {name: said}) == {name: each.default}
        jsonschema.validate(said, schema["properties"][name])


@pytest.mark.parametrize(
    "value",
    [
        {"remote": {"url": "s3://bucket", "assume": "unconditional"}},  # as the page writes it
        {"max_rate": "08:00-20:00 200 MB/s"},
        {"allowed_uids": 1000},
        {"capacity": 1 << 30},
        {"replicas": {"near": {"url": "s3://near", "required": "on"}}},
    ],
)
def test_the_schema_takes_every_form_that_the_service_reads(value: dict[str, Any]) -> None:
    load({**LEAST, **value})
    jsonschema.validate({**LEAST, **value}, schema_of(Settings))
