"""Orbax: a handler whose checkpoints become steps, and the way back.

    restore_latest("/checkpoints", "my-run")  # the newest step, where this node does not have it
    manager = ocp.CheckpointManager("/checkpoints", item_handlers=CachetierHandler("my-run"))
    manager.save(step, args=CachetierSave(state))
    state = manager.restore(manager.latest_step(), args=CachetierRestore(state))

Orbax writes its own files, in the background where it does so, and asks the handler to finish
before it gives the folder its name. There the files are put: a checkpoint that Orbax takes for
saved is a step too. A failure is raised where Orbax raises those of its writers: by the next save,
or ``wait_until_finished``.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import orbax.checkpoint as ocp

from cachetier_client.client import Client
from cachetier_client.default import default_client
from cachetier_client.errors import InvalidNameError, InvalidRequestError
from cachetier_client.integrations.folders import fetch_step, files_of, newest_step, put_files
from cachetier_client.results import AckLevel

PUT_SECONDS = 600.0
_METRICS = "metrics"  # what Orbax writes beside the item, and restores without
_STEP = re.compile(r"(\d+)(?:\..*)?")  # of a folder that is being written: 10.orbax-checkpoint-tmp


class CachetierHandler(ocp.StandardCheckpointHandler):  # type: ignore[misc]  # it has no types
    """Handles trees as Orbax's own does, for programs of one process.

    Args:
        run: Default: ``CACHETIER_RUN``.
        ack: How safe a checkpoint is when Orbax takes it for saved.
        timeout_seconds: Of each call on the service.
        client: Default: the process's own.
        options: Of Orbax's handler.

    Raises:
        InvalidRequestError: The program has several JAX processes.
    """

    def __init__(
        self,
        run: str | None = None,
        *,
        ack: AckLevel = "local",
        timeout_seconds: float = PUT_SECONDS,
        client: Client | None = None,
        **options: Any,
    ) -> None:
        if (processes := ocp.multihost.process_count()) > 1:
            raise InvalidRequestError(
                f"{processes} JAX processes would each save a step of their own",
                hint="Watch Orbax's folder instead: docs/frameworks.md.",
            )
        super().__init__(**options)
        self._run = run
        self._ack: AckLevel = ack
        self._timeout_seconds = timeout_seconds
        self._client = client or default_client()

    def finalize(self, directory: Any) -> None:
        """Finish the files, and put them.

        Raises:
            InvalidNameError: The folder's parent is not called by a step's number.
            InvalidRequestError: The checkpoint has another item; nothing of it is put.
            CachetierClientError: They are not safe; Orbax does not take the checkpoint for saved.
        """
        super().finalize(directory)
        folder = Path(os.fspath(directory))
        found = _STEP.fullmatch(folder.parent.name)
        if found is None:
            raise InvalidNameError(
                f"{folder.parent.name!r} is not a step's folder",
                hint="Save by ocp.CheckpointManager, without a step prefix.",
            )
        item = folder.name.partition(".")[0]
        items = {each.name.partition(".")[0] for each in folder.parent.iterdir() if each.is_dir()}
        if others := items - {item, _METRICS}:
            raise InvalidRequestError(
                f"a step has one item, and this checkpoint has {item} and {', '.join(others)}",
                hint="Save one tree that has all of them.",
            )
        part = self._client.checkpoint(
            self._run,
            int(found[1]),
            overwrite=True,
            ack=self._ack,
            timeout_seconds=self._timeout_seconds,
        )
        put_files(part, folder, files_of(folder), under=item)


@ocp.args.register_with_handler(CachetierHandler, for_save=True)
class CachetierSave(ocp.args.StandardSave):  # type: ignore[misc]  # it has no types
    """Orbax's ``StandardSave``, for this handler: Orbax goes by the type."""


@ocp.args.register_with_handler(CachetierHandler, for_restore=True)
class CachetierRestore(ocp.args.StandardRestore):  # type: ignore[misc]  # it has no types
    """Orbax's ``StandardRestore``, for this handler."""


def restore_latest(
    root: str | os.PathLike[str],
    run: str | None = None,
    *,
    client: Client | None = None,
) -> int | None:
    """Bring the newest step of a run into Orbax's folder, where it is not there already.

    Returns:
        The step; None if there is none.
    """
    client = client or default_client()
    newest = newest_step(client, run)
    if newest is None:
        return None
    folder = Path(root) / str(newest.step)
    if not folder.exists():
        # Orbax takes any folder with a number for a whole checkpoint.
        partial = Path(root) / f"{newest.step}.cachetier-tmp"
        fetch_step(client, newest.run, newest.step, partial)
        partial.rename(folder)
    return newest.step
