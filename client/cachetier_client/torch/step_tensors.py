"""One tensor of a stored step, by name and by rows, without the rest of it.

Source: docs/torch.md, "Read one tensor".
"""

from __future__ import annotations

import io
import math
import operator
import os
import pickle
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Self, TypeAlias

import torch
from torch import Tensor
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    ChunkStorageMetadata,
    MetadataIndex,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import LoadItemType, LoadPlan, ReadItem
from torch.distributed.checkpoint.planner_helpers import create_read_items_for_chunk_list

from cachetier_client.client import Client
from cachetier_client.errors import IntegrityError, InvalidRequestError, NotFoundError
from cachetier_client.torch.dcp import DCP_SECONDS
from cachetier_client.torch.hyperslabs import Box, slabs
from cachetier_client.torch.reader import CachetierReader

MEMORY_BYTES = 256 << 20
PIECES_BYTES = 32 << 20
_NAMES_SHOWN = 3

TensorBox: TypeAlias = tuple[str, ChunkStorageMetadata]


class MemoryBudgetError(InvalidRequestError):
    """A read would take more memory than ``memory_bytes``; nothing was read."""

    hint = "Pass a larger memory_bytes to open_step, read fewer rows=, or fill a tensor of out=."


class NoSuchTensorError(NotFoundError):
    """The step has nothing of that name."""


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """A tensor of a step, or an object: ``dtype`` and ``shape`` are then None.

    ``size_bytes`` is that of the whole, which lies in ``pieces`` pieces.
    """

    name: str
    dtype: torch.dtype | None
    shape: torch.Size | None
    size_bytes: int
    pieces: int


def open_step(
    address: str | os.PathLike[str],
    *,
    client: Client | None = None,
    memory_bytes: int = MEMORY_BYTES,
    step_name: str | None = None,
    timeout_seconds: float = DCP_SECONDS,
    trusted: bool = False,
) -> StepTensors:
    """Open a step that DCP has saved, by ``CachetierWriter`` or through fsspec.

    Only its metadata is read. A path without ``cachetier://`` is a directory of DCP's own.

    Args:
        address: ``cachetier://run/1000``.
        client: Default: the process's own.
        memory_bytes: The most that one read may take, beside a working buffer of at most 64 MiB.
        step_name: How folders of steps are called; default ``CACHETIER_STEP_NAME``, ``{step}``.
        timeout_seconds: For each read.
        trusted: Let the metadata's pickle run any code.

    Raises:
        NotFoundError: There is no such step, or it is not one of DCP's.
    """
    reader = CachetierReader(
        address,
        client=client,
        step_name=step_name,
        timeout_seconds=timeout_seconds,
        trusted=trusted,
    )
    return StepTensors(reader, memory_bytes)


