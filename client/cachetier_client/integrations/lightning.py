"""Lightning: single files through ``CachetierCheckpointIO``, sharded ones through the strategy.

Lightning writes a checkpoint to ``cachetier://`` by itself, from a copy in memory, and finds none
of them again by ``ckpt_path="last"``. Sharded strategies take an address for a local folder.

Source: docs/frameworks.md, "Lightning".
"""

from __future__ import annotations

import io
import os
from typing import Any

import fsspec
import torch
import torch.distributed.checkpoint as dcp
from lightning.fabric.plugins import TorchCheckpointIO
from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.strategies import DeepSpeedStrategy, FSDPStrategy, ModelParallelStrategy
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_optimizer_state_dict,
)

from cachetier_client.errors import InvalidRequestError
from cachetier_client.identity.addresses import SCHEME
from cachetier_client.torch import CachetierReader, CachetierWriter
from cachetier_client.torch.agreement import agree

_LOCAL_ALONE = (DeepSpeedStrategy, FSDPStrategy, ModelParallelStrategy)
_REST = "lightning"  # whatever of a checkpoint is neither model nor optimizer, pickled


def is_address(path: object) -> bool:
    """Return whether a path is an address of cachetier."""
    return isinstance(path, str | os.PathLike) and os.fspath(path).startswith(f"{SCHEME}://")


class CachetierCheckpointIO(TorchCheckpointIO):  # type: ignore[misc]
    """Writes a checkpoint into the node's cache as it is pickled, without a copy in memory.

    Local paths are as without it. ``storage_options`` of ``Trainer.save_checkpoint`` are those of
    the file system, ``{"ack": "durable"}`` for instance.
    """

    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: Any, storage_options: Any = None
    ) -> None:
        """Save a checkpoint: it is a commit of its own once this returns.

        Raises:
            CachetierClientError: See ``fs.open`` in docs/fsspec.md.
        """
        if not is_address(path):
            super().save_checkpoint(checkpoint, path, storage_options)
            return
        with fsspec.open(os.fspath(path), "wb", **(storage_options or {})) as file:
            torch.save(checkpoint, file)

    def load_checkpoint(
        self, path: Any, map_location: Any = lambda storage, _: storage, weights_only: Any = None
    ) -> dict[str, Any]:
        """Load a checkpoint, on all ranks the same one.

        Raises:
            FileNotFoundError: There is none.
            AgreementError: Ranks see different checkpoints under the path, or one did not come.
        """
        if is_address(path):
            refuse_different(os.fspath(path))
        return super().load_checkpoint(path, map_location, weights_only)  # type: ignore[no-any-return]


class CachetierModelCheckpoint(ModelCheckpoint):  # type: ignore[misc]
    """A ``ModelCheckpoint`` whose ``dirpath`` is an address, and which finds its last checkpoint.

    Everything else is Lightning's: ``save_top_k``, ``save_last=True``, ``monitor``.

    Raises:
        InvalidRequestError: ``dirpath`` is not an address.
    """

    def __init__(self, dirpath: str, **options: Any) -> None:
        if not is_address(dirpath):
            raise InvalidRequestError(
                f"dirpath={dirpath!r} is not an address",
                hint="Pass dirpath='cachetier://my-run/checkpoints', or use ModelCheckpoint.",
            )
        super().__init__(dirpath=dirpath, **options)

    def setup(self, trainer: Trainer, pl_module: Any, stage: str) -> None:
        """Refuse a strategy that would take the address for a local folder.

        Raises:
            InvalidRequestError: It is one of those that write their checkpoints themselves.
        """
        strategy = trainer.strategy
        own = isinstance(strategy, CachetierModelParallelStrategy)
        if isinstance(strategy, _LOCAL_ALONE) and not own:
            raise InvalidRequestError(
                f"{type(strategy).__name__} takes {self.dirpath} for a local folder",
                hint="Use CachetierModelParallelStrategy, or a local dirpath and cachetier adopt.",
            )
        super().setup(trainer, pl_module, stage)

    def _find_last_checkpoints(self, trainer: Trainer) -> set[str]:
        """Return the last checkpoints as addresses: Lightning drops ``cachetier://``."""
        found = super()._find_last_checkpoints(trainer)
        return {each if is_address(each) else f"{SCHEME}://{each}" for each in found}


