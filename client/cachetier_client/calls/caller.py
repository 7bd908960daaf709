"""The frame of every public call: ids in its errors, its deadline, the background's failures.

It begins with what failed in the background since the last one; its own failures are told with run,
step, rank and shard; and it ends by noting what the service said of further incidents.
"""

from __future__ import annotations

import dataclasses
import os
import stat
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, SupportsIndex, cast

from cachetier_client import forks
from cachetier_client.bucket_format.stored import ShardFacts
from cachetier_client.cadence import RECENT_SAVES
from cachetier_client.calls.background import EXIT_SECONDS, Background
from cachetier_client.calls.training_hints import TrainingPhases
from cachetier_client.calls.unsealed import Unsealed
from cachetier_client.clock import Clock
from cachetier_client.deadline import Deadline
from cachetier_client.errors import (
    BusyError,
    CachetierClientError,
    InvalidRequestError,
    NotDurableError,
    ProtocolMismatchError,
    StoppingError,
    machine_failure,
)
from cachetier_client.identity.names import SaveIds, checked_run
from cachetier_client.io.buffers import ShardData, element_size_of, gathered, is_source
from cachetier_client.io.ring import Ring
from cachetier_client.io.workers import Workers
from cachetier_client.results import Incident, LevelReached, Receipt, StillComing
from cachetier_client.streams.writer import Destination, ShardWriter
from cachetier_client.transport.base import (
    ConnectionLostError,
    LastingTransport,
    PutRequest,
    Reply,
    Transport,
)
from cachetier_client.transport.retrying import unavailable
from cachetier_client.transport.wire import Header
from cachetier_client.units import counted, shown_size

ACK_LEVELS = ("memory", "local", "replicated", "durable")
_SHORTEST_EXCHANGE_SECONDS = 1.0
_STEPS_NAMED = 5