class StepTensors:
    """The tensors and objects of one step. For one thread at a time; a context manager."""

    def __init__(self, reader: CachetierReader, memory_bytes: int = MEMORY_BYTES) -> None:
        self._reader = reader
        self._memory_bytes = memory_bytes
        self.metadata = metadata = reader.read_metadata()
        reader.set_up_storage_reader(metadata, is_coordinator=True)
        self._described = metadata.state_dict_metadata
        self._places: dict[MetadataIndex, Any] = dict(metadata.storage_data or {})

    @property
    def bytes_read(self) -> int:
        """How many bytes of shards the last read took, whole blocks of 4 MiB."""
        return self._reader.bytes_read

    @property
    def place(self) -> tuple[Client, str, int] | None:
        """The client, run and step that are read; None of a directory."""
        step = self._reader.step
        return None if step is None else (step.client, *step.where)

    def names(self) -> list[str]:
        """Return the names of all tensors and objects, sorted."""
        return sorted(self._described)

    def info(self, name: str) -> TensorInfo:
        """Return what there is of one name.

        Raises:
            NoSuchTensorError: Nothing.
        """
        described = self._of(name)
        if isinstance(described, BytesStorageMetadata):
            return TensorInfo(name, None, None, self._length(MetadataIndex(name)), 1)
        dtype, shape = described.properties.dtype, described.size
        return TensorInfo(name, dtype, shape, shape.numel() * dtype.itemsize, len(described.chunks))

    def read(
        self,
        name: str,
        *,
        out: Tensor | None = None,
        rows: slice | None = None,
        weights_only: bool = True,
    ) -> Any:
        """Return one tensor, put together from its pieces, or one object.

        Args:
            name: One of ``names()``.
            out: Filled and returned: of the tensor's type, and the shape of what is read.
            rows: Only these of the first dimension; no steps.
            weights_only: As ``torch.load`` takes it, for an object.

        Raises:
            MemoryBudgetError: It takes more than ``memory_bytes``.
            CachetierClientError: It could not be read, verified, in time.
        """
        described = self._of(name)
        if isinstance(described, BytesStorageMetadata):
            if out is not None or rows is not None:
                raise InvalidRequestError(f"{name} is no tensor: out= and rows= are for tensors")
            return self._read_object(name, weights_only=weights_only)
        return self._read_tensor(name, described, out, rows)

    def pieces(self, wanted: Iterable[TensorBox]) -> Iterator[tuple[TensorBox, Tensor]]:
        """Yield boxes of tensors in turn, each in memory of its own; many are read at a time.

        At most ``PIECES_BYTES`` are, or one box that is larger. ``boxes`` cuts tensors so.
        """
        batch: list[TensorBox] = []
        size_bytes = 0
        for name, box in wanted:
            room = math.prod(box.sizes) * self._dtype(name).itemsize
            if batch and size_bytes + room > PIECES_BYTES:
                yield from self._read_boxes(batch)
                batch, size_bytes = [], 0
            batch.append((name, box))
            size_bytes += room
        yield from self._read_boxes(batch)

    def boxes(self, name: str, chunk: torch.Size | None = None) -> Iterator[ChunkStorageMetadata]:
        """Cut a tensor, or its stored chunk at an offset, into boxes for ``pieces``, in order.

        What can only be unpickled whole makes them as large as it is.
        """
        described = self._described[name]
        assert isinstance(described, TensorStorageMetadata)
        whole = _wanted(name, described.size, None)
        if chunk is not None:
            whole = next(each for each in described.chunks if each.offsets == chunk)
        places = [self._places.get(MetadataIndex(name, each.offsets)) for each in described.chunks]
        pickled = [place.length for place in places if isinstance(place, _StorageInfo)]
        limit = max([PIECES_BYTES, *pickled]) // described.properties.dtype.itemsize
        sizes = tuple(whole.sizes)
        for slab in slabs(Box(sizes, (0,) * len(sizes), sizes), limit):
            inside = [at.start for at in slab.target] + [0] * (len(sizes) - len(slab.target))
            offsets = map(operator.add, whole.offsets, inside)
            yield ChunkStorageMetadata(torch.Size(offsets), torch.Size(slab.shape))
        if not whole.sizes.numel():
            yield whole

    def _read_boxes(self, batch: list[TensorBox]) -> Iterator[tuple[TensorBox, Tensor]]:
        targets: dict[MetadataIndex, Tensor] = {}
        items: list[ReadItem] = []
        for name, box in batch:
            target = torch.empty(box.sizes, dtype=self._dtype(name))
            targets[MetadataIndex(name, box.offsets)] = target
            items += self._items(name, box) if target.numel() else []
        if items:
            self._reader.read_data(LoadPlan(items), _Filling(targets)).wait()
        yield from zip(batch, targets.values(), strict=True)

    def _dtype(self, name: str) -> torch.dtype:
        described = self._described[name]
        assert isinstance(described, TensorStorageMetadata)
        return described.properties.dtype

    def close(self) -> None:
        """Let go of the client, if it was opened here."""
        self._reader.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _of(self, name: str) -> TensorStorageMetadata | BytesStorageMetadata:
        described = self._described.get(name)
        if described is None:
            raise NoSuchTensorError(
                f"{self._reader.checkpoint_id} has no {name!r}", hint=self._near(name)
            )
        return described

    def _near(self, name: str) -> str:
        ending = name.rsplit(".", 1)[-1]
        names = self.names()
        near = [each for each in names if each.endswith(ending)] or names
        return f"names() lists all; there are {', '.join(near[:_NAMES_SHOWN])} and others."

    def _length(self, index: MetadataIndex) -> int:
        """Return how many bytes one stored item has."""
        place = self._places.get(index)
        if place is None:
            raise IntegrityError(f"the step's metadata does not say where {index.fqn} is")
        return int(place.length)

    def read_bytes(self, name: str) -> io.BytesIO:
        """Return an object as ``torch.save`` wrote it."""
        index = MetadataIndex(name)
        self._afford(name, 2 * self._length(index))  # its bytes, and what they become
        item = ReadItem(
            type=LoadItemType.BYTE_IO,
            dest_index=index,
            dest_offsets=torch.Size((0,)),
            storage_index=index,
            storage_offsets=torch.Size((0,)),
            lengths=torch.Size((0,)),
        )
        filling = _Filling({})
        self._reader.read_data(LoadPlan([item]), filling).wait()
        return filling.data

    def _read_object(self, name: str, *, weights_only: bool) -> Any:
        data = self.read_bytes(name)
        try:
            return torch.load(data, map_location="cpu", weights_only=weights_only)
        except pickle.UnpicklingError as error:
            raise InvalidRequestError(
                f"{name} is an object that torch.load does not read with weights_only=True",
                hint="If you trust its author, pass weights_only=False.",
            ) from error

    def _read_tensor(
        self,
        name: str,
        described: TensorStorageMetadata,
        out: Tensor | None,
        rows: slice | None,
    ) -> Tensor:
        wanted = _wanted(name, described.size, rows)
        dtype = described.properties.dtype
        items = self._items(name, wanted)
        elements = math.prod(wanted.sizes)
        result_bytes = 0 if out is not None else elements * dtype.itemsize
        self._afford(name, result_bytes + self._largest_pickled(items))
        if out is None:
            out = torch.empty(wanted.sizes, dtype=dtype)
        elif out.shape != wanted.sizes or out.dtype != dtype:
            raise InvalidRequestError(
                f"{name} is {tuple(wanted.sizes)} of {dtype}, "
                f"out= is {tuple(out.shape)} of {out.dtype}",
                hint="Pass a tensor of that shape and type, or none.",
            )
        if elements:
            filling = _Filling({MetadataIndex(name, wanted.offsets): out})
            self._reader.read_data(LoadPlan(items), filling).wait()
        return out

    def _items(self, name: str, wanted: ChunkStorageMetadata) -> list[ReadItem]:
        """Return what to read for a box of a tensor."""
        described = self._described[name]
        assert isinstance(described, TensorStorageMetadata)
        items = create_read_items_for_chunk_list(name, described, [wanted])
        if sum(math.prod(item.lengths) for item in items) < math.prod(wanted.sizes):
            raise IntegrityError(f"the step's metadata lacks a piece of {name}")
        return items

    def _largest_pickled(self, items: list[ReadItem]) -> int:
        """Return how much the largest piece takes that can only be read whole: DCP's own."""
        places = [self._places.get(item.storage_index) for item in items]
        lengths = [place.length for place in places if isinstance(place, _StorageInfo)]
        return max(lengths, default=0)

    def _afford(self, name: str, needed_bytes: int) -> None:
        if needed_bytes > self._memory_bytes:
            raise MemoryBudgetError(
                f"reading {name} takes {needed_bytes} bytes of memory, and memory_bytes is "
                f"{self._memory_bytes}"
            )


