"""Ray Train's own workers report checkpoints that go into cachetier, and go on from them."""

from __future__ import annotations

from pathlib import Path

import pytest
from cachetier_client import Client

from tests.frameworks.conftest import Node
from tests.frameworks.outside import needs, run_example

pytestmark = [needs("ray", "ray"), pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.mark.parametrize("mode", ["SYNC", "ASYNC"])
def test_a_failed_attempt_goes_on_from_the_last_checkpoint(
    node: Node, tmp_path: Path, mode: str
) -> None:
    arguments = ["run", "--storage", tmp_path / "ray", "--mode", mode, "--fail-at", 4]
    told = run_example("ray_train.py", *arguments, environment=node.environment)[0]

    weights = 0.0
    for step in range(1, 6):
        weights = weights * 0.5 + step
    assert told["step"] == 5 and told["sum"] == pytest.approx(1000 * weights)  # of rank 0
    assert told["resumed_at"] == 3
    with Client(node.url) as client:
        steps = client.steps("run", "local")
        assert [(info.step, info.ranks, info.world_size) for info in steps][-1] == (5, (0, 1), 2)
        names = sorted(shard.name for shard in client.step("run", 5).shards)
    assert names == ["rank-0.pt", "rank-1.pt"]
    stored = (tmp_path / "ray" / "run" / "checkpoint_5").iterdir()
    assert [path.name for path in stored] == ["cachetier.json"]  # Ray keeps no byte of the weights
