"""Whoever mistypes a verb or an option is told the right one; what is missing is told how."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from click.testing import CliRunner

from cachetier.cli.app import app, built
from cachetier.cli.verbs import ALSO_CALLED, RENAMED, VERBS

STEP = ["r", "1"]


def ended(*arguments: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, list(arguments), env={"CACHETIER_URL": "unix:///nobody"})
    assert result.exception is None or isinstance(result.exception, SystemExit), result
    return result.exit_code, result.stdout, result.stderr


def slips(word: str) -> Iterator[str]:
    """Yield slips of the finger: a letter left out, one twice, two swapped, and a wrong dash."""
    middle = len(word) // 2
    yield word[:middle] + word[middle + 1 :]
    yield word[:middle] + word[middle] + word[middle:]
    yield word[: middle - 1] + word[middle] + word[middle - 1] + word[middle + 1 :]
    if "-" in word:
        yield word.replace("-", "_")
        yield word.replace("-", "")


@pytest.mark.parametrize("verb", VERBS)
def test_a_misspelt_verb_is_answered_with_it(verb: str) -> None:
    group, _, last = verb.rpartition(" ")
    known = {name.removeprefix(f"{group} ") for name in VERBS} | {"config"}
    for slip in slips(last):
        if slip in known or slip in ALSO_CALLED:
            continue
        code, out, err = ended(*group.split(), slip)
        assert (code, out) == (2, ""), slip
        meant = f"cachetier {verb}" if group else f"cachetier {last}"
        assert f"Next: Did you mean `{meant}`?" in err, (slip, err)


def options() -> Iterator[tuple[str, str]]:
    for verb in VERBS:
        for each in built(verb).params:
            if each.param_type_name == "option":
                yield from ((verb, name) for name in each.opts if name.startswith("--"))


@pytest.mark.parametrize(("verb", "option"), list(options()))
def test_a_misspelt_option_is_answered_with_it(verb: str, option: str) -> None:
    known = {name for each in built(verb).params for name in (*each.opts, *each.secondary_opts)}
    for slip in slips(option.removeprefix("--")):
        if f"--{slip}" in known | {"--help"}:
            continue
        code, out, err = ended(*verb.split(), f"--{slip}", "1")
        assert (code, out) == (2, ""), slip
        assert f"Error: `cachetier {verb}` has no option --{slip}." in err
        assert f"Next: Did you mean {option}?" in err, (slip, err)


def required() -> Iterator[tuple[str, Any]]:
    for verb in VERBS:
        yield from ((verb, each) for each in built(verb).params if each.required)


@pytest.mark.parametrize(("verb", "parameter"), list(required()))
def test_what_is_missing_is_named_with_how_to_give_it(verb: str, parameter: Any) -> None:
    words = verb.split()
    for each in built(verb).params:
        if each.required and each.name != parameter.name:
            words += ["1"] if each.param_type_name == "argument" else [each.opts[0], "1"]
    if parameter.param_type_name == "argument":
        words = verb.split()  # arguments are told apart by their place alone
    code, _, err = ended(*words)
    assert code == 2
    assert "needs " in err
    assert f"Next: Give it: cachetier {verb} " in err
    usage = err.partition("Next: ")[2]
    is_argument = parameter.param_type_name == "argument"
    assert (parameter.name.upper() if is_argument else parameter.opts[0]) in usage


def test_other_words_for_a_verb_are_understood() -> None:
    for word, verb in ALSO_CALLED.items():
        assert f"Did you mean `cachetier {verb}`?" in ended(word)[2]


def test_a_verb_that_was_renamed_leads_to_its_successor_which_there_is() -> None:
    for old, now in RENAMED.items():
        assert f"Next: Call it: cachetier {now}\n" in ended(*old.split())[2]
        words = now.split()
        assert words[0] in (*VERBS, "--completion") or " ".join(words[:2]) in VERBS


def test_a_word_that_is_near_to_nothing_leads_to_the_help() -> None:
    assert "Next: `cachetier --help` lists the verbs." in ended("xyzzy")[2]
    assert "Next: `cachetier status --help` lists its options." in ended("status", "--xyzzy")[2]


def test_an_option_before_the_verb_is_put_in_its_place() -> None:
    code, _, err = ended("--url", "unix:///x", "status")
    assert code == 2
    assert "Options of a verb come after it: cachetier VERB --url" in err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["ls", "run", "seven"], "STEP: 'seven' is not a whole number"),
        (["flush", "--timeout", "-1"], "--timeout: '-1' is not a span"),
        (["flush", "--timeout", "soon"], "--timeout: 'soon' is not a span of time"),
        (["flush", "--timeout", "nan"], "--timeout: 'nan' is not a span of time"),
        (["get", "--name"], "--name needs a value"),
        (["flush", "--timeout", "30"], "--timeout: '30' has no unit"),
        (["whoami", "b"], "`cachetier whoami` does not take 'b'"),
        (["seal", "--overwrite=x"], "--overwrite"),
        (["wait", "r", "1", "--timeout", "-3"], "--timeout: '-3' is not a span"),
        (["wait", "r", "1", "--level", "durabel"], "--level 'durabel' is not one of memory, l"),
        (
            ["put", "x", *STEP, "--name", "x", "--level", "lcoal"],
            "--level 'lcoal' is not one of memory, local",
        ),
        (["get", *STEP, "--name", "x", "--range", "abc", "out"], "--range 'abc' is no range"),
        (["get", *STEP, "--name", "x", "--range", "-", "out"], "--range '-' is no range"),
        (["get", *STEP, "--name", "a/x", "/tmp/"], "/tmp/ is a directory"),
        (["get", *STEP, "--name", "x", "/nowhere/x"], "There is no directory /nowhere"),
        (["dev", "--log", "inof"], "`log` from --log: 'inof' is not"),
        (["dev", "--s3-port", "99999"], "--s3-port: '99999' is more than 65535"),
        (["ls", "--url", "/run/s"], "'/run/s' is no address of a service: did you mean 'unix:///"),
        (["ls", "--url", "tcp://h:1"], "did you mean 'http://h:1'?"),
        (["ls", "--url", "h:7070"], "did you mean 'http://h:7070'?"),
        (["ls", "--url", "http://h:99999"], "needs a port from 1 to 65535"),
        (["ls", "--url", "https://t@h"], "a token goes into CACHETIER_TOKEN"),
        (["ls", "--url", "ftp://h"], "use unix:///path/to/cachetier.sock or http://host:port"),
    ],
)
def test_a_wrong_value_is_said_in_a_line(words: list[str], said: str) -> None:
    code, _, err = ended(*words)
    assert code == 2
    assert said in err.splitlines()[0]
    assert err.splitlines()[1].startswith("Next: ")
    assert len(err.splitlines()) == 2


@pytest.mark.parametrize("words", [["statsu"], ["status", "--jsno"], ["seal"], ["ls", "r", "x"]])
def test_with_json_a_wrong_command_line_is_a_document_too(words: list[str]) -> None:
    code, out, err = ended(*words, "--json")
    error = json.loads(out)["error"]
    assert code == 2
    assert error["code"] == "invalid_request"
    assert error["hint"] in err
