"""DeepSpeed's own engine saves to cachetier with ZeRO, on two ranks, and goes on from there."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from cachetier_client import Client

from tests.frameworks.conftest import Node
from tests.frameworks.outside import needs, run_example

pytestmark = [needs("deepspeed", "deepspeed"), pytest.mark.slow, pytest.mark.timeout(900)]
SCRIPT = "deepspeed_zero.py"


@pytest.fixture(scope="module", autouse=True)
def operators(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """DeepSpeed compiles one anew: a lock that somebody left elsewhere stops nobody here."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path_factory.mktemp("operators")))
        yield


@pytest.mark.parametrize(
    "options", [["--stage", 1], ["--stage", 2, "--decoupled"]], ids=["sync", "decoupled"]
)
def test_a_node_without_the_folder_goes_on_with_the_same_weights(
    node: Node, tmp_path: Path, options: list[object]
) -> None:
    environment = {**node.environment, "DS_ACCELERATOR": "cpu"}
    whole = run_example(
        SCRIPT, "whole", tmp_path / "whole", *options, environment=environment, ranks=2
    )
    first = ["torn", tmp_path / "first", "--fail-after", 5, *options]
    run_example(SCRIPT, *first, environment=environment, ranks=2, code=9)
    second = ["torn", tmp_path / "second", *options]
    told = run_example(SCRIPT, *second, environment=environment, ranks=2)

    assert [each["resumed_at"] for each in told] == [4, 4]
    assert [each["digest"] for each in told] == [each["digest"] for each in whole]
    assert (tmp_path / "second" / "latest").read_text() == "global_step6"
    placed = tmp_path / "second" / "global_step6" / "mp_rank_00_model_states.pt"
    assert placed.read_text() == "cachetier://torn/6/mp_rank_00_model_states.pt\n"
    with Client(node.url) as client:
        found = client.step("torn", 6)
        assert (found.world_size, found.ranks) == (2, (0, 1))
        assert {shard.rank for shard in found.shards} == {0, 1}


@pytest.mark.parametrize("options", [[], ["--decoupled"]], ids=["sync", "decoupled"])
def test_a_save_that_fails_ends_training_with_its_error(
    node: Node, tmp_path: Path, options: list[object]
) -> None:
    node.service.stop()
    environment = {**node.environment, "DS_ACCELERATOR": "cpu", "CACHETIER_FALLBACK": "fail"}
    with pytest.raises(AssertionError, match="ServiceUnavailableError"):
        run_example(SCRIPT, "gone", tmp_path, *options, environment=environment, ranks=1)
    assert not (tmp_path / "latest").exists()
