"""Group commit: operations that arrive together share one transaction, hence one sync.

There is no writer thread. The caller that finds the catalog idle leads: it runs every operation in
line in one transaction, answers them all, and hands the lead to the next caller who waits. A lone
caller pays no thread switch, and one who has several operations pays one sync for all.

The first transaction that the disk failed is final: SQLite would go on after a failed sync and
report success, so from then on every operation is refused. A full disk and a lock that another
process holds are no such failure: nothing was synced, and the callers may try again. On a full disk
the log is emptied into the database and begun again, with room from the catalog's reserve.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar

import apsw

from cachetier.errors import BackpressureError, ExhaustedError, FencedError, machine_failure
from cachetier.local.catalog import connection as catalog
from cachetier.local.catalog.connection import Reserve, is_full

BATCH_LIMIT = 256
# What SQLite says of a statement and its values: that one operation was wrong, the disk was not.
_OF_A_STATEMENT = (apsw.ConstraintError, apsw.MismatchError, apsw.TooBigError, apsw.SQLError)
Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


class QueuedOperation(Generic[Result]):
    """One operation in line, and where its caller waits."""

    def __init__(self, operation: Callable[[], Result]) -> None:
        self.operation = operation
        self.result: Result | None = None
        self.error: BaseException | None = None
        self.done = False
        self.awaited = False
        self.turn = threading.Lock()  # free once it is done, or its caller is to lead
        self.turn.acquire()


class Committer:
    """Runs operations on the one connection that writes.

    ``fenced`` says why no more writes are taken, or is None. ``reserve`` is the catalog's room.
    """

    def __init__(
        self,
        connection: apsw.Connection,
        on_fence: Callable[[str], None],
        on_error: Callable[[], None] = lambda: None,
        reserve: Reserve | None = None,
    ) -> None:
        """Run on ``connection``; ``on_error`` is called for each transaction that SQLite failed."""
        self._on_error = on_error
        self.reserve = reserve
        self._connection = connection
        self._on_fence = on_fence
        self._lock = threading.Lock()
        self._line: deque[QueuedOperation[Any]] = deque()
        self._led = False
        self.fenced: str | None = None

    def fence(self, reason: str) -> None:
        """Refuse every write from now on; the first reason stays."""
        if self.fenced is None:
            self.fenced = reason
            self._on_fence(reason)

    def close(self) -> None:
        """Refuse every write after those in line, and close the connection."""

        def last(_sql: apsw.Connection) -> None:
            self.fenced = "the store is closed"

        sound = self.fenced is None
        if sound:
            try:
                self.run(last)
            except BackpressureError:  # another process holds the lock: the log stays as it is
                self.fenced = "the store is closed"
        catalog.close_writer(self._connection, sound=sound)
        if self.reserve is not None:
            self.reserve.close()

    def run(
        self,
        operation: Callable[Concatenate[apsw.Connection, Arguments], Result],
        *args: Arguments.args,
        **kwargs: Arguments.kwargs,
    ) -> Result:
        """Run ``operation`` with ``args`` in a transaction; return its result once that is synced.

        An operation that raises leaves no trace, and the others of its transaction are not touched.

        Raises:
            FencedError: A sync failed, now or before; whether this operation took effect is
            unknown.
        """
        return self.outcome(self.submit(operation, *args, **kwargs))

    def submit(
        self,
        operation: Callable[Concatenate[apsw.Connection, Arguments], Result],
        *args: Arguments.args,
        **kwargs: Arguments.kwargs,
    ) -> QueuedOperation[Result]:
        """Put an operation in line; the next leader runs it, at the latest ``outcome``."""
        pending = QueuedOperation(partial(operation, self._connection, *args, **kwargs))
        with self._lock:
            self._line.append(pending)
        return pending

    def outcome(self, pending: QueuedOperation[Result]) -> Result:
        """Return what an operation gave, once it is synced; see ``run``."""
        while True:
            with self._lock:
                if pending.done:
                    break
                waits, self._led = self._led, True
                pending.awaited = waits
            if waits:
                pending.turn.acquire()
            if not pending.done:  # it is this caller who leads
                self._lead()
        if pending.error is not None:
            raise pending.error
        return pending.result  # type: ignore[return-value]  # set by _attempt when there is no error

    def _lead(self) -> None:
        with self._lock:
            batch = [self._line.popleft() for _ in range(min(len(self._line), BATCH_LIMIT))]
        try:
            errors = self._transact(batch)
        except BaseException as error:
            self.fence(f"the catalog failed in an unforeseen way: {error!r}")
            self._hand_over(batch, [FencedError(str(self.fenced)) for _ in batch])
            raise
        self._hand_over(batch, errors)

    def _hand_over(
        self, batch: list[QueuedOperation[Any]], errors: Sequence[BaseException | None]
    ) -> None:
        """Answer the batch, and let the next in line who waits lead."""
        with self._lock:
            for pending, error in zip(batch, errors, strict=True):
                pending.error, pending.done = error, True
            successor = next((pending for pending in self._line if pending.awaited), None)
            self._led = successor is not None
        for pending in batch:
            pending.turn.release()
        if successor is not None:
            successor.turn.release()

    def _transact(self, batch: list[QueuedOperation[Any]]) -> list[BaseException | None]:
        if self.fenced is not None:
            return [FencedError(self.fenced) for _ in batch]
        try:
            return self._within_its_room(batch)
        except apsw.BusyError as error:
            held = f"another process holds the catalog's lock: {error}"
            return self._give_back(batch, held, "End it: a backup, or `sqlite3`. Nothing was lost.")
        except apsw.Error as error:
            self._on_error()
            if is_full(self._connection, error):
                full = f"the disk has no room for the catalog: {error}"
                return self._give_back(batch, full, "Free space on the disk.")
            number = self._connection.system_errno
            failure = machine_failure(OSError(number, ""), "the catalog")
            if isinstance(failure, ExhaustedError) and isinstance(error, apsw.CantOpenError):
                return self._give_back(batch, failure.message, failure.hint)
            why = f" ({os.strerror(number)})" if number and isinstance(error, apsw.IOError) else ""
            self.fence(f"the catalog failed to commit: {error}{why}")
            return [FencedError(str(self.fenced)) for _ in batch]

    def _give_back(
        self, batch: list[QueuedOperation[Any]], message: str, hint: str
    ) -> list[BaseException | None]:
        """Undo a transaction that could not be synced: nothing was, so no sync lied."""
        self._undo()
        return [BackpressureError(message, hint=hint) for _ in batch]

    def _undo(self) -> None:
        if self._connection.in_transaction:
            self._connection.execute("ROLLBACK")

    def _within_its_room(self, batch: list[QueuedOperation[Any]]) -> list[BaseException | None]:
        """Commit the batch; on a full disk begin the log again, then use up the reserve."""
        try:
            return self._all_or_apart(batch)
        except apsw.Error as error:
            if not is_full(self._connection, error):
                raise
        while True:
            self._undo()
            try:
                self._connection.execute("PRAGMA wal_checkpoint(RESTART)").fetchall()
                return self._all_or_apart(batch)
            except apsw.Error as error:
                full = is_full(self._connection, error)
                if not full or self.reserve is None or not self.reserve.give():
                    raise

    def _all_or_apart(self, batch: list[QueuedOperation[Any]]) -> list[BaseException | None]:
        """Commit the batch; only when an operation fails is each kept apart by a savepoint."""
        self._connection.execute("BEGIN IMMEDIATE")
        errors = [self._attempt(pending) for pending in batch]
        if any(errors):
            self._connection.execute("ROLLBACK")
            self._connection.execute("BEGIN IMMEDIATE")
            errors = [self._attempt_apart(pending) for pending in batch]
        self._connection.execute("COMMIT")
        return errors

    def _attempt(self, pending: QueuedOperation[Any]) -> BaseException | None:
        try:
            pending.result = pending.operation()
        except _OF_A_STATEMENT as error:
            return error
        except apsw.Error:
            raise
        except Exception as error:  # a refusal, or a defect: this caller gets it, the others do not
            return error
        return None

    def _attempt_apart(self, pending: QueuedOperation[Any]) -> BaseException | None:
        self._connection.execute("SAVEPOINT operation")
        error = self._attempt(pending)
        if error is not None:
            self._connection.execute("ROLLBACK TO operation")
        self._connection.execute("RELEASE operation")
        return error
