"""The record of a drain: each event is counted here once, and only here.

From it come the line of the log, the counts of the status object and of Prometheus, and the
histograms. The counts exist once: Prometheus reads them from the same snapshot as status.
"""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict, deque
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from cachetier_client.bucket_format.stored import Codec, Stored
from cachetier_client.clock import Clock

from cachetier.drain.schedule.tasks import Work
from cachetier.drain.serve.eta import WINDOW_UPLOADS, FinishedUpload, measured_rate
from cachetier.drain.upload.compression_log import CompressionLog
from cachetier.drain.upload.stopwatch import Phases
from cachetier.errors import BackpressureError
from cachetier.local.catalog.rows import Summary
from cachetier.model.checkpoint import Save
from cachetier.model.objects import ObjectVersion
from cachetier.model.pace import PaceState
from cachetier.model.shard import Shard
from cachetier.remote.answers import Met
from cachetier.telemetry import events
from cachetier.telemetry.events import of, tell
from cachetier.telemetry.metrics import Metrics

log = logging.getLogger(__name__)

THROTTLED_SECONDS = 15.0
UNASKED_SECONDS = 60.0
CONFLICTS_SHOWN = 100

_STATE_EVENTS = {
    "unreachable": events.REMOTE_UNREACHABLE,
    "refused": events.REMOTE_REFUSED,
    "throttled": events.REMOTE_THROTTLED,
}


@dataclass(slots=True)
class RemoteSnapshot:
    """How a remote is found: a part of ``remotes[]`` in the status object.

    ``asked_at`` is when a request to it ended last, whatever its answer.
    """

    name: str
    state: str = "ok"
    reason: str = ""
    since: float = 0.0
    asked_at: float | None = None
    progressed_at: float | None = None
    throttled: int = 0
    requests: int = 0
    last_throttled_at: float | None = None
    copies: str = "on"
    pace: dict[str, Any] = field(default_factory=dict)

    @property
    def is_paused(self) -> bool:
        """Whether a window pauses the drain."""
        return self.pace.get("bytes_per_second") == 0

    def with_answers(self, met: Met, now: float) -> RemoteSnapshot:
        """Return it with what people's requests ``met``; of a remote not asked for long, that.

        A failure of theirs counts until the remote takes something, or answers another.
        """
        asked_at = max((at for at in (self.asked_at, met.asked_at) if at), default=None)
        found = replace(self, asked_at=asked_at)
        if self.state not in ("ok", "throttled"):
            return found  # and probed
        if met.state != "ok" and (met.asked_at or 0.0) >= max(
            self.since, self.progressed_at or 0.0
        ):
            found.state, found.reason, found.since = met.state, met.reason, met.since
        if asked_at is None or now - asked_at > UNASKED_SECONDS:
            found.state = "unasked"
        return found


@dataclass(slots=True)
class CodecTotals:
    """Totals of one codec since the start."""

    shards: int = 0
    size_bytes: int = 0
    stored_bytes: int = 0


@dataclass(slots=True)
class PackTotals:
    """Totals of packs since the start."""

    packs: int = 0
    shards: int = 0
    size_bytes: int = 0


@dataclass(slots=True)
class DrainSnapshot:
    """The drain to one remote at one instant; what it counts, it counts since the start."""

    remote: RemoteSnapshot
    pid: int | None = None
    started_at: float | None = None
    restarts: int = 0
    courtesy: dict[str, Any] = field(default_factory=dict)
    slowed_seconds: float = 0.0
    in_flight: int = 0
    uploading: list[dict[str, Any]] = field(default_factory=list)
    drained_bytes: int = 0
    sent_bytes: int = 0
    copied_bytes: int = 0
    rate_bytes_per_second: float | None = None
    drained_shards: int = 0
    codecs: dict[Codec, CodecTotals] = field(default_factory=dict)
    packs: PackTotals = field(default_factory=PackTotals)
    compression: dict[str, Any] = field(default_factory=dict)
    drained_objects: int = 0
    published_steps: int = 0
    failures: int = 0
    quarantined: int = 0
    last_error: dict[str, Any] | None = None
    conflicts: list[str] = field(default_factory=list)
    object_conflicts: int = 0
    objects_superseded: int = 0

    @classmethod
    def unknown(cls, remote: str) -> DrainSnapshot:
        """Return the status of a remote that nothing is drained to."""
        return cls(RemoteSnapshot(remote))

    @property
    def saved_bytes(self) -> int:
        """Bytes of drained shards that compression kept from being sent."""
        return sum(each.size_bytes - each.stored_bytes for each in self.codecs.values())

    def as_json(self) -> dict[str, Any]:
        """Return ``drain`` of the status object."""
        elsewhere = ("remote", "slowed_seconds")
        return {name: value for name, value in asdict(self).items() if name not in elsewhere}


