"""Lightning's Trainer: its checkpoints go to cachetier://, and a killed training goes on from them.

    CACHETIER_URL=... python examples/frameworks/lightning_trainer.py cachetier://my-run
    CACHETIER_URL=... python examples/frameworks/lightning_trainer.py cachetier://my-run --sharded 2

Needs `pip install lightning`. The lines marked `# cachetier` are what a user changes.
"""

import argparse
import hashlib
import json
import os
import signal
import time
from typing import Any

import lightning
import torch
from cachetier_client.integrations.lightning import (  # cachetier
    CachetierCheckpointIO,
    CachetierModelCheckpoint,
    CachetierModelParallelStrategy,
)
from lightning.pytorch.callbacks import ModelCheckpoint
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader, TensorDataset


class Model(lightning.LightningModule):  # type: ignore[misc]
    def __init__(self, width: int, kill_at: int, sharded: bool) -> None:
        super().__init__()
        self.kill_at, self.sharded = kill_at, sharded
        self.layers = torch.nn.Sequential(torch.nn.Linear(4, width), torch.nn.Linear(width, 1))

    def configure_model(self) -> None:
        if self.sharded:
            fully_shard(self.layers, mesh=self.device_mesh["data_parallel"])

    def training_step(self, batch: Any, _index: int) -> Any:
        if self.global_step == self.kill_at:
            os.kill(os.getpid(), signal.SIGKILL)
        return self.layers(batch[0]).pow(2).mean()

    def configure_optimizers(self) -> Any:
        return torch.optim.Adam(self.parameters())


class Timed:
    """Measures what training waits for at each save."""

    def __init__(self, callback: ModelCheckpoint) -> None:
        self.seconds: list[float] = []
        save = callback._save_checkpoint

        def timed(*args: Any) -> None:
            began = time.perf_counter()
            save(*args)
            self.seconds.append(time.perf_counter() - began)

        callback._save_checkpoint = timed


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", help="cachetier://run, or a local folder to compare with")
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--width", type=int, default=32)
    parser.add_argument("--sharded", type=int, default=0, help="FSDP2 over so many processes")
    parser.add_argument("--kill-at", type=int, default=-1, help="every rank ends itself there")
    options = parser.parse_args()

    torch.manual_seed(0)
    plugins: list[Any] = []
    kind: Any = ModelCheckpoint
    strategy: Any = "auto"
    if options.folder.startswith("cachetier://"):
        kind = CachetierModelCheckpoint  # cachetier
        plugins = [] if options.sharded else [CachetierCheckpointIO()]  # cachetier
    if options.sharded:
        sizes = {"data_parallel_size": options.sharded, "tensor_parallel_size": 1}
        strategy = CachetierModelParallelStrategy(**sizes)  # cachetier
    checkpoints = kind(
        dirpath=f"{options.folder}/checkpoints", save_top_k=2, monitor="step", mode="max",
        save_last=True,
    )  # fmt: skip
    timed = Timed(checkpoints)
    trainer = lightning.Trainer(
        max_epochs=options.epochs, callbacks=[checkpoints], plugins=plugins, strategy=strategy,
        accelerator="cpu", devices=options.sharded or 1, logger=False, enable_progress_bar=False,
        enable_model_summary=False, use_distributed_sampler=False,
    )  # fmt: skip
    model = Model(options.width, options.kill_at, bool(options.sharded))
    data = torch.randn(32, 4, generator=torch.Generator().manual_seed(1))
    trainer.fit(model, DataLoader(TensorDataset(data), batch_size=4), ckpt_path="last")

    weights = hashlib.sha256()
    for value in model.state_dict().values():
        full = value.full_tensor() if hasattr(value, "full_tensor") else value
        weights.update(full.numpy().tobytes())
    told = {"step": trainer.global_step, "weights": weights.hexdigest()}
    if trainer.is_global_zero:
        print(json.dumps({**told, "blocked": timed.seconds}), flush=True)


if __name__ == "__main__":
    main()
