"""The work of a rank in a save, read from DCP's plan.

Pieces with their bytes, and under which identity.

The coordinator names the save for all ranks, in the plans it hands out anyway. So no rule has to
find out a name that is equal on all ranks, not even in DCP's background process or in a group that
is only part of the job.
"""

from __future__ import annotations

import dataclasses
import io
import secrets
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner, WriteItem, WriteItemType

from cachetier_client.errors import InvalidRequestError
from cachetier_client.io.buffers import check_memory, named
from cachetier_client.torch.layout import Piece
from cachetier_client.torch.sending import claimant

_ID_BYTES = 8
_COPIED_BYTES = 16 << 20


_assignments = threading.local()


@dataclass(frozen=True, slots=True)
class Assignment:
    """Which save a rank takes part in, and as which rank of it; None: the client's rules say.

    A planner that caches plans gives back the plan of an earlier save, with that save's assignment.
    So what came with this one is kept as it comes in, see ``take_assignment``.
    """

    save_id: str | None
    rank: int | None
    world_size: int | None

    @property
    def shard_name(self) -> str:
        """The name that DCP's writers give the first file of a rank."""
        return f"__{self.rank or 0}_0.distcp"

    def __reduce__(self) -> tuple[Any, ...]:
        return _received, (self.save_id, self.rank, self.world_size)


def _received(save_id: str | None, rank: int | None, world_size: int | None) -> Assignment:
    assignment = _assignments.assignment = Assignment(save_id, rank, world_size)
    return assignment


def take_assignment(plan: SavePlan) -> Assignment:
    """Return this rank's assignment in the save that this thread does, and forget it."""
    assignment: Assignment = getattr(_assignments, "assignment", None) or plan.storage_data
    _assignments.assignment = None
    return assignment


def forget_assignment() -> None:
    """Forget what an earlier save of this thread has left behind."""
    _assignments.assignment = None


def assigned(plans: Sequence[SavePlan]) -> list[SavePlan]:
    """Return the plans of all ranks with a fresh save's name in them, those that have one aside."""
    save_id = f"d-{secrets.token_hex(_ID_BYTES)}"
    named = [
        plan
        if isinstance(plan.storage_data, Assignment)
        else dataclasses.replace(plan, storage_data=Assignment(save_id, rank, len(plans)))
        for rank, plan in enumerate(plans)
    ]
    _assignments.assignment = named[0].storage_data  # the coordinator's own, where nothing is sent
    return named


def resolve(plan: SavePlan, planner: SavePlanner) -> list[tuple[WriteItem, Piece]]:
    """Return what a plan asks to write, in its order.

    A few small tensors in another order than C's are copied, so that they make no stream of the
    whole shard.

    Raises:
        InvalidRequestError: A tensor has no plain bytes to store.
    """
    resolved, room = [], _COPIED_BYTES
    with torch.no_grad():  # so that a DTensor gives its own local tensor, not a view of it
        for item in plan.items:
            piece = _piece(item, planner)
            if piece.length <= room and _is_out_of_order(piece.content):
                room -= piece.length
                ordered = cast("Tensor", piece.content).contiguous()
                piece = dataclasses.replace(piece, content=ordered)
            resolved.append((item, piece))
    return resolved


def _is_out_of_order(content: Tensor | memoryview) -> bool:
    """Whether this is a tensor in host memory that nobody has claimed, not contiguous."""
    if not isinstance(content, Tensor) or content.device.type != "cpu":
        return False
    return not content.is_contiguous() and claimant(content) is None


def _piece(item: WriteItem, planner: SavePlanner) -> Piece:
    name, resolved = item.index.fqn, planner.resolve_data(item)
    if item.type == WriteItemType.BYTE_IO:
        assert isinstance(resolved, io.BytesIO)
        return Piece(name, (), memoryview(resolved.getvalue()))  # not copied
    assert isinstance(resolved, Tensor)
    content = plain(name, resolved)
    offsets = tuple(item.index.offset or (0,) * content.dim())
    chunk = item.tensor_data.chunk if item.tensor_data else None
    if chunk is not None and chunk.sizes != content.shape:
        raise InvalidRequestError(
            f"{name} is planned as {tuple(chunk.sizes)} and is {tuple(content.shape)}",
            hint="The state changed its shapes while it was saved, or a planner is wrong.",
        )
    return Piece(name, offsets, content)


def plain(name: str, tensor: Tensor) -> Tensor:
    """Return a tensor whose elements, in order, are the bytes to store."""
    waiting = getattr(tensor, "trigger_wait", None)  # an AsyncCollectiveTensor, not there yet
    if waiting is not None:
        tensor = waiting()
    if tensor.layout != torch.strided or tensor.is_quantized or tensor.device.type == "meta":
        kind = "quantized" if tensor.is_quantized else f"{tensor.layout} on {tensor.device}"
        raise InvalidRequestError(
            f"{name} is a tensor without plain bytes ({kind})",
            hint="Save a dense tensor instead: tensor.to_dense(), or tensor.int_repr() beside its "
            "scale and zero point.",
        )
    if hasattr(tensor, "__tensor_flatten__"):
        raise InvalidRequestError(
            f"{name} is a {type(tensor).__name__}, a tensor made of others",
            hint="Save the tensors it is made of, or a plain one: tensor.dequantize(), say.",
        )
    with named(name):
        check_memory(tensor)
    return tensor.resolve_conj().resolve_neg()
