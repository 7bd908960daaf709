"""transformers' Trainer: its checkpoints become steps, and a killed training goes on from them.

    CACHETIER_URL=... python examples/frameworks/transformers_trainer.py my-run --output /tmp/out
    CACHETIER_URL=... torchrun --nproc-per-node 2 examples/frameworks/transformers_trainer.py ...

Needs `pip install 'transformers[torch]'`. The lines marked `# cachetier` are what a user changes.
"""

import argparse
import hashlib
import json
import os
import signal
import statistics
import time
from typing import Any

import torch
from cachetier_client.integrations.transformers import (
    CachetierCallback,
    restore_latest,
)  # cachetier
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments


class Numbers(torch.utils.data.Dataset[dict[str, torch.Tensor]]):
    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        numbers = torch.randint(64, (16,), generator=torch.Generator().manual_seed(index))
        return {"input_ids": numbers, "labels": numbers}


class KilledAt(TrainerCallback):  # type: ignore[misc]
    def __init__(self, step: int) -> None:
        self.step = step

    def on_step_begin(self, _args: Any, state: Any, _control: Any, **_: Any) -> None:
        if state.global_step == self.step:
            os.kill(os.getpid(), signal.SIGKILL)


class TimedTrainer(Trainer):  # type: ignore[misc]
    """Measures what training waits for at a save: the Trainer's own part, and the callbacks'."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.own: list[float] = []
        self.callbacks: list[float] = []
        on_save = self.callback_handler.on_save

        def timed(*args: Any) -> Any:
            began = time.perf_counter()
            try:
                return on_save(*args)
            finally:
                self.callbacks.append(time.perf_counter() - began)

        self.callback_handler.on_save = timed

    def _save_checkpoint(self, *args: Any, **kwargs: Any) -> None:
        began = time.perf_counter()
        super()._save_checkpoint(*args, **kwargs)
        self.own.append(time.perf_counter() - began)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("run")
    parser.add_argument("--output", required=True, help="a local folder, as always")
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--save-every", type=int, default=2)
    parser.add_argument("--width", type=int, default=32)
    parser.add_argument("--layers", type=int, default=1)
    parser.add_argument("--kill-at", type=int, default=-1, help="every rank ends itself there")
    options = parser.parse_args()

    torch.manual_seed(0)
    args = TrainingArguments(
        output_dir=options.output,
        max_steps=options.steps,
        save_steps=options.save_every,
        save_total_limit=1,
        per_device_train_batch_size=2,
        logging_strategy="no",
        report_to=[],
        disable_tqdm=True,
        use_cpu=True,
        seed=1,
    )
    width, layers = options.width, options.layers
    config = GPT2Config(vocab_size=64, n_positions=16, n_embd=width, n_layer=layers, n_head=2)
    trainer = TimedTrainer(
        model=GPT2LMHeadModel(config),
        args=args,
        train_dataset=Numbers(),
        callbacks=[CachetierCallback(options.run), KilledAt(options.kill_at)],  # cachetier
    )
    folder = restore_latest(args.output_dir, options.run)  # cachetier
    trainer.train(resume_from_checkpoint=folder)

    weights = b"".join(each.numpy().tobytes() for each in trainer.model.state_dict().values())
    result = {
        "step": trainer.state.global_step,
        "resumed_from": folder and os.path.basename(folder),
        "weights": hashlib.sha256(weights).hexdigest(),
        "own_seconds": statistics.median(trainer.own),
        "callback_seconds": statistics.median(trainer.callbacks),
    }
    print(json.dumps(result))
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
