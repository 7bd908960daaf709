"""transformers' Trainer, in one process: its checkpoints become steps; what may go, and when."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cachetier_client import Client, StepInfo
from cachetier_client.errors import BackpressureError, InvalidNameError, InvalidRequestError

pytest.importorskip("transformers", reason="transformers is not installed")
pytestmark = pytest.mark.torch

import torch  # noqa: E402
import torch.distributed.checkpoint  # noqa: E402
from cachetier_client.integrations.step_folders import load_folder, save_folder  # noqa: E402
from cachetier_client.integrations.transformers import (  # noqa: E402
    CachetierCallback,
    CachetierTrainerMixin,
    surplus_of,
)
from cachetier_client.torch.huggingface import HuggingFaceWriter  # noqa: E402
from transformers import (  # noqa: E402
    GPT2Config,
    GPT2LMHeadModel,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)

LIMIT: dict[str, Any] = {"save_total_limit": 1}


class Numbers(torch.utils.data.Dataset[dict[str, torch.Tensor]]):
    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        numbers = torch.randint(16, (4,), generator=torch.Generator().manual_seed(index))
        return {"input_ids": numbers, "labels": numbers}


class At(TrainerCallback):  # type: ignore[misc]
    """Calls something after each save."""

    def __init__(self, after_save: Callable[[int], object]) -> None:
        self.after_save = after_save

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.after_save(state.global_step)


class MyTrainer(CachetierTrainerMixin, Trainer):  # type: ignore[misc]
    pass


@pytest.fixture
def trainer_of(tmp_path: Path) -> Callable[..., Any]:
    def make(*callbacks: Any, steps: int = 4, **options: Any) -> Any:
        torch.manual_seed(0)
        config = GPT2Config(vocab_size=16, n_positions=4, n_embd=8, n_layer=1, n_head=1)
        arguments = {"output_dir": str(tmp_path / "out"), "save_steps": 1, **options}
        args = TrainingArguments(
            max_steps=steps,
            per_device_train_batch_size=2,
            logging_strategy="no",
            report_to=[],
            disable_tqdm=True,
            use_cpu=True,
            dataloader_pin_memory=False,
            **arguments,
        )
        model = GPT2LMHeadModel(config)
        return MyTrainer(model=model, args=args, train_dataset=Numbers(), callbacks=list(callbacks))

    return make


def steps_of(client: Client) -> list[int]:
    return [info.step for info in client.steps("run", "local")]


def folders(tmp_path: Path) -> list[str]:
    return sorted(path.name for path in (tmp_path / "out").iterdir())


def test_each_checkpoint_is_a_step_with_the_files_of_its_folder(
    client: Client, tmp_path: Path, trainer_of: Callable[..., Any]
) -> None:
    trainer_of(CachetierCallback("cachetier://run", client=client), steps=2).train()

    assert steps_of(client) == [1, 2]
    files = {path.name: path for path in (tmp_path / "out" / "checkpoint-2").iterdir()}
    names = {shard.name for shard in client.step("run", 2).shards}
    assert names == set(files) and "optimizer.pt" in names
    for name, path in files.items():
        assert bytes(client.get_shard("run", 2, name)) == path.read_bytes()


def test_training_goes_on_from_an_address(
    client: Client, tmp_path: Path, trainer_of: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CACHETIER_URL", client.url)
    whole = trainer_of(output_dir=str(tmp_path / "whole"), save_strategy="no")
    whole.train()
    # Training for two steps of four, as a schedule of four has it.
    stopping = At(lambda step: _stop(first) if step == 2 else None)
    first = trainer_of(CachetierCallback("run"), stopping, output_dir=str(tmp_path / "first"))
    first.train(resume_from_checkpoint="cachetier://run/latest")  # there is none: it starts anew

    second = trainer_of(CachetierCallback("run"))
    second.train(resume_from_checkpoint="cachetier://run/latest")

    assert steps_of(client) == [1, 2, 3, 4]
    assert folders(tmp_path) == ["checkpoint-2", "checkpoint-3", "checkpoint-4"]
    assert_same_weights(second.model, whole.model)


def _stop(trainer: Any) -> None:
    trainer.control.should_training_stop = True


# --- models alone ---------------------------------------------------------------------------------


def test_a_model_comes_back_from_what_save_pretrained_has_written(
    client: Client, tmp_path: Path, trainer_of: Callable[..., Any]
) -> None:
    model = trainer_of().model
    with save_folder("cachetier://model/0", client=client, alone=True) as folder:
        model.save_pretrained(folder)

    loaded = load_folder("cachetier://model/0", tmp_path / "models", client=client)

    assert_same_weights(GPT2LMHeadModel.from_pretrained(loaded), model)


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled:UserWarning")
def test_transformers_reads_the_safetensors_that_dcp_has_saved(
    client: Client, tmp_path: Path, trainer_of: Callable[..., Any]
) -> None:
    model = trainer_of().model
    mapping = {name: 1 + (name < "transformer.h") for name in model.state_dict()}
    writer = HuggingFaceWriter("cachetier://model/0", mapping, client=client)
    torch.distributed.checkpoint.save(model.state_dict(), storage_writer=writer)

    folder = load_folder("cachetier://model/0", tmp_path / "models", client=client)
    model.config.save_pretrained(folder)

    assert_same_weights(GPT2LMHeadModel.from_pretrained(folder), model)


def assert_same_weights(found: Any, expected: Any) -> None:
    for name, tensor in expected.state_dict().items():
        torch.testing.assert_close(found.state_dict()[name], tensor, rtol=0, atol=0)


# --- rotation ------------------------------------------------------------------------------------


def test_folders_beyond_the_limit_go_once_their_steps_are_durable(
    client: Client, tmp_path: Path, trainer_of: Callable[..., Any]
) -> None:
    callback = CachetierCallback("run", client=client)
    durable = At(lambda step: step == 1 or client.wait("run", step - 1, "durable"))
    trainer = trainer_of(callback, durable, **LIMIT)
    trainer.train()

    assert folders(tmp_path) == ["checkpoint-4"]
    assert trainer.args.save_total_limit == 1


def test_no_folder_goes_before_its_step_is_durable(
    client: Client,
    tmp_path: Path,
    trainer_of: Callable[..., Any],
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Undurable(Client):
        def steps(self, run: str | None = None, level: Any = None, **_: Any) -> list[StepInfo]:
            return [] if level == "durable" else super().steps(run, level)

    with Undurable(client.url) as undurable:
        trainer_of(CachetierCallback("run", client=undurable), **LIMIT).train()

    assert folders(tmp_path) == [f"checkpoint-{step}" for step in (1, 2, 3, 4)]
    assert "checkpoints [1, 2, 3] stay" in caplog.text


def test_folders_go_at_the_level_that_was_chosen(
    client: Client, tmp_path: Path, trainer_of: Callable[..., Any]
) -> None:
    callback = CachetierCallback("run", client=client, removable_at="local")
    trainer_of(callback, **LIMIT).train()

    assert folders(tmp_path) == ["checkpoint-4"]


@pytest.mark.parametrize(
    ("steps", "limit", "best", "gone"),
    [
        ([], 1, None, []),
        ([1, 2, 3], 3, None, []),
        ([1, 2, 3], 2, None, [1]),
        ([1, 2, 3], 1, None, [1, 2]),
        ([1, 2, 3], 1, "checkpoint-1", [2]),
        ([1, 2, 3], 2, "checkpoint-1", [2]),
        ([1, 2, 3], 1, "checkpoint-3", [1, 2]),
    ],
)
def test_what_goes_is_what_the_trainer_would_remove(
    steps: list[int], limit: int, best: str | None, gone: list[int], tmp_path: Path
) -> None:
    from transformers.trainer_utils import rotate_checkpoints

    for step in steps:
        (tmp_path / f"checkpoint-{step}").mkdir()
    best_path = None if best is None else str(tmp_path / best)
    rotate_checkpoints(str(tmp_path), limit, best_path, use_mtime=False)

    assert surplus_of(steps, limit, best) == gone
    left = {path.name for path in tmp_path.iterdir()}
    assert left == {f"checkpoint-{step}" for step in steps if step not in gone}


# --- what does not go by itself -------------------------------------------------------------------


def test_a_save_that_failed_ends_training_at_the_next_and_its_folder_stays(
    client: Client, tmp_path: Path, trainer_of: Callable[..., Any]
) -> None:
    class Full(Client):
        def checkpoint(self, run: Any, step: Any, **options: Any) -> Any:
            if step == 2:
                raise BackpressureError("no room")
            return super().checkpoint(run, step, **options)

    with Full(client.url) as full, pytest.raises(BackpressureError):
        trainer_of(CachetierCallback("run", client=full), **LIMIT).train()

    assert steps_of(client) == [1]
    assert {"checkpoint-2", "checkpoint-3"} <= set(folders(tmp_path))


def test_a_checkpoint_that_is_written_without_on_save_is_saved_at_the_end(
    client: Client, trainer_of: Callable[..., Any]
) -> None:
    class LikeSigterm(TrainerCallback):  # type: ignore[misc]
        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            if state.global_step == 3:
                trainer._save_checkpoint(trainer.model, trial=None)
                control.should_training_stop = True

    trainer = trainer_of(LikeSigterm(), CachetierCallback("run", client=client), save_strategy="no")
    trainer.train()

    assert steps_of(client) == [3]


def test_a_local_checkpoint_that_the_run_has_not_got_is_saved_when_it_is_resumed(
    client: Client, tmp_path: Path, trainer_of: Callable[..., Any]
) -> None:
    trainer_of(steps=2).train()  # without cachetier

    trainer_of(CachetierCallback("run", client=client)).train(resume_from_checkpoint=True)

    assert steps_of(client) == [2, 3, 4]


def test_an_address_as_output_dir_is_refused_and_leaves_nothing(
    client: Client,
    tmp_path: Path,
    trainer_of: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")

    with pytest.raises(InvalidRequestError, match="takes this for a local folder") as raised:
        trainer_of(CachetierCallback("run", client=client), output_dir="cachetier://run")

    assert "Set output_dir to a local folder" in str(raised.value)
    assert list((tmp_path / "here").iterdir()) == []


@pytest.mark.parametrize("run", ["cachetier://run/checkpoint-10", "cachetier://", "s3://bucket"])
def test_a_callback_is_for_a_run(run: str) -> None:
    with pytest.raises((InvalidRequestError, InvalidNameError), match=r"run|address"):
        CachetierCallback(run)


def test_a_search_of_hyperparameters_is_refused(
    client: Client, trainer_of: Callable[..., Any]
) -> None:
    callback = CachetierCallback("run", client=client)
    trainer = trainer_of(callback)
    trainer.state.is_hyper_param_search = True

    with pytest.raises(InvalidRequestError, match="hyperparameters"):
        callback.on_train_begin(trainer.args, trainer.state, trainer.control)
