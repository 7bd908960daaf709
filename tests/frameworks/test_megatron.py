"""Megatron-core's own save and load write and read what becomes a step, on two ranks."""

from __future__ import annotations

from pathlib import Path

import pytest
from cachetier_client import Client

from tests.frameworks.conftest import Node
from tests.frameworks.outside import needs, run_example

pytestmark = [needs("megatron", "megatron"), pytest.mark.slow, pytest.mark.timeout(900)]
SCRIPT = "megatron_checkpoints.py"


@pytest.mark.parametrize("options", [[], ["--background"]], ids=["sync", "background"])
def test_a_node_without_the_folder_goes_on_with_the_same_weights(
    node: Node, tmp_path: Path, options: list[object]
) -> None:
    def trained(*arguments: object, code: int = 0) -> list[dict[str, object]]:
        given = [*arguments, *options]
        return run_example(SCRIPT, *given, environment=node.environment, ranks=2, code=code)

    whole = trained("whole", tmp_path / "whole")
    trained("torn", tmp_path / "first", "--fail-after", 5, code=9)
    told = trained("torn", tmp_path / "second")

    assert [each["resumed_at"] for each in told] == [4, 4]
    assert [each["digest"] for each in told] == [each["digest"] for each in whole]
    with Client(node.url) as client:
        found = client.step("torn", 6)
        shards = {shard.name: shard.rank for shard in found.shards}
        assert (found.world_size, found.ranks) == (2, (0, 1))
    assert shards.pop(".metadata") == shards.pop("metadata.json") == 0
    assert shards and all(name.startswith(f"__{rank}_") for name, rank in shards.items())
    tracker = tmp_path / "second" / "latest_checkpointed_iteration.txt"
    assert tracker.read_text() == "4"  # of the step that it went on from; Megatron-LM moves it on


def test_a_put_that_fails_ends_the_job_with_its_error(node: Node, tmp_path: Path) -> None:
    node.service.stop()
    environment = {**node.environment, "CACHETIER_FALLBACK": "fail"}

    with pytest.raises(AssertionError, match="ServiceUnavailableError"):
        run_example(SCRIPT, "gone", tmp_path, environment=environment, ranks=1)
