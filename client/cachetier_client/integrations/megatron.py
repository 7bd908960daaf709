"""Megatron-core: a save strategy whose checkpoints become steps, and the way back.

    strategy = CachetierSaveStrategy("my-run")
    folder = restore_latest("checkpoints", "my-run")  # the newest step that every rank can restore
    if folder:
        state = dist_checkpointing.load(sharded_state_dict, folder)
    ...
    dist_checkpointing.save(sharded_state_dict, "checkpoints/iter_0000010", strategy)

Megatron's own writer writes its files into the local folder, in the background where it is asked
to. Once they are whole on all ranks, each rank puts its own into the step. Megatron's own reader
reads the folder, which ``restore_latest`` fills on a node that does not have it.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import torch.distributed as dist
from megatron.core.dist_checkpointing.core import CheckpointingConfig, save_config
from megatron.core.dist_checkpointing.strategies.torch import TorchDistSaveShardedStrategy

from cachetier_client.client import Client
from cachetier_client.default import default_client
from cachetier_client.errors import InvalidNameError
from cachetier_client.integrations.folders import FolderPuts, fetch_step, write_whole
from cachetier_client.torch.agreement import RestorableLevel, latest_common_step

PUT_SECONDS = 600.0
TRACKER = "latest_checkpointed_iteration.txt"
_FOLDER = re.compile(r"iter_(\d+)")
_CONFIG = "metadata.json"


class CachetierSaveStrategy(TorchDistSaveShardedStrategy):  # type: ignore[misc]  # it has no types
    """Saves as Megatron does, and puts what it wrote into a step: that of a folder ``iter_N``.

    A save in the background returns before the files are put; ``wait``, or the next save, raises
    what went wrong. Pass it as ``sharded_strategy``, alone or in Megatron's
    ``FullyParallelSaveStrategyWrapper``.

    Args:
        run: Default: ``CACHETIER_RUN``.
        timeout_seconds: Of each call on the service.
        client: Default: the process's own.
        options: Of Megatron's strategy.
    """

    def __init__(
        self,
        run: str | None = None,
        *,
        timeout_seconds: float = PUT_SECONDS,
        client: Client | None = None,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        self._run = run
        self._timeout_seconds = timeout_seconds
        self._client = client or default_client()
        self._puts = FolderPuts()

    def save(self, sharded_state_dict: Any, checkpoint_dir: str | os.PathLike[str]) -> None:
        """Save, and return once this rank's part is safe on the node."""
        super().save(sharded_state_dict, checkpoint_dir)
        self.wait()

    def async_save(
        self, sharded_state_dict: Any, checkpoint_dir: Any, async_strategy: str = "nvrx"
    ) -> Any:
        """Begin a save; its last act is to begin the put.

        Raises:
            InvalidNameError: The folder is not called ``iter_N``.
            CachetierClientError: The save before was not put.
        """
        step = _step_of(checkpoint_dir)
        self.wait()
        request = super().async_save(sharded_state_dict, checkpoint_dir, async_strategy)
        request.finalize_fns.append(lambda: self._begin(Path(checkpoint_dir), step))
        return request

    def wait(self) -> None:
        """Wait until what was saved is put.

        Raises:
            CachetierClientError: It is not, and nothing of this rank's part is kept.
        """
        self._puts.wait()

    def _begin(self, folder: Path, step: int) -> None:
        part = self._client.checkpoint(
            self._run, step, overwrite=True, timeout_seconds=self._timeout_seconds
        )
        names = [path.name for path in folder.glob(f"__{dist.get_rank()}_*.distcp")]
        contents: dict[str, bytes] = {}
        if dist.get_rank() == 0:
            names.append(".metadata")
            # Megatron writes the same, after this, from here on at any time.
            save_config(CheckpointingConfig(self.backend, self.version), str(folder))
            contents[_CONFIG] = (folder / _CONFIG).read_bytes()
        self._puts.start(part, folder, names, contents)


def restore_latest(
    root: str | os.PathLike[str],
    run: str | None = None,
    *,
    level: RestorableLevel = "any",
    client: Client | None = None,
) -> str | None:
    """Fill the folder of the newest step that every rank can restore; called on all ranks.

    It also names the step in the file in which Megatron-LM looks for the newest.

    Returns:
        The folder, for ``dist_checkpointing.load``; None if there is no such step.
    """
    client = client or default_client()
    step = latest_common_step(run, level=level, client=client, strict=True)
    if step is None:
        return None
    folder = fetch_step(client, run, step, Path(root) / f"iter_{step:07d}")
    write_whole(Path(root) / TRACKER, str(step))
    return str(folder)


def _step_of(folder: str | os.PathLike[str]) -> int:
    name = Path(folder).name
    found = _FOLDER.fullmatch(name)
    if found is None:
        raise InvalidNameError(
            f"{name!r} is not a checkpoint's folder", hint="Call it iter_0000010 for step 10."
        )
    return int(found[1])
