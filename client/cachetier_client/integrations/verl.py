"""verl: its checkpoint handler, with a run of cachetier as the remote directory.

    verl.trainer.sft_trainer.CheckpointHandler = CachetierCheckpointHandler

    trainer.default_hdfs_dir=cachetier://my-run

verl saves to its local directory as before. Each rank then puts its own files while training goes
on; a step is whole once all ranks have. ``resume_mode=auto`` goes on from the newest step that all
ranks can restore, on a node that has nothing of it too.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import torch.distributed as dist
from verl.utils.checkpoint.checkpoint_handler import CheckpointHandler, OrchestrationMode

from cachetier_client.client import Client
from cachetier_client.default import default_client
from cachetier_client.errors import InvalidRequestError
from cachetier_client.identity.addresses import parse
from cachetier_client.integrations.folders import FolderPuts, fetch_step, files_of
from cachetier_client.torch.agreement import latest_common_step

PUT_SECONDS = 600.0
_OF_RANK = re.compile(r"_rank_(\d+)\.pt$")
_OF_DATA = re.compile(r"data_(\d+)\.pt")


class CachetierCheckpointHandler(CheckpointHandler):  # type: ignore[misc]  # it has no types
    """Keeps verl's checkpoints in a run: ``default_hdfs_dir="cachetier://my-run"`` says which.

    For processes that torchrun starts. An old local folder is removed (``max_ckpt_to_keep``) only
    once all ranks have put what they wrote into it.

    Args:
        arguments: Of verl's handler.
        client: Default: the process's own.
        timeout_seconds: Of each call on the service.
        options: Of verl's handler.
    """

    def __init__(
        self,
        *arguments: Any,
        client: Client | None = None,
        timeout_seconds: float = PUT_SECONDS,
        **options: Any,
    ) -> None:
        remote = str(options.pop("default_hdfs_dir", None) or "")
        super().__init__(*arguments, **options)  # verl would make a local folder of that name
        address = parse(remote)
        if address.run is None or address.path:
            raise InvalidRequestError(
                f"default_hdfs_dir={remote!r} names no run",
                hint="Set it to cachetier://my-run.",
            )
        if self.mode is not OrchestrationMode.SPMD:
            raise InvalidRequestError(
                "workers of Ray write files that this process does not see",
                hint="Start verl.trainer.sft_trainer by torchrun.",
            )
        self._run = address.run
        self._client = client or default_client()
        self._timeout_seconds = timeout_seconds
        self._puts = FolderPuts()

    def save_checkpoint(self, step: int) -> None:
        """Save as verl does, and begin to put the files.

        Raises:
            CachetierClientError: The checkpoint before was not put.
        """
        self._puts.wait()
        dist.barrier()  # from here on verl may remove what the ranks have put
        super().save_checkpoint(step)
        part = self._client.checkpoint(
            self._run, step, overwrite=True, timeout_seconds=self._timeout_seconds
        )
        folder = self._folder(step)
        self._puts.start(part, folder, filter(self._is_mine, files_of(folder)))

    def wait(self) -> None:
        """Wait until what was saved is put.

        Raises:
            CachetierClientError: It is not, and nothing of this rank's part is kept.
        """
        self._puts.wait()

    def _find_latest_checkpoint(self) -> str | None:
        step = latest_common_step(self._run, client=self._client, strict=True)
        if step is None:
            found: str | None = super()._find_latest_checkpoint()
            return found
        return str(fetch_step(self._client, self._run, step, self._folder(step)))

    def _folder(self, step: int) -> Path:
        return Path(os.path.abspath(self.default_local_dir)) / f"global_step_{step}"

    def _is_mine(self, name: str) -> bool:
        """Whether this rank wrote a file; what names no rank is the first's."""
        if found := _OF_RANK.search(name):
            return int(found[1]) == int(self.rank)
        if found := _OF_DATA.fullmatch(name):
            return bool(self.is_mp_src_rank_with_outputs) and int(found[1]) == int(self.dp_rank)
        return int(self.rank) == 0
