"""Puts, counted and told: a wrapper around whatever takes shards in."""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager

from cachetier_client.bucket_format.stored import NO_FACTS, Content, ShardFacts
from cachetier_client.clock import Clock
from cachetier_client.identity.names import SaveIds
from cachetier_client.results import Receipt
from cachetier_client.trace_context import brought_along

from cachetier.errors import BackpressureError
from cachetier.ingest.ingest import Finish, Ingest, RemoteStage
from cachetier.local.store import Staged
from cachetier.steps.leaving import Course
from cachetier.telemetry import events
from cachetier.telemetry.events import of, tell
from cachetier.telemetry.metrics import Metrics

log = logging.getLogger(__name__)

PARTS_REMEMBERED = 4_096


class InstrumentedIngest:
    """Counts what is acknowledged and what is turned away, and times it from admission on.

    A stage carries when its put began; ``course`` knows it as under way. Thread-safe.
    """

    def __init__(
        self, ingest: Ingest, metrics: Metrics, clock: Clock, course: Course | None = None
    ) -> None:
        self._ingest = ingest
        self._metrics = metrics
        self._clock = clock
        self._course = course or Course()
        self._lock = threading.Lock()
        self._parts: OrderedDict[tuple[str, int, str, int], None] = OrderedDict()

    def begin(
        self,
        ids: SaveIds,
        name: str,
        size_bytes: int | None,
        timeout_seconds: float,
        *,
        memory: bool = False,
    ) -> Staged | RemoteStage:
        begun_at = self._clock.monotonic()
        with self._beginning(ids, name, begun_at):
            stage = self._ingest.begin(ids, name, size_bytes, timeout_seconds, memory=memory)
        stage.begun_at = begun_at
        self._begun(ids)
        return stage

    def extend(self, staged: Staged, total_bytes: int, timeout_seconds: float) -> int:
        try:
            return self._ingest.extend(staged, total_bytes, timeout_seconds)
        except BackpressureError:
            self._metrics.backpressure.inc()
            raise

    def commit(
        self,
        staged: Staged | RemoteStage,
        ids: SaveIds,
        name: str,
        content: Content,
        facts: ShardFacts = NO_FACTS,
    ) -> Receipt:
        commits_at = self._clock.monotonic()
        try:
            receipt = self._ingest.commit(staged, ids, name, content, facts)
        finally:
            self._course.put_ends()
        self._committed(receipt, ids, staged.begun_at, commits_at)
        return receipt

    def abort(self, staged: Staged | RemoteStage) -> None:
        try:
            self._ingest.abort(staged)
        finally:
            self._course.put_ends()

    def begin_inline(
        self,
        ids: SaveIds,
        name: str,
        body: bytes,
        digest: int,
        timeout_seconds: float | None,
        *,
        facts: ShardFacts = NO_FACTS,
    ) -> Finish:
        begun_at = self._clock.monotonic()
        with self._beginning(ids, name, begun_at):
            finish = self._ingest.begin_inline(
                ids, name, body, digest, timeout_seconds, facts=facts
            )

        def finished() -> Receipt:
            try:
                receipt = finish()
            finally:
                self._course.put_ends()
            self._begun(ids)
            self._committed(receipt, ids, begun_at, begun_at)  # staged and committed in one
            return receipt

        return finished

    @contextmanager
    def _beginning(self, ids: SaveIds, name: str, begun_at: float) -> Iterator[None]:
        """Count a put as under way, unless it fails to begin."""
        self._course.put_begins()
        try:
            yield
        except BaseException as error:
            self._course.put_ends()
            if isinstance(error, BackpressureError):
                self._refused(ids, name, error, begun_at)
            raise

    # --- what happens ----------------------------------------------------------------------------

    def _begun(self, ids: SaveIds) -> None:
        """Tell of the first shard of a rank's part; after a start of the service once more."""
        part = (ids.run, ids.step, ids.save_id, ids.rank)
        with self._lock:
            if part in self._parts:
                return
            self._parts[part] = None
            if len(self._parts) > PARTS_REMEMBERED:
                self._parts.popitem(last=False)
        who = {"rank": ids.rank, "world_size": ids.world_size}
        tell(log, events.PART_BEGUN, **of(ids), **who, **brought_along())

    def _committed(
        self, receipt: Receipt, ids: SaveIds, begun_at: float, commits_at: float
    ) -> None:
        """Hear of a put that is safe."""
        now = self._clock.monotonic()
        self._metrics.put_seconds.observe(now - begun_at)
        self._metrics.put_bytes.inc(receipt.size_bytes)
        if not log.isEnabledFor(events.SHARD_COMMITTED.level):
            return  # what nobody hears need not be put together
        took = {"seconds": now - begun_at, **brought_along()}
        steps = {"stage_seconds": commits_at - begun_at, "commit_seconds": now - commits_at}
        what = {"name": receipt.name, "size_bytes": receipt.size_bytes, "reached": receipt.level}
        tell(log, events.SHARD_COMMITTED, **of(ids), rank=ids.rank, **what, **took, **steps)

    def _refused(self, ids: SaveIds, name: str, error: BackpressureError, begun_at: float) -> None:
        """Hear that there was no room for a put."""
        self._metrics.backpressure.inc()
        why = {"reason": error.message, "seconds": self._clock.monotonic() - begun_at}
        tell(log, events.PUT_REFUSED, **of(ids), rank=ids.rank, name=name, **why)
