"""Steps as plain files, out and in: streamed, verified on the way, there whole or not at all.

Source: docs/frameworks.md.
"""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from cachetier_client.client import Client
from cachetier_client.errors import IncompleteError, IntegrityError, InvalidRequestError
from cachetier_client.identity.names import checked_name
from cachetier_client.io.digests import BLOCK_BYTES
from cachetier_client.results import Receipt, StepInfo

PIECE_BYTES = 4 * BLOCK_BYTES
COPY_SECONDS = 300.0


@contextmanager
def placed(dest: str | os.PathLike[str], *, one_file: bool = False) -> Iterator[Path]:
    """Yield where to write; left normally it is synced and becomes ``dest``, else it is removed.

    Until then it lies beside ``dest``, under a name with a dot in front.

    Args:
        dest: A folder, or with ``one_file`` a file.
        one_file: What is yielded is the path of a file still to be made.

    Raises:
        InvalidRequestError: It is there already, or its parent is not.
    """
    target = Path(os.path.abspath(dest))
    if not target.parent.is_dir():
        raise InvalidRequestError(
            f"there is no {target.parent}", hint="Create that directory first."
        )
    _refuse_taken(target)
    folder = target.with_name(f".{target.name[:64]}.{secrets.token_hex(4)}")
    folder.mkdir()
    try:
        written = folder / target.name if one_file else folder
        yield written
        for inside, _, names in os.walk(folder):
            for path in (*(os.path.join(inside, name) for name in names), inside):
                _sync(path)
        _refuse_taken(target)
        written.rename(target)
        _sync(target.parent)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def whole_step(
    client: Client, run: str | None, step: int, *, timeout_seconds: float = COPY_SECONDS
) -> StepInfo:
    """Return a step with all its shards, those of other nodes among them.

    Raises:
        IncompleteError: The step is not whole, or this node cannot see all of it.
    """
    found = client.step(run, step, timeout_seconds=timeout_seconds)
    if not found.is_whole and "durable" in found.levels:
        # What other nodes put is listed only while the remote answers; this fails while not.
        client.steps(run, "durable", timeout_seconds=timeout_seconds)
        found = client.step(run, step, timeout_seconds=timeout_seconds)
    elif not found.is_whole or not found.levels:
        raise IncompleteError(
            f"step {step} of {run} is not whole, or this node cannot see all of it",
            hint="Wait until it is durable: cachetier wait RUN STEP.",
        )
    return found


def export_files(
    client: Client, run: str, step: int, folder: Path, *, timeout_seconds: float = COPY_SECONDS
) -> list[str]:
    """Write every shard of a step to a file of its name in ``folder``; return the names.

    Raises:
        IncompleteError: The step is not whole, or this node cannot see all of it.
        IntegrityError: A shard has no good copy, or was replaced meanwhile.
    """
    found = whole_step(client, run, step, timeout_seconds=timeout_seconds)
    for shard in found.shards:
        path = folder / checked_name(shard.name)
        path.parent.mkdir(parents=True, exist_ok=True)
        options: dict[str, Any] = {"mode": "rb", "timeout_seconds": timeout_seconds}
        with client.open_shard(run, step, shard.name, **options) as data, path.open("xb") as file:
            if data.digest != shard.digest:
                what = f"{shard.name} was replaced meanwhile"
                raise IntegrityError(what, hint="Export the step again.")
            shutil.copyfileobj(data, file, PIECE_BYTES)
    return [shard.name for shard in found.shards]


# --- in ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class StepSourceFile:
    """A file, or an object, that is to become a shard.

    ``pieces`` yields its bytes in order, and raises IntegrityError if they changed meanwhile.
    ``digest`` is what the source says of them, its CRC-64/NVME in hex, if it does.
    """

    name: str
    size_bytes: int
    pieces: Callable[[], Iterable[bytes | memoryview]]
    digest: str | None = None


def files_of(source: str | os.PathLike[str]) -> list[StepSourceFile]:
    """Return the files of a folder, by name, or the one file that ``source`` is.

    Raises:
        InvalidRequestError: There is nothing, or something that is no file.
    """
    root = Path(source)
    found = []
    for path in [root] if root.is_file() else sorted(_walk(root)):
        name = path.name if path == root else path.relative_to(root).as_posix()
        if not path.is_file():
            raise InvalidRequestError(f"{path} is no file", hint="Remove it, or import its target.")
        found.append(StepSourceFile(name, path.stat().st_size, partial(_pieces, path)))
    if not found:
        raise InvalidRequestError(
            f"there is no file in {source}", hint="Name a path that has files."
        )
    return found


def import_files(
    client: Client,
    files: Sequence[StepSourceFile],
    run: str,
    step: int,
    *,
    overwrite: bool = False,
    timeout_seconds: float = COPY_SECONDS,
) -> dict[str, Receipt]:
    """Save files as one step of one rank, each as a shard of its name; return their receipts.

    The step is there when this returns, safe on the node, and drained like any other. After an
    error nothing of it is.

    Raises:
        InvalidNameError: A name that no shard can have; nothing was saved.
        IntegrityError: A file changed while it was read, or is not what its source says.
        StepPublishedError: The step is there already, and ``overwrite`` is False.
    """
    for file in files:
        checked_name(file.name)
    part: dict[str, Any] = {"rank": 0, "world_size": 1, "save_id": f"import-{secrets.token_hex(8)}"}
    with client.checkpoint(
        run, step, **part, overwrite=overwrite, timeout_seconds=timeout_seconds
    ) as checkpoint:
        for file in files:
            with checkpoint.open(file.name, size_bytes=file.size_bytes) as stream:
                for piece in file.pieces():
                    stream.write(piece)
            if file.digest not in (None, checkpoint.receipts[file.name].digest):
                raise IntegrityError(
                    f"{file.name} does not have the digest of its source",
                    hint="Import it again.",
                )
    return checkpoint.receipts


def _walk(root: Path) -> Iterator[Path]:
    """Yield what is in a folder, but for folders; a link to one is not followed."""
    for inside, folders, names in os.walk(root):
        for path in (Path(inside) / name for name in (*names, *folders)):
            if path.is_symlink() or not path.is_dir():
                yield path


def _pieces(path: Path) -> Iterator[memoryview]:
    """Read a file once, and leave nothing of it in the page cache."""
    memory = memoryview(bytearray(PIECE_BYTES))
    with path.open("rb", buffering=0) as file:
        before = os.fstat(file.fileno())
        while count := file.readinto(memory):
            yield memory[:count]
        after = os.fstat(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    fields = ("st_size", "st_mtime_ns", "st_ctime_ns")
    if any(getattr(before, field) != getattr(after, field) for field in fields):
        raise IntegrityError(f"{path} changed while it was read", hint="Import it once it is done.")


def _refuse_taken(target: Path) -> None:
    if os.path.lexists(target):
        raise InvalidRequestError(f"{target} exists already", hint="Name another, or remove it.")


def _sync(path: str | os.PathLike[str]) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(descriptor)
