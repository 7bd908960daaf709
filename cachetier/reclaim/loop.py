"""The thread that makes room: woken by changes, it evicts, and collects now and then.

Collecting is also when ``retention`` keeps the policies, and when the ``others`` are called, which
mend damaged shards and let the catalog forget what nothing needs.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence

from cachetier_client.clock import Clock

from cachetier.local.files.space import Space
from cachetier.notifier import Changes
from cachetier.reclaim.evict import Evictor
from cachetier.reclaim.retention import Retention
from cachetier.telemetry import events
from cachetier.telemetry.events import tell

log = logging.getLogger(__name__)

COLLECT_SECONDS = 60.0
LOOK_SECONDS = 1.0  # between looks at the disk: others fill and free it, and tell nobody
# However often the bell rings, the remote is not asked about clean shards more often than this.
ROUND_SECONDS = 0.05


class Housekeeping:
    """Evicts and collects in the background, so that puts seldom have to."""

    def __init__(
        self,
        evictor: Evictor,
        space: Space,
        changes: Changes,
        clock: Clock,
        *,
        high_watermark: float,
        on_evicted: Callable[[int], None],
        retention: Retention | None = None,
        others: Sequence[Callable[[], object]] = (),
    ) -> None:
        self._evictor = evictor
        self._retention = retention
        self._others = others
        self._space = space
        self._changes = changes
        self._clock = clock
        self._high_bytes = int(space.capacity_bytes * high_watermark)
        self._on_evicted = on_evicted
        self._retaining = threading.Lock()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._work, name="housekeeping", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self, timeout_seconds: float) -> None:
        """End the thread; a round that hangs in the remote is left to die with the process."""
        self._stopping.set()
        self._changes.ring()
        if self._thread.ident is not None:
            self._thread.join(timeout_seconds)

    def make_room(self) -> int:
        """Evict what is wanted, in the caller's thread; return the bytes that went."""
        freed_bytes = self._evictor.make_room()
        if freed_bytes:
            self._on_evicted(freed_bytes)
        if self._space.wanted_bytes and self._retention is not None:
            with self._retaining:
                freed_bytes += self._retention.make_room()
        return freed_bytes

    def _collect(self) -> None:
        self._evictor.collect()
        for collect in self._others:
            collect()
        if self._retention is not None:
            with self._retaining:
                evicted_bytes = self._retention.trim()
            if evicted_bytes:
                self._on_evicted(evicted_bytes)

    def _work(self) -> None:
        rings = 0
        look_at = self._clock.monotonic()
        collect_at = look_at + COLLECT_SECONDS
        while not self._stopping.wait(ROUND_SECONDS):
            patience = LOOK_SECONDS if self._space.disk_is_full else COLLECT_SECONDS
            rings = self._changes.next_ring(rings, patience)
            try:
                if self._space.wanted_bytes or self._space.used_bytes > self._high_bytes:
                    self.make_room()
                if self._clock.monotonic() >= look_at:  # after that: a quota looks like room
                    self._evictor.look_at_disk()
                    look_at = self._clock.monotonic() + LOOK_SECONDS
                if self._clock.monotonic() >= collect_at:
                    self._collect()
                    collect_at = self._clock.monotonic() + COLLECT_SECONDS
            except Exception as error:
                if not self._stopping.is_set():  # else what it needs may be closed: see ``stop``
                    tell(log, events.ROOM_FAILED, error=error)
