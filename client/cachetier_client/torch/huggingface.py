"""DCP saves safetensors: ``model-00001-of-0000N.safetensors`` and their index, in a step.

    dcp.save(state, storage_writer=HuggingFaceWriter("cachetier://my-run/1000"))

torch's own reader takes local folders alone: give it what ``load_folder`` returns.

Source: docs/frameworks.md, "safetensors".
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any, cast

import torch
from safetensors.torch import _TYPES
from torch import Tensor
from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner, WriteItem, WriteItemType
from torch.distributed.checkpoint.storage import WriteResult

from cachetier_client.checkpoints import Checkpoint
from cachetier_client.errors import InvalidRequestError
from cachetier_client.torch.plans import plain
from cachetier_client.torch.writer import CachetierWriter

INDEX_NAME = "model.safetensors.index.json"
SUFFIX = ".safetensors"
_LENGTH_BYTES = 8
_DTYPES = {dtype: name for name, dtype in _TYPES.items() if dtype is not None}


class HuggingFaceWriter(CachetierWriter):
    """A ``CachetierWriter`` whose step any tool for safetensors reads, once it is a local folder.

    Each rank writes the tensors that DCP's plan gives it, whole ones alone. Those on a device pass
    through host memory, a file's at once.

    Args:
        path: As ``CachetierWriter`` takes it.
        fqn_to_index_mapping: Into which of how many files a tensor goes, from 1; each rank has as
            many. Default: one file for each rank.
        options: Those of ``CachetierWriter`` but ``stager``.
    """

    def __init__(
        self,
        path: str | os.PathLike[str] | None = None,
        fqn_to_index_mapping: Mapping[str, int] | None = None,
        **options: Any,
    ) -> None:
        if "stager" in options:
            raise TypeError("HuggingFaceWriter takes no stager: dcp.async_save uses the writer's")
        super().__init__(path, **options)
        self._file_of = dict(fqn_to_index_mapping or {})

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        """Refuse what safetensors cannot carry, and what ``CachetierWriter`` does.

        Raises:
            InvalidRequestError: A piece of a tensor, or an object; or no collectives.
        """
        if not self._saves.current().collectives:
            raise InvalidRequestError(
                "safetensors have one index, and use_collectives=False makes one for each rank",
                hint="Leave use_collectives as it is, or save with CachetierWriter.",
            )
        for item in plan.items:
            _check_whole(item)
        return super().prepare_local_plan(plan)

    def _write(
        self, part: Checkpoint, name: str, plan: SavePlan, planner: SavePlanner
    ) -> list[WriteResult]:
        del name  # of DCP's own format
        files: dict[int, list[WriteItem]] = {}
        for item in plan.items:
            files.setdefault(self._file_of.get(item.index.fqn, 1), []).append(item)
        in_each = max(self._file_of.values(), default=1)
        results = []
        for number, items in files.items():
            count = f"{part.rank * in_each + number:05}-of-{part.world_size * in_each:05}"
            file_name = f"model-{count}{SUFFIX}"
            with torch.no_grad():
                tensors = {
                    item.index.fqn: plain(
                        item.index.fqn, cast("Tensor", planner.resolve_data(item))
                    ).cpu()
                    for item in items
                }
            contents = [each.contiguous() for each in tensors.values()]
            part.put(name=file_name, data=[_header(tensors), *contents])
            for item in items:
                size = tensors[item.index.fqn].nbytes
                results.append(WriteResult(item.index, size, _StorageInfo(file_name, 0, size)))
        return results

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        """Store the index and seal: with that the step is complete."""
        del metadata  # the files say it
        save = self._saves.current()
        if save.part is None:
            raise InvalidRequestError("finish() before write_data()", hint="Save with dcp.save.")
        written = [each for rank in results for each in rank]
        index = {
            "metadata": {"total_size": sum(each.size_in_bytes for each in written)},
            "weight_map": {each.index.fqn: each.storage_data.relative_path for each in written},
        }
        try:
            save.part.put(name=INDEX_NAME, data=json.dumps(index, indent=2).encode())
            self._seal(save)
        except BaseException as error:
            self._abort_after(error, save, INDEX_NAME)
            raise


def _check_whole(item: WriteItem) -> None:
    described = item.tensor_data
    if item.type == WriteItemType.BYTE_IO or described is None:
        raise InvalidRequestError(
            f"{item.index.fqn} is no tensor, and safetensors carry tensors alone",
            hint="Save the tensors of the model with this writer, the rest with CachetierWriter.",
        )
    if described.chunk.sizes != described.size:
        raise InvalidRequestError(
            f"{item.index.fqn} is sharded, and a tensor lies in one file of safetensors",
            hint="Gather it first: get_model_state_dict(model, "
            "options=StateDictOptions(full_state_dict=True, cpu_offload=True)).",
        )


def _header(tensors: Mapping[str, Tensor]) -> bytes:
    """Return the beginning of a file of safetensors, whose tensors follow in this order."""
    described: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, tensor in tensors.items():
        if tensor.dtype not in _DTYPES:
            raise InvalidRequestError(
                f"{name} is {tensor.dtype}, which safetensors do not know",
                hint="Save it as another type, or with CachetierWriter.",
            )
        start, end = end, end + tensor.nbytes
        described[name] = {
            "dtype": _DTYPES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [start, end],
        }
    text = json.dumps(described, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _LENGTH_BYTES)
    return len(text).to_bytes(_LENGTH_BYTES, "little") + text
