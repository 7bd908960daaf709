"""Put and get as the node does them, measured: the doors see the same operations."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any

from cachetier_client.identity.names import SaveIds

from cachetier.clock import Clock
from cachetier.errors import BackpressureError, CachetierError
from cachetier.ingest.ingest import Ingest, RemoteStage
from cachetier.local.store import Staged
from cachetier.model.shard import Content, Receipt, Shard
from cachetier.restore.remote_shard import RemoteShard
from cachetier.restore.replica_choice import Reason
from cachetier.restore.restore import Opened, Restore
from cachetier.telemetry import events
from cachetier.telemetry.events import tell
from cachetier.telemetry.metrics import Metrics

log = logging.getLogger(__name__)

DAMAGED_LIMIT = 1000


class MeasuredIngest(Ingest):
    """Counts what is acknowledged and what is turned away, and times it from admission on."""

    def __init__(self, metrics: Metrics, clock: Clock, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._metrics = metrics
        self._clock = clock
        self._begun_at: dict[int, float] = {}  # by identity: a stage is one object until it ends

    def begin(
        self, ids: SaveIds, name: str, size_bytes: int | None, timeout_seconds: float
    ) -> Staged | RemoteStage:
        begun_at = self._clock.monotonic()
        try:
            stage = super().begin(ids, name, size_bytes, timeout_seconds)
        except BackpressureError as error:
            self._refused(ids, name, error, begun_at)
            raise
        self._begun_at[id(stage)] = begun_at
        self._begun(ids)
        return stage

    def extend(self, staged: Staged, total_bytes: int, timeout_seconds: float) -> int:
        try:
            return super().extend(staged, total_bytes, timeout_seconds)
        except BackpressureError:
            self._metrics.backpressure.inc()
            raise

    def commit(
        self, staged: Staged | RemoteStage, ids: SaveIds, name: str, content: Content
    ) -> Receipt:
        commits_at = self._clock.monotonic()
        begun_at = self._begun_at.pop(id(staged), commits_at)
        receipt = super().commit(staged, ids, name, content)
        self._acknowledged(receipt, ids, begun_at, commits_at)
        return receipt

    def refused_by_disk(self, error: OSError) -> BackpressureError:
        self._metrics.write_failed("write")
        return super().refused_by_disk(error)

    def abort(self, staged: Staged | RemoteStage) -> None:
        self._begun_at.pop(id(staged), None)
        super().abort(staged)

    def put_inline(
        self,
        ids: SaveIds,
        name: str,
        body: bytes,
        digest: int,
        timeout_seconds: float,
        *,
        element_size: int = 0,
    ) -> Receipt:
        begun_at = self._clock.monotonic()
        try:
            receipt = super().put_inline(
                ids, name, body, digest, timeout_seconds, element_size=element_size
            )
        except BackpressureError as error:
            self._refused(ids, name, error, begun_at)
            raise
        self._begun(ids)
        self._acknowledged(receipt, ids, begun_at, begun_at)
        return receipt

    def _begun(self, ids: SaveIds) -> None:
        """Hear that a put of the rank's part is admitted."""

    def _refused(
        self, _ids: SaveIds, _name: str, _error: BackpressureError, _begun_at: float
    ) -> None:
        """Hear that there was no room for a put."""
        self._metrics.backpressure.inc()

    def _acknowledged(
        self, receipt: Receipt, _ids: SaveIds, begun_at: float, _commits_at: float
    ) -> None:
        """Hear of a put that is safe; small ones are staged and committed in one."""
        self._metrics.put_seconds.observe(self._clock.monotonic() - begun_at)
        self._metrics.put_bytes.inc(receipt.size_bytes)


class MeasuredRestore(Restore):
    """Times how long a shard takes to be ready for reading."""

    def __init__(self, metrics: Metrics, clock: Clock, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._metrics = metrics
        self._watch = clock

    def open(self, run: str, step: int, name: str, timeout_seconds: float) -> Opened:
        started_at = self._watch.monotonic()
        opened = super().open(run, step, name, timeout_seconds)
        self._metrics.get_seconds.observe(self._watch.monotonic() - started_at)
        return opened

    def open_part(
        self, run: str, step: int, name: str, blocks: int, timeout_seconds: float
    ) -> Opened:
        opened = super().open_part(run, step, name, blocks, timeout_seconds)
        if opened.remote is None:
            return opened
        measured = replace(opened.remote, on_read=self._metrics.range_read_bytes.inc)
        return replace(opened, remote=measured)


class ReportedFallbacks:
    """Counts and logs the remote copies that were passed over; ``warnings`` tells of damaged ones.

    Callers got their bytes, so none of this is an incident that a client would raise.
    """

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._damaged: dict[str, list[str]] = {}

    def __call__(
        self, shard: Shard, copy: RemoteShard, reason: Reason, error: CachetierError
    ) -> None:
        self._metrics.restore_fallbacks.labels(reason, copy.remote).inc()
        ids = {"run": shard.run, "step": shard.step, "name": shard.name}
        where = {"key": copy.key, "remote": copy.remote}
        tell(log, events.COPY_PASSED_OVER, reason=error.message, **ids, **where)
        if reason is Reason.DAMAGED:
            keys = self._damaged.setdefault(copy.remote, [])
            if copy.key not in keys and len(keys) < DAMAGED_LIMIT:
                keys.append(copy.key)

    def warnings(self) -> list[str]:
        """Return what a person should look after, for each remote."""
        return [
            f"damaged copies at {remote}, passed over since the start: {', '.join(keys[:3])}"
            + (f" and {len(keys) - 3} more" if len(keys) > 3 else "")
            for remote, keys in self._damaged.items()
        ]
