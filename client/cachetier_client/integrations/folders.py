"""Folders that trainers write, as parts of steps; and steps, as folders that trainers read."""

from __future__ import annotations

import fcntl
import logging
import os
import tempfile
from collections.abc import Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

from cachetier_client.calls.reads import GET_SECONDS
from cachetier_client.calls.unflushed import is_ignored, verdict
from cachetier_client.checkpoints import Checkpoint
from cachetier_client.client import Client
from cachetier_client.errors import IntegrityError, RemoteError
from cachetier_client.identity.names import checked_name
from cachetier_client.io.digests import BLOCK_BYTES, digest_of, to_hex
from cachetier_client.results import ShardInfo, StepInfo, UnflushedStep
from cachetier_client.step_files import whole_step

_READ_BYTES = 8 * BLOCK_BYTES  # something for every thread of the client

logger = logging.getLogger(__name__)


def files_of(folder: str | os.PathLike[str]) -> list[str]:
    """Return the names of all files under a folder, relative to it, in order."""
    top = Path(folder)
    return sorted(path.relative_to(top).as_posix() for path in top.rglob("*") if path.is_file())


def put_files(
    checkpoint: Checkpoint,
    folder: str | os.PathLike[str],
    names: Iterable[str],
    contents: Mapping[str, Any] | None = None,
    *,
    under: str = "",
) -> None:
    """Put finished files of a folder as this rank's part, and seal it.

    Args:
        checkpoint: Not begun yet; it is aborted if a file cannot be put.
        folder: Where the files are.
        names: Which, relative to it; they are the shards' names.
        contents: Further shards, by name.
        under: A folder that the files' names begin with.
    """
    with checkpoint:
        for name in names:
            checkpoint.put(Path(folder) / name, f"{under}/{name}" if under else name)
        for name, data in (contents or {}).items():
            checkpoint.put(data, name)


class FolderPuts:
    """Does ``put_files`` in a thread of its own. A failure is logged, and raised by the next call.

    The process ends only once what was started has been put.
    """

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, "cachetier-folder")
        self._under_way: Future[None] | None = None

    def start(
        self,
        checkpoint: Checkpoint,
        folder: str | os.PathLike[str],
        names: Iterable[str],
        contents: Mapping[str, Any] | None = None,
    ) -> None:
        """Begin, once what was begun before has ended.

        Raises:
            CachetierClientError: The one before has failed; this one was not begun.
        """
        self.wait()
        self._under_way = self._thread.submit(
            _put_logging, checkpoint, folder, list(names), contents
        )

    def wait(self) -> None:
        """Wait until the files are in a sealed part.

        Raises:
            CachetierClientError: They are not, and nothing of the part is kept.
        """
        under_way, self._under_way = self._under_way, None
        if under_way is not None:
            under_way.result()


def fetch_step(
    client: Client,
    run: str | None,
    step: int,
    folder: str | os.PathLike[str],
    *,
    timeout_seconds: float = GET_SECONDS,
) -> Path:
    """Bring a step's files into ``folder``, verified, and return it.

    Files that are there with the same bytes stay; each of the others is replaced as a whole. Of the
    ranks of a node that ask for it at once, one brings it. ``timeout_seconds`` is of each call.

    Raises:
        NotFoundError: There is no such step.
        IncompleteError: It is not whole, or this node cannot see all of it.
        IntegrityError: No copy of a file has the bytes that were put, or it was replaced meanwhile.
    """
    found = whole_step(client, run, step, timeout_seconds=timeout_seconds)
    target = Path(folder)
    target.mkdir(parents=True, exist_ok=True)
    turn = os.open(target, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(turn, fcntl.LOCK_EX)
        for shard in found.shards:
            path = target / checked_name(shard.name)
            if not _is_there(path, shard):
                _fetch(client, found, shard, path, timeout_seconds)
    finally:
        os.close(turn)
    return target


def newest_step(client: Client, run: str | None) -> StepInfo | None:
    """Return the newest step that this process can restore, from its node or a remote, or None.

    For programs of one process; ranks ask ``cachetier_client.torch.latest_common_step``.

    Raises:
        UnflushedStepsError: Another node holds a newer one that is whole, and not durable.
    """
    here = [each for each in client.steps(run, "local") if each.is_whole]
    found = [*here, *client.steps(run, "replicated")]
    newest = max(found, key=lambda each: each.step, default=None)
    step, save_id = (newest.step, newest.save_id) if newest is not None else (None, "")
    newer: list[UnflushedStep] | None = None
    with suppress(RemoteError):
        newer = [each for each in client.unflushed(run) if each.is_newer(step, save_id)]
    refused = verdict(run, newer, found=newest is not None, ignored=is_ignored())
    if refused is not None:
        raise refused
    return newest


def write_whole(path: Path, text: str) -> None:
    """Write a small file; several ranks of a node may write the same at once."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, partial = tempfile.mkstemp(prefix=f".{path.name}-", dir=path.parent)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(text)
    os.chmod(partial, 0o644)
    os.replace(partial, path)


def _put_logging(checkpoint: Checkpoint, *files: Any) -> None:
    try:
        put_files(checkpoint, *files)
    except BaseException:
        logger.exception("step %s of run %s was not put", checkpoint.step, checkpoint.run)
        raise


def _fetch(
    client: Client, found: StepInfo, shard: ShardInfo, path: Path, timeout_seconds: float
) -> None:
    if path.exists():
        logger.warning("%s has other bytes than the step: it is replaced", path)
    path.parent.mkdir(parents=True, exist_ok=True)
    growing = path.with_name(f".{path.name}.part")  # what a killed process left is written over
    block = memoryview(bytearray(min(_READ_BYTES, max(1, shard.size_bytes))))
    options: dict[str, Any] = {"mode": "rb", "restore": True, "timeout_seconds": timeout_seconds}
    try:
        with (
            client.open_shard(found.run, found.step, shard.name, **options) as source,
            growing.open("wb") as file,
        ):
            if source.digest != shard.digest:
                what = f"{shard.name} was replaced meanwhile"
                raise IntegrityError(what, hint="Load the step again.")
            while count := source.readinto(block):
                file.write(block[:count])
        growing.replace(path)
    except BaseException:
        growing.unlink(missing_ok=True)
        raise


def _is_there(path: Path, shard: ShardInfo) -> bool:
    """Return whether a file has a shard's bytes."""
    if not path.is_file() or path.stat().st_size != shard.size_bytes:
        return False
    digest, block = 0, memoryview(bytearray(BLOCK_BYTES))
    with path.open("rb", buffering=0) as file:
        while count := file.readinto(block):
            digest = digest_of(block[:count], digest)
    return to_hex(digest) == shard.digest
