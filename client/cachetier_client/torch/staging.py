"""The default stager: copies a state into host memory that it uses again from save to save.

The memory of a save is free once nothing refers to the staged tensors any more, that is when DCP is
through with them, in whatever thread or process. Two saves may be under way; a third waits. With
CUDA the memory is pinned, and the copies are waited for by an event on the current stream.
"""

from __future__ import annotations

import contextlib
import copy
import mmap
import threading
import weakref
from collections.abc import Iterable, Mapping
from typing import Any, cast

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from cachetier_client.clock import SystemClock
from cachetier_client.deadline import Deadline
from cachetier_client.errors import DeadlineError, InvalidRequestError
from cachetier_client.io.aligned import PAGE_BYTES, address_of, aligned_memory, view_at
from cachetier_client.io.buffers import check_memory, named
from cachetier_client.torch.devices import cuda_runtime, event_on
from cachetier_client.torch.extents import ALIGNED_FROM_BYTES, SMALL_ALIGNMENT
from cachetier_client.torch.gated import around, tensors_in

SAVES_UNDER_WAY = 2


class HostStager:
    """Copies of states in host memory. One caller at a time; its memory comes back in any thread.

    Args:
        timeout_seconds: How long ``stage`` waits for an earlier save to let go of its memory.
    """

    def __init__(self, *, timeout_seconds: float) -> None:
        self._timeout_seconds = timeout_seconds
        self._changed = threading.Condition()
        self._free: list[_Arena] = []
        self._count = 0
        self.closed = False

    def stage(self, state_dict: Mapping[str, Any]) -> Any:
        """Return a copy of a state, on the host, which may be changed when this returns.

        Raises:
            DeadlineError: The memory is still in use by earlier saves.
            InvalidRequestError: A value cannot be copied, or a tensor has no memory to be copied.
        """
        tensors = dict[int, Tensor]()
        for key, value in state_dict.items():
            plain_ones = [tensor for tensor in tensors_in(value) if _is_plain(tensor)]
            with named(key):
                for tensor in plain_ones:
                    check_memory(_local(tensor))
            tensors.update((id(tensor), tensor) for tensor in plain_ones)
        locals_of = {number: _local(tensor) for number, tensor in tensors.items()}
        size_bytes = sum(_room_for(local) for local in locals_of.values())
        memory = self._take(size_bytes)
        staged: dict[int, Any] = {}
        end = 0
        with torch.no_grad():
            for number, local in locals_of.items():
                target = _place(local, memory[end:])
                target.copy_(local, non_blocking=local.is_cuda)
                staged[number] = around(tensors[number], target)
                end += _room_for(local)
            _wait_for(locals_of.values())
            return {key: _copied(key, value, staged) for key, value in state_dict.items()}

    def close(self) -> None:
        """Free what is not in use now, and the rest when it no longer is."""
        with self._changed:
            self.closed = True
            for arena in self._free:
                arena.close()
            self._free.clear()
            self._changed.notify_all()

    def _take(self, size_bytes: int) -> memoryview:
        """Return memory that comes back by itself when the last view of it is gone."""
        deadline = Deadline(self._timeout_seconds, SystemClock())
        with self._changed:
            while not (self.closed or self._free) and self._count >= SAVES_UNDER_WAY:
                if not self._changed.wait(deadline.remaining()):
                    raise DeadlineError(
                        f"{SAVES_UNDER_WAY} earlier saves still hold their staged state after "
                        f"{self._timeout_seconds:g} s",
                        hint="Wait for the future of an earlier save before beginning another, "
                        "and let go of the futures of those that failed.",
                    )
            if self.closed:
                raise InvalidRequestError(
                    "the writer is closed", hint="Make a new CachetierWriter."
                )
            arena = self._free.pop() if self._free else None
            if arena is not None and arena.size_bytes < size_bytes:
                arena.close()
                self._count -= 1
                arena = None
            if arena is None:
                arena = _Arena(size_bytes)
                self._count += 1
        lease = _Lease()
        weakref.finalize(lease, self._give_back, arena).atexit = False
        return view_at(arena.address, arena.size_bytes, lease)

    def _give_back(self, arena: _Arena) -> None:
        with self._changed:  # re-entrant: the collector may come to it inside of it
            if self.closed:
                arena.close()
            else:
                self._free.append(arena)
            self._changed.notify()


class _Lease:
    """Lives as long as anything staged in one arena does."""


class _Arena:
    """Page-aligned host memory, pinned where there is CUDA."""

    def __init__(self, size_bytes: int) -> None:
        self._memory: memoryview | None = aligned_memory(size_bytes)
        with contextlib.suppress(OSError):  # the first copy is then four times faster
            cast("mmap.mmap", self._memory.obj).madvise(mmap.MADV_HUGEPAGE)
        self.size_bytes = len(self._memory)
        self.address = address_of(self._memory)
        self._pinned = torch.cuda.is_available() and _registered(self.address, self.size_bytes)

    def close(self) -> None:
        if self._pinned:
            cuda_runtime().cudaHostUnregister(self.address)
            self._pinned = False
        self._memory = None


def _registered(address: int, size_bytes: int) -> bool:
    """Pin memory; where the driver refuses, copies are slower and nothing else."""
    return int(cuda_runtime().cudaHostRegister(address, size_bytes, 0)) == 0


def _copied(key: str, value: Any, copies: dict[int, Any]) -> Any:
    """Return a copy of an entry of a state; ``copies`` are those of its tensors, by their ids."""
    try:
        return copy.deepcopy(value, copies)
    except Exception as error:
        raise InvalidRequestError(
            f"{key} holds something that cannot be copied: {error}",
            hint="Save with dcp.save, which needs no copy, or leave it out of the state.",
        ) from error


def _is_plain(tensor: Tensor) -> bool:
    """Whether a tensor is its local part's bytes; others copy themselves."""
    if isinstance(tensor, DTensor):
        tensor = tensor._local_tensor
    elif type(tensor) not in (Tensor, torch.nn.Parameter, torch.nn.Buffer):
        return False
    dense = tensor.layout == torch.strided and not tensor.is_quantized
    return dense and tensor.device.type != "meta" and not hasattr(tensor, "__tensor_flatten__")


def _local(tensor: Tensor) -> Tensor:
    local = tensor._local_tensor if isinstance(tensor, DTensor) else tensor
    waiting = getattr(local, "trigger_wait", None)
    return (waiting() if waiting is not None else local).detach()


def _room_for(tensor: Tensor) -> int:
    """Return how much memory a tensor takes, so that every tensor begins at a good address."""
    size_bytes = tensor.numel() * tensor.element_size()
    unit = PAGE_BYTES if size_bytes >= ALIGNED_FROM_BYTES else SMALL_ALIGNMENT
    return -(-size_bytes // unit) * unit


def _place(tensor: Tensor, memory: memoryview) -> Tensor:
    """Return an empty tensor like ``tensor``, with a storage of its own, at the memory's start."""
    size_bytes = tensor.numel() * tensor.element_size()
    if not size_bytes:
        return torch.empty(tensor.shape, dtype=tensor.dtype)
    flat = torch.frombuffer(memory[:size_bytes], dtype=torch.uint8)
    return flat.view(tensor.dtype).view(tensor.shape)


def _wait_for(tensors: Iterable[Tensor]) -> None:
    """Wait for the copies from CUDA devices, without stopping the devices."""
    for device in {tensor.device for tensor in tensors if tensor.is_cuda}:
        event_on(torch.cuda.current_stream(device)).synchronize()
