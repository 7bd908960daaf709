"""The second future of a save: one that ends when the step is durable."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from torch.distributed.checkpoint.metadata import Metadata

from cachetier_client.client import Client
from cachetier_client.clock import SystemClock
from cachetier_client.deadline import Deadline
from cachetier_client.errors import InvalidRequestError, NotDurableError
from cachetier_client.identity.addresses import parse_step
from cachetier_client.identity.step_names import StepName
from cachetier_client.results import LevelReached
from cachetier_client.torch.dcp import StepStorage

DURABLE_SECONDS = 3600.0
_LOOK_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class Saved:
    """Which save of which step."""

    run: str
    step: int
    save_id: str


def saved_by(metadata: Any, step_name: StepName) -> Saved:
    """Return what a save's metadata, which DCP returns, says of it.

    Raises:
        InvalidRequestError: It is of no save by ``CachetierWriter``.
    """
    meta = metadata.storage_meta if isinstance(metadata, Metadata) else None
    if meta is None or meta.checkpoint_id is None or meta.save_id is None:
        raise InvalidRequestError(
            "there is no save by CachetierWriter to wait for",
            hint="Pass what dcp.save or dcp.async_save returned, or save first.",
        )
    return Saved(*parse_step(meta.checkpoint_id, step_name), meta.save_id)


def durable(
    storage: StepStorage, after: Any, last: Saved | None, timeout_seconds: float
) -> Future[LevelReached]:
    """Return a future that ends when a save is durable.

    Args:
        storage: Whose client is asked.
        after: What ``dcp.save`` or ``dcp.async_save`` returned, or None.
        last: What to wait for in that case.
        timeout_seconds: From the end of the save on.
    """
    future: Future[LevelReached] = Future()
    future.set_running_or_notify_cancel()

    def wait() -> None:
        try:
            saved = last if after is None else saved_by(_result(after), storage.step_name)
            if saved is None:
                saved = saved_by(None, storage.step_name)
            deadline = Deadline(timeout_seconds, SystemClock())
            future.set_result(_wait(storage.client, saved, deadline))
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=wait, name="cachetier-durable", daemon=True).start()
    return future


def _result(after: Any) -> Any:
    saving = getattr(after, "upload_completion", after)
    return saving.result() if hasattr(saving, "result") else saving


def _wait(client: Client, saved: Saved, deadline: Deadline) -> LevelReached:
    """Wait until the step is durable with this save's content, not with that of one before."""
    while True:
        reached = client.wait(saved.run, saved.step, "durable", deadline.remaining())
        if client.step(saved.run, saved.step).save_id == saved.save_id:
            return reached
        if not deadline.remaining():
            error = NotDurableError("the step is durable, but with the content of another save")
            error.locate("durable", run=saved.run, step=saved.step)
            raise error
        SystemClock().sleep(min(_LOOK_SECONDS, deadline.remaining()))
