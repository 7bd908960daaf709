"""Leaving a node: it takes no more puts, and what it has is drained, before its disk goes.

Puts that had begun end, and are waited for: a node that has left acknowledges nothing any more. Of
each run the newest complete step is drained though a policy keeps it here, and so is a step that is
being saved: it is what the job would resume from.

Source: docs/operations.md; why: docs/design/0039-leave.md.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from cachetier.errors import CachetierError, StoppingError
from cachetier.local.catalog import saves
from cachetier.local.store import Store
from cachetier.model.checkpoint import Save
from cachetier.model.levels import Level
from cachetier.model.lifecycle import KEPT_SAVES
from cachetier.steps.operations import Checkpoints
from cachetier.steps.pending import Pending
from cachetier.steps.waits import AskBucket, Question
from cachetier.telemetry import events
from cachetier.telemetry.events import tell

log = logging.getLogger(__name__)


class Course:
    """How far the service is on its way from start to stop, and the puts under way. Thread-safe."""

    def __init__(self) -> None:
        self.leaving = False
        self.stopping = False
        self.puts = 0
        self._lock = threading.Lock()

    def refuse_when_stopping(self) -> None:
        if self.stopping:
            raise StoppingError("the service is stopping")

    def refuse_when_leaving(self) -> None:
        self.refuse_when_stopping()
        if self.leaving:
            raise StoppingError(
                "the node is being left: it takes no more shards",
                hint="Save on another node. `cachetier leave --stay` has it take puts again.",
            )

    def put_begins(self) -> None:
        """Count a put until ``put_ends``, which must follow.

        Raises:
            StoppingError: The node is being left, and takes none.
        """
        with self._lock:
            self.refuse_when_leaving()
            self.puts += 1

    def put_ends(self) -> None:
        with self._lock:
            self.puts -= 1

    @contextmanager
    def putting(self) -> Iterator[None]:
        """Count a put until the block ends."""
        self.put_begins()
        try:
            yield
        finally:
            self.put_ends()

    def leave(self) -> bool:
        """Let no more puts begin; return whether some could until now."""
        with self._lock:
            was, self.leaving = self.leaving, True
        return not was


class Leaving:
    """Has the node left, or takes that back. Thread-safe."""

    def __init__(self, course: Course, store: Store, checkpoints: Checkpoints) -> None:
        self._course = course
        self._store = store
        self._checkpoints = checkpoints

    def leave(self, stay: bool = False) -> Question[Pending]:
        """Take no more puts, and return the question whether all is durable; see ``drained``.

        With ``stay`` take puts again, and return a question that is answered.

        Raises:
            StoppingError: The service ends anyhow.
            FencedError: See ``Checkpoints.drained``.
        """
        self._course.refuse_when_stopping()
        if stay:
            if self._course.leaving:
                self._course.leaving = False
                tell(log, events.NODE_STAYS)
            return Question("stay", Pending, lambda _seconds: Pending())
        if self._course.leave():
            tell(log, events.NODE_LEAVING)
        self._want_newest()
        drained = self._checkpoints.drained(None, None)

        def look() -> Pending | AskBucket[Pending] | None:
            if self._course.puts:
                return None
            left = drained.look()
            if isinstance(left, Pending) and not left and self._want_newest():
                return None
            return left

        def late(seconds: float) -> Pending:
            return replace(drained.late(seconds), puts=self._course.puts)

        return Question("leave", look, late)

    def _want_newest(self) -> bool:
        """Have local-only steps drained that jobs would resume from; return whether there are."""
        wanted = False
        for run in self._checkpoints.runs():
            try:
                for save in self._local_only(run):
                    self._checkpoints.drained(run, save.step)
                    wanted = True
            except CachetierError as error:  # deleted at this very moment, or its rows are damaged
                tell(log, events.NODE_STEP_BEHIND, run=run, reason=error.message)
        return wanted

    def _local_only(self, run: str) -> list[Save]:
        """Return what a policy keeps here of the newest complete step, and of those begun since."""
        newest = self._checkpoints.latest(run, Level.MEMORY)
        kept = f"run = ? AND {KEPT_SAVES.sql()} AND step >= ? ORDER BY step"
        found = self._store.read(saves.saves_where, kept, run, newest.step if newest else 0)
        return [
            save for save in found if self._store.read(saves.shown_save, run, save.step) == save
        ]
