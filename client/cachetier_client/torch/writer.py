"""DCP's storage writer: one shard for each rank, its tensors' bytes straight from their memory.

Each rank puts its shard and seals its part, the coordinator last, once ``.metadata`` is put. A rank
that fails aborts its part and raises, which DCP tells to all; the coordinator then never seals, so
such a step is never restorable. What the coordinator has put of it is aborted when it saves next.

Source: docs/torch.md, "DCP".
"""

from __future__ import annotations

import dataclasses
import os
from concurrent.futures import Future
from typing import Any

from torch.distributed.checkpoint.metadata import Metadata, StorageMeta
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner
from torch.distributed.checkpoint.staging import AsyncStager
from torch.distributed.checkpoint.storage import StorageWriter, WriteResult
from torch.futures import Future as TorchFuture

from cachetier_client.checkpoints import Checkpoint
from cachetier_client.client import Client
from cachetier_client.errors import (
    CachetierClientError,
    InvalidRequestError,
    NotFoundError,
    StepPublishedError,
)
from cachetier_client.results import LevelReached
from cachetier_client.torch import metadata as stored
from cachetier_client.torch import waiting
from cachetier_client.torch.dcp import DCP_SECONDS, StepStorage, is_address
from cachetier_client.torch.extents import Extent
from cachetier_client.torch.plans import Assignment, assigned, resolve, take_assignment
from cachetier_client.torch.saving import TorchSave, TorchSaves
from cachetier_client.torch.sending import give_up, send
from cachetier_client.torch.staging import HostStager

_UNFINISHED = frozenset({"open", "aborted", "superseded"})
# What FileSystemWriter takes and a shard, written by threads and synced anyway, has no use for.
_WITHOUT_EFFECT = frozenset(
    {
        "single_file_per_rank",
        "sync_files",
        "thread_count",
        "per_thread_copy_ahead",
        "cache_staged_state_dict",
    }
)


