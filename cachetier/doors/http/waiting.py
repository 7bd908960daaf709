"""Long polls in slices, so that no thread waits long for a caller who has gone."""

from __future__ import annotations

import time

from cachetier.doors.http.pools import Pools
from cachetier.doors.operations import Operations
from cachetier.errors import NotDurableError
from cachetier.model.levels import Level
from cachetier.steps.pending import Pending

SLICE_SECONDS = 5.0


async def wait_for_level(
    node: Operations,
    pools: Pools,
    run: str,
    step: int,
    name: str | None,
    level: Level,
    timeout_seconds: float,
) -> float:
    """Wait until a step, or one shard, has reached ``level``; return its age in seconds.

    Raises as ``Checkpoints.wait`` does.
    """
    deadline = time.monotonic() + timeout_seconds
    while True:
        left = max(0.0, deadline - time.monotonic())
        slice_seconds = min(left, SLICE_SECONDS)
        try:
            return await pools.patient(node.checkpoints.wait, run, step, name, level, slice_seconds)
        except NotDurableError:
            node.refuse_when_stopping()
            if left <= SLICE_SECONDS:
                raise NotDurableError(
                    f"{_what(step, name)} is not {level} after {timeout_seconds:g} s",
                    run=run,
                    step=step,
                    name=name,
                ) from None


async def wait_for_flush(
    node: Operations, pools: Pools, run: str | None, step: int | None, timeout_seconds: float
) -> Pending:
    """Wait until nothing dirty is left; return what is.

    Raises as ``Checkpoints.flush`` does.
    """
    deadline = time.monotonic() + timeout_seconds
    while True:
        left = max(0.0, deadline - time.monotonic())
        slice_seconds = min(left, SLICE_SECONDS)
        pending = await pools.patient(node.checkpoints.flush, run, step, slice_seconds)
        if not pending or left <= SLICE_SECONDS:
            return pending
        node.refuse_when_stopping()


def _what(step: int, name: str | None) -> str:
    return f"step {step}" if name is None else f"shard {name} of step {step}"
