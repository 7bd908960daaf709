"""Where training's tensors lie, and how their bytes come to the host beside it.

CPU tensors are copied by the thread that saves. Those on CUDA devices are copied on a stream of
their own, which first waits for what training had enqueued when the state was staged; the training
streams wait for the copies only where training is about to change what is copied.

A *passage* is what one snapshot needs of this: ``early`` and ``mark`` in training's thread, then
``settle`` and ``copy_of`` in the one that saves, then ``hold`` in training's again.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from cachetier_client.errors import InvalidRequestError
from cachetier_client.io.aligned import address_of
from cachetier_client.io.ring import Ring
from cachetier_client.units import shown_size

Copy = Callable[[memoryview, int], Callable[[], None] | None]
"""Puts a tensor's bytes, from an offset on, into memory; what it returns waits until they are."""


class Passage:
    """How the tensors of one snapshot come to the host: from host memory, copied at once."""

    def early(self, tensor: Tensor) -> Tensor:
        """Return a copy on the host of what the tensor is now; filled after ``settle``."""
        return tensor.detach().clone()

    def mark(self) -> None:
        """Have all later copies be of what training's streams have come to now."""

    def settle(self) -> None:
        """Wait until the early copies are there."""

    def copy_of(self, tensor: Tensor) -> Copy:
        """Return how a tensor's bytes are copied, after the mark."""
        if not tensor.is_contiguous():
            return lambda into, at: _copy_range(tensor, into, at)
        address = tensor.data_ptr()

        def copy(into: memoryview, at: int) -> None:
            ctypes.memmove(address_of(into), address + at, len(into))  # without the GIL

        return copy

    def arrive(self) -> None:
        """Wait until the copies that were asked for so far are there."""

    def hold(self) -> None:
        """Have training's streams wait for the copies that were asked for so far."""


class Devices:
    """The state kept from snapshot to snapshot: on a machine without devices, nothing."""

    def pin(self, ring: Ring) -> None:
        """Have copies into the ring go at full speed; raises if that is refused."""

    def unpin(self) -> None:
        """Let the ring's memory go; may be called twice."""

    def passage(self) -> Passage:
        """Begin a snapshot."""
        return Passage()


def devices() -> Devices:
    """Return this machine's devices."""
    return CudaDevices() if torch.cuda.is_available() else Devices()


class CudaDevices(Devices):
    """A machine with CUDA devices: a stream for copies on each that training uses."""

    def __init__(self) -> None:
        self._pinned_at = 0
        self._sides: dict[int, Any] = {}

    def pin(self, ring: Ring) -> None:
        """Register the ring's memory with CUDA.

        Raises:
            InvalidRequestError: CUDA refuses so much memory.
        """
        refused = int(cuda_runtime().cudaHostRegister(ring.address, ring.size_bytes, 0))
        if refused:
            raise InvalidRequestError(
                f"CUDA does not pin {shown_size(ring.size_bytes)} of host memory (error {refused})",
                hint="Pass a smaller ring_bytes, or raise the limit of locked memory (ulimit -l).",
            )
        self._pinned_at = ring.address

    def unpin(self) -> None:
        """Wait for copies under way, and let the memory go."""
        pinned_at, self._pinned_at = self._pinned_at, 0
        if pinned_at:
            for side in self._sides.values():
                side.synchronize()
            cuda_runtime().cudaHostUnregister(pinned_at)

    def passage(self) -> Passage:
        return CudaPassage(self.side)

    def side(self, device: torch.device) -> Any:
        """Return the stream on which a device's tensors are copied."""
        index = device.index or 0
        if index not in self._sides:
            new_stream: Any = torch.cuda.Stream
            self._sides[index] = new_stream(device=device)
        return self._sides[index]


