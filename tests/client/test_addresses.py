"""Addresses of steps and files, and how folders of steps are called."""

from __future__ import annotations

import pytest
from cachetier_client.errors import InvalidNameError
from cachetier_client.identity.addresses import Address, address_of_step, parse, parse_step
from cachetier_client.identity.step_names import StepName

PLAIN = StepName()


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("cachetier://", Address()),
        ("cachetier://run", Address("run")),
        ("cachetier://run/1000/", Address("run", ("1000",))),
        ("run/1000/model/rank-0", Address("run", ("1000", "model", "rank-0"))),
        ("cachetier://run/last.ckpt", Address("run", ("last.ckpt",))),
    ],
)
def test_an_address_names_a_run_and_a_path(text: str, found: Address) -> None:
    assert parse(text) == found


@pytest.mark.parametrize(
    ("form", "folder"),
    [
        ("step-{step}", "step-1000"),
        ("checkpoint-{step}", "checkpoint-1000"),
        ("epoch=3-step={step}.ckpt", "epoch=3-step=1000.ckpt"),
        ("{step}", "1000"),
    ],
)
def test_the_folders_that_the_step_name_is_about_are_the_runs_own_steps(
    form: str, folder: str
) -> None:
    name = StepName(form)

    assert name.step_of("run", folder) == 1000
    assert name.of("run", 1000) == folder
    assert address_of_step("run", 1000, name) == f"cachetier://run/{folder}"
    assert parse_step(f"cachetier://run/{folder}", name) == ("run", 1000)


@pytest.mark.parametrize("folder", ["007", "-1", "latest", "1e3", "1000x", "9" * 200])
def test_any_other_folder_is_a_commit_of_its_own(folder: str) -> None:
    run, step = parse_step(f"cachetier://run/{folder}", PLAIN)

    assert run.startswith("run~")
    assert address_of_step(run, step, PLAIN) == f"cachetier://run/{folder}"


@pytest.mark.parametrize("text", ["s3://run/1", "cachetier://run", "", "/"])
def test_what_is_no_steps_address_says_how_they_look(text: str) -> None:
    with pytest.raises(InvalidNameError) as caught:
        parse_step(text, PLAIN)

    assert "cachetier://run/1000" in caught.value.hint


@pytest.mark.parametrize("text", ["run~a/1", "run/a~b", "run/a!", "run/a//b", "run/../b", "run/٣"])
def test_what_is_not_in_the_grammar_is_refused(text: str) -> None:
    with pytest.raises(InvalidNameError):
        parse(text)


@pytest.mark.parametrize("form", ["step", "a/{step}", "{step}/{step}", "{step}{step}", "{step"])
def test_a_step_name_without_exactly_one_step_is_refused(form: str) -> None:
    with pytest.raises(InvalidNameError):
        StepName(form)


def test_the_step_name_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CACHETIER_STEP_NAME", "step-{step}")

    assert StepName.chosen().of("run", 7) == "step-7"
    assert StepName.chosen("it-{step}").of("run", 7) == "it-7"


def test_runs_can_have_step_names_of_their_own() -> None:
    name = StepName.chosen("titan-*:step-{step}, hf:checkpoint-{step}, {step}")

    assert [name.of(run, 7) for run in ("titan-1", "hf", "other")] == [
        "step-7",
        "checkpoint-7",
        "7",
    ]
