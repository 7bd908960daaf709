"""verl's own handler and FSDP manager save what becomes a step, rotate, and resume elsewhere."""

from __future__ import annotations

from pathlib import Path

import pytest
from cachetier_client import Client

from tests.frameworks.conftest import Node
from tests.frameworks.outside import needs, run_example

pytestmark = [needs("verl", "verl"), pytest.mark.slow, pytest.mark.timeout(900)]
SCRIPT = "verl_handler.py"


def test_a_node_without_the_folder_goes_on_with_the_same_weights(
    node: Node, tmp_path: Path
) -> None:
    def trained(*arguments: object, code: int = 0) -> list[dict[str, object]]:
        return run_example(SCRIPT, *arguments, environment=node.environment, ranks=2, code=code)

    whole = trained("whole", tmp_path / "whole")
    trained("torn", tmp_path / "first", "--fail-after", 5, code=9)
    told = trained("torn", tmp_path / "second")

    assert [each["resumed_at"] for each in told] == [4, 4]
    assert [each["digest"] for each in told] == [each["digest"] for each in whole]
    with Client(node.url) as client:
        assert [info.step for info in client.steps("whole", "local")] == [2, 4, 6]
        found = client.step("torn", 6)
        ranks = {shard.name: shard.rank for shard in found.shards}
        assert (found.world_size, found.ranks) == (2, (0, 1))
    assert ranks["model_world_size_2_rank_1.pt"] == ranks["data_1.pt"] == 1
    assert ranks["huggingface/config.json"] == ranks["optim_world_size_2_rank_0.pt"] == 0
    kept = sorted(path.name for path in (tmp_path / "whole").glob("global_step_*"))
    assert kept == ["global_step_6"]  # verl removed the older ones, which are in cachetier


def test_a_put_that_fails_ends_the_job_with_its_error(node: Node, tmp_path: Path) -> None:
    node.service.stop()
    environment = {**node.environment, "CACHETIER_FALLBACK": "fail"}

    with pytest.raises(AssertionError, match="ServiceUnavailableError"):
        run_example(SCRIPT, "gone", tmp_path, environment=environment, ranks=1)
