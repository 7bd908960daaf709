"""transformers' own Trainer on two ranks: killed, its node lost, and resumed from the steps."""

from __future__ import annotations

import importlib.util
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest
from cachetier_client import Client

from tests.frameworks.conftest import Node
from tests.frameworks.outside import run_example

pytestmark = [
    pytest.mark.skipif(
        importlib.util.find_spec("transformers") is None, reason="transformers is not installed"
    ),
    pytest.mark.slow,
]

SCRIPT = "transformers_trainer.py"


def test_a_killed_training_goes_on_from_the_last_step_as_if_nothing_had_been(
    node: Node, client: Client, tmp_path: Path
) -> None:
    def trained(run: str, *options: object, code: int = 0) -> list[dict[str, Any]]:
        arguments = [run, "--output", tmp_path / run, "--steps", 8, *options]
        environment = node.environment
        return run_example(SCRIPT, *arguments, environment=environment, ranks=2, code=code)

    trained("run", "--kill-at", 7, code=-signal.SIGKILL)
    names = {shard.name for shard in client.step("run", 4).shards}
    assert {"model.safetensors", "optimizer.pt", "rng_state_0.pth", "rng_state_1.pth"} <= names
    shutil.rmtree(tmp_path / "run")

    resumed = trained("run")
    straight = trained("other")

    # The save of step 6 was under way: it is there whole, or it is not there.
    assert resumed[0]["resumed_from"] in {"checkpoint-4", "checkpoint-6"}
    assert resumed[1]["resumed_from"] == resumed[0]["resumed_from"]
    assert {each["weights"] for each in resumed} == {each["weights"] for each in straight}
    assert client.step("run", 8).ranks == (0, 1)
