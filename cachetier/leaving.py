"""Leave a node that is about to go: flush everything in the time that is left.

Source: docs/leaving.md.
"""

from __future__ import annotations

import logging

from cachetier.checkpoints import Checkpoints
from cachetier.errors import CachetierError
from cachetier.model.checkpoint import SaveState
from cachetier.model.levels import Level
from cachetier.pending import Pending

log = logging.getLogger(__name__)


def leave(checkpoints: Checkpoints, notice_seconds: float) -> Pending:
    """Flush for up to ``notice_seconds``; return what is left behind.

    Of each run whose newest complete step is local-only, that step is sent as well: who leaves
    takes along what the job would resume from.
    """
    log.info("leaving the node: flushing for up to %g s", notice_seconds)
    for run in checkpoints.runs():
        try:
            _want_newest(checkpoints, run)
        except CachetierError as error:  # deleted at this very moment, or its rows are damaged
            log.warning("the newest step of %s may stay behind: %s", run, error.message)
    left = checkpoints.flush(None, None, notice_seconds)
    if left:
        log.error("left behind, safe on this node only: %s", left)
    else:
        log.info("everything that was to be drained is durable")
    return left


def _want_newest(checkpoints: Checkpoints, run: str) -> None:
    newest = checkpoints.latest(run, Level.LOCAL)
    if newest is not None and newest.state == SaveState.LOCAL_ONLY:
        checkpoints.flush(run, newest.step, 0.0)
