"""A transport that goes straight to S3 while the service is away.

Only saving does: puts, streams, seals and aborts. What reads waits for the service, as it always
did. A part of a save of which one shard went straight to S3 goes there to its end, so that one side
alone decides how it is sealed.

Source: docs/guarantees.md.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, TypeVar

from cachetier_client import forks
from cachetier_client.bucket_format.documents import HeldShard
from cachetier_client.clock import Clock
from cachetier_client.deadline import Deadline
from cachetier_client.errors import (
    CachetierClientError,
    DeadlineError,
    RemoteRefusedError,
    RemoteUnavailableError,
    SealedError,
    ServiceUnavailableError,
    StoppingError,
)
from cachetier_client.fallback.direct import parts
from cachetier_client.fallback.direct.engine import Engine
from cachetier_client.fallback.direct.parts import DirectRankPart
from cachetier_client.fallback.direct.remote import RemoteAddress
from cachetier_client.fallback.direct.sink import DirectSink
from cachetier_client.fallback.service_health import ServiceHealth
from cachetier_client.identity.names import SaveIds
from cachetier_client.io.buffers import Gathered
from cachetier_client.io.workers import Workers
from cachetier_client.transport.base import (
    ConnectionLostError,
    PutRequest,
    Reply,
    Sink,
    Transport,
)
from cachetier_client.transport.retrying import RetryingTransport

AFTER_SECONDS = 10.0
PROBE_ANSWER_SECONDS = 1.0
REFUSED_SECONDS = 30.0  # a bucket that lets nobody in is not asked by every put
_AWAY = (ServiceUnavailableError, StoppingError)

_Result = TypeVar("_Result")


class FallbackTransport:
    """Outlasts a service that is away for a moment; goes to S3 when it is away for longer.

    Args:
        single: Makes single attempts.
        remote: Returns the bucket as far as it is known now.
        clock: Times the waits.
        workers: Threads to upload with.
        after_seconds: How long a call waits for the service first.
    """

    def __init__(
        self,
        single: Transport,
        remote: Callable[[], RemoteAddress | None],
        clock: Clock,
        workers: Workers,
        after_seconds: float = AFTER_SECONDS,
    ) -> None:
        self._single = single
        self._service = RetryingTransport(single, clock)
        self._brief = RetryingTransport(single, clock, patience_seconds=after_seconds)
        self.url = single.url
        self.get = self._service.get
        self.open_source = self._service.open_source
        self.noticed_incidents = single.noticed_incidents
        self.forget_idle = single.forget_idle
        self._remote = remote
        self._workers = workers
        self._clock = clock
        self._lock = threading.RLock()
        self._engine: Engine | None = None
        self._closed = False
        self._refused: CachetierClientError = RemoteRefusedError("the bucket refuses")
        self._refused_until = 0.0
        self.service_health = ServiceHealth(single.url, self._tell, clock)
        forks.own(self)

    def abandon(self) -> None:
        """Renew the lock in a forked child."""
        self._lock = threading.RLock()
        forks.own(self)

    # --- shards ----------------------------------------------------------------------------------

    def put(self, request: PutRequest, data: Gathered, deadline: Deadline) -> Reply:
        def by_service(service: Transport) -> Reply:
            reply = service.put(request, data, deadline)
            self._held(request, reply)
            return reply

        def directly(engine: Engine, state: DirectRankPart) -> Reply:
            reply = engine.put(state, request, data, deadline)
            self.service_health.count(len(data))
            return reply

        return self._routed(request.ids, by_service, directly)

    def open_sink(self, request: PutRequest, deadline: Deadline) -> Sink:
        def by_service(service: Transport) -> Sink:
            sink = service.open_sink(request, deadline)
            return _NotingSink(sink, lambda reply: self._held(request, reply))

        def directly(engine: Engine, state: DirectRankPart) -> Sink:
            sink = DirectSink(engine, state, request, deadline)
            return _NotingSink(sink, lambda reply: self.service_health.count(reply["size_bytes"]))

        return self._routed(request.ids, by_service, directly)

    @property
    def fallbacks(self) -> tuple[int, int]:
        return self.service_health.shards, self.service_health.size_bytes

    # --- parts -----------------------------------------------------------------------------------

    def call(self, op: str, fields: dict[str, Any], deadline: Deadline) -> Reply:
        if op == "seal":
            return self._seal(_part_of(fields), fields, deadline)
        if op == "abort_rank":
            return self._abort(_part_of(fields), fields, deadline)
        return self._service.call(op, fields, deadline)

    def _seal(self, part: SaveIds, fields: dict[str, Any], deadline: Deadline) -> Reply:
        def by_service(service: Transport) -> Reply:
            reply = service.call("seal", fields, deadline)
            self._sealed_by_service(part, follows=bool(fields.get("follows")))
            return reply

        if parts.THIS_PROCESS.known(part) is None:
            # What other processes put of this part, nobody here knows: the service does.
            return by_service(self._service)

        def directly(engine: Engine, state: DirectRankPart) -> Reply:
            ranks, follows = fields.get("ranks_on_node"), bool(fields.get("follows"))
            engine.seal(state, ranks, deadline, follows=follows)
            parts.THIS_PROCESS.ended(state)
            self.service_health.used()
            # If it is back, it hears at once that there is something to seal.
            self.service_health.probe()
            return {"sealed_ranks": [part.rank]}

        return self._routed(part, by_service, directly)

    def _abort(self, part: SaveIds, fields: dict[str, Any], deadline: Deadline) -> Reply:
        state = parts.THIS_PROCESS.known(part)
        if state is None or state.is_sealed_by_service:
            return self._service.call("abort_rank", fields, deadline)
        if state.final or state.pending:
            raise SealedError(
                f"rank {part.rank} has sealed its part of step {part.step}; it cannot be aborted",
                hint="Delete the step instead.",
            )
        if not state.direct:
            parts.THIS_PROCESS.forget(part)
            if state.is_empty and self.service_health.is_away():
                return {}
            return self._service.call("abort_rank", fields, deadline)
        engine = self._engine_for(state)
        assert engine is not None, "what is direct has an address"
        engine.abort(state, deadline)
        parts.THIS_PROCESS.forget(part)
        if state.held:  # else the service collects them as those of a rank that was killed
            with suppress(CachetierClientError, ConnectionLostError):
                self._single.call("abort_rank", fields, deadline.at_most(PROBE_ANSWER_SECONDS))
        return {}

    # --- which way -------------------------------------------------------------------------------

    def _routed(
        self,
        part: SaveIds,
        by_service: Callable[[Transport], _Result],
        directly: Callable[[Engine, DirectRankPart], _Result],
    ) -> _Result:
        """Do something for a part by the service, or without it if that is away."""
        state = parts.THIS_PROCESS.of(part, self._clock.now())
        engine = self._engine_for(state)
        if engine is None or state.is_sealed_by_service:
            return by_service(self._service)
        if not state.direct and self._clock.monotonic() < self._refused_until:
            return self._waiting(by_service, self._refused)
        away: Exception
        if state.direct:
            away = ServiceUnavailableError(f"{self.url} was away when this save began")
        elif self.service_health.is_away():
            away = ServiceUnavailableError(f"{self.url} is away")
        else:
            try:
                return by_service(self._brief)
            except _AWAY as error:
                away = error
                self.service_health.failed(engine.address.url, away)
        try:
            return directly(engine, state)
        except (RemoteRefusedError, RemoteUnavailableError) as remote:
            if state.direct:
                raise _both(away, remote) from remote
            if isinstance(remote, RemoteRefusedError):
                self._refused = remote
                self._refused_until = self._clock.monotonic() + REFUSED_SECONDS
            return self._waiting(by_service, remote)
        except SealedError:
            if state.direct:
                raise
            with suppress(*_AWAY):  # it alone can replace what it holds
                return by_service(self._service)
            raise

    def _waiting(
        self, by_service: Callable[[Transport], _Result], remote: CachetierClientError
    ) -> _Result:
        """Wait for the service to its end after all, as the bucket does not do."""
        try:
            return by_service(self._service)
        except (*_AWAY, DeadlineError) as away:
            raise _both(away, remote) from remote

    def _engine_for(self, state: DirectRankPart) -> Engine | None:
        """Return what saves to the bucket of a part; None while no bucket is known."""
        with self._lock:
            address = state.address  # maybe of another client of this process
            if address is None and self._engine is None:
                address = self._remote()
            if address is not None and (self._engine is None or self._engine.address != address):
                self._engine = self._engine_at(address)
            return self._engine

    def _engine_at(self, address: RemoteAddress) -> Engine:
        def is_back() -> bool:
            return not self.service_health.is_away()

        return Engine(address.open(self._clock), self._workers, self._clock, is_back)

    def _sealed_by_service(self, part: SaveIds, *, follows: bool) -> None:
        state = parts.THIS_PROCESS.known(part)
        if state is None:
            return
        state.followed, state.final, state.pending = follows, not follows, False
        if state.is_sealed_by_service:  # which is all to know: else it would begin again beside it
            state.held.clear()
        parts.THIS_PROCESS.ended(state)

    def _held(self, request: PutRequest, reply: Reply) -> None:
        with suppress(KeyError, TypeError, ValueError):  # of another protocol: the caller will say
            size_bytes, digest = int(reply["size_bytes"]), str(reply["digest"])
            held = HeldShard(name=request.name, size_bytes=size_bytes, digest=digest)
            parts.THIS_PROCESS.of(request.ids, self._clock.now()).held[request.name] = held

    # --- the service, once it is back ------------------------------------------------------------

    def _tell(self, shards: int, size_bytes: int) -> bool:
        deadline = Deadline(PROBE_ANSWER_SECONDS, self._clock)
        try:
            self._single.call("fallback", {"shards": shards, "size_bytes": size_bytes}, deadline)
        except _AWAY:
            return False
        except ConnectionLostError:
            self._single.forget_idle()
            return False
        except CachetierClientError as error:
            return error.code != "deadline"  # an older service does not know the word, but is there
        return True

    def close(self) -> None:
        if self.service_health.has_news and not self._closed:
            self.service_health.probe()
        self._closed = True
        if self._engine is not None:
            self._engine.objects.close()
        self._service.close()


class _NotingSink:
    """A sink that tells of its receipt."""

    def __init__(self, inner: Sink, note: Callable[[Reply], None]) -> None:
        self.parallel = inner.parallel
        self.reserve = inner.reserve
        self.write = inner.write
        self.abort = inner.abort
        self._commit = inner.commit
        self._note = note

    def commit(self, size_bytes: int, digests: Sequence[int], deadline: Deadline) -> Reply:
        reply = self._commit(size_bytes, digests, deadline)
        self._note(reply)
        return reply


def _part_of(fields: Mapping[str, Any]) -> SaveIds:
    return SaveIds(
        run=fields["run"],
        step=fields["step"],
        rank=fields["rank"],
        world_size=fields["world_size"],
        save_id=fields["save_id"],
        overwrite=fields["overwrite"],
    )


def _both(away: Exception, remote: CachetierClientError) -> ServiceUnavailableError:
    """Return the error that names what is wrong on both ways."""
    cause = away.message if isinstance(away, CachetierClientError) else str(away)
    return ServiceUnavailableError(
        f"the service is away ({cause}), and S3 cannot replace it ({remote.message})",
        hint=f"Start `cachetier serve` on this node, or mend the bucket: {remote.hint}",
    )
