"""The table of all metrics: each with its name, its meaning and the same figure's status field.

``metrics`` makes them from here, docs/metrics.md is written from here, and a test drives each.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

PREFIX = "cachetier_"
REMOTE_STATES = ("ok", "throttled", "unreachable", "refused", "unasked")


class MetricKind(StrEnum):
    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True)
class Series:
    """One metric; ``name`` is without the prefix and, of a counter, without ``_total``.

    ``status`` is the field of the status object that shows the same figure, or empty. Of a series
    with the label ``remote``, ``drain.`` means that of the durable one; a replica's lies in
    ``remotes[].drain``. Such a series is read from the ``DrainSnapshot``. ``panel`` is that of the
    node's dashboard which draws it, if one does so without further ado, as ``legend``.
    """

    name: str
    kind: MetricKind
    meaning: str
    labels: tuple[str, ...] = ()
    status: str = ""
    panel: str = ""
    legend: str = "{{remote}}"

    @property
    def full_name(self) -> str:
        """The name that Prometheus knows."""
        return f"{PREFIX}{self.name}{'_total' if self.kind is MetricKind.COUNTER else ''}"

    @property
    def unit(self) -> str:
        """The unit of its value, as the name ends in it."""
        if "per_second" in self.name:
            return "per second"
        last = self.name.rsplit("_", 1)[-1]
        return last if last in ("bytes", "seconds") else ""


def _counter(name: str, meaning: str, *labels: str, **shown: str) -> Series:
    return Series(name, MetricKind.COUNTER, meaning, labels, **shown)


def _gauge(name: str, meaning: str, *labels: str, **shown: str) -> Series:
    return Series(name, MetricKind.GAUGE, meaning, labels, **shown)


def _histogram(name: str, meaning: str, *labels: str) -> Series:
    return Series(name, MetricKind.HISTOGRAM, meaning, labels)


_EXPOSURE = (
    _gauge(
        "run_exposure_seconds",
        "Training that would be lost with this node now: since the save of the run's newest "
        "durable step began, while something newer is here and not durable; else 0. Of a run "
        "without a durable step: since the first save of it that is still here began. Where a "
        "policy keeps all that is newer, until the newest of it began, not until now.",
        "run",
        status="exposure[].exposure_seconds",
    ),
    _gauge(
        "run_durable_age_seconds",
        "Since the save of the run's newest durable step began; absent while none is known here.",
        "run",
        status="exposure[].durable_age_seconds",
    ),
    _gauge(
        "run_dirty_bytes",
        "Bytes of the run not yet at every required remote.",
        "run",
        status="exposure[].dirty_bytes",
    ),
    _gauge(
        "mount_dirty_bytes",
        "Bytes of a mount of the S3 door that its bucket does not show yet, with those of uploads "
        "that are not complete.",
        "mount",
        status="mounts[].dirty_bytes",
    ),
    _gauge(
        "mount_unshown_objects",
        "Objects, and deletions, that were acknowledged and are not visible in the bucket yet.",
        "mount",
        status="mounts[].objects",
    ),
    _gauge(
        "mount_exposure_seconds",
        "Age of the oldest of them.",
        "mount",
        status="mounts[].exposure_seconds",
    ),
    _gauge(
        "mount_conflicts",
        "Objects of which a person has to say whether ours or the bucket's stays.",
        "mount",
        status="mounts[].conflicts",
    ),
    _gauge(
        "exposure_objective_seconds",
        "The setting `exposure_objective`: no run should be exposed for longer.",
        status="exposure_objective_seconds",
    ),
    _gauge("dirty_bytes", "Bytes not yet at every required remote.", status="dirty_bytes"),
    _gauge("dirty_shards", "Shards not yet at every required remote.", status="dirty_shards"),
    _gauge(
        "oldest_dirty_seconds",
        "Age of the oldest shard not yet at every required remote; 0 when nothing is dirty.",
        status="oldest_dirty_seconds",
    ),
    _gauge(
        "incomplete_steps",
        "Saves of which nothing came here for 30 minutes, and that are stuck: a rank of this node "
        "has not sealed, or all is sent and another node's part is missing. Not those that a newer "
        "durable step of the run made up for.",
        status="incomplete.steps",
    ),
    _gauge(
        "oldest_incomplete_seconds",
        "Since the oldest of those began; 0 without any.",
        status="incomplete.oldest_seconds",
    ),
    _gauge(
        "local_only_bytes",
        "Bytes that a policy keeps from the remote.",
        status="local_only.size_bytes",
    ),
    _counter(
        "local_only_steps",
        "Steps that a policy declared local-only, since the cache was made.",
        status="local_only.declared_steps",
    ),
    _counter(
        "removed_local_only_steps",
        "Local-only steps removed: by `keep_local`, or for room.",
    ),
)

_FLOW = (
    _histogram("put_seconds", "From the admission of a shard to its acknowledgement."),
    _counter("put_bytes", "Bytes acknowledged.", status="flow.put_bytes"),
    _histogram("get_seconds", "From the request for a shard until its first byte can be read."),
    _counter("backpressure", "Puts turned away for want of room."),
    _gauge("waiting_puts_bytes", "Bytes that puts wait for room for.", status="waiting_bytes"),
    _counter("fallback_shards", "Shards that clients put straight to S3 while this was away."),
    _counter("fallback_bytes", "Bytes of those shards."),
    _counter(
        "restored_bytes",
        "Bytes brought back from a remote to this node.",
        status="flow.restored_bytes",
    ),
    _counter(
        "restore_fallbacks",
        "Remote copies passed over at a restore, as another could be tried: `reason` is "
        "`unreachable`, `missing` or `damaged`.",
        "reason",
        "remote",
    ),
    _counter(
        "restore_read_bytes",
        "Bytes that restores read, for this node and for peers that asked it: `source` is `peers` "
        "or `remotes`.",
        "source",
    ),
    _gauge(
        "restore_wanted_bytes",
        "Bytes of the restores that run; 0 without any.",
        status="restore.wanted_bytes",
    ),
    _gauge(
        "restore_done_bytes",
        "Bytes of these that are here.",
        status="restore.done_bytes",
    ),
    _gauge(
        "restore_eta_seconds",
        "Until all of them are here; 0 without any, absent while nobody can tell.",
        status="restore.eta_seconds",
    ),
    _counter("range_read_bytes", "Bytes of remote shards read in parts, and not kept here."),
)

_DRAIN = (
    _gauge(
        "remote_pending_bytes",
        "Bytes on this node that the remote does not have yet, and is to get.",
        "remote",
        status="remotes[].pending_bytes",
        panel="Owed to each remote",
    ),
    _gauge(
        "drain_eta_seconds",
        "Until what is pending now is at the remote, at the measured rate; 0 when nothing is, "
        "absent while nobody can tell.",
        "remote",
        status="remotes[].eta_seconds",
    ),
    _gauge(
        "drain_last_progress_seconds",
        "Since something last got to the remote, while something sealed is pending; 0 else, and "
        "while a window pauses the drain.",
        "remote",
        status="remotes[].last_progress_seconds",
    ),
    _histogram(
        "durable_seconds", "From the begin of a save on this node to the publication of its step."
    ),
    _histogram(
        "drain_seconds",
        "From the acknowledgement of a shard until it is verified at the remote.",
        "remote",
    ),
    _counter(
        "published",
        "Steps published by this node.",
        status="drain.published_steps",
        panel="Steps and shards",
        legend="steps published",
    ),
    _counter(
        "drained_bytes", "Bytes verified at the remote.", "remote", status="drain.drained_bytes"
    ),
    _counter(
        "drained_shards",
        "Shards verified at the remote.",
        "remote",
        status="drain.drained_shards",
        panel="Steps and shards",
        legend="shards at {{remote}}",
    ),
    _counter(
        "drained_objects",
        "Objects of the S3 door that became visible in their bucket, and deletions.",
        status="drain.drained_objects",
    ),
    _gauge(
        "waiting_markers",
        "Objects of the S3 door that wait for what other nodes put before them.",
        status="waiting_markers",
    ),
    _counter(
        "object_conflicts",
        "Objects of the S3 door that somebody else changed in the bucket, or it does not take.",
        status="drain.object_conflicts",
    ),
    _counter(
        "objects_superseded",
        "Objects of the S3 door that were not written, as something newer was put or deleted.",
        status="drain.objects_superseded",
    ),
    _counter(
        "saved_bytes",
        "Bytes of drained shards that compression kept from being sent.",
        "remote",
        panel="Bytes that need not be sent",
        legend="saved for {{remote}}",
    ),
    _counter(
        "copied_bytes",
        "Bytes that were copied inside the bucket, not sent.",
        "remote",
        status="drain.copied_bytes",
        panel="Bytes that need not be sent",
        legend="copied at {{remote}}",
    ),
    _counter(
        "drain_failures",
        "Attempts to drain that failed.",
        "remote",
        status="drain.failures",
        panel="Attempts to drain that failed",
    ),
    _counter(
        "drain_restarts",
        "Times that a drain process ended and was started again, of all remotes together.",
        status="drain.restarts",
    ),
    _counter("drain_slowed_seconds", "Seconds that threads of the drain held back for training."),
    _gauge(
        "training_busy",
        "Ranks that say they are in a training step.",
    ),
)

_REMOTES = (
    _gauge(
        "remote_state",
        "1 for the present state of the remote, 0 for the others: `ok`, `throttled`, "
        "`unreachable`, `refused`, `unasked` (nobody asked it for a minute).",
        "remote",
        "state",
        status="remotes[].state",
    ),
    _gauge("remote_refused", "1 while the durable remote refuses the drain."),
    _counter(
        "throttled",
        "Requests that the remote throttled.",
        "remote",
        status="remotes[].throttled",
        panel="Throttled requests",
    ),
    _gauge(
        "drain_concurrency",
        "Requests that the drain may have under way at once.",
        "remote",
        status="remotes[].pace.concurrency",
        panel="Requests at once",
    ),
    _gauge(
        "drain_writes_per_second",
        "Writes that the drain allows itself; `+Inf`: no limit.",
        "remote",
        status="remotes[].pace.writes_per_second",
    ),
)

_CACHE = (
    _gauge("capacity_bytes", "Hard budget of the cache.", status="capacity_bytes"),
    _gauge(
        "used_bytes",
        "Bytes accounted to the cache, reservations included.",
        status="used_bytes",
    ),
    _gauge(
        "memory_bytes",
        "Bytes at the level `memory`, reservations included: a power cut would take them.",
        status="memory_bytes",
    ),
    _gauge(
        "kept_for_peers_bytes",
        "Bytes of copies that this node keeps for its peers; `capacity_bytes` is without them.",
        status="kept_for_peers_bytes",
    ),
    _gauge(
        "clean_bytes",
        "Bytes here that are at every required remote, pinned or not.",
        status="clean_bytes",
    ),
    _gauge(
        "evictable_bytes",
        "Bytes that go when room is needed: clean ones that are not pinned, and local-only steps "
        "but the newest of a run. All else that is used stays: not durable, pinned, damaged, "
        "unwanted, lent, or being written.",
        status="evictable_bytes",
    ),
    _gauge(
        "lent_bytes",
        "Bytes of files that readers have open, in the cache or gone from it: they take the disk "
        "until the readers are done.",
        status="lent_bytes",
    ),
    _gauge(
        "unwanted_bytes",
        "Bytes of saves that were superseded or refused: nothing drains them, and they go with the "
        "step, or after a day.",
        status="unwanted.size_bytes",
    ),
    _gauge("pinned_steps", "Steps that are pinned: they are never evicted.", status="pinned.steps"),
    _gauge("pinned_bytes", "Bytes of those that are here.", status="pinned.size_bytes"),
    _counter("evicted_bytes", "Bytes of clean shards evicted.", status="flow.evicted_bytes"),
)

_SHARES = (
    _gauge(
        "quota_used_bytes",
        "Bytes in the runs of a principal with a quota that make no room by themselves: not at "
        "every required remote, pinned, damaged, or being written.",
        "principal",
        status="principals[].size_bytes.used",
    ),
    _gauge(
        "quota_limit_bytes",
        "The setting `bytes` of a principal: the most of those.",
        "principal",
        status="principals[].size_bytes.limit",
    ),
)

_TROUBLE = (
    _gauge("fenced", "1 once a sync failed and no more writes are taken.", status="fenced"),
    _counter(
        "write_errors",
        "Writes to the cache's disk that failed: `operation` is `write` (a data file), `sync` "
        "(a data file or its name) or `catalog`.",
        "operation",
    ),
    _gauge(
        "quarantined_shards",
        "Shards whose local bytes are damaged, and that are not durable.",
        status="quarantined_shards",
    ),
    _counter(
        "quarantined",
        "Shards found damaged here before they were durable, since the cache was made.",
    ),
    _counter(
        "errors",
        "Requests answered with an error: `door` is `unix`, `http` or `s3`, `code` that of the "
        "error.",
        "door",
        "code",
    ),
    _counter(
        "s3_requests",
        "Requests at the S3 door: `operation` as S3 calls it, `code` is S3's, or `ok`.",
        "operation",
        "code",
    ),
)

_SERVICE = (
    _counter(
        "scrape_errors",
        "Scrapes that lack the gauges of a `source`, as it could not be asked: `catalog` (what is "
        "dirty, exposed, owed or damaged) or `service` (room, states).",
        "source",
    ),
    _gauge("start_time_seconds", "When the service started, UTC seconds.", status="started_at"),
    _gauge("build_info", "1; the label says which version runs.", "version"),
    _gauge("open_connections", "Connections open at the doors.", status="connections"),
)

SECTIONS: tuple[tuple[str, tuple[Series, ...]], ...] = (
    ("Loss if this node is lost", _EXPOSURE),
    ("Puts and gets", _FLOW),
    ("The drain", _DRAIN),
    ("The remotes", _REMOTES),
    ("Room", _CACHE),
    ("The shares of principals", _SHARES),
    ("Trouble", _TROUBLE),
    ("The service", _SERVICE),
)
SERIES = {series.name: series for _, section in SECTIONS for series in section}
