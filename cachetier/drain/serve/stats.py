"""What the drain is up to, for people and for metrics: ``drain`` in ``/v1/status``."""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict, deque
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from cachetier.clock import Clock
from cachetier.drain.schedule.tasks import Work
from cachetier.drain.serve.eta import WINDOW_UPLOADS, FinishedUpload, measured_rate
from cachetier.drain.upload.compression_log import Decided, News
from cachetier.model.checkpoint import Save
from cachetier.model.stored import Codec, Stored
from cachetier.telemetry import events
from cachetier.telemetry.events import of, tell

log = logging.getLogger(__name__)

THROTTLED_SECONDS = 15.0
CONFLICTS_SHOWN = 100

_STATE_EVENTS = {
    "unreachable": events.REMOTE_UNREACHABLE,
    "refused": events.REMOTE_REFUSED,
    "throttled": events.REMOTE_THROTTLED,
}


class DrainObserver:
    """Hears of what the drain does; does nothing itself. Requests wait for it: be quick."""

    def drained(self, remote: str, size_bytes: int, seconds: float) -> None:
        """Tell that a shard was verified at ``remote``, ``seconds`` after its upload began."""

    def reached(self, remote: str, age_seconds: float) -> None:
        """Tell that a shard was verified at ``remote`` so long after its acknowledgement."""

    def saved(self, remote: str, size_bytes: int) -> None:
        """Tell how many bytes of that shard compression kept from being sent."""

    def copied(self, remote: str, size_bytes: int) -> None:
        """Tell how many bytes were copied inside ``remote`` instead of sent."""

    def paced(self, remote: str, pace: Mapping[str, Any]) -> None:
        """Tell how fast ``remote`` is asked now: a ``PaceState``."""

    def slowed(self, seconds: float) -> None:
        """Tell that the drain held back for training, ``seconds`` over all its threads."""

    def throttled(self, remote: str, times: int) -> None:
        """Tell that ``remote`` answered so many requests with "slow down"."""

    def failed(self, remote: str, kind: str, code: str) -> None:
        """Tell that an attempt at one item failed; it will be repeated."""

    def quarantined(self, run: str, step: int, name: str) -> None:
        """Tell that local bytes failed their digest and were not sent."""

    def published(self, run: str, step: int, age_seconds: float) -> None:
        """Tell that a step is published, ``age_seconds`` after its save began here."""

    def restarted(self) -> None:
        """Tell that the drain process died and was started again."""


