"""Put and get as the node does them, measured: the doors see the same operations."""

from __future__ import annotations

from typing import Any

from cachetier.clock import Clock
from cachetier.errors import BackpressureError
from cachetier.ingest import Ingest, RemoteStage
from cachetier.local.store import Staged
from cachetier.metrics import Metrics
from cachetier.model.shard import Content, Receipt, SaveIds
from cachetier.restore import Opened, Restore


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
        except BackpressureError:
            self._metrics.backpressure.inc()
            raise
        self._begun_at[id(stage)] = begun_at
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
        begun_at = self._begun_at.get(id(staged), self._clock.monotonic())
        receipt = super().commit(staged, ids, name, content)
        self._begun_at.pop(id(staged), None)
        self._acknowledged(receipt, begun_at)
        return receipt

    def abort(self, staged: Staged | RemoteStage) -> None:
        self._begun_at.pop(id(staged), None)
        super().abort(staged)

    def put_inline(
        self, ids: SaveIds, name: str, body: bytes, digest: int, timeout_seconds: float
    ) -> Receipt:
        begun_at = self._clock.monotonic()
        try:
            receipt = super().put_inline(ids, name, body, digest, timeout_seconds)
        except BackpressureError:
            self._metrics.backpressure.inc()
            raise
        self._acknowledged(receipt, begun_at)
        return receipt

    def _acknowledged(self, receipt: Receipt, begun_at: float) -> None:
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
