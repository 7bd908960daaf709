"""accelerate's own save_state and load_state on two ranks: killed, and resumed from the step."""

from __future__ import annotations

import importlib.util
import signal
from pathlib import Path
from typing import Any

import pytest
from cachetier_client import Client

from tests.frameworks.conftest import Node
from tests.frameworks.outside import run_example

pytestmark = [
    pytest.mark.skipif(
        importlib.util.find_spec("accelerate") is None, reason="accelerate is not installed"
    ),
    pytest.mark.soak,  # Lightning and transformers are killed in every run
]


def test_a_killed_training_goes_on_from_the_saved_state(
    node: Node, client: Client, tmp_path: Path
) -> None:
    def trained(run: str, *options: object, code: int = 0) -> list[dict[str, Any]]:
        arguments = [run, "--under", tmp_path / "restored", *options]
        script = "accelerate_state.py"
        return run_example(script, *arguments, environment=node.environment, ranks=2, code=code)

    trained("run", "--kill-at", 5, code=-signal.SIGKILL)
    resumed = trained("run")
    straight = trained("other")

    assert [each["resumed_at"] for each in resumed] == [4, 4]
    assert {each["weights"] for each in resumed} == {each["weights"] for each in straight}
    names = {shard.name for shard in client.step("run", 6).shards}
    assert {"model.safetensors", "random_states_0.pkl", "random_states_1.pkl"} <= names
