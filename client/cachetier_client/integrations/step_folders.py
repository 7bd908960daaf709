"""Folders that a framework writes to local disk, as steps; and steps as such folders.

    with save_folder("cachetier://my-run/1000") as folder:
        accelerator.save_state(folder)
    accelerator.load_state(load_folder("cachetier://my-run/latest", "restored"))

All ranks make each call. A step has each file once, whether ranks share a folder or not: when all
have written, each tells what it sees, and of those who see a file one puts it.

Source: docs/frameworks.md, "Folders".
"""

from __future__ import annotations

import functools
import logging
import os
import shutil
import socket
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NoReturn

from cachetier_client.calls.reads import GET_SECONDS
from cachetier_client.calls.runs import PUT_SECONDS
from cachetier_client.calls.unsealed import tell_of_local_folder
from cachetier_client.client import Client
from cachetier_client.default import default_client
from cachetier_client.errors import InvalidNameError, InvalidRequestError
from cachetier_client.identity.addresses import SCHEME, parse, parse_step
from cachetier_client.identity.names import checked_name
from cachetier_client.identity.processes import Processes
from cachetier_client.identity.ranks import torch_distributed
from cachetier_client.identity.step_names import StepName
from cachetier_client.integrations.folders import fetch_step
from cachetier_client.step_files import files_of
from cachetier_client.torch.agreement import agree, latest_common_step

ROUND_SECONDS = 1800.0  # what torch gives a collective: one rank may write for long, others wait
LATEST = "latest"
_ROUND = "folder"

View = list[tuple[str, int]]  # names and sizes of files

log = logging.getLogger(__name__)


class FolderSaves:
    """Saves folders as steps of a run, one at a time, while the caller goes on.

    Args:
        run: The run.
        client: Default: the process's own.
        alone: This process saves for all ranks, and no other rank makes the calls.
        round_seconds: How long ranks wait for each other.
        put_seconds: For each call on the service, waits for room included.
    """

    def __init__(
        self,
        run: str,
        *,
        client: Client | None = None,
        alone: bool = False,
        round_seconds: float = ROUND_SECONDS,
        put_seconds: float = PUT_SECONDS,
    ) -> None:
        self.run = run
        self.round_seconds = round_seconds
        self._given = client
        self._alone = alone
        self._put_seconds = put_seconds
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="cachetier-folders")
        self._saving: Future[None] | None = None
        tell_of_local_folder()

    @property
    def client(self) -> Client:
        """The client that all calls go by."""
        return self._given or default_client()

    def begin(self, folder: Path, step: int, *, marker: str | None = None) -> bool:
        """Save a folder that this rank has written its files to; return when the others have, too.

        The bytes follow in a thread: the files must stay as they are until ``finish``. Waits for
        the save before.

        Args:
            folder: Local; of this rank, of its node, or of all.
            step: Becomes its step, in place of one that is there.
            marker: A file that a folder has which is whole.

        Returns:
            Whether there was anything to save.

        Raises:
            AgreementError: A rank could not, or could not save the folder before; the same on all
                ranks. A process without others raises what went wrong itself.
        """
        self.finish()
        views = [_view(folder)] if self._alone else self._agreed(lambda: _view(folder))
        names = {name for view in views for name, _ in view}
        if not names or (marker is not None and marker not in names):
            return False
        mine = shares(views)[0 if self._alone else _rank()]
        self._saving = self._thread.submit(self._save, folder, step, mine)
        return True

    def finish(self) -> None:
        """Return once the save under way is safe, on all ranks; raises as ``begin``."""
        if self._alone:
            self._wait()
        else:
            self._agreed(self._wait)

    def saved(self, step: int) -> None:
        """Is called by the thread once this rank's part of a step is sealed."""

    def _agreed(self, value: Any) -> list[Any]:
        return agree(value, name=_ROUND, timeout_seconds=self.round_seconds)

    def _wait(self) -> None:
        saving, self._saving = self._saving, None
        if saving is not None:
            saving.result()

    def _save(self, folder: Path, step: int, names: Sequence[str]) -> None:
        with self.client.checkpoint(
            self.run,
            step,
            rank=0 if self._alone else None,
            world_size=1 if self._alone else None,
            overwrite=True,
            timeout_seconds=self._put_seconds,
        ) as part:
            for file in files_of(folder) if names else ():
                if file.name not in names:
                    continue
                with part.open(file.name, size_bytes=file.size_bytes) as shard:
                    for piece in file.pieces():
                        shard.write(piece)
        self.saved(step)


