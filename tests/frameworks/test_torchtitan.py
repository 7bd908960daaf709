"""torchtitan's CheckpointManager, unmodified, saves to ``cachetier://``, resumes and removes."""

from __future__ import annotations

import fsspec
import pytest
from cachetier_client import Client

from tests.frameworks.conftest import Node
from tests.frameworks.outside import needs, run_example
from tests.integration.two_remotes import until

pytestmark = [needs("torchtitan", "torchtitan"), pytest.mark.slow, pytest.mark.timeout(900)]
SCRIPT = "torchtitan_manager.py"


@pytest.mark.parametrize("mode", ["disabled", "async"])
def test_the_manager_goes_on_with_the_same_weights(
    node: Node, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    environment = {**node.environment, "CACHETIER_STEP_NAME": "step-{step}"}

    def trained(*arguments: object, code: int = 0) -> list[dict[str, object]]:
        given = [*arguments, "--mode", mode]
        return run_example(SCRIPT, *given, environment=environment, ranks=2, code=code)

    whole = trained("cachetier://whole")
    trained("cachetier://torn", "--fail-after", 5, code=9)
    told = trained("cachetier://torn")

    assert [each["resumed_at"] for each in told] == [4, 4]
    assert [each["digest"] for each in told] == [each["digest"] for each in whole]
    with Client(node.url) as client:
        client.wait("torn", 7, "durable", timeout_seconds=60)
        found = client.step("torn", 7)
        assert (found.world_size, found.ranks) == (2, (0, 1))
        if mode == "disabled":  # in the background it counts before the new one is whole
            until(lambda: [info.step for info in client.steps("torn", "durable")] == [4, 6, 7])
    monkeypatch.setenv("CACHETIER_STEP_NAME", "step-{step}")
    fs = fsspec.filesystem("cachetier", service_url=node.url)
    listed = [name.rpartition("/")[2] for name in fs.ls("torn", detail=False)]
    assert listed[-3:] == ["step-4", "step-6", "step-7"]  # keep_latest_k=2, before the last one
    assert fs.isfile("torn/step-7/.metadata")
    fs.client.close()
