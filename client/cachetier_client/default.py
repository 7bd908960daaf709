"""One client for the whole process, made at first use, and its calls as functions."""

from __future__ import annotations

import os
import threading
from contextlib import AbstractContextManager
from typing import Any, SupportsIndex

from cachetier_client.calls.reads import GET_SECONDS
from cachetier_client.calls.runs import PUT_SECONDS
from cachetier_client.client import Client
from cachetier_client.results import AckLevel, Receipt

_lock = threading.Lock()
_default: Client | None = None


def default_client() -> Client:
    """Return the process's client, made from the environment; a closed one is replaced."""
    global _default
    with _lock:
        if _default is None or _default.closed:
            _default = Client()
        return _default


def put_shard(  # noqa: PLR0913 - the ids, fixed names all
    data: Any,
    *,
    step: SupportsIndex,
    name: str,
    run: str | None = None,
    rank: int | None = None,
    world_size: int | None = None,
    ack: AckLevel = "local",
    timeout_seconds: float = PUT_SECONDS,
    save_id: str | None = None,
    overwrite: bool = False,
    element_size: SupportsIndex | None = None,
) -> Receipt:
    """Store one shard on the node and return once it is safe there; see ``Client.put_shard``."""
    return default_client().put_shard(
        data,
        step=step,
        name=name,
        run=run,
        rank=rank,
        world_size=world_size,
        ack=ack,
        timeout_seconds=timeout_seconds,
        save_id=save_id,
        overwrite=overwrite,
        element_size=element_size,
    )


def get_shard(
    run: str | None,
    step: SupportsIndex,
    name: str,
    *,
    out: Any = None,
    timeout_seconds: float = GET_SECONDS,
) -> memoryview:
    """Return one shard's bytes, verified, from the nearest copy; see ``Client.get_shard``."""
    return default_client().get_shard(run, step, name, out=out, timeout_seconds=timeout_seconds)


def training_step() -> AbstractContextManager[None]:
    """Return a ``with`` for a training step; see ``Client.training_step``."""
    return default_client().training_step()


def _renew_lock() -> None:
    global _lock
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_renew_lock)