class ServiceCalls:
    """Makes calls on a service for one client. Thread-safe and fork-safe."""

    def __init__(
        self,
        single: Transport,
        lasting: LastingTransport,
        hello: Header,
        clock: Clock,
        workers: Workers,
        run: str | None = None,
    ) -> None:
        self.transport = lasting
        self.clock = clock
        self.workers = workers
        self.closed = False
        self._single = single
        self._run = run
        self._hello = hello
        self._has_written = False
        self.background = Background(self._fetch_incidents)
        self.phases = TrainingPhases(single, clock)
        self._unsealed = Unsealed()
        self.blocked: deque[tuple[str, float]] = deque(maxlen=RECENT_SAVES)  # of which run
        forks.own(self)

    # --- the frame of a call ---------------------------------------------------------------------

    @contextmanager
    def calling(
        self, operation: str, *, tells: bool = True, **ids: Any
    ) -> Iterator[dict[str, Any]]:
        """Do one public call inside; yields the ids, for what is known of them only there.

        Args:
            operation: Its name.
            tells: Whether to begin with failures in the background.
            ids: Run, step, rank and name, as far as they are known.
        """
        if self.closed:
            raise InvalidRequestError("the client is closed", hint="Make a new Client.")
        if tells and self.background.unraised:
            failed_before = self.background.take()
            if failed_before is not None:
                raise failed_before
        try:
            yield ids
        except CachetierClientError as error:
            error.locate(operation, **ids)
            raise
        except ConnectionLostError as lost:
            away = unavailable(self.transport.url, lost)
            away.locate(operation, **ids)
            raise away from lost.__cause__
        except (OSError, RuntimeError) as error:
            failure = machine_failure(error, "this process")
            if failure is None:
                raise
            failure.locate(operation, **ids)
            raise failure from error
        finally:
            if self._single.noticed_incidents():
                self.background.collect(EXIT_SECONDS)

    def deadline(self, timeout_seconds: float) -> Deadline:
        """Begin a call's time."""
        return Deadline(timeout_seconds, self.clock)

    def run_of(self, run: str | None) -> str:
        """Return the run that a call is about: the one it names, else the client's."""
        chosen = run or self._run or os.environ.get("CACHETIER_RUN")
        if not chosen:
            raise InvalidRequestError(
                "no run was named",
                hint="Pass run=, to the call or to Client, or set CACHETIER_RUN.",
            )
        return checked_run(chosen)

    # --- shards ----------------------------------------------------------------------------------

    def put(
        self,
        part: SaveIds,
        name: str,
        data: ShardData,
        ack: str,
        timeout_seconds: float,
        element_size: SupportsIndex | None = None,
    ) -> Receipt:
        """Store one shard."""
        self._has_written = True
        deadline = self.deadline(timeout_seconds)
        memory = ack == "memory"
        if is_source(data):
            request = PutRequest(part, name, None, ShardFacts.of_put(element_size), memory)
            return self._put_source(request, data, ack, timeout_seconds)
        shard = gathered(data)
        if element_size is None:
            element_size = element_size_of(data) or None
        request = PutRequest(part, name, len(shard), ShardFacts.of_put(element_size), memory)
        reply = self.transport.put(request, shard, deadline)
        self._unsealed.put(part)
        return self._acknowledged(reply, ack, deadline)

    def open_writer(
        self,
        request: PutRequest,
        ack: str,
        timeout_seconds: float,
        *,
        ring: Ring | None = None,
        on_receipt: Callable[[Receipt], None] = lambda _receipt: None,
    ) -> ShardWriter:
        """Open a stream that becomes a shard."""
        self._has_written = True
        self.deadline(timeout_seconds)  # refuse what is none before the first byte comes
        part = request.ids
        ids = {"run": part.run, "step": part.step, "rank": part.rank, "name": request.name}

        def finish(reply: Reply, deadline: Deadline) -> Receipt:
            self._unsealed.put(part)
            receipt = self._acknowledged(reply, ack, deadline)
            on_receipt(receipt)
            return receipt

        return ShardWriter(
            Destination(
                transport=self.transport,
                request=request,
                workers=self.workers,
                ring=ring,
                guard=lambda: self.calling("open_shard", tells=False, **ids),
                deadline=lambda: self.deadline(timeout_seconds),
                finish=finish,
            )
        )

    def wait(
        self, run: str, step: int, name: str | None, level: str, timeout_seconds: float
    ) -> LevelReached:
        """Wait until a step, or a shard of it, has reached ``level``."""
        deadline, patience = self._patience(timeout_seconds)
        fields = {"run": run, "step": step, "name": name, "level": level, **patience}
        with understood(), _not_durable_in_time(timeout_seconds):
            reply = self.transport.call("wait", fields, deadline)
            return LevelReached(str(reply["level"]), float(reply["age_seconds"]))

    def flush(self, run: str | None, step: int | None, timeout_seconds: float) -> None:
        """Wait until nothing of the run, or of anything, is dirty."""
        self._until_durable("flush", {"run": run, "step": step}, timeout_seconds)

    def leave(self, timeout_seconds: float, *, stay: bool) -> None:
        """Have the node left, and wait until nothing is dirty; with ``stay`` take that back."""
        self._until_durable("leave", {"stay": stay}, timeout_seconds)

    def _until_durable(self, op: str, fields: dict[str, Any], timeout_seconds: float) -> None:
        deadline, patience = self._patience(timeout_seconds)
        with understood(), _not_durable_in_time(timeout_seconds):
            reply = self.transport.call(op, {**fields, **patience}, deadline)
            shards, size_bytes = int(reply["pending_shards"]), int(reply["pending_bytes"])
            steps = [f"{each['run']}/{each['step']}" for each in reply["pending_steps"]]
        if shards:
            more = f" and {len(steps) - _STEPS_NAMED} more" if steps[_STEPS_NAMED:] else ""
            are = "is" if shards == 1 else "are"
            of_steps = "of step" if len(steps) == 1 else "of steps"
            named = f"{of_steps} {', '.join(steps[:_STEPS_NAMED])}{more}" if steps else "still put"
            raise NotDurableError(
                f"{counted(shards, 'shard')} ({shown_size(size_bytes)}) {are} not durable in time, "
                f"{named}"
            )

    def restore_step(
        self, run: str, step: int, ranks: list[int], timeout_seconds: float
    ) -> StillComing:
        """Wait until a step is back on the node; return what is still to come."""
        deadline, patience = self._patience(timeout_seconds)
        what = {"run": run, "step": step, "ranks": ranks, **patience}
        with understood():
            reply = self.transport.call("restore_step", what, deadline)
            return StillComing(int(reply["shards"]), int(reply["size_bytes"]))

    def _patience(self, timeout_seconds: float) -> tuple[Deadline, dict[str, float]]:
        """Return the time of a call that waits, and for how long the service is to wait."""
        deadline = self.deadline(max(timeout_seconds, _SHORTEST_EXCHANGE_SECONDS))
        return deadline, {"timeout_seconds": min(timeout_seconds, deadline.for_service())}

    # --- parts -----------------------------------------------------------------------------------

    def seal(
        self,
        part: SaveIds,
        ranks_on_node: int | None,
        timeout_seconds: float,
        *,
        follows: bool = False,
    ) -> tuple[int, ...]:
        """Seal a rank's part; return the ranks of the save that have sealed here."""
        self._has_written = True
        fields = {**part.fields(), "ranks_on_node": ranks_on_node, "follows": follows}
        with understood():
            reply = self.transport.call("seal", fields, self.deadline(timeout_seconds))
            self._unsealed.over(part)
            self._unsealed.tell(before=part)
            return tuple(int(rank) for rank in reply["sealed_ranks"])

    def abort_rank(self, part: SaveIds, timeout_seconds: float) -> None:
        """Take back what a rank put."""
        self._unsealed.over(part)
        self.transport.call("abort_rank", part.fields(), self.deadline(timeout_seconds))

    def note_blocked(self, run: str, seconds: float) -> None:
        """Keep what a save has just cost training, if this is the thread that trains."""
        if threading.current_thread() is threading.main_thread():
            self.blocked.append((run, seconds))

    # --- the end ---------------------------------------------------------------------------------

    def close(self) -> CachetierClientError | None:
        """Let everything go; return what failed in the background and nobody has seen."""
        if self.closed:
            return None
        self.background.collect(EXIT_SECONDS)
        unraised = self.background.take()
        self._unsealed.tell()
        self.closed = True
        self.background.forget()
        forks.disown(self)
        self.phases.close()
        self.transport.close()
        self.workers.close()
        return unraised

    def abandon(self) -> None:
        """Become another client in a forked child."""
        self._has_written = False
        self._hello.update(client_id=os.urandom(8).hex(), since=self.clock.now())
        self.background.forget()
        self.background = Background(self._fetch_incidents)
        self._unsealed.forget()
        self._unsealed = Unsealed()
        forks.own(self)

    def _fetch_incidents(self, timeout_seconds: float) -> Sequence[Incident]:
        """Ask what failed. If that fails, it is asked again: the service goes on counting."""
        if not self._has_written:
            return ()
        try:
            deadline = self.deadline(timeout_seconds)
            reply = self._single.call("incidents", {"clear": True}, deadline)
            return [Incident.from_reply(described) for described in reply["incidents"]]
        except (CachetierClientError, ConnectionLostError, KeyError, TypeError, ValueError):
            return ()

    def _put_source(
        self, request: PutRequest, data: Any, ack: str, timeout_seconds: float
    ) -> Receipt:
        """Store what a file holds, read as it is written."""
        if not isinstance(data, os.PathLike):
            return self._copy(data, request, ack, timeout_seconds)
        with _opened(data) as file:
            about = os.fstat(file.fileno())
            size_bytes = about.st_size if stat.S_ISREG(about.st_mode) else None  # of a pipe
            sized = dataclasses.replace(request, size_bytes=size_bytes)
            return self._copy(file, sized, ack, timeout_seconds)

    def _copy(
        self, file: BinaryIO, request: PutRequest, ack: str, timeout_seconds: float
    ) -> Receipt:
        with self.open_writer(request, ack, timeout_seconds) as writer:
            while piece := file.read(1 << 20):
                writer.write(piece)
        assert writer.receipt is not None
        return writer.receipt

    def _acknowledged(self, reply: Reply, ack: str, deadline: Deadline) -> Receipt:
        with understood():
            receipt = Receipt.from_reply(reply)
        if reaches(receipt.level, ack):
            return receipt
        try:
            self.wait(receipt.run, receipt.step, receipt.name, ack, deadline.remaining())
        except NotDurableError as error:
            error.hint = (
                f"The shard is {receipt.level}: wait for {ack}, or put it again (harmless)."
            )
            raise
        return dataclasses.replace(receipt, level=ack)


