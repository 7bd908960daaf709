"""Every way of saving that is compared, each as a training script would write it.

``where`` is a directory, or an address of S3 or of cachetier, of this one save. Of an asynchronous
way ``begin`` returns as soon as it lets training go on, and ``finish`` once all is stored.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from cachetier_client.io.aligned import Block
from cachetier_client.io.buffers import bytes_of
from cachetier_client.io.digests import BLOCK_BYTES
from cachetier_client.torch.lazy import LazyStager
from cachetier_client.torch.writer import CachetierWriter
from torch.distributed.checkpoint.filesystem import FileSystemWriter
from torch.distributed.checkpoint.state_dict_saver import async_save, save

from benchmarks import raw
from benchmarks.torch.names import (
    COPIED,
    DCP,
    DCP_ASYNC,
    DIRECT,
    OURS,
    OURS_ASYNC,
    OURS_LAZY,
    S3,
    SYNCED,
    UNSYNCED,
)
from benchmarks.torch.training import Training, tensors_of

State = dict[str, Any]


class Modes:
    """The ways of saving of one rank, and what they keep from save to save."""

    def __init__(self, training: Training, ring_bytes: int) -> None:
        self._training = training
        self._ring_bytes = ring_bytes
        self._stager: LazyStager | None = None
        self._writer: CachetierWriter | None = None
        # The save's collectives go on in another thread while training uses the first group.
        self._group = dist.new_group(backend="gloo")
        self._pending: list[Future[Any]] = []
        self._aligned: memoryview | None = None
        self._copier = ThreadPoolExecutor(1)
        self._begin: dict[str, Callable[[State, str], None]] = {
            UNSYNCED: self._torch_save,
            DIRECT: self._direct,
            COPIED: self._copy,
            SYNCED: self._torch_save_synced,
            DCP: self._dcp_save,
            DCP_ASYNC: self._dcp_async_save,
            S3: self._s3_save,
            OURS: self._ours,
            OURS_ASYNC: self._ours_async,
            OURS_LAZY: self._ours_lazy,
        }

    def begin(self, mode: str, state: State, where: str) -> None:
        """Save ``state``, or begin to."""
        self._begin[mode](state, where)

    def finish(self) -> None:
        """Wait until what was begun is stored."""
        for pending in self._pending:
            pending.result()
        self._pending.clear()

    def close(self) -> None:
        self._copier.shutdown()
        if self._stager is not None:
            self._stager.close()

    def _direct(self, state: State, where: str) -> None:
        """Write as many bytes as the state has, from memory as disks like it best."""
        if self._aligned is None:
            size_bytes = sum(tensor.nbytes for tensor in tensors_of(state))
            self._aligned = raw.aligned_buffer(-(-size_bytes // BLOCK_BYTES) * BLOCK_BYTES)
        raw.write_direct(_file_of_rank(where), self._aligned)

    def _copy(self, state: State, where: str) -> None:
        """Copy all of the state through one block, while training goes on, and keep nothing."""
        Path(where).mkdir(exist_ok=True)
        self._pending.append(self._copier.submit(self._copy_blocks, tensors_of(state)))

    def _copy_blocks(self, tensors: list[torch.Tensor]) -> None:
        block = Block()
        for data in map(bytes_of, tensors):
            for start in range(0, len(data), BLOCK_BYTES):
                block.take(data[start : start + BLOCK_BYTES])

    def _torch_save(self, state: State, where: str) -> None:
        torch.save(state, _file_of_rank(where))

    def _torch_save_synced(self, state: State, where: str) -> None:
        with _file_of_rank(where).open("wb") as file:
            torch.save(state, file)
            file.flush()
            os.fsync(file.fileno())

    def _dcp_save(self, state: State, where: str) -> None:
        save(state, storage_writer=FileSystemWriter(where, sync_files=True))

    def _dcp_async_save(self, state: State, where: str) -> None:
        writer = FileSystemWriter(where)
        self._keep(async_save(state, storage_writer=writer, process_group=self._group))

    def _s3_save(self, state: State, where: str) -> None:
        from s3torchconnector import S3ClientConfig
        from s3torchconnector.dcp import S3StorageWriter

        config = S3ClientConfig(force_path_style=True)
        save(state, storage_writer=S3StorageWriter("us-east-1", where, config))

    def _ours(self, state: State, where: str) -> None:
        save(state, storage_writer=CachetierWriter(where))

    def _ours_async(self, state: State, where: str) -> None:
        if self._writer is None:
            self._writer = CachetierWriter(where)  # it keeps its host buffers
        self._keep(
            async_save(
                state,
                checkpoint_id=where,
                storage_writer=self._writer,
                process_group=self._group,
            )
        )

    def _ours_lazy(self, state: State, where: str) -> None:
        if self._stager is None:
            self._stager = LazyStager(self._training.optimizer, ring_bytes=self._ring_bytes)
        writer = CachetierWriter(where, stager=self._stager)
        self._keep(async_save(state, storage_writer=writer, process_group=self._group))

    def _keep(self, begun: Any) -> None:
        self._pending.append(begun if isinstance(begun, Future) else begun.upload_completion)


def _file_of_rank(where: str) -> Path:
    directory = Path(where)
    directory.mkdir(exist_ok=True)
    return directory / f"{dist.get_rank()}.pt"