class CachetierModelParallelStrategy(ModelParallelStrategy):  # type: ignore[misc]
    """FSDP2 and tensor parallel: all ranks' shards and the rest of a checkpoint are one commit.

    ``filepath`` is an address of a folder; other paths are as without it.
    """

    def save_checkpoint(
        self, checkpoint: dict[str, Any], filepath: Any, storage_options: Any = None
    ) -> None:
        """Save a checkpoint: it is committed once every rank has written its part.

        Raises:
            InvalidRequestError: ``save_distributed_checkpoint=False``: see docs/frameworks.md.
            CheckpointException: On some rank it failed; nothing is committed.
        """
        address = self.broadcast(filepath)
        if is_address(address) and not self._save_distributed_checkpoint:
            raise InvalidRequestError(
                f"save_distributed_checkpoint=False would take {address} for a local folder",
                hint="Leave it as it is: `cachetier get --format torch` makes one file of a step.",
            )
        if not is_address(address):
            super().save_checkpoint(checkpoint, filepath, storage_options)
            return
        state = {"state_dict": checkpoint.pop("state_dict")}
        for index, optimizer in enumerate(checkpoint.pop("optimizer_states", [])):
            state[f"optimizer_{index}"] = optimizer
        if self.global_rank == 0:
            pickled = io.BytesIO()
            torch.save(checkpoint, pickled)
            state[_REST] = torch.frombuffer(pickled.getbuffer(), dtype=torch.uint8)
        dcp.save(state, storage_writer=CachetierWriter(address, **(storage_options or {})))

    def load_checkpoint(self, checkpoint_path: Any, weights_only: Any = None) -> dict[str, Any]:
        """Load model and optimizers in place, and return the rest of the checkpoint.

        Raises:
            NotFoundError: There is none.
        """
        address = self.broadcast(checkpoint_path)
        if not is_address(address):
            return super().load_checkpoint(checkpoint_path, weights_only)  # type: ignore[no-any-return]
        model, module = self.model, self.lightning_module
        assert model is not None and module is not None
        reader = CachetierReader(address)
        described: Any = reader.read_metadata().state_dict_metadata[_REST]
        rest = torch.empty(described.size, dtype=torch.uint8)
        state: dict[str, Any] = {"state_dict": get_model_state_dict(model), _REST: rest}
        for index, optimizer in enumerate(self.optimizers):
            state[f"optimizer_{index}"] = get_optimizer_state_dict(model, optimizer)
        dcp.load(state, storage_reader=reader)
        model.load_state_dict(state["state_dict"], strict=module.strict_loading)
        options = StateDictOptions(cpu_offload=True)
        for index, optimizer in enumerate(self.optimizers):
            found = state[f"optimizer_{index}"]
            set_optimizer_state_dict(model, optimizer, optim_state_dict=found, options=options)
        loaded = torch.load(io.BytesIO(rest.numpy().data), weights_only=weights_only)
        assert isinstance(loaded, dict)
        return loaded


def refuse_different(address: str) -> None:
    """Raise on all ranks unless each of them sees the same checkpoint under an address.

    Raises:
        AgreementError, InvalidRequestError: They do not; what to do is said.
    """
    if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        return

    def seen() -> list[str]:
        fs, path = fsspec.core.url_to_fs(address)
        return [address, fs.ukey(path) if fs.isfile(path) else ""]

    every = agree(seen, name="lightning")
    if any(each != every[0] for each in every):
        raise InvalidRequestError(
            f"the ranks do not see one checkpoint under {address}",
            hint="Wait until it is durable (`cachetier flush` on each node), or name an older one.",
        )
