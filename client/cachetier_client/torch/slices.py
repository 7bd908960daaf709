"""Copy a range of a tensor's bytes into memory of the host, whatever its strides and device.

A tensor's bytes are those of its C-contiguous form, but that form is never made: what a range
covers is cut into whole rows and the ends of rows, which are copied one by one.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor


def copy_range(tensor: Tensor, into: memoryview, at: int, *, non_blocking: bool = False) -> None:
    """Put the bytes of ``tensor`` from ``at`` on into ``into``.

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
        _copy(tensor.detach(), at // itemsize, flat, non_blocking)


def _copy(tensor: Tensor, start: int, into: Tensor, non_blocking: bool) -> None:
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
            _copy(tensor[number], within, into[done : done + count], non_blocking)
            done += count


def copy_of(tensor: Tensor) -> Callable[[memoryview, int], None]:
    """Return how to copy a range of ``tensor``, there when the call returns."""

    def copy(into: memoryview, at: int) -> None:
        copy_range(tensor, into, at)

    return copy
