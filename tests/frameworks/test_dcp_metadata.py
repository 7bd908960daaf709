"""The metadata's pickle: what checkpoints need is read, anything else is refused before it runs."""

from __future__ import annotations

import os
import pickle
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from cachetier_client.errors import IntegrityError
from cachetier_client.torch.extents import Extent
from cachetier_client.torch.metadata import dump, load, rank_metadata_name
from torch.distributed._shard.sharded_tensor import metadata as sharded_tensor
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    StorageMeta,
    TensorProperties,
    TensorStorageMetadata,
)


class Hostile:
    """Runs a command where it is unpickled."""

    def __init__(self, victim: Path) -> None:
        self.victim = victim

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.victim),)


def metadata(**changes: Any) -> Metadata:
    size = torch.Size([4, 2])
    chunk = ChunkStorageMetadata(torch.Size([0, 0]), size)
    properties = TensorProperties(dtype=torch.bfloat16)
    fields: dict[str, Any] = {
        "state_dict_metadata": {
            "w": TensorStorageMetadata(properties, size, [chunk]),
            "o": BytesStorageMetadata(),
        },
        "planner_data": {"w": ("model", "w"), "o": ("o", 0)},
        "storage_data": {MetadataIndex("w", size): Extent("__0_0.distcp", 64, 16)},
        "storage_meta": StorageMeta(checkpoint_id="cachetier://run/1", save_id="d-1"),
        "version": "1.0.0",
    }
    return Metadata(**{**fields, **changes})


def test_metadata_comes_back_as_it_was() -> None:
    assert load(dump(metadata())) == metadata()
    assert load(memoryview(dump(metadata(storage_meta=None)))).storage_meta == StorageMeta()


def test_a_path_in_it_is_allowed() -> None:
    """DCP's own writers put one there."""
    meta = StorageMeta(checkpoint_id=Path("/checkpoints/1"))

    assert load(dump(metadata(storage_meta=meta))).storage_meta == meta


def test_metadata_of_an_earlier_torch_is_read() -> None:
    size = torch.Size([4])
    older = sharded_tensor.TensorProperties(dtype=torch.float16)
    chunk = ChunkStorageMetadata(torch.Size([0]), size)
    tensor = TensorStorageMetadata(cast("TensorProperties", older), size, [chunk])
    data = dump(metadata(state_dict_metadata={"w": tensor}))
    assert b"torch.distributed._shard.sharded_tensor.metadata" in data

    read = load(data).state_dict_metadata["w"]
    assert isinstance(read, TensorStorageMetadata)
    assert read.properties == TensorProperties(dtype=torch.float16)


@pytest.mark.parametrize("where", ["planner_data", "storage_data", "version"])
def test_a_hostile_pickle_runs_nothing(tmp_path: Path, where: str) -> None:
    victim = tmp_path / "made"

    with pytest.raises(IntegrityError, match=r"posix\.mkdir") as refused:
        load(dump(metadata(**{where: Hostile(victim)})))

    assert not victim.exists()
    assert "trusted=True" in refused.value.hint


@pytest.mark.parametrize(
    "code",
    [
        b"cbuiltins\neval\n(S'1'\ntR.",
        b"ctorch\nload\n.",
        b"ctorch\nhub.load\n.",
        b"\x80\x04\x8c\x05torch\x8c\x08hub.load\x93.",
        b"ctorch.serialization\nload\n.",
        b"ccachetier_client.torch.extents\nExtent.__init__.__globals__\n.",
    ],
)
def test_functions_of_allowed_modules_are_refused_too(code: bytes) -> None:
    with pytest.raises(IntegrityError):
        load(code)


@pytest.mark.parametrize("data", [b"", b"not a pickle", dump(metadata())[:-40], pickle.dumps({})])
def test_what_is_no_metadata_is_refused(data: bytes) -> None:
    with pytest.raises(IntegrityError):
        load(data)


def test_whoever_trusts_the_storage_may_have_classes_of_their_own(tmp_path: Path) -> None:
    data = dump(metadata(planner_data=Hostile(tmp_path / "made")))

    assert load(data, trusted=True).planner_data is None
    assert (tmp_path / "made").exists()


def test_a_ranks_own_metadata_has_dcps_name() -> None:
    assert rank_metadata_name(3) == "__3.metadata"
