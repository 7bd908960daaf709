"""Steps that DCP's own writers stored: in a plain directory, or through fsspec in cachetier."""

from __future__ import annotations

import io
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import PurePosixPath
from typing import Any

from torch.distributed.checkpoint.filesystem import FileSystem, FileSystemReader

from cachetier_client.client import Client
from cachetier_client.deadline import Deadline
from cachetier_client.io.digests import BLOCK_BYTES


def shard_reader(
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