@dataclass(slots=True)
class _Remote:
    state: str = "ok"
    reason: str = ""
    since: float = 0.0
    throttled_at: float | None = None
    progressed_at: float | None = None
    pace: dict[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class _Counts:
    drained_bytes: int = 0
    drained_shards: int = 0
    published: int = 0
    failures: int = 0
    throttled: int = 0
    quarantined: int = 0
    requests: int = 0
    sent_bytes: int = 0
    copied_bytes: int = 0


@dataclass(slots=True)
class _Codec:
    """What was stored in one way since the start."""

    shards: int = 0
    size_bytes: int = 0
    stored_bytes: int = 0


@dataclass(slots=True)
class _Packs:
    """What went in packs since the start."""

    packs: int = 0
    shards: int = 0
    size_bytes: int = 0


@dataclass(slots=True)
class _Process:
    pid: int | None = None
    started_at: float | None = None
    restarts: int = 0
    courtesy: dict[str, Any] = field(default_factory=dict)


class DrainStats:
    """Collects what the drain reports. Thread-safe."""

    def __init__(self, remote: str, clock: Clock) -> None:
        self.remote = remote
        self._clock = clock
        self._lock = threading.Lock()
        self._process = _Process()
        self._remote = _Remote(since=clock.now())
        self._counts = _Counts()
        self._copies = "on"
        self._codecs: dict[Codec, _Codec] = {}
        self._packs = _Packs()
        self._decided = Decided()
        self._last_error: dict[str, Any] | None = None
        self._conflicts: OrderedDict[int, str] = OrderedDict()
        self._uploads: deque[FinishedUpload] = deque(maxlen=WINDOW_UPLOADS)

    # --- reported by dispatcher and supervisor -------------------------------------------------

    def process_started(self, pid: int, *, again: bool) -> None:
        with self._lock:
            self._process.pid = pid
            self._process.started_at = self._clock.now()
            self._process.restarts += int(again)

    def process_ended(self) -> None:
        with self._lock:
            self._process.pid = None

    def courtesy(self, report: dict[str, Any]) -> float:
        """Record how the drain behaves; return for how long it held back since the last report."""
        with self._lock:
            before = float(self._process.courtesy.get("slowed_seconds", 0.0))
            self._process.courtesy = report
            return max(0.0, float(report.get("slowed_seconds", 0.0)) - before)

    def remote_health(self, state: str, reason: str) -> None:
        """Record ``ok``, ``unreachable`` or ``refused``; a change of state is logged, once.

        ``since`` stays while the state does.
        """
        with self._lock:
            changed = state != self._remote.state
            if changed:
                self._remote.since = self._clock.now()
            self._remote.state, self._remote.reason = state, reason
        if changed and state == "ok":
            tell(log, events.REMOTE_WELL, remote=self.remote)
        elif changed:
            tell(log, _STATE_EVENTS[state], remote=self.remote, reason=reason)

    def traffic(self, requests: int, throttled: int, pace: dict[str, Any]) -> None:
        with self._lock:
            if _is_paused(self._remote.pace) and not _is_paused(pace):
                self._remote.progressed_at = self._clock.now()  # a pause is no standstill
            self._remote.pace = pace
            self._counts.requests += requests
            self._counts.throttled += throttled
            if throttled:
                self._remote.throttled_at = self._clock.now()

    def sent(self, size_bytes: int) -> None:
        """Count bodies that went to the remote."""
        with self._lock:
            self._counts.sent_bytes += size_bytes

    def copied(self, state: str, size_bytes: int) -> None:
        """Record whether the drain copies inside the remote, and count what it copied."""
        with self._lock:
            self._copies = state
            self._counts.copied_bytes += size_bytes

    def progressed(self) -> None:
        """Note that the remote took something for good: a part, or a shard."""
        with self._lock:
            self._remote.progressed_at = self._clock.now()

    def passed_by(self, size_bytes: int) -> None:
        """Count a shard that came to the remote past the drain, which says nothing of its rate."""
        with self._lock:
            self._counts.drained_bytes += size_bytes
            self._counts.drained_shards += 1

    def drained(self, version: int, size_bytes: int, seconds: float) -> None:
        with self._lock:
            self._remote.progressed_at = self._clock.now()
            self._uploads.append(FinishedUpload(self._clock.monotonic(), seconds, size_bytes))
            self._counts.drained_bytes += size_bytes
            self._counts.drained_shards += 1
            self._conflicts.pop(version, None)

    def stored(self, size_bytes: int, stored: Stored) -> None:
        """Count a shard of ``size_bytes`` that was stored so."""
        with self._lock:
            counts = self._codecs.setdefault(stored.codec, _Codec())
            counts.shards += 1
            counts.size_bytes += size_bytes
            counts.stored_bytes += stored.size_bytes

    def packed(self, shards: int, size_bytes: int) -> None:
        """Count a pack of so many shards."""
        with self._lock:
            self._packs.packs += 1
            self._packs.shards += shards
            self._packs.size_bytes += size_bytes

    def decided(self, news: News) -> None:
        """Record what ``auto`` decided; see ``Decisions.news``."""
        with self._lock:
            self._decided.hear(news)

    def published(self) -> None:
        with self._lock:
            self._counts.published += 1

    def quarantined(self) -> None:
        with self._lock:
            self._counts.quarantined += 1

    def gave_up(self, save: Save) -> None:
        """Log that the remote will never have ``save``: bytes of it are not on this node any more.

        How many there are is asked of the catalog.
        """
        tell(log, events.SAVE_GIVEN_UP, remote=self.remote, **of(save))

    def failed(self, work: Work, code: str, message: str) -> None:
        with self._lock:
            self._counts.failures += 1
            self._last_error = {
                "at": self._clock.now(),
                "code": code,
                "message": message,
                "run": work.save.run,
                "step": work.save.step,
                "name": work.shard.name if work.shard is not None else None,
            }

    def conflict(self, version: int, message: str) -> bool:
        """Remember a conflict and return whether it is new; the oldest go when there are many."""
        with self._lock:
            new = version not in self._conflicts
            self._conflicts[version] = message
            if len(self._conflicts) > CONFLICTS_SHOWN:
                self._conflicts.popitem(last=False)
            return new

    @property
    def copies(self) -> str:
        """Whether the drain copies inside the remote: ``on``, ``off`` or ``refused``."""
        return self._copies

    # --- asked -----------------------------------------------------------------------------------

    def rate(self, in_flight: list[Work]) -> float | None:
        """Return the bytes per second that the drain manages, or None when nobody can tell."""
        with self._lock:
            if self._process.pid is None or self._remote.state != "ok":
                return None
            uploading = any(work.uploads for work in in_flight)
            return measured_rate(self._uploads, self._clock.monotonic(), uploading=uploading)

    def as_json(self, in_flight: list[Work]) -> dict[str, Any]:
        """Return the status object's ``drain``."""
        rate = self.rate(in_flight)
        with self._lock:
            counts, process = self._counts, self._process
            return {
                "pid": process.pid,
                "started_at": process.started_at,
                "restarts": process.restarts,
                "courtesy": dict(process.courtesy),
                "in_flight": len(in_flight),
                "uploading": [_shown(work) for work in in_flight if work.uploads],
                "drained_bytes": counts.drained_bytes,
                "sent_bytes": counts.sent_bytes,
                "copied_bytes": counts.copied_bytes,
                "rate_bytes_per_second": rate,
                "drained_shards": counts.drained_shards,
                "codecs": {codec: asdict(counted) for codec, counted in self._codecs.items()},
                "packs": asdict(self._packs),
                "compression": self._decided.as_json(),
                "published_steps": counts.published,
                "failures": counts.failures,
                "quarantined": counts.quarantined,
                "last_error": self._last_error,
                "conflicts": list(self._conflicts.values()),
                "remotes": [self._remote_json()],
            }

    def _remote_json(self) -> dict[str, Any]:
        remote, state = self._remote, self._remote.state
        throttled_at = remote.throttled_at
        lately = throttled_at is not None and self._clock.now() - throttled_at < THROTTLED_SECONDS
        if state == "ok" and lately:
            state = "throttled"
        return {
            "name": self.remote,
            "state": state,
            "reason": remote.reason,
            "since": remote.since,
            "progressed_at": remote.progressed_at,
            "throttled": self._counts.throttled,
            "requests": self._counts.requests,
            "last_throttled_at": throttled_at,
            "copies": self._copies,
            "pace": dict(remote.pace),
        }


def _is_paused(pace: Mapping[str, Any]) -> bool:
    return pace.get("bytes_per_second") == 0


def _shown(work: Work) -> dict[str, Any]:
    shard = work.shard
    return {
        "run": work.save.run,
        "step": work.save.step,
        "name": shard.name if shard is not None else None,
        "size_bytes": shard.content.size_bytes if shard is not None else 0,
    }