@contextmanager
def save_folder(
    address: str,
    *,
    client: Client | None = None,
    alone: bool = False,
    scratch: str | os.PathLike[str] | None = None,
    timeout_seconds: float = PUT_SECONDS,
) -> Iterator[Path]:
    """Lend a local folder whose files are a step at the end of the ``with``; then it is gone.

    Args:
        address: ``cachetier://run/1000``; a step that is there is replaced.
        client: Default: the process's own.
        alone: This process saves for all ranks: no other makes the call.
        scratch: Where the folder is made; default: where temporary files are (``TMPDIR``).
        timeout_seconds: For each call on the service, waits for room included.

    Raises:
        AgreementError: A rank has failed; the same on all ranks, which have saved nothing.
    """
    run, step = parse_step(address, StepName.chosen())
    saves = FolderSaves(run, client=client, alone=alone, put_seconds=timeout_seconds)
    with tempfile.TemporaryDirectory(prefix=f"{SCHEME}-", dir=scratch) as made:
        folder = Path(made)
        try:
            yield folder
        except Exception as error:
            if not alone:
                with suppress(Exception):  # so that the others need not wait
                    saves._agreed(functools.partial(_fail, error))
            raise
        if not saves.begin(folder, step):
            raise InvalidRequestError(
                f"nothing was written to the folder that was lent for {address}",
                hint="Write the files of the step to the folder that `with` gives.",
            )
        saves.finish()


def load_folder(
    address: str,
    under: str | os.PathLike[str],
    *,
    folder_name: str = "{step}",
    client: Client | None = None,
    timeout_seconds: float = GET_SECONDS,
) -> Path | None:
    """Have a step's files in a local folder, verified, and return it; the same step on all ranks.

    One rank of each machine brings what is not there with these bytes already. A new folder gets
    its name when it is whole.

    Args:
        address: ``cachetier://run/1000``, or ``cachetier://run/latest``: the newest that every
            rank can restore.
        under: Where the folder lies.
        folder_name: How it is called, with ``{step}`` in it.
        client: Default: the process's own.
        timeout_seconds: For each call on the service.

    Returns:
        The folder; None if ``latest`` finds no step.

    Raises:
        NotFoundError, IncompleteError: There is no such step, or not all of it is to be had here.
        AgreementError: The same, or anything else, where there are several ranks.
    """
    found = _run_and_step(address, client)
    if found is None:
        return None
    run, step = found
    folder = Path(under).absolute() / StepName(folder_name).of(run, step)
    machines = agree(Processes().machine, name=_ROUND, timeout_seconds=ROUND_SECONDS)
    leads = machines.index(machines[_rank()]) == _rank()

    def bring() -> None:
        if leads:
            _bring(client or default_client(), run, step, folder, timeout_seconds)

    agree(bring, name=_ROUND, timeout_seconds=ROUND_SECONDS)
    return folder


def shares(views: Sequence[View]) -> list[list[str]]:
    """Return for each rank the files it puts: each once, by one that sees it, bytes in balance."""
    sizes: dict[str, int] = {}
    seen_by: dict[str, list[int]] = {}
    for rank, view in enumerate(views):
        for name, size in view:
            sizes[name] = max(size, sizes.get(name, 0))
            seen_by.setdefault(name, []).append(rank)
    found: list[list[str]] = [[] for _ in views]
    loads = [0] * len(views)
    for name in sorted(sizes, key=lambda each: (-sizes[each], each)):
        rank = min(seen_by[name], key=lambda each: (loads[each], each))
        loads[rank] += sizes[name]
        found[rank].append(name)
    return found


def is_address(path: str | os.PathLike[str] | None) -> bool:
    """Return whether a path has an address of cachetier in it, even if joined to a folder."""
    return path is not None and f"{SCHEME}:/" in os.fspath(path)


def _run_and_step(address: str, client: Client | None) -> tuple[str, int] | None:
    found = parse(address)
    if not address.startswith(f"{SCHEME}://") or found.run is None:
        raise InvalidNameError(
            f"{address!r} is not the address of a step",
            hint=f"Name it {SCHEME}://run/1000 or {SCHEME}://run/{LATEST}.",
        )
    if found.path != (LATEST,):
        return parse_step(address, StepName.chosen())
    run = found.run
    step = latest_common_step(run, client=client, strict=True)
    if step is None:
        log.warning("%s: run %s has no step that every rank can restore", address, run)
        return None
    return run, step


def _rank() -> int:
    distributed = torch_distributed()
    return 0 if distributed is None else int(distributed.get_rank())


def _view(folder: Path) -> View:
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return [
        (checked_name(path.relative_to(folder).as_posix()), path.stat().st_size) for path in files
    ]


def _fail(error: Exception) -> NoReturn:
    raise error


# --- the way back --------------------------------------------------------------------------------


def _bring(client: Client, run: str, step: int, folder: Path, seconds: float) -> None:
    fill = functools.partial(fetch_step, client, run, step, timeout_seconds=seconds)
    if folder.exists():
        fill(folder)
        return
    # Named for the machine: two may share the disk. What a killed load has left here is used again.
    growing = folder.with_name(f".{folder.name}.{socket.gethostname()}.part")
    try:
        fill(growing)
        growing.rename(folder)
    except BaseException:
        shutil.rmtree(growing, ignore_errors=True)
        if not folder.exists():
            raise
        fill(folder)  # another machine has been quicker
