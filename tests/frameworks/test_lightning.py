"""Lightning's own Trainer over ``cachetier://``: killed and resumed, whole and sharded."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import fsspec
import pytest

from tests.frameworks.conftest import Node

pytestmark = [
    pytest.mark.skipif(
        importlib.util.find_spec("lightning") is None, reason="lightning is not installed"
    ),
    pytest.mark.slow,
]

ROOT = Path(__file__).parents[2]


def trained(node: Node, *options: object, code: int = 0) -> dict[str, Any]:
    """Run the example; return what rank 0 printed."""
    script = ROOT / "examples" / "frameworks" / "lightning_trainer.py"
    environment = {
        **{name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE")},
        **node.environment,
        "PYTHONPATH": os.pathsep.join(map(str, (ROOT, ROOT / "client"))),
        "PYTHONWARNINGS": "ignore",
        "GLOO_SOCKET_IFNAME": "lo",
    }
    command = [sys.executable, str(script), *map(str, options)]
    ended = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=200, check=False
    )
    assert ended.returncode == code, f"{ended.stdout[-4000:]}\n{ended.stderr[-8000:]}"
    lines = [line for line in ended.stdout.splitlines() if line.startswith("{")]
    return dict(json.loads(lines[-1])) if lines else {}


def found(node: Node, path: str) -> list[str]:
    fs = fsspec.filesystem("cachetier", service_url=node.url)
    return [name.rsplit("/", 1)[-1] for name in fs.ls(path, detail=False)]


def test_a_killed_training_goes_on_from_its_last_checkpoint_as_if_nothing_had_been(
    node: Node,
) -> None:
    trained(node, "cachetier://run", "--kill-at", 20, code=-signal.SIGKILL)
    assert found(node, "run/checkpoints") == [
        "epoch=0-step=8.ckpt",
        "epoch=1-step=16.ckpt",
        "last.ckpt",
    ]

    resumed = trained(node, "cachetier://run")
    straight = trained(node, "cachetier://other")

    assert resumed["step"] == straight["step"] == 32
    assert len(resumed["blocked"]) < len(straight["blocked"])  # it did not begin anew
    assert resumed["weights"] == straight["weights"]
    assert found(node, "run/checkpoints") == [
        "epoch=2-step=24.ckpt",
        "epoch=3-step=32.ckpt",
        "last.ckpt",
    ]


@pytest.mark.soak  # the longest of these; what it checks of commits the others check too
def test_sharded_checkpoints_of_two_ranks_are_whole_commits(node: Node) -> None:
    trained(node, "cachetier://run", "--sharded", 2, "--epochs", 2)
    fs = fsspec.filesystem("cachetier", service_url=node.url)
    (whole,) = {each["save_id"] for each in fs.ls("run/checkpoints/last.ckpt")}
    assert whole

    resumed = trained(node, "cachetier://run", "--sharded", 2)
    straight = trained(node, "cachetier://other", "--sharded", 2)

    assert resumed["step"] == straight["step"] == 32
    assert len(resumed["blocked"]) < len(straight["blocked"])
    assert resumed["weights"] == straight["weights"]


@pytest.mark.filterwarnings("ignore")  # Lightning's, of torch
@pytest.mark.parametrize("behind", [False, True], ids=["at once", "AsyncCheckpointIO"])
def test_lightnings_own_callback_keeps_what_it_says_it_keeps(
    node: Node, monkeypatch: pytest.MonkeyPatch, behind: bool
) -> None:
    import lightning
    import torch
    from cachetier_client.integrations.lightning import CachetierCheckpointIO
    from lightning.pytorch.callbacks import ModelCheckpoint
    from lightning.pytorch.demos.boring_classes import BoringModel
    from lightning.pytorch.plugins.io import AsyncCheckpointIO

    monkeypatch.setenv("CACHETIER_URL", node.url)
    fs = fsspec.filesystem("cachetier", service_url=node.url)
    for top in (1, 2):
        own: dict[str, Any] = {"save_last": True, "monitor": "step", "mode": "max"}
        kept = ModelCheckpoint(dirpath=f"cachetier://run/{top}", save_top_k=top, **own)
        torch.manual_seed(0)
        plugins = [AsyncCheckpointIO(CachetierCheckpointIO())] if behind else []
        lightning.Trainer(
            max_epochs=3, limit_train_batches=2, limit_val_batches=0, callbacks=[kept],
            plugins=plugins, logger=False, accelerator="cpu", enable_progress_bar=False,
            enable_model_summary=False,
        ).fit(BoringModel())  # fmt: skip
        assert len(kept.best_k_models) == top
        assert all(fs.isfile(path) for path in (*kept.best_k_models, kept.last_model_path))

    assert found(node, "run/1") == ["epoch=2-step=6.ckpt", "last.ckpt"]
    assert found(node, "run/2") == ["epoch=1-step=4.ckpt", "epoch=2-step=6.ckpt", "last.ckpt"]


def test_a_strategy_that_takes_the_address_for_a_local_folder_is_refused() -> None:
    from cachetier_client.errors import InvalidRequestError
    from cachetier_client.integrations.lightning import (
        CachetierModelCheckpoint,
        CachetierModelParallelStrategy,
    )
    from lightning.pytorch import strategies

    address = "cachetier://run/checkpoints"
    sizes = {"data_parallel_size": 1, "tensor_parallel_size": 1}
    for strategy in (strategies.ModelParallelStrategy(**sizes), strategies.FSDPStrategy()):
        trainer: Any = SimpleNamespace(strategy=strategy)
        with pytest.raises(InvalidRequestError, match=type(strategy).__name__):
            CachetierModelCheckpoint(address).setup(trainer, None, "fit")

    ours = CachetierModelParallelStrategy(**sizes, save_distributed_checkpoint=False)
    with pytest.raises(InvalidRequestError, match="save_distributed_checkpoint"):
        ours.save_checkpoint({}, f"{address}/last.ckpt")
