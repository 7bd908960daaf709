"""Read what a plan asks for: straight into the tensors where their memory allows it.

Everything else passes through a buffer of bounded size: what lies in other strides, on a device, or
has another type there. A block of a shard that several tensors share is read once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from cachetier_client.client import Client
from cachetier_client.deadline import Deadline
from cachetier_client.io.aligned import aligned_memory
from cachetier_client.io.buffers import bytes_of
from cachetier_client.torch.extents import Extent
from cachetier_client.torch.hyperslabs import Box, Slab, runs, slabs

BUFFER_BYTES = 32 << 20
_DIRECT_RUN_BYTES = 65536


@dataclass(frozen=True, slots=True)
class Direct:
    """Bytes of a shard that go where they belong."""

    shard: str
    at: int
    into: memoryview


@dataclass(frozen=True, slots=True)
class Buffered:
    """Bytes of a shard that pass through the buffer; ``use`` takes them out of it."""

    shard: str
    at: int
    length: int
    use: Callable[[memoryview], None]


def tensor_reads(
    extent: Extent, box: Box, dtype: torch.dtype, target: Tensor
) -> Iterator[Direct | Buffered]:
    """Yield what to read so that ``target`` has the values of a box of a stored piece.

    Args:
        extent: Where the piece is.
        box: What is wanted of it.
        dtype: Its type.
        target: Of the box's shape, on any device, in any strides, of any type.
    """
    itemsize = dtype.itemsize
    plain = target.device.type == "cpu" and target.dtype == dtype and target.is_contiguous()
    long = box.is_one_run or box.run_elements * itemsize >= _DIRECT_RUN_BYTES
    if plain and long and not (target.is_conj() or target.is_neg()):
        if not target.is_inference():  # torch does not see what is read into its memory
            torch.autograd.graph.increment_version(target)
        into, done = bytes_of(target), 0
        for start, length in runs(box.sizes, box.offsets, box.lengths, itemsize):
            yield Direct(extent.shard, extent.at + start, into[done : done + length])
            done += length
        return
    for slab in slabs(box, BUFFER_BYTES // itemsize):
        start, length = slab.start * itemsize, slab.elements * itemsize
        yield Buffered(extent.shard, extent.at + start, length, _filling(target, slab, dtype))


def _filling(target: Tensor, slab: Slab, dtype: torch.dtype) -> Callable[[memoryview], None]:
    def fill(buffer: memoryview) -> None:
        rows = torch.frombuffer(buffer, dtype=torch.uint8).view(dtype).view(slab.shape)
        target[slab.target].copy_(rows[slab.inner])

    return fill


def fetch(
    client: Client,
    where: tuple[str, int],
    reads: Sequence[Direct | Buffered],
    deadline: Deadline,
) -> int:
    """Read it all, in as few calls as the buffer allows; return how many bytes that took.

    Raises:
        CachetierClientError: See ``Client.read_ranges``; what the targets hold is undefined.
    """
    buffered = sorted(
        (each for each in reads if isinstance(each, Buffered)),
        key=lambda each: (each.shard, each.at),
    )
    direct = [each for each in reads if isinstance(each, Direct)]
    batches = list(_batches(buffered)) or [[]]
    memory = aligned_memory(max(sum(map(_room, batch)) for batch in batches))
    taken = 0
    for batch in batches:
        ranges: dict[str, list[tuple[int, memoryview]]] = {}
        for each in direct:
            ranges.setdefault(each.shard, []).append((each.at, each.into))
        views, end = [], 0
        for wanted in batch:
            views.append(memory[end : end + wanted.length])
            ranges.setdefault(wanted.shard, []).append((wanted.at, views[-1]))
            end += _room(wanted)
        if ranges:
            taken += client.read_ranges(*where, ranges, timeout_seconds=deadline.remaining())
        for wanted, view in zip(batch, views, strict=True):
            wanted.use(view)
        direct = []
    return taken


def _room(wanted: Buffered) -> int:
    return -(-wanted.length // 16) * 16  # so that values of any type begin aligned


def _batches(buffered: Sequence[Buffered]) -> Iterator[list[Buffered]]:
    """Cut reads into batches that fit into the buffer; what is larger goes alone."""
    batch: list[Buffered] = []
    filled = 0
    for wanted in buffered:
        if batch and filled + _room(wanted) > BUFFER_BYTES:
            yield batch
            batch, filled = [], 0
        batch.append(wanted)
        filled += _room(wanted)
    if batch:
        yield batch
