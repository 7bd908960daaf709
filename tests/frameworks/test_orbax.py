"""Orbax's own manager and handler save what becomes a step, rotate, and restore elsewhere."""

from __future__ import annotations

from pathlib import Path

import pytest
from cachetier_client import Client

from tests.frameworks.conftest import Node
from tests.frameworks.outside import needs, run_example

pytestmark = [needs("orbax", "orbax"), pytest.mark.slow, pytest.mark.timeout(900)]
SCRIPT = "orbax_manager.py"


def test_a_node_without_the_folder_goes_on_with_the_same_weights(
    node: Node, tmp_path: Path
) -> None:
    def trained(*arguments: object, code: int = 0) -> dict[str, object]:
        return run_example(SCRIPT, *arguments, environment=node.environment, code=code)[0]

    whole = trained("whole", tmp_path / "whole")
    trained("torn", tmp_path / "first", "--fail-after", 5, code=9)
    told = trained("torn", tmp_path / "second")

    assert told["resumed_at"] == 4
    assert (told["sum"], told["bias"]) == (whole["sum"], whole["bias"])
    with Client(node.url) as client:
        assert [info.step for info in client.steps("whole", "local")] == [2, 4, 6]
        assert "default/_METADATA" in {shard.name for shard in client.step("torn", 6).shards}
    kept = sorted(path.name for path in (tmp_path / "whole").iterdir())
    assert kept == ["6"]  # Orbax removed the older ones, which are in cachetier


def test_a_put_that_fails_is_raised_and_nothing_takes_it_for_saved(
    node: Node, tmp_path: Path
) -> None:
    node.service.stop()
    environment = {**node.environment, "CACHETIER_FALLBACK": "fail"}

    with pytest.raises(AssertionError, match="ServiceUnavailableError"):
        run_example(SCRIPT, "gone", tmp_path, environment=environment)
    assert not (tmp_path / "2").exists()


TWO_ITEMS = """
import sys
import jax.numpy as jnp
import orbax.checkpoint as ocp
from cachetier_client.integrations.orbax import CachetierHandler, CachetierSave

handlers = {"params": CachetierHandler("run"), "opt": CachetierHandler("run")}
manager = ocp.CheckpointManager(sys.argv[1], item_handlers=handlers)
both = {name: CachetierSave({"w": jnp.ones(3)}) for name in handlers}
manager.save(2, args=ocp.args.Composite(**both))
manager.wait_until_finished()
"""


def test_a_checkpoint_of_two_items_is_refused_and_no_step_has_one_alone(
    node: Node, tmp_path: Path
) -> None:
    script = tmp_path / "two_items.py"
    script.write_text(TWO_ITEMS)

    with pytest.raises(AssertionError, match="InvalidRequestError"):
        run_example(str(script), tmp_path / "items", environment=node.environment)

    assert not (tmp_path / "items" / "2").exists()
    with Client(node.url) as client:
        assert client.steps("run") == []