class _Filling(DefaultLoadPlanner):
    """Tells the reader where things go: boxes of tensors, by where they lie, or objects' bytes."""

    def __init__(self, targets: Mapping[MetadataIndex, Tensor]) -> None:
        super().__init__()
        self._targets = targets
        self.data = io.BytesIO()

    def resolve_tensor(self, read_item: ReadItem) -> Tensor:
        sides = zip(read_item.dest_offsets, read_item.lengths, strict=True)
        target = self._targets[read_item.dest_index].detach()
        return target[tuple(slice(at, at + length) for at, length in sides)]

    def commit_tensor(self, read_item: ReadItem, tensor: Tensor) -> None:
        """It is where it belongs already."""

    def load_bytes(self, read_item: ReadItem, value: io.BytesIO) -> None:  # noqa: ARG002
        self.data = value


def _wanted(name: str, shape: torch.Size, rows: Any) -> ChunkStorageMetadata:
    """Return the chunk of the whole tensor that is read."""
    if rows is None:
        return ChunkStorageMetadata(torch.Size([0] * len(shape)), shape)
    if not shape or not isinstance(rows, slice) or rows.step not in (None, 1):
        raise InvalidRequestError(
            f"{name} of {tuple(shape)} has no rows {rows}", hint="Pass rows=slice(first, end)."
        )
    first, end, _ = rows.indices(shape[0])
    sizes = torch.Size([max(0, end - first), *shape[1:]])
    return ChunkStorageMetadata(torch.Size([first, *[0] * (len(shape) - 1)]), sizes)
