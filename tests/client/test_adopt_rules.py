"""What is a step among a trainer's files, and what ends its save."""

from __future__ import annotations

from pathlib import Path

import pytest
from cachetier_client.adopt.rules import SaveRules
from cachetier_client.adopt.sources import files_of
from cachetier_client.adopt.trainer_folder import TrainerFolder
from cachetier_client.identity.step_names import StepName


@pytest.mark.parametrize(
    ("name", "step"),
    [
        ("checkpoint-500", 500),
        ("step_500", 500),
        ("step-10", 10),
        ("global_step10", 10),
        ("global_step_10", 10),
        ("iter_0000010", 10),
        ("epoch=1-step=16.ckpt", 16),
        ("epoch=1-step=16-val_loss=0.30.ckpt", 16),
        ("model_step_7.pt", 7),
        ("1000", 1000),
        ("checkpoint-0", 0),
        ("last.ckpt", None),
        ("version_0", None),
        ("epoch=3.ckpt", 3),
        ("model-00001-of-00002.safetensors", None),
        ("tmp-checkpoint-500", None),
        ("checkpoint-500.tmp", None),
        ("checkpoint-500.partial-3", None),
        (".checkpoint-500", None),
        ("1000.orbax-checkpoint-tmp-1234", None),
        ("step_99999999999999999", None),
        ("footstep5", None),
    ],
)
def test_a_step_is_read_from_the_names_that_frameworks_give(name: str, step: int | None) -> None:
    assert SaveRules().step_of(name) == step


def test_a_run_may_have_a_rule_of_its_own() -> None:
    rules = SaveRules(StepName("round-{step}"))
    assert rules.step_of("round-3.ckpt") == 3
    assert rules.step_of("round-3") == 3
    assert rules.step_of("checkpoint-500") is None


@pytest.mark.parametrize(
    ("name", "ends"),
    [
        ("checkpoint-500/trainer_state.json", True),
        ("checkpoint-500/model.safetensors.index.json", False),  # the optimizer comes after it
        ("step-10/.metadata", True),
        ("step-10/model.safetensors.index.json", True),
        ("step-10/__0_0.distcp", False),
        ("epoch=1-step=16.ckpt/meta.pt", True),
        ("epoch=1-step=16.ckpt/.metadata", False),
        ("epoch=1-step=16.ckpt", True),
        ("step_5.txt", False),
    ],
)
def test_a_save_ends_with_the_file_that_its_framework_writes_last(name: str, ends: bool) -> None:
    assert SaveRules().ends_save(name) is ends


def test_markers_that_are_named_take_the_place_of_the_table() -> None:
    rules = SaveRules(markers=("random_states_*.pkl",))
    assert rules.ends_save("checkpoint-500/random_states_0.pkl")
    assert not rules.ends_save("checkpoint-500/trainer_state.json")


def made(root: Path, *names: str) -> TrainerFolder:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(b"x")
    return TrainerFolder(str(root), SaveRules())


def test_saves_are_found_at_any_depth_and_not_inside_one_another(tmp_path: Path) -> None:
    folder = made(
        tmp_path,
        "lightning_logs/version_0/checkpoints/epoch=0-step=10.ckpt",
        "checkpoint-500/global_step500/zero.pt",
        "step-10/.hidden/file",
        ".cachetier-watch/key/checkpoint-400/file",
        "tmp-checkpoint-600/file",
        "step_7_samples.png",
    )
    entered: list[str] = []

    def enter(path: str) -> bool:
        entered.append(path)
        return True

    found = folder.saves_below(str(tmp_path), enter)
    assert sorted(found) == [
        "checkpoint-500",
        "lightning_logs/version_0/checkpoints/epoch=0-step=10.ckpt",
        "step-10",
    ]
    below = {str(Path(path).relative_to(tmp_path)) for path in entered}
    assert {"checkpoint-500/global_step500", "step-10/.hidden", "tmp-checkpoint-600"} <= below
    assert not any("cachetier-watch" in path for path in below)


def test_a_file_deep_in_a_step_belongs_to_it(tmp_path: Path) -> None:
    folder = TrainerFolder(str(tmp_path), SaveRules())
    inner = tmp_path / "a" / "checkpoint-500" / "global_step500" / "x.pt"
    assert folder.save_at(str(inner), is_folder=False) == "a/checkpoint-500"
    assert folder.save_at(str(tmp_path / "a"), is_folder=True) is None


@pytest.mark.parametrize(
    ("pointer", "text", "save"),
    [
        ("latest", "global_step10", "global_step10"),
        ("latest_checkpointed_iteration.txt", "10\n", "iter_0000010"),
    ],
)
def test_a_pointer_beside_the_folders_ends_the_one_it_names(
    tmp_path: Path, pointer: str, text: str, save: str
) -> None:
    folder = made(tmp_path, f"{save}/a.pt", "global_step9/a.pt")
    files, other = files_of(str(tmp_path / save)), files_of(str(tmp_path / "global_step9"))
    assert "says that it has ended" in folder.unmarked(save, files)
    (tmp_path / pointer).write_text(text)
    assert folder.unmarked(save, files) == ""
    assert folder.unmarked("global_step9", other)
