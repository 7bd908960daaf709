"""Single tensors of a step: by name, by rows, from all their pieces, and nothing else."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from cachetier_client import Client, NotFoundError
from cachetier_client.errors import IntegrityError, InvalidRequestError
from cachetier_client.io.digests import BLOCK_BYTES
from cachetier_client.torch.reader import CachetierReader
from cachetier_client.torch.step_tensors import (
    MemoryBudgetError,
    NoSuchTensorError,
    StepTensors,
    open_step,
)
from cachetier_client.torch.writer import CachetierWriter
from torch import Tensor
from torch.distributed.checkpoint._fsspec_filesystem import FsspecWriter
from torch.distributed.checkpoint.filesystem import FileSystemWriter
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

from tests.frameworks.conftest import Node
from tests.frameworks.ranks import run_ranks

pytestmark = [
    pytest.mark.torch,
    # DCP says so whenever a process saves alone.
    pytest.mark.filterwarnings("ignore:torch.distributed is disabled:UserWarning"),
]
ADDRESS = "cachetier://random-access/7"
ROWS = 1 << 10


@dataclass(frozen=True)
class Named:
    """An object that only a trusting torch.load brings back."""

    name: str


def large() -> Tensor:
    return torch.arange(ROWS * (8 << 10), dtype=torch.float32).view(ROWS, -1)  # 32 MiB


def state() -> dict[str, Any]:
    return {
        "large": large(),
        "columns": torch.arange(12 * 10, dtype=torch.int64).view(12, 10),
        "half": torch.arange(99, dtype=torch.bfloat16),
        "scalar": torch.tensor(2.5),
        "empty": torch.zeros(0, 3),
        "group": {"lr": 0.125, "names": ["a", "b"]},
    }


def sharded() -> None:
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    whole = state()
    whole["large"] = distribute_tensor(whole["large"], mesh, [Shard(0)])
    whole["columns"] = distribute_tensor(whole["columns"], mesh, [Shard(1)])
    save(whole, storage_writer=CachetierWriter(ADDRESS))


@pytest.fixture
def step(node: Node) -> Any:
    run_ranks(sharded, 3, environment=node.environment)
    with Client(node.url) as client, open_step(ADDRESS, client=client) as opened:
        yield opened


def test_tensors_of_three_ranks_are_read_one_by_one(step: StepTensors) -> None:
    expected = state()
    assert step.names() == [
        "columns",
        "empty",
        "group.lr",
        "group.names",
        "half",
        "large",
        "scalar",
    ]
    about = step.info("large")
    assert (about.dtype, tuple(about.shape or ()), about.pieces) == (
        torch.float32,
        (ROWS, 8 << 10),
        3,
    )
    assert about.size_bytes == 32 << 20
    for name in ("columns", "half", "large", "scalar", "empty"):
        read = step.read(name)
        assert read.dtype == expected[name].dtype
        assert read.equal(expected[name]), name
    assert step.read("group.lr") == 0.125
    assert step.read("group.names") == ["a", "b"]
    assert step.info("group.lr").dtype is None

    # Rows, in memory of the caller's too, across a border of pieces.
    first, end = ROWS // 3 - 2, ROWS // 3 + 3
    assert step.read("large", rows=slice(first, end)).equal(expected["large"][first:end])
    assert step.bytes_read <= 4 * BLOCK_BYTES
    out = torch.empty(10, 4, dtype=torch.int64).T  # not contiguous
    assert step.read("columns", rows=slice(-4, None), out=out) is out
    assert out.equal(expected["columns"][-4:])
    assert step.read("large", rows=slice(5, 5)).shape == (0, 8 << 10)

    # A small tensor costs a block or so of each rank's shard that has some of it.
    step.read("columns")
    assert step.bytes_read <= 3 * BLOCK_BYTES

    with pytest.raises(NoSuchTensorError, match=r"there are .*large"):
        step.read("model.large")
    with pytest.raises(InvalidRequestError, match="no tensor"):
        step.read("group.lr", rows=slice(1))
    with pytest.raises(InvalidRequestError, match="no rows"):
        step.read("large", rows=slice(0, 10, 2))
    with pytest.raises(InvalidRequestError, match="no rows"):
        step.read("large", rows=5)  # type: ignore[arg-type]
    with pytest.raises(InvalidRequestError, match="out= is"):
        step.read("scalar", out=torch.zeros(3))


def test_a_read_keeps_to_its_budget(node: Node) -> None:
    with Client(node.url) as client:
        save(state(), storage_writer=CachetierWriter(ADDRESS, client=client), no_dist=True)
        small = open_step(ADDRESS, client=client, memory_bytes=1 << 20)
        with pytest.raises(MemoryBudgetError, match=str(32 << 20)):
            small.read("large")
        assert small.bytes_read == 0
        assert small.read("large", rows=slice(10)).equal(large()[:10])
        out = torch.empty(ROWS, 8 << 10)
        assert small.read("large", out=out).equal(large())


def test_what_dcps_own_writer_stored_is_read_too(tmp_path: Path) -> None:
    expected = state()
    save(expected, storage_writer=FileSystemWriter(tmp_path / "step"), no_dist=True)
    with open_step(tmp_path / "step", memory_bytes=(32 << 20) + (1 << 19)) as step:
        assert step.read("half").equal(expected["half"])
        assert step.read("group.lr") == 0.125
        with pytest.raises(MemoryBudgetError):  # such a piece can only be unpickled whole
            step.read("large")
        few = step.read("columns", rows=slice(2, 3))
        assert few.equal(expected["columns"][2:3])


def test_a_step_that_was_saved_through_fsspec_is_read_too(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CACHETIER_URL", node.url)
    expected = {"half": state()["half"], "device": Named("x"), "group": {"lr": 0.5}}
    save(expected, storage_writer=FsspecWriter(ADDRESS, overwrite=True), no_dist=True)
    with Client() as client:
        step = open_step(ADDRESS, client=client)
        assert step.read("half", rows=slice(90, 95)).equal(expected["half"][90:95])
        assert step.read("group.lr") == 0.5
        with pytest.raises(InvalidRequestError, match="weights_only=False"):
            step.read("device")
        assert step.read("device", weights_only=False) == Named("x")


def test_a_piece_that_the_metadata_lacks_is_an_error_and_never_other_bytes(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Client(node.url) as client:
        save(state(), storage_writer=CachetierWriter(ADDRESS, client=client), no_dist=True)
        reader = CachetierReader(ADDRESS, client=client)
        metadata = reader.read_metadata()
        described: Any = metadata.state_dict_metadata["columns"]
        described.chunks.clear()
        monkeypatch.setattr(reader, "read_metadata", lambda: metadata)
        with pytest.raises(IntegrityError, match="lacks a piece of columns"):
            StepTensors(reader).read("columns")


def test_a_step_that_is_not_there_is_said_to_be_missing(node: Node) -> None:
    with Client(node.url) as client, pytest.raises(NotFoundError):
        open_step("cachetier://random-access/99", client=client)
