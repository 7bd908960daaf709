"""Ray Train: checkpoints go into cachetier, and Ray's storage keeps a line that says where.

upload = CachetierUpload("my-run", ranks="all")
ray.train.report(
    metrics,
    checkpoint=ray.train.Checkpoint.from_directory(folder),
    checkpoint_dir_name=f"checkpoint_{step}",
    checkpoint_upload_mode=CheckpointUploadMode.ASYNC,
    checkpoint_upload_fn=upload,
)
...
found = ray.train.get_checkpoint()
if found:
    with as_directory(found) as folder: ...
"""

from __future__ import annotations

import json
import secrets
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

import pyarrow.fs
import ray.train
import ray.train.collective

from cachetier_client.client import Client
from cachetier_client.default import default_client
from cachetier_client.errors import InvalidNameError, InvalidRequestError
from cachetier_client.identity.step_names import StepName
from cachetier_client.integrations.folders import fetch_step, files_of, put_files
from cachetier_client.results import AckLevel

POINTER = "cachetier.json"
UPLOAD_SECONDS = 600.0


class CachetierUpload:
    """A ``checkpoint_upload_fn``: puts a checkpoint's files into a step of a run.

    Made in the training function, on every worker; with ``ranks="all"`` that is a collective of
    Ray's, which gives the saves of this attempt one identity.

    Args:
        run: Default: ``CACHETIER_RUN``.
        ranks: Who reports checkpoints: ``all`` workers, or the ``first`` alone. A step is whole
            once all of them have put theirs.
        step_name: How ``checkpoint_dir_name`` names steps.
        ack: How safe a checkpoint is when Ray takes it for saved. ``durable`` waits for the bucket:
            for the upload mode ASYNC, where no training waits for it.
        timeout_seconds: Of each call on the service.
        client: Default: the process's own.
    """

    def __init__(
        self,
        run: str | None = None,
        *,
        ranks: Literal["all", "first"],
        step_name: str = "checkpoint_{step}",
        ack: AckLevel = "local",
        timeout_seconds: float = UPLOAD_SECONDS,
        client: Client | None = None,
    ) -> None:
        context = ray.train.get_context()
        together = ranks == "all"
        self._rank = context.get_world_rank()
        self._world_size = context.get_world_size() if together else 1
        save_id = f"ray-{secrets.token_hex(8)}"
        if together:
            save_id = ray.train.collective.broadcast_from_rank_zero(save_id)
        self._save_id = save_id
        self._run = run
        self._steps = StepName(step_name)
        self._ack = ack
        self._timeout_seconds = timeout_seconds
        self._client = client

    def __call__(
        self, checkpoint: ray.train.Checkpoint, checkpoint_dir_name: str
    ) -> ray.train.Checkpoint:
        """Put it, and return the checkpoint of Ray's storage that points to the step.

        Raises:
            InvalidRequestError: The checkpoint is not a local folder, or another rank's to report.
            InvalidNameError: ``checkpoint_dir_name`` names no step.
            CachetierClientError: The part is not safe; Ray ends the attempt with it.
        """
        if not isinstance(checkpoint.filesystem, pyarrow.fs.LocalFileSystem):
            raise InvalidRequestError(
                f"{checkpoint} is not a local folder",
                hint="Report Checkpoint.from_directory(folder).",
            )
        if self._rank >= self._world_size:
            raise InvalidRequestError(
                f"rank {self._rank} reports a checkpoint, although ranks='first' is set",
                hint="Pass ranks='all', and a checkpoint on every rank.",
            )
        step = self._steps.step_of("", checkpoint_dir_name)
        if step is None:
            raise InvalidNameError(
                f"{checkpoint_dir_name!r} names no step",
                hint=f"Pass a checkpoint_dir_name like {self._steps.of('', 1000)!r} to report.",
            )
        part = (self._client or default_client()).checkpoint(
            self._run,
            step,
            rank=self._rank,
            world_size=self._world_size,
            save_id=self._save_id,
            overwrite=True,
            ack=self._ack,
            timeout_seconds=self._timeout_seconds,
        )
        put_files(part, checkpoint.path, files_of(checkpoint.path))
        storage = ray.train.get_context().get_storage()
        folder = f"{storage.experiment_fs_path}/{checkpoint_dir_name}"
        storage.storage_filesystem.create_dir(folder)
        if self._rank == 0:
            with storage.storage_filesystem.open_output_stream(f"{folder}/{POINTER}") as file:
                file.write(json.dumps({"run": part.run, "step": step}).encode())
        return ray.train.Checkpoint(folder, filesystem=storage.storage_filesystem)


@contextmanager
def as_directory(
    checkpoint: ray.train.Checkpoint, *, client: Client | None = None
) -> Iterator[str]:
    """Lend a checkpoint as a local folder, brought from cachetier and verified.

    A checkpoint that Ray stored itself is lent by Ray's own ``as_directory``.

    Raises:
        NotFoundError: The step is gone, or never became whole.
    """
    pointer = f"{checkpoint.path}/{POINTER}"
    files = checkpoint.filesystem
    if files.get_file_info(pointer).type == pyarrow.fs.FileType.NotFound:
        with checkpoint.as_directory() as folder:
            yield folder
        return
    with files.open_input_stream(pointer) as file:
        where = json.loads(file.read())
    with tempfile.TemporaryDirectory(prefix="cachetier-ray-") as scratch:
        fetch_step(client or default_client(), where["run"], int(where["step"]), scratch)
        yield scratch
