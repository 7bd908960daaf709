"""A step that is saved again while it is loaded is never a mix of both saves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from cachetier_client import Client
from cachetier_client.errors import IntegrityError
from cachetier_client.torch import CachetierReader, CachetierWriter, latest_common_step
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.planner import LoadPlan

from tests.frameworks.conftest import Node
from tests.integration.serving import running
from tests.integration.two_remotes import until

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled:UserWarning")
STEP = "cachetier://run/1"


def save(client: Client, **state: Any) -> None:
    dcp.save(state, storage_writer=CachetierWriter(STEP, client=client))


class SavesMeanwhile(DefaultLoadPlanner):
    """Has the step saved again, in another order, once its metadata is read."""

    def __init__(self, client: Client) -> None:
        super().__init__()
        self._client = client

    def finish_plan(self, new_plan: LoadPlan) -> LoadPlan:
        save(self._client, a=torch.full((1000,), 7.0), x=torch.full((1000,), 2.0))
        return super().finish_plan(new_plan)


def test_a_step_that_was_saved_again_after_its_metadata_was_read_is_refused(
    client: Client,
) -> None:
    save(client, x=torch.ones(1000))
    loaded = {"x": torch.zeros(1000)}

    with pytest.raises(CheckpointException, match=r"step=1 rank=0: .*replaced") as failed:
        dcp.load(
            loaded,
            storage_reader=CachetierReader(STEP, client=client),
            planner=SavesMeanwhile(client),
        )

    (error, _) = failed.value.failures[0]
    assert isinstance(error, IntegrityError)
    dcp.load(loaded, storage_reader=CachetierReader(STEP, client=client))
    assert loaded["x"].tolist() == [2.0] * 1000


def test_ranks_that_have_read_the_metadata_of_two_saves_load_neither(client: Client) -> None:
    readers = [CachetierReader(STEP, client=client) for _ in range(2)]
    plans = []
    for reader in readers:
        save(client, x=torch.ones(3))
        reader.set_up_storage_reader(reader.read_metadata(), is_coordinator=False)
        plans.append(reader.prepare_local_plan(LoadPlan([])))

    with pytest.raises(IntegrityError, match=r"run=run step=1: .*replaced"):
        readers[0].prepare_global_plan(plans)

    assert readers[0].prepare_global_plan(plans[:1]) == plans[:1]


def test_a_step_that_another_node_replaced_is_loaded_as_it_is_now(
    node: Node, client: Client, tmp_path: Path
) -> None:
    save(client, x=torch.ones(1000))
    client.wait("run", 1)
    settings = {
        **node.settings,
        "cache_dir": tmp_path / "b",
        "socket": f"{node.settings['socket']}b",
    }
    with running(settings) as other, Client(f"unix://{other.socket}") as there:
        save(there, x=torch.full((1000,), 2.0))
        new = there.step("run", 1).save_id
        until(lambda: [each.save_id for each in there.steps("run", "durable")] == [new])

    until(lambda: [each.save_id for each in client.steps("run", "local")] in ([], [new]))
    assert latest_common_step("run", client=client) == 1
    loaded = {"x": torch.zeros(1000)}
    dcp.load(loaded, storage_reader=CachetierReader(STEP, client=client))
    assert loaded["x"].tolist() == [2.0] * 1000
