"""Puts and seals as the log and traces hear of them: who begins, what is safe, what is refused."""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from pathlib import Path
from typing import Any

from cachetier_client.identity.names import SaveIds

from cachetier import __version__
from cachetier.clock import Clock
from cachetier.errors import BackpressureError
from cachetier.ingest.instrumented import MeasuredIngest
from cachetier.local.catalog import queries
from cachetier.local.catalog.records import Summary
from cachetier.local.recovery import Recovered
from cachetier.model.shard import Receipt
from cachetier.steps.operations import Checkpoints
from cachetier.telemetry import events
from cachetier.telemetry.events import of, tell
from cachetier.telemetry.metrics import Metrics
from cachetier.telemetry.trace_context import traceparent

log = logging.getLogger(__name__)

PARTS_REMEMBERED = 4_096


class ToldIngest(MeasuredIngest):
    """Tells of each put; what was counted and promised stays as it is."""

    def __init__(self, metrics: Metrics, clock: Clock, *args: Any, **options: Any) -> None:
        super().__init__(metrics, clock, *args, **options)
        self._lock = threading.Lock()
        self._parts: OrderedDict[tuple[str, int, str, int], None] = OrderedDict()

    def _begun(self, ids: SaveIds) -> None:
        """Tell of the first shard of a rank's part; after a start of the service once more."""
        part = (ids.run, ids.step, ids.save_id, ids.rank)
        with self._lock:
            new = part not in self._parts
            self._parts[part] = None
            if len(self._parts) > PARTS_REMEMBERED:
                self._parts.popitem(last=False)
        if new:
            who = {"rank": ids.rank, "world_size": ids.world_size}
            tell(log, events.PART_BEGUN, **of(ids), **who, traceparent=traceparent())

    def _acknowledged(
        self, receipt: Receipt, ids: SaveIds, begun_at: float, commits_at: float
    ) -> None:
        super()._acknowledged(receipt, ids, begun_at, commits_at)
        now = self._clock.monotonic()
        took = {"seconds": now - begun_at, "traceparent": traceparent()}
        steps = {"stage_seconds": commits_at - begun_at, "commit_seconds": now - commits_at}
        what = {"name": receipt.name, "size_bytes": receipt.size_bytes, "reached": receipt.level}
        tell(log, events.SHARD_COMMITTED, **of(ids), rank=ids.rank, **what, **took, **steps)

    def _refused(self, ids: SaveIds, name: str, error: BackpressureError, begun_at: float) -> None:
        super()._refused(ids, name, error, begun_at)
        why = {"reason": error.message, "seconds": self._clock.monotonic() - begun_at}
        tell(log, events.PUT_REFUSED, **of(ids), rank=ids.rank, name=name, **why)


class ToldCheckpoints(Checkpoints):
    """Tells of each part that is sealed."""

    def seal(self, ids: SaveIds, ranks_on_node: int | None, *, follows: bool = False) -> list[int]:
        began_at = self._clock.monotonic()
        sealed = super().seal(ids, ranks_on_node, follows=follows)
        seconds = self._clock.monotonic() - began_at
        here = self._store.read(lambda sql: _summary(sql, ids))
        who = {"rank": ids.rank, "world_size": ids.world_size, "sealed": len(sealed)}
        what = {"shards": here.shards, "size_bytes": here.size_bytes, "seconds": seconds}
        tell(log, events.PART_SEALED, **of(ids), **who, **what, traceparent=traceparent())
        return sealed


def _summary(sql: Any, ids: SaveIds) -> Summary:
    save = queries.save_named(sql, ids.run, ids.step, ids.save_id)
    return Summary(0, 0, 0, 0, 0) if save is None else queries.summary_of(sql, save.number)


def tell_recovered(recovered: Recovered, directory: Path) -> None:
    """Tell what start-up had to put right."""
    found = {
        "rubbish_files": recovered.rubbish_files,
        "set_aside_files": recovered.set_aside_files,
        "lost_shards": recovered.lost_shards,
    }
    where = {"directory": str(directory), "store_id": recovered.store.store_id}
    tell(log, events.SERVICE_RECOVERED, **where, **found)


def tell_ready(directory: Path, socket: str, http: str | None, store_id: str) -> None:
    """Tell where requests are taken."""
    where = {"directory": str(directory), "socket": socket, "http": http}
    tell(log, events.SERVICE_READY, version=__version__, store_id=store_id, **where)