class CudaPassage(Passage):
    """Copies beside the training streams.

    Args:
        side: Returns the stream for copies from a device.
    """

    def __init__(self, side: Callable[[torch.device], Any]) -> None:
        self._side = side
        self._early: list[Any] = []
        self._marks: dict[torch.device, Any] = {}
        self._copied: dict[torch.device, Any] = {}

    def early(self, tensor: Tensor) -> Tensor:
        if not tensor.is_cuda:
            return super().early(tensor)
        copy = pinned_like(tensor)
        copy.copy_(tensor.detach(), non_blocking=True)
        self._early.append(event_on(torch.cuda.current_stream(tensor.device)))
        return copy

    def mark(self) -> None:
        for number in range(torch.cuda.device_count()):
            device = torch.device("cuda", number)
            if torch.cuda.memory_reserved(device):  # leaves alone what this process does not use
                self._marks[device] = event_on(torch.cuda.current_stream(device))

    def settle(self) -> None:
        for event in self._early:
            event.synchronize()
        self._early.clear()

    def copy_of(self, tensor: Tensor) -> Copy:
        if not tensor.is_cuda:
            return super().copy_of(tensor)
        side, mark = self._side(tensor.device), self._marks.get(tensor.device)
        if mark is not None:
            side.wait_event(mark)

        def copy(into: memoryview, at: int) -> Callable[[], None]:
            with torch.cuda.stream(side):
                _copy_range(tensor, into, at, non_blocking=True)
            event = self._copied[tensor.device] = event_on(side)
            wait: Callable[[], None] = event.synchronize
            return wait

        return copy

    def arrive(self) -> None:
        for event in [*self._copied.values()]:
            event.synchronize()

    def hold(self) -> None:
        for device, event in self._copied.items():
            torch.cuda.current_stream(device).wait_event(event)


def pinned_like(tensor: Tensor) -> Tensor:
    """Return pinned host memory for a tensor's values; torch keeps freed ones for the next."""
    return torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)


def event_on(stream: Any) -> Any:
    """Return an event that comes when a stream has done what it was given so far."""
    new_event: Any = torch.cuda.Event
    event = new_event(blocking=True)  # who waits for it sleeps, and leaves the CPU alone
    event.record(stream)
    return event


def cuda_runtime() -> Any:
    """Return CUDA's own functions."""
    runtime: Any = torch.cuda.cudart
    return runtime()


def _copy_range(tensor: Tensor, into: memoryview, at: int, *, non_blocking: bool = False) -> None:
    """Put the bytes of ``tensor`` from ``at`` on into ``into``, whatever its strides and device.

    A tensor's bytes are those of its C-contiguous form, but that form is never made: what a range
    covers is cut into whole rows and the ends of rows, which are copied one by one.

    Args:
        tensor: Any dense tensor.
        into: Writable memory, as long as whole elements and no longer than what is left.
        at: A whole element's offset, in bytes.
        non_blocking: Only begin the copy, where ``into`` is pinned and the tensor on a device.
    """
    if not len(into):
        return
    itemsize = tensor.element_size()
    flat = torch.frombuffer(into, dtype=torch.uint8).view(tensor.dtype)
    with torch.no_grad():
        _copy_elements(tensor.detach(), at // itemsize, flat, non_blocking)


def _copy_elements(tensor: Tensor, start: int, into: Tensor, non_blocking: bool) -> None:
    """Fill the flat ``into`` with the elements from ``start`` on."""
    if tensor.is_contiguous():
        into.copy_(tensor.view(-1)[start : start + into.numel()], non_blocking=non_blocking)
        return
    row = tensor[0].numel()
    done = 0
    while done < into.numel():
        number, within = divmod(start + done, row)
        whole = 0 if within else (into.numel() - done) // row
        if whole:
            rows = tensor[number : number + whole]
            target = into[done : done + whole * row]
            target.view(rows.shape).copy_(rows, non_blocking=non_blocking)
            done += whole * row
        else:
            count = min(row - within, into.numel() - done)
            _copy_elements(tensor[number], within, into[done : done + count], non_blocking)
            done += count
