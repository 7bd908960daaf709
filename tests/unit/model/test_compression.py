"""Modes as people write them, and rules that choose one."""

from __future__ import annotations

import pytest
from cachetier_client.bucket_format.stored import Codec

from cachetier.model.compression import AUTO, OFF, Method, Mode, Rules, mode_like, parsed_mode


@pytest.mark.parametrize(
    ("text", "mode"),
    [
        ("off", OFF),
        ("False", OFF),
        (" auto ", AUTO),
        ("zstd:1", Mode(Method.ZSTD, 1)),
        ("ZSTD:19", Mode(Method.ZSTD, 19)),
        ("planes:3", Mode(Method.PLANES, 3)),
    ],
)
def test_a_mode_is_read_and_written_alike(text: str, mode: Mode) -> None:
    assert parsed_mode(text) == mode
    assert parsed_mode(str(mode)) == mode


@pytest.mark.parametrize(
    "text",
    [
        *("", "on", "gzip", "auto:1", "off:1", "planes", "planes:0"),
        *("zstd", "zstd:", "zstd:0", "zstd:20", "zstd:-1", "zstd:1.5", "zstd:\u0663"),
    ],
)
def test_anything_else_says_what_would_do(text: str) -> None:
    with pytest.raises(ValueError, match="'off', 'auto', 'zstd:1' to 'zstd:19'"):
        parsed_mode(text)


@pytest.mark.parametrize(
    ("codec", "mode"), [(Codec.RAW, "off"), (Codec.ZSTD, "zstd:3"), (Codec.PLANES, "planes:3")]
)
def test_a_shard_is_stored_again_by_the_codec_that_it_had(codec: Codec, mode: str) -> None:
    assert str(mode_like(Mode(Method.ZSTD, 3), codec)) == mode


def test_every_codec_has_a_mode() -> None:
    assert {mode_like(AUTO, codec).method for codec in Codec} == set(Method) - {Method.AUTO}


RULES = Rules.parsed(
    "zstd:3", [("*/optim*", "planes:1"), ("sweep-*", "off"), ("*", "auto"), ("never", "off")]
)


@pytest.mark.parametrize(
    ("run", "name", "mode"),
    [
        ("sweep-1", "optim/0", "planes:1"),
        ("sweep-1", "model", "off"),
        ("sweep-1", "nested/optim", "planes:1"),
        ("big", "model", "auto"),
        ("never", "model", "auto"),
    ],
)
def test_the_first_glob_that_matches_decides(run: str, name: str, mode: str) -> None:
    assert str(RULES.mode_of(run, name)) == mode


def test_without_a_match_the_usual_mode_holds() -> None:
    rules = Rules.parsed("zstd:3", [("big/*", "off")])
    assert str(rules.mode_of("big", "model")) == "off"
    assert str(rules.mode_of("bigger", "model")) == "zstd:3"
    assert Rules().mode_of("any", "shard") == OFF


def test_case_counts_on_every_system() -> None:
    assert str(Rules.parsed("off", [("Big", "auto")]).mode_of("big", "x")) == "off"


@pytest.mark.parametrize(("glob", "mode", "said"), [("", "off", "empty"), ("a", "x", "rule 'a'")])
def test_a_rule_that_says_nothing_is_refused(glob: str, mode: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Rules.parsed("off", [(glob, mode)])