def reaches(level: str, ack: str) -> bool:
    """Return whether a shard at ``level`` is as safe as ``ack`` asks for."""
    return level in ACK_LEVELS[ACK_LEVELS.index(ack) :]


def checked_ack(ack: str) -> str:
    """Return ``ack`` if a put can wait for it."""
    if ack not in ACK_LEVELS:
        raise InvalidRequestError(
            f"ack={ack!r} is not one of {', '.join(ACK_LEVELS)}", hint="Pass one of these."
        )
    return ack


@contextmanager
def understood() -> Iterator[None]:
    """Read a reply inside; one that lacks something is of another protocol."""
    try:
        yield
    except (KeyError, TypeError, ValueError) as error:
        raise ProtocolMismatchError(f"the service's reply is not understood: {error!r}") from error


@contextmanager
def _not_durable_in_time(seconds: float) -> Iterator[None]:
    """Say what a service that is there, and too busy until the deadline, means for a wait."""
    try:
        yield
    except (BusyError, StoppingError) as error:
        raise NotDurableError(
            f"no answer after {seconds:g} s whether it is durable: {error.message} ({error.code})",
        ) from error


def _opened(path: os.PathLike[str]) -> BinaryIO:
    try:
        return cast("BinaryIO", Path(path).open("rb", buffering=0))
    except OSError as error:
        raise InvalidRequestError(
            f"cannot read {os.fspath(path)}", hint="Name a file that this user can read."
        ) from error
