"""Addresses of steps and shards, and how folders of steps are called."""

from __future__ import annotations

import pytest
from cachetier_client.errors import InvalidNameError
from cachetier_client.identity.addresses import (
    Address,
    StepName,
    address_of_step,
    parse,
    parse_step,
)

PLAIN = StepName()


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("cachetier://", Address()),
        ("cachetier://run", Address("run")),
        ("cachetier://run/1000/", Address("run", 1000)),
        ("run/1000/model/rank-0", Address("run", 1000, "model/rank-0")),
        ("cachetier://run/0/.metadata", Address("run", 0, ".metadata")),
    ],
)
def test_an_address_names_a_run_a_step_or_a_shard(text: str, found: Address) -> None:
    assert parse(text, PLAIN) == found


@pytest.mark.parametrize(
    ("form", "folder"),
    [
        ("step-{step}", "step-1000"),
        ("checkpoint-{step}", "checkpoint-1000"),
        ("epoch=3-step={step}.ckpt", "epoch=3-step=1000.ckpt"),
        ("{step}", "1000"),
    ],
)
def test_a_frameworks_folder_is_understood_and_named_the_same_way(form: str, folder: str) -> None:
    name = StepName(form)

    assert name.step_of(folder) == 1000
    assert name.of(1000) == folder
    assert parse_step(address_of_step("run", 1000, name), name) == ("run", 1000)


def test_a_folder_of_another_form_says_which_setting_to_change() -> None:
    with pytest.raises(InvalidNameError) as caught:
        parse("cachetier://run/step-1000", PLAIN)

    assert "CACHETIER_STEP_NAME='step-{step}'" in caught.value.hint


@pytest.mark.parametrize("folder", ["007", "-1", "latest", "1e3", "٣", "1000x", "9" * 5000])
def test_what_is_no_step_is_refused(folder: str) -> None:
    with pytest.raises(InvalidNameError):
        parse(f"cachetier://run/{folder}/x", PLAIN)


@pytest.mark.parametrize("text", ["s3://run/1", "cachetier://run", "cachetier://run/1/x", "", "/"])
def test_what_is_no_steps_address_says_how_they_look(text: str) -> None:
    with pytest.raises(InvalidNameError) as caught:
        parse_step(text, PLAIN)

    assert "cachetier://run/1000" in caught.value.hint


@pytest.mark.parametrize("form", ["step", "a/{step}", "{step}/{step}", "{step}{step}", "{step"])
def test_a_step_name_without_exactly_one_step_is_refused(form: str) -> None:
    with pytest.raises(InvalidNameError):
        StepName(form)


def test_the_step_name_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CACHETIER_STEP_NAME", "step-{step}")

    assert StepName.chosen().of(7) == "step-7"
    assert StepName.chosen("it-{step}").of(7) == "it-7"
