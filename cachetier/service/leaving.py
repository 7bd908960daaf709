"""Leave a node that is about to go: flush everything in the time that is left.

Source: docs/leaving.md.
"""

from __future__ import annotations

import logging

from cachetier.errors import CachetierError
from cachetier.model.checkpoint import SaveState
from cachetier.model.levels import Level
from cachetier.steps.operations import Checkpoints
from cachetier.steps.pending import Pending
from cachetier.telemetry import events
from cachetier.telemetry.events import tell

log = logging.getLogger(__name__)


def leave(checkpoints: Checkpoints, notice_seconds: float) -> Pending:
    """Flush for up to ``notice_seconds``; return what is left behind.

    Of each run whose newest complete step is local-only, that step is sent as well: who leaves
    takes along what the job would resume from.
    """
    tell(log, events.NODE_LEAVING, notice_seconds=notice_seconds)
    for run in checkpoints.runs():
        try:
            _want_newest(checkpoints, run)
        except CachetierError as error:  # deleted at this very moment, or its rows are damaged
            tell(log, events.NODE_STEP_BEHIND, run=run, reason=error.message)
    left = checkpoints.flush(None, None, notice_seconds)
    if left:
        shards, size_bytes = left.shards, left.size_bytes
        tell(log, events.NODE_BEHIND, left=str(left), shards=shards, size_bytes=size_bytes)
    else:
        tell(log, events.NODE_LEFT)
    return left


def _want_newest(checkpoints: Checkpoints, run: str) -> None:
    newest = checkpoints.latest(run, Level.LOCAL)
    if newest is not None and newest.state == SaveState.LOCAL_ONLY:
        checkpoints.flush(run, newest.step, 0.0)
