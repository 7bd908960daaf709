"""Repeat a call whose service was away, until the call's deadline.

Every operation may be repeated: what a broken connection had staged is gone, and a put or seal that
did happen gives the same receipt again. Pauses are random from zero up (full jitter), so that ranks
do not come back in step.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, TypeVar

from cachetier_client.clock import Clock
from cachetier_client.deadline import Deadline
from cachetier_client.errors import (
    BusyError,
    OpenForWritingError,
    ServiceUnavailableError,
    StoppingError,
)
from cachetier_client.identity.names import ShardIds
from cachetier_client.io.buffers import Gathered
from cachetier_client.transport.base import (
    ConnectionLostError,
    PutRequest,
    Reply,
    Sink,
    Source,
    Transport,
)

FIRST_PAUSE_SECONDS = 0.05
LONGEST_PAUSE_SECONDS = 2.0

_Result = TypeVar("_Result")


class RetryingTransport:
    """A transport whose calls outlast a service that is away for a while.

    Args:
        inner: Makes single attempts.
        clock: Sleeps between attempts.
        jitter: Returns the part of the longest pause to sleep, from 0 to 1.
        patience_seconds: How long a call waits at most for a service that is away, and never for
            more than half of its time, so that some is left for another way; None: to its end.
        gives_up: Whether a call ends at the first loss.
    """

    fallbacks = (0, 0)

    def __init__(
        self,
        inner: Transport,
        clock: Clock,
        jitter: Callable[[], float] = random.random,
        *,
        patience_seconds: float | None = None,
        gives_up: bool = False,
    ) -> None:
        self.url = inner.url
        self.noticed_incidents = inner.noticed_incidents
        self.forget_idle = inner.forget_idle
        self.close = inner.close
        self._inner = inner
        self._clock = clock
        self._jitter = jitter
        self._patience_seconds = patience_seconds
        self._gives_up = gives_up

    def put(self, request: PutRequest, data: Gathered, deadline: Deadline) -> Reply:
        return self._repeat(lambda: self._inner.put(request, data, deadline), deadline)

    def get(self, shard: ShardIds, out: memoryview | None, deadline: Deadline) -> memoryview:
        return self._repeat(lambda: self._inner.get(shard, out, deadline), deadline)

    def call(self, op: str, fields: dict[str, Any], deadline: Deadline) -> Reply:
        return self._repeat(lambda: self._inner.call(op, fields, deadline), deadline)

    def open_sink(self, request: PutRequest, deadline: Deadline) -> Sink:
        return self._repeat(lambda: self._inner.open_sink(request, deadline), deadline)

    def open_source(
        self, shard: ShardIds, deadline: Deadline, *, restore: bool, blocks: int | None = None
    ) -> Source:
        def open_it() -> Source:
            return self._inner.open_source(shard, deadline, restore=restore, blocks=blocks)

        return _RetryingSource(self._repeat(open_it, deadline), self._repeat)

    def _repeat(self, attempt: Callable[[], _Result], deadline: Deadline) -> _Result:
        attempts = 0
        held_open = 0
        left_when_lost: float | None = None
        while True:
            attempts += 1
            try:
                return attempt()
            except ConnectionLostError as error:
                self.forget_idle()  # the others are as old
                if error.was_idle and attempts == 1:
                    continue  # the service has restarted since; it may well be there
                left_when_lost = left_when_lost or deadline.remaining()
                lost = unavailable(self.url, error)
                self._pause_or_raise(lost, attempts, deadline, left_when_lost)
            except StoppingError as error:
                self.forget_idle()
                left_when_lost = left_when_lost or deadline.remaining()
                self._pause_or_raise(error, attempts, deadline, left_when_lost)
            except BusyError as error:
                self.forget_idle()
                self._pause_or_raise(error, attempts, deadline)
            except OpenForWritingError:
                held_open += 1
                if held_open > 1:
                    raise

    def _pause_or_raise(
        self,
        error: ServiceUnavailableError | StoppingError | BusyError,
        attempts: int,
        deadline: Deadline,
        left_when_lost: float | None = None,
    ) -> None:
        longest = min(LONGEST_PAUSE_SECONDS, FIRST_PAUSE_SECONDS * 2 ** min(attempts, 10))
        pause = self._jitter() * max(longest, error.retry_after_seconds or 0.0)
        if self._gives_up or pause >= deadline.remaining():
            raise error
        if self._patience_seconds is not None and left_when_lost is not None:
            waited = left_when_lost - deadline.remaining()
            if waited + pause >= min(self._patience_seconds, left_when_lost / 2):
                raise error
        self._clock.sleep(pause)
        if deadline.remaining() <= 0:  # it slept longer than it meant to
            raise error


class _RetryingSource:
    """A shard opened for reading, each read of which outlasts a service that is away."""

    def __init__(
        self, inner: Source, repeat: Callable[[Callable[[], None], Deadline], None]
    ) -> None:
        self.size_bytes = inner.size_bytes
        self.digest = inner.digest
        self.is_remote = inner.is_remote
        self.close = inner.close
        self._inner = inner
        self._repeat = repeat

    def read_block(self, number: int, into: memoryview, deadline: Deadline) -> None:
        self._repeat(lambda: self._inner.read_block(number, into, deadline), deadline)


def unavailable(url: str, lost: ConnectionLostError) -> ServiceUnavailableError:
    """Return the error that tells of a lost connection, with its cause."""
    error = ServiceUnavailableError(str(lost))
    error.__cause__ = lost.__cause__
    if url not in error.message:
        error.message = f"{error.message} ({url})"
    return error