class DrainStats:
    """Hears of what happens in the drain to one remote. Thread-safe."""

    def __init__(self, remote: str, clock: Clock, metrics: Metrics | None = None) -> None:
        """Begin to count; ``metrics`` has the histograms of what is drained and published."""
        self.remote = remote
        self._clock = clock
        self._metrics = metrics
        self._lock = threading.Lock()
        self._now = DrainSnapshot(RemoteSnapshot(remote, since=clock.now()))
        self.compression = CompressionLog()
        self._conflicts: OrderedDict[int, str] = OrderedDict()
        self._uploads: deque[FinishedUpload] = deque(maxlen=WINDOW_UPLOADS)

    # --- the process -----------------------------------------------------------------------------

    def process_started(self, pid: int, *, again: bool) -> None:
        with self._lock:
            self._now.pid = pid
            self._now.started_at = self._clock.now()
            self._now.restarts += int(again)
        tell(log, events.DRAIN_STARTED, remote=self.remote, pid=pid)

    def process_ended(self) -> None:
        with self._lock:
            self._now.pid = None

    def courtesy(self, report: dict[str, Any]) -> None:
        """Record how the drain behaves, and for how long it held back since the last report."""
        with self._lock:
            before = float(self._now.courtesy.get("slowed_seconds", 0.0))
            self._now.courtesy = report
            self._now.slowed_seconds += max(0.0, float(report.get("slowed_seconds", 0.0)) - before)

    # --- the remote ------------------------------------------------------------------------------

    def remote_health(self, state: str, reason: str) -> None:
        """Record the state of the remote; a change to trouble, or from it, is logged, once.

        ``since`` stays while the state does.
        """
        with self._lock:
            remote = self._now.remote
            before, changed = remote.state, state != remote.state
            if changed:
                remote.since = self._clock.now()
            remote.state, remote.reason = state, reason
            if state in _STATE_EVENTS:
                remote.asked_at = self._clock.now()
        if state == "ok" and before in _STATE_EVENTS:
            tell(log, events.REMOTE_WELL, remote=self.remote)
        elif changed and state in _STATE_EVENTS:
            tell(log, _STATE_EVENTS[state], remote=self.remote, reason=reason)

    def copied(self, counts: Mapping[str, int], state: str) -> None:
        """Count bytes that were copied inside the remote, and record whether it lets us."""
        with self._lock:
            self._now.remote.copies = state
            self._count(counts)

    def _count(self, counts: Mapping[str, int]) -> None:
        """Add figures that the drain counted, by the fields that show them."""
        for name, more in counts.items():
            shown = self._now if hasattr(self._now, name) else self._now.remote
            setattr(shown, name, getattr(shown, name) + more)

    def traffic(self, counts: Mapping[str, int], pace: PaceState) -> None:
        """Count requests and bodies that went to the remote, and record how fast it is asked."""
        with self._lock:
            self._count(counts)
            remote, was_paused = self._now.remote, self._now.remote.is_paused
            remote.pace = asdict(pace)
            if was_paused and not remote.is_paused:
                remote.progressed_at = self._clock.now()  # a pause is no standstill
            if counts.get("requests"):
                remote.asked_at = self._clock.now()
            if throttled := counts.get("throttled"):
                remote.last_throttled_at = self._clock.now()
        if throttled:
            tell(log, events.REMOTE_THROTTLED, remote=self.remote, times=throttled)

    def progressed(self) -> None:
        """Note that the remote took something for good: a part, or a shard."""
        with self._lock:
            self._now.remote.progressed_at = self._clock.now()

    @property
    def copies(self) -> str:
        """Whether the drain copies inside the remote: ``on``, ``off`` or ``refused``."""
        return self._now.remote.copies

    # --- shards ----------------------------------------------------------------------------------

    def passed_by(self, size_bytes: int) -> None:
        """Count a shard that came to the remote past the drain, which says nothing of its rate."""
        with self._lock:
            self._now.drained_bytes += size_bytes
            self._now.drained_shards += 1

    def drained(
        self, shard: Shard, stored: Stored, seconds: float, phases: Phases | None = None
    ) -> None:
        """Hear of a shard that was verified as ``stored``, ``seconds`` after its upload began.

        ``phases`` says what took how long: see ``stopwatch``.
        """
        size_bytes = shard.content.size_bytes
        what = {"rank": shard.rank, "name": shard.name, "size_bytes": size_bytes}
        sent = {"stored_bytes": stored.size_bytes, "codec": stored.codec, "pack": stored.pack_name}
        took = {"seconds": seconds, "phases": phases, "remote": self.remote}
        tell(log, events.SHARD_DRAINED, **of(shard), **what, **sent, **took)
        with self._lock:
            self._now.remote.progressed_at = self._clock.now()
            self._uploads.append(FinishedUpload(self._clock.monotonic(), seconds, size_bytes))
            self._now.drained_bytes += size_bytes
            self._now.drained_shards += 1
            codec = self._now.codecs.setdefault(stored.codec, CodecTotals())
            codec.shards += 1
            codec.size_bytes += size_bytes
            codec.stored_bytes += stored.size_bytes
            self._conflicts.pop(shard.version, None)
        if self._metrics is not None:
            age_seconds = max(0.0, self._clock.now() - shard.committed_at)
            self._metrics.drain_seconds.labels(self.remote).observe(age_seconds)

    def packed(self, shards: int, size_bytes: int) -> None:
        """Count a pack of so many shards."""
        with self._lock:
            self._now.packs.packs += 1
            self._now.packs.shards += shards
            self._now.packs.size_bytes += size_bytes

    def quarantined(self, shard: Shard, reason: str, *, lost: bool) -> None:
        """Hear of a shard whose local bytes are damaged; one is ``lost`` if no remote has it."""
        what = {"rank": shard.rank, "name": shard.name, "reason": reason}
        tell(log, events.SHARD_QUARANTINED, **what, **of(shard))
        if lost:
            with self._lock:
                self._now.quarantined += 1

    def count_failure(self, work: Work, code: str, message: str) -> None:
        """Count an attempt at ``work`` that failed, and keep it as the last error."""
        with self._lock:
            self._now.failures += 1
            self._now.last_error = {
                "at": self._clock.now(),
                "code": code,
                "message": message,
                "run": work.save.run,
                "step": work.save.step,
                "name": work.name,
            }

    def refusal(self, run: str, step: int, since: float) -> str | None:
        """Return why the remote takes nothing: it is away, or had no room for a step lately."""
        with self._lock:
            remote, error = self._now.remote, self._now.last_error or {}
        if remote.state in ("unreachable", "refused"):
            return f"{remote.name}: {remote.reason}"
        of_step = (error.get("code"), error.get("run"), error.get("step"))
        full = of_step == (BackpressureError.code, run, step) and error["at"] >= since
        return f"{remote.name}: {error['message']}" if full else None

    def tell_failure(
        self, work: Work, code: str, message: str, seconds: float, attempt: int | None
    ) -> None:
        """Tell the log of an attempt at ``work`` that failed; it will be repeated."""
        rank = work.rank if work.shard is None else work.shard.rank
        what = {"kind": work.kind, "rank": rank, "name": work.name, "attempt": attempt}
        why = {"code": code, "reason": message}
        where = {"remote": self.remote, "seconds": seconds}
        tell(log, events.DRAIN_FAILED, **of(work.save), **what, **why, **where)

    def conflict(self, version: int, message: str) -> bool:
        """Remember a conflict and return whether it is new; the oldest go when there are many."""
        with self._lock:
            new = version not in self._conflicts
            self._conflicts[version] = message
            if len(self._conflicts) > CONFLICTS_SHOWN:
                self._conflicts.popitem(last=False)
            return new

    # --- objects of the S3 door ------------------------------------------------------------------

    def shown(self, version: ObjectVersion, seconds: float, phases: Phases) -> None:
        """Hear of a version that is visible in its bucket, ``seconds`` after it was taken up."""
        now, size_bytes = self._clock.now(), version.size_bytes
        age_seconds = max(0.0, now - version.committed_at)
        what = {"run": version.run, "name": version.key, "size_bytes": size_bytes}
        took = {"seconds": seconds, "phases": phases, "age_seconds": age_seconds}
        tell(log, events.OBJECT_SHOWN, **what, deleted=version.deleted, **took)
        with self._lock:
            self._now.remote.progressed_at = now
            self._now.drained_bytes += size_bytes
            self._now.drained_objects += 1
            if size_bytes:
                self._uploads.append(FinishedUpload(self._clock.monotonic(), seconds, size_bytes))
        if self._metrics is not None:
            self._metrics.drain_seconds.labels(self.remote).observe(age_seconds)

    def object_conflict(self, version: ObjectVersion, message: str) -> None:
        """Hear of a version that waits for a person."""
        tell(log, events.OBJECT_CONFLICT, run=version.run, name=version.key, reason=message)
        with self._lock:
            self._now.object_conflicts += 1

    def superseded(self, version: ObjectVersion, reason: str) -> None:
        """Hear of a version that the bucket never shows, as something newer is there."""
        tell(log, events.OBJECT_SUPERSEDED, run=version.run, name=version.key, reason=reason)
        with self._lock:
            self._now.objects_superseded += 1

    # --- saves -----------------------------------------------------------------------------------

    def published(self, save: Save, here: Summary, seconds: float | None, *, decides: bool) -> None:
        """Hear of a step that was published; where that ``decides``, its age is measured as well.

        ``here`` sums up what this node has of it; publishing took ``seconds``.
        """
        age_seconds = max(0.0, self._clock.now() - save.started_at)
        where = {"remote": self.remote, "decides": decides, "age_seconds": age_seconds}
        counted = {"shards": here.shards, "size_bytes": here.size_bytes}
        took = {"seconds": seconds, "world_size": save.world_size}
        tell(log, events.SAVE_PUBLISHED, **of(save), **where, **counted, **took)
        with self._lock:
            self._now.published_steps += 1
        if decides and self._metrics is not None:
            self._metrics.durable_seconds.observe(age_seconds)

    def gave_up(self, save: Save) -> None:
        """Log that the remote will never have ``save``: bytes of it are not on this node any more.

        How many there are is asked of the catalog.
        """
        tell(log, events.SAVE_GIVEN_UP, remote=self.remote, **of(save))

    # --- asked -----------------------------------------------------------------------------------

    def rate(self, in_flight: list[Work]) -> float | None:
        """Return the bytes per second that the drain manages, or None when nobody can tell."""
        with self._lock:
            if self._now.pid is None or self._now.remote.state != "ok":
                return None
            uploading = any(work.uploads for work in in_flight)
            return measured_rate(self._uploads, self._clock.monotonic(), uploading=uploading)

    def snapshot(self, in_flight: list[Work]) -> DrainSnapshot:
        """Return the drain as it is now, with the work that is ``in_flight``."""
        rate = self.rate(in_flight)
        with self._lock:
            now = deepcopy(self._now)
            now.compression = self.compression.as_json()
            now.conflicts = list(self._conflicts.values())
        now.rate_bytes_per_second = rate
        now.in_flight = len(in_flight)
        now.uploading = [_shown(work) for work in in_flight if work.uploads]
        throttled_at = now.remote.last_throttled_at
        lately = throttled_at is not None and self._clock.now() - throttled_at < THROTTLED_SECONDS
        if now.remote.state == "ok" and lately:
            now.remote.state = "throttled"
        return now


def _shown(work: Work) -> dict[str, Any]:
    packs = work.packable is not None  # which are many shards of no one name
    return {
        "run": work.save.run,
        "step": work.save.step,
        "name": work.name,
        "size_bytes": 0 if packs else work.size_bytes,
    }
