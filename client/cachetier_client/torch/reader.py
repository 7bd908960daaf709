"""DCP's storage reader: only the bytes that this rank needs, straight into its tensors.

Source: docs/torch.md, "Resharding".
"""

from __future__ import annotations

import dataclasses
import io
import logging
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import PurePosixPath
from typing import Any

import torch
from torch.distributed.checkpoint.filesystem import FileSystem, FileSystemReader
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    StorageMeta,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import LoadItemType, LoadPlan, LoadPlanner, ReadItem
from torch.distributed.checkpoint.storage import StorageReader
from torch.futures import Future

from cachetier_client.client import Client
from cachetier_client.deadline import Deadline
from cachetier_client.errors import (
    CachetierClientError,
    IntegrityError,
    InvalidRequestError,
    NotFoundError,
)
from cachetier_client.io import digests
from cachetier_client.io.digests import BLOCK_BYTES
from cachetier_client.torch import metadata as stored
from cachetier_client.torch.dcp import DCP_SECONDS, StepStorage, is_address
from cachetier_client.torch.extents import Extent
from cachetier_client.torch.fetching import Buffered, Direct, fetch, tensor_reads
from cachetier_client.torch.hyperslabs import Box

_LOADER = "state_dict_loader"


class _InOneLine(logging.Filter):
    """DCP logs what a reader raises with its traceback; of our errors the message says it all."""

    def filter(self, record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if record.exc_info else None
        if record.module == _LOADER and isinstance(error, CachetierClientError):
            record.msg, record.args, record.exc_info = f"{record.getMessage()} {error}", (), None
        return True


logging.getLogger().addFilter(_InOneLine())  # DCP has no logger of its own


class CachetierReader(StorageReader):
    """Loads ``cachetier://run/step`` with ``dcp.load``, as our writer or DCP over fsspec wrote it.

    A path without ``cachetier://`` is a directory that DCP's own writer has filled.

    Args:
        path: The step's address, or the directory; DCP's ``checkpoint_id=`` takes its place.
        client: Whose service to load from; default: the process's, see ``default_client``.
        url: The same, by address.
        step_name: How folders of steps are called; default ``CACHETIER_STEP_NAME``, ``{step}``.
        timeout_seconds: For all that one rank reads, and for the metadata before it.
        trusted: Let the metadata's pickle run any code; see ``metadata.load``.

    Attributes:
        bytes_read: How many bytes of shards the last load read, whole blocks of 4 MiB.
    """

    def __init__(
        self,
        path: str | os.PathLike[str] | None = None,
        *,
        client: Client | None = None,
        url: str | None = None,
        step_name: str | None = None,
        timeout_seconds: float = DCP_SECONDS,
        trusted: bool = False,
    ) -> None:
        super().__init__()
        self._step = StepStorage(
            None, client=client, url=url, step_name=step_name, timeout_seconds=timeout_seconds
        )
        self._trusted = trusted
        self._directory: FileSystemReader | None = None
        self._metadata: Metadata | None = None
        self._rank: int | None = None
        self._load_id = secrets.token_hex(8)
        self._metadata_name = stored.METADATA_NAME
        self._metadata_digest: str | None = None  # no two saves have the same
        self.bytes_read = 0
        if path is not None:
            self._locate(path)

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """Begin another load, of another step if one is named."""
        self._metadata = None
        self._metadata_digest = None
        self._load_id = secrets.token_hex(8)
        if checkpoint_id:
            self._locate(checkpoint_id)

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        """Return the step's metadata, or a rank's own with ``rank=``.

        Raises:
            NotFoundError: There is no such step, or it has no metadata.
            IntegrityError: It is damaged, or asks for classes that are not allowed.
        """
        if self._directory is not None:
            return self._directory.read_metadata(*args, **kwargs)
        rank = kwargs.get("rank")
        name = stored.METADATA_NAME if rank is None else stored.rank_metadata_name(rank)
        seconds = self._step.timeout_seconds
        data = self._step.client.get_shard(*self._step.where, name, timeout_seconds=seconds)
        self._metadata_name = name
        self._metadata_digest = digests.to_hex(digests.digest_of(data))
        with self._located(name):
            metadata = stored.load(data, trusted=self._trusted)
        metadata.storage_meta = metadata.storage_meta or StorageMeta()
        metadata.storage_meta.load_id = self._load_id
        return metadata

    def set_up_storage_reader(
        self, metadata: Metadata, is_coordinator: bool, *args: Any, **kwargs: Any
    ) -> None:
        """Learn what is stored where."""
        if self._directory is not None:
            self._directory.set_up_storage_reader(metadata, is_coordinator, *args, **kwargs)
        self._rank = kwargs.get("rank")
        self._metadata = metadata

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        """Say in the plan which save this rank has read the metadata of."""
        if self._directory is not None or self._metadata_name != stored.METADATA_NAME:
            return plan
        return dataclasses.replace(plan, storage_data=self._metadata_digest)

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        """Return the plans as they are, if all ranks have read the metadata of one save.

        Raises:
            IntegrityError: The step was saved again meanwhile.
        """
        saves = {plan.storage_data for plan in plans if isinstance(plan.storage_data, str)}
        if len(saves) > 1:
            with self._located():
                raise _replaced()
        return plans

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        """Fill the tensors and objects that a plan asks for; ended when they are.

        Raises:
            CachetierClientError: Not all could be read, verified, in time, of one save.
        """
        if self._directory is not None:
            return self._directory.read_data(plan, planner)
        with self._located():
            self._read(plan, planner, self._step.deadline())
        future: Future[None] = Future()
        future.set_result(None)
        return future

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        """Return whether this is the address of a step."""
        return is_address(checkpoint_id)

    @property
    def step(self) -> StepStorage | None:
        """The step that is read; None of a directory."""
        return self._step if self._directory is None else None

    @property
    def checkpoint_id(self) -> str | os.PathLike[str] | None:
        """The step's address, or the directory, once one was named."""
        if self._directory is not None:
            return self._directory.checkpoint_id
        return self._step.address

    def close(self) -> None:
        """Let go of the client, if it was opened here."""
        self._step.close()

    def _locate(self, path: str | os.PathLike[str]) -> None:
        if os.fspath(path).startswith("cachetier://"):
            self._directory = None
            self._step.locate(path)
        else:
            self._directory = FileSystemReader(path)

    def _read(self, plan: LoadPlan, planner: LoadPlanner, deadline: Deadline) -> None:
        ours = [item for item in plan.items if isinstance(self._place_of(item), Extent)]
        theirs = [item for item in plan.items if not isinstance(self._place_of(item), Extent)]
        with torch.no_grad():
            reads, tensors = self._reads(ours, planner)
            self.bytes_read = fetch(self._step.client, self._step.where, reads, deadline)
            for item, target in tensors:
                planner.commit_tensor(item, target)
        if theirs:
            places = self._known().storage_data
            reader = _shard_reader(self._step.client, self._step.where, places, deadline)
            reader.read_data(LoadPlan(theirs), planner).wait()
        if plan.items:
            self._check_not_replaced(deadline)

    def _check_not_replaced(self, deadline: Deadline) -> None:
        """Refuse what was read if the shards may not be those that the metadata told of."""
        if self._metadata_digest is None:
            return
        shard = (*self._step.where, self._metadata_name)
        try:
            with self._step.client.open_shard(
                *shard, "rb", timeout_seconds=deadline.remaining()
            ) as opened:
                digest = opened.digest
        except NotFoundError as error:  # the other save has come no further, or was deleted
            raise _replaced() from error
        if digest != self._metadata_digest:
            raise _replaced()

    @contextmanager
    def _located(self, name: str | None = None) -> Iterator[None]:
        """Have failures tell what was loaded."""
        run, step = self._step.where
        try:
            yield
        except CachetierClientError as error:
            error.locate("dcp.load", run=run, step=step, rank=self._rank, name=name)
            raise

    def _known(self) -> Metadata:
        if self._metadata is None:
            raise InvalidRequestError(
                "the reader was not set up", hint="Load with dcp.load, which sets it up."
            )
        return self._metadata

    def _place_of(self, item: ReadItem) -> Any:
        places = self._known().storage_data or {}
        place = places.get(item.storage_index)
        if place is None:
            raise IntegrityError(
                f"the step's metadata does not say where {item.storage_index.fqn} is"
            )
        return place

    def _reads(
        self, items: list[ReadItem], planner: LoadPlanner
    ) -> tuple[list[Direct | Buffered], list[tuple[ReadItem, torch.Tensor]]]:
        """Return what to read, and the tensors that it fills."""
        reads: list[Direct | Buffered] = []
        tensors = []
        for item in items:
            extent: Extent = self._place_of(item)
            if item.type == LoadItemType.BYTE_IO:
                reads.append(self._object_read(extent, item, planner))
                continue
            target = planner.resolve_tensor(item).detach()
            box, dtype = self._box_of(item, extent)
            if target.shape != item.lengths:
                raise InvalidRequestError(
                    f"{item.storage_index.fqn}: {tuple(item.lengths)} elements are to go into a "
                    f"tensor of {tuple(target.shape)}"
                )
            reads += tensor_reads(extent, box, dtype, target)
            tensors.append((item, target))
        return reads, tensors

    def _object_read(self, extent: Extent, item: ReadItem, planner: LoadPlanner) -> Buffered:
        def use(buffer: memoryview) -> None:
            try:
                planner.load_bytes(item, io.BytesIO(buffer))
            except Exception as error:  # whatever unpickling the user's object raises
                name = item.storage_index.fqn
                error.add_note(f"loading {name} of {self.checkpoint_id}, shard={extent.shard}")
                raise

        return Buffered(extent.shard, extent.at, extent.length, use)

    def _box_of(self, item: ReadItem, extent: Extent) -> tuple[Box, torch.dtype]:
        described = self._known().state_dict_metadata.get(item.storage_index.fqn)
        chunk = _chunk_of(described, item.storage_index)
        if chunk is None or not isinstance(described, TensorStorageMetadata):
            raise IntegrityError(f"the step's metadata lacks a piece of {item.storage_index.fqn}")
        dtype = described.properties.dtype
        if extent.length != chunk.sizes.numel() * dtype.itemsize:
            raise IntegrityError(
                f"{item.storage_index.fqn} is stored in {extent.length} bytes of {extent.shard}, "
                f"which is not {tuple(chunk.sizes)} of {dtype}"
            )
        box = Box(tuple(chunk.sizes), tuple(item.storage_offsets), tuple(item.lengths))
        return box, dtype


def _replaced() -> IntegrityError:
    return IntegrityError(
        "the step was replaced while it was loaded",
        hint="Load it again: the contents of the tensors are not valid.",
    )


def _chunk_of(described: Any, index: MetadataIndex) -> ChunkStorageMetadata | None:
    chunks: list[ChunkStorageMetadata] = getattr(described, "chunks", [])
    hint = index.index
    if hint is not None and hint < len(chunks) and chunks[hint].offsets == index.offset:
        return chunks[hint]
    return next((chunk for chunk in chunks if chunk.offsets == index.offset), None)


# --- steps that DCP's own writers stored, in a directory or through fsspec ----------------------


def _shard_reader(
    client: Client, where: tuple[str, int], storage_data: dict[Any, Any], deadline: Deadline
) -> FileSystemReader:
    """Return DCP's own reader over the shards of a step, for items as ``torch.save`` wrote them."""
    reader = FileSystemReader("/")
    reader.fs = _Shards(client, where, deadline)
    reader.path = PurePosixPath()  # names are whole already
    reader.storage_data = storage_data
    return reader


class _Shards(FileSystem):
    """As much of a file system as DCP's reader needs: the shards of one step."""

    def __init__(self, client: Client, where: tuple[str, int], deadline: Deadline) -> None:
        super().__init__()
        self._client = client
        self._where = where
        self._deadline = deadline

    @contextmanager
    def create_stream(self, path: str | os.PathLike[str], mode: str) -> Iterator[io.IOBase]:
        assert mode == "rb"
        seconds = self._deadline.remaining()
        name = os.fspath(path)
        with (
            self._client.open_shard(*self._where, name, "rb", timeout_seconds=seconds) as shard,
            io.BufferedReader(shard, BLOCK_BYTES) as stream,
        ):
            yield stream

    def concat_path(self, path: str | os.PathLike[str], suffix: str) -> str:  # noqa: ARG002 - DCP's
        return suffix
