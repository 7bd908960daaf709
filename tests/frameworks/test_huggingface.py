"""DCP saves safetensors that other tools read, and reads theirs, of whole tensors and of rows."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from cachetier_client import Client
from cachetier_client.errors import InvalidRequestError
from cachetier_client.integrations.step_folders import load_folder
from cachetier_client.torch.huggingface import HuggingFaceWriter
from safetensors import safe_open
from safetensors.torch import load_file
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

from tests.frameworks.conftest import Node
from tests.frameworks.outside import run_example
from tests.frameworks.ranks import run_ranks

pytestmark = [
    pytest.mark.torch,
    pytest.mark.filterwarnings("ignore:torch.distributed is disabled:UserWarning"),
]

ADDRESS = "cachetier://run/10"


def tensors() -> dict[str, Any]:
    torch.manual_seed(3)
    return {
        "layer.weight": torch.randn(700, 900),
        "layer.bias": torch.randn(700).to(torch.bfloat16),
        "turned": torch.randn(5, 3).T,
        "mask": torch.tensor([True, False]),
        "scalar": torch.tensor(7, dtype=torch.int64),
        "none": torch.empty(0, 4),
    }


def zeros() -> dict[str, Any]:
    return {name: torch.zeros_like(each) for name, each in tensors().items()}


def assert_same(found: dict[str, Any], expected: dict[str, Any]) -> None:
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        torch.testing.assert_close(found[name], tensor, rtol=0, atol=0)


@pytest.mark.parametrize("mapping", [None, {"layer.weight": 1, "layer.bias": 2, "turned": 2}])
def test_safetensors_read_what_dcp_has_saved(
    client: Client, tmp_path: Path, mapping: dict[str, int] | None
) -> None:
    dcp.save(tensors(), storage_writer=HuggingFaceWriter(ADDRESS, mapping, client=client))

    folder = load_folder(ADDRESS, tmp_path / "under", client=client)
    assert folder is not None
    index = json.loads((folder / "model.safetensors.index.json").read_text())
    count = 1 if mapping is None else 2
    assert set(index["weight_map"].values()) == {
        f"model-{number:05}-of-{count:05}.safetensors" for number in range(1, count + 1)
    }
    found = {}
    for name, file in index["weight_map"].items():
        with safe_open(folder / file, framework="pt") as opened:
            found[name] = opened.get_tensor(name)
    assert_same(found, tensors())
    assert index["metadata"]["total_size"] == sum(each.nbytes for each in found.values())


def test_dcp_of_torch_reads_what_was_saved(client: Client, tmp_path: Path) -> None:
    dcp.save(tensors(), storage_writer=HuggingFaceWriter(ADDRESS, client=client))
    folder, found = load_folder(ADDRESS, tmp_path / "under", client=client), zeros()

    dcp.load(found, storage_reader=HuggingFaceStorageReader(str(folder)))

    assert_same(found, tensors())


def test_an_async_save_keeps_what_it_was_given(client: Client, tmp_path: Path) -> None:
    store = f"file://{tmp_path}/store"
    dist.init_process_group("gloo", init_method=store, rank=0, world_size=1)
    try:
        state, writer = tensors(), HuggingFaceWriter(client=client)
        saving = dcp.async_save(state, checkpoint_id=ADDRESS, storage_writer=writer)
        for each in state.values():
            each.zero_()
        saving.result()  # type: ignore[union-attr]
        writer.close()
    finally:
        dist.destroy_process_group()

    folder = load_folder(ADDRESS, tmp_path / "under", client=client)
    assert folder is not None
    assert_same(load_file(folder / "model-00001-of-00001.safetensors"), tensors())


@pytest.mark.parametrize(
    ("state", "match"),
    [
        ({"step": [1, 2]}, "is no tensor"),
        ({"odd": torch.zeros(2, dtype=torch.complex128)}, "do not know"),
    ],
)
def test_what_safetensors_do_not_carry_is_refused(
    client: Client, state: dict[str, Any], match: str
) -> None:
    with pytest.raises((CheckpointException, InvalidRequestError), match=match):
        dcp.save(state, storage_writer=HuggingFaceWriter(ADDRESS, client=client))

    assert client.steps("run") == []


# --- two ranks -----------------------------------------------------------------------------------


def saved_by_two(under: str) -> list[list[float]]:
    mesh = init_device_mesh("cpu", (2,))
    whole = torch.arange(20.0).view(10, 2)
    both = {
        name: distribute_tensor(whole + number, mesh, [Replicate()])
        for number, name in enumerate("abcd")
    }
    dcp.save(both, storage_writer=HuggingFaceWriter(ADDRESS))
    dist.barrier()
    halves: dict[str, Any] = {
        name: distribute_tensor(torch.zeros(10, 2), mesh, [Shard(0)]) for name in "abcd"
    }
    folder = load_folder(ADDRESS, under)
    dcp.load(halves, storage_reader=HuggingFaceStorageReader(str(folder)))
    return [_local(halves[name]).sum().tolist() for name in "abcd"]


def _local(tensor: DTensor) -> Any:
    return tensor.to_local()


def refused_of_two() -> str:
    mesh = init_device_mesh("cpu", (2,))
    shards = {"w": distribute_tensor(torch.zeros(10, 2), mesh, [Shard(0)])}
    with pytest.raises(CheckpointException) as raised:
        dcp.save(shards, storage_writer=HuggingFaceWriter(ADDRESS))
    return str(raised.value)


def test_two_ranks_save_whole_tensors_and_load_rows_of_them(node: Node, tmp_path: Path) -> None:
    told = run_ranks(saved_by_two, 2, environment=node.environment, under=str(tmp_path / "under"))

    whole = torch.arange(20.0).view(10, 2)
    for rank, rows in enumerate((whole[:5], whole[5:])):
        assert told[rank] == [float((rows + number).sum()) for number in range(4)]
    found = {}
    for path in (tmp_path / "under" / "10").glob("*.safetensors"):
        found.update(load_file(path))
    assert_same(found, {name: whole + number for number, name in enumerate("abcd")})


def test_sharded_tensors_are_refused_with_what_to_do(node: Node) -> None:
    for told in run_ranks(refused_of_two, 2, environment=node.environment):
        assert "is sharded" in told and "full_state_dict=True" in told


@pytest.mark.soak  # Lightning and transformers are killed in every run
def test_a_killed_training_goes_on_from_its_safetensors(node: Node, tmp_path: Path) -> None:
    def trained(run: str, *more: object, code: int = 0) -> list[dict[str, Any]]:
        script, under = "safetensors_dcp.py", tmp_path / run
        given = [run, under, *more]
        return run_example(script, *given, environment=node.environment, ranks=2, code=code)

    whole = trained("whole", "--compare")
    trained("torn", "--kill-at", 5, code=-signal.SIGKILL)
    told = trained("torn")

    assert [each["resumed_at"] for each in told] == [4, 4]
    assert {each["weights"] for each in told} == {each["weights"] for each in whole}
    assert load_file(tmp_path / "torn" / "4" / "model-00001-of-00002.safetensors")
    assert set(whole[0]["blocked_seconds"]) == {"cachetier", "own"}