class CachetierWriter(StorageWriter):
    """Saves to ``cachetier://run/step`` with ``dcp.save`` and ``dcp.async_save``.

    ``dcp.save`` returns once the step is safe on its nodes (``local``), and so does the future of
    ``dcp.async_save``; ``durable`` gives a second future. For ``dcp.async_save`` the writer stages
    into host memory that it uses again from save to save: keep the writer, and name each step by
    ``checkpoint_id=``.

    Args:
        path: The step's address; DCP's ``checkpoint_id=`` takes its place.
        client: Whose service to save to; default: the process's, see ``default_client``.
        url: The same, by address; what ``AsyncCheckpointerType.PROCESS`` needs of a client.
        overwrite: Replace a step that is there already; else it is an error, before anything is
            written.
        stager: Stages for ``dcp.async_save`` in the writer's place.
        step_name: How folders of steps are called; default ``CACHETIER_STEP_NAME``, ``{step}``.
        timeout_seconds: For all that one rank writes in a save, and for the coordinator's end.
        without_effect: Options of DCP's own ``FileSystemWriter``, such as ``thread_count``, so that
            a script need not change.

    Raises:
        TypeError: Another option.
    """

    _synchronize_after_execute = False

    def __init__(
        self,
        path: str | os.PathLike[str] | None = None,
        *,
        client: Client | None = None,
        url: str | None = None,
        overwrite: bool = True,
        stager: AsyncStager | None = None,
        step_name: str | None = None,
        timeout_seconds: float = DCP_SECONDS,
        **without_effect: Any,
    ) -> None:
        for option in sorted(without_effect.keys() - _WITHOUT_EFFECT):
            raise TypeError(f"CachetierWriter has no option {option!r}")
        super().__init__()
        self._step = StepStorage(
            path, client=client, url=url, step_name=step_name, timeout_seconds=timeout_seconds
        )
        self._overwrite = overwrite
        self._stager = stager
        self._own_stager: HostStager | None = None
        self._saves = TorchSaves()
        self._saved: waiting.Saved | None = None

    # --- DCP's storage writer --------------------------------------------------------------------

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """Begin another save, of another step if one is named."""
        if checkpoint_id:
            self._step.locate(checkpoint_id)
            self._saves.begin(self._step.where)

    def set_up_storage_writer(self, is_coordinator: bool, *_args: Any, **kwargs: Any) -> None:
        """Learn this process's role in the save that begins."""
        save = self._saves.set_up(self._step)
        save.coordinates = is_coordinator
        save.rank = kwargs.get("rank")
        save.collectives = kwargs.get("use_collectives", True)

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        """Refuse a step that is there already, unless it may be replaced.

        Raises:
            StepPublishedError: It is, and ``overwrite`` is False.
        """
        save = self._saves.current()
        if not self._overwrite and self._is_there(save):
            error = StepPublishedError(
                "the step has been saved already",
                hint="Save another step, or replace this one with CachetierWriter(overwrite=True).",
            )
            error.locate("dcp.save", run=save.where[0], step=save.where[1], rank=save.rank)
            raise error
        if save.collectives:
            return plan
        return dataclasses.replace(plan, storage_data=Assignment(None, save.rank, None))

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        """Name the save for all ranks."""
        return assigned(plans)

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> TorchFuture[list[WriteResult]]:
        """Store this rank's shard; ended when it is safe on the node."""
        save, assignment = self._saves.current(), take_assignment(plan)
        try:
            save.part = self._begin(save, assignment)
            results = self._write(save.part, assignment.shard_name, plan, planner)
            if save.collectives and not save.coordinates:
                self._seal(save)
        except BaseException as error:
            give_up(error)
            self._abort_after(error, save, assignment.shard_name)
            raise
        future: TorchFuture[list[WriteResult]] = TorchFuture()
        future.set_result(results)
        return future

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        """Store ``.metadata`` and seal: with that the step is complete."""
        save = self._saves.current()
        part = save.part
        if part is None:
            raise InvalidRequestError("finish() before write_data()", hint="Save with dcp.save.")
        metadata.version = stored.VERSION
        metadata.storage_data = {each.index: each.storage_data for rank in results for each in rank}
        metadata.storage_meta = StorageMeta(
            checkpoint_id=self._step.address_of(save.where), save_id=part.save_id
        )
        name = stored.METADATA_NAME
        if not save.collectives:
            name = stored.rank_metadata_name(part.rank)
        try:
            part.put(stored.dump(metadata), name, timeout_seconds=self._step.timeout_seconds)
            self._seal(save)
        except BaseException as error:
            self._abort_after(error, save, name)
            raise

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        """Return whether this is the address of a step."""
        return is_address(checkpoint_id)

    def storage_meta(self) -> StorageMeta | None:
        """Return what planners learn of the storage."""
        return StorageMeta(checkpoint_id=self.checkpoint_id)

    @property
    def checkpoint_id(self) -> str | None:
        """The step's address, once one was named."""
        return self._step.address

    # --- DCP's stager ----------------------------------------------------------------------------

    @property
    def should_synchronize_after_execute(self) -> bool:
        """Whether DCP has to wait for staging once the save has begun."""
        return self._stager is not None and self._stager.should_synchronize_after_execute

    def stage(self, state_dict: dict[str, Any]) -> Any:
        """Return a copy of the state that training does not change, for ``dcp.async_save``."""
        if self._stager is not None:
            return self._stager.stage(state_dict)
        if self._own_stager is None:
            self._own_stager = HostStager(timeout_seconds=self._step.timeout_seconds)
        return self._own_stager.stage(state_dict)

    def synchronize_staging(self) -> None:
        """Wait until the state may be changed."""
        if self._stager is not None:
            self._stager.synchronize_staging()

    def close(self) -> None:
        """Wait for saves under way, free the memory for staging, and let go of an own client.

        A save that takes longer than ``timeout_seconds`` fails and is taken back. A stager that was
        passed stays its owner's to close.
        """
        self._saves.close(self._step.deadline())
        if self._own_stager is not None:
            self._own_stager.close()
            self._own_stager = None
        self._step.close()

    # --- beyond DCP ------------------------------------------------------------------------------

    def durable(
        self, after: Any = None, *, timeout_seconds: float = waiting.DURABLE_SECONDS
    ) -> Future[LevelReached]:
        """Return a future that ends when a save is ``durable``: whole, and in the remote.

        Args:
            after: What ``dcp.async_save`` (or ``dcp.save``) returned: wait for that save first, and
                fail with it. Default: the last save that this writer has ended.
            timeout_seconds: From the end of that save on.

        Raises (by the future):
            NotDurableError: Not in time; call again.
            CachetierClientError: See ``Client.wait``.
        """
        return waiting.durable(self._step, after, self._saved, timeout_seconds)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_saves": None, "_stager": None, "_own_stager": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _saves=TorchSaves())

    # --- the parts of a save ---------------------------------------------------------------------

    def _begin(self, save: TorchSave, assignment: Assignment) -> Checkpoint:
        return self._step.client.checkpoint(
            *save.where,
            rank=assignment.rank,
            world_size=assignment.world_size,
            save_id=assignment.save_id,
            overwrite=self._overwrite,
            timeout_seconds=self._step.timeout_seconds,
        )

    def _write(
        self, part: Checkpoint, name: str, plan: SavePlan, planner: SavePlanner
    ) -> list[WriteResult]:
        resolved = resolve(plan, planner)
        layout = send(part, name, [piece for _, piece in resolved], self._step.deadline())
        places = {id(each.piece): each.at for each in layout.placed}
        return [
            WriteResult(
                index=item.index,
                size_in_bytes=piece.length,
                storage_data=Extent(name, places[id(piece)], piece.length),
            )
            for item, piece in resolved
        ]

    def _seal(self, save: TorchSave) -> None:
        assert save.part is not None
        part = save.part
        part.seal()
        save.part, save.has_ended = None, True
        self._saved = waiting.Saved(part.run, part.step, part.save_id)

    def _abort_after(self, error: BaseException, save: TorchSave, name: str) -> None:
        """Take back what this rank has put, and say whose failure it was."""
        if isinstance(error, CachetierClientError):
            error.locate(run=save.where[0], step=save.where[1], rank=save.rank, name=name)
        else:
            error.add_note(
                f"saving {self._step.address_of(save.where)}, rank={save.rank}, shard={name}"
            )
        save.abort()

    def _is_there(self, save: TorchSave) -> bool:
        try:
            found = self._step.client.step(*save.where)
        except NotFoundError:
            return False
        return found.state not in _UNFINISHED
