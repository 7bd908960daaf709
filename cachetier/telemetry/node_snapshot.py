"""What the node looks like at one instant: the figures that status, ``top`` and Prometheus show."""

from __future__ import annotations

from dataclasses import dataclass

RUN_LIMIT = 20


@dataclass(frozen=True, slots=True)
class RunLevel:
    """What losing this node now would cost one run.

    ``exposure_seconds``: how much training would be lost, 0 when nothing newer than the newest
    durable step is at stake here. ``durable_age_seconds``: since the save of that step began; None,
    as ``durable_step``, while this node knows of none.
    """

    run: str
    durable_step: int | None
    durable_age_seconds: float | None
    exposure_seconds: float
    dirty_bytes: int


@dataclass(frozen=True, slots=True)
class RemoteLevel:
    """How far the drain to one remote is.

    ``eta_seconds``: until what waits now is there, at the measured rate; None while nobody can
    tell. ``last_progress_seconds``: since something got there, 0 while there is nothing to do.
    """

    name: str
    state: str = "ok"
    pending_steps: int = 0
    pending_shards: int = 0
    pending_bytes: int = 0
    given_up_steps: int = 0
    eta_seconds: float | None = None
    last_progress_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class ServiceSnapshot:
    """What the service knows of the node by itself, whether or not its catalog can be read.

    ``remote_states`` is the state of each remote by its name, of the durable one first.
    """

    fenced: bool = False
    used_bytes: int = 0
    capacity_bytes: int = 0
    waiting_puts_bytes: int = 0
    open_connections: int = 0
    busy_ranks: int = 0
    exposure_objective_seconds: float = 0.0
    started_at: float = 0.0
    remote_states: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Levels:
    """The whole node; ``runs`` are at most ``RUN_LIMIT``, the most exposed first.

    The durable remote is the first of ``remotes``.
    """

    standing: ServiceSnapshot = ServiceSnapshot()

    dirty_bytes: int = 0
    dirty_shards: int = 0
    oldest_dirty_seconds: float = 0.0
    clean_bytes: int = 0
    evictable_bytes: int = 0
    quarantined_shards: int = 0
    quarantined_total: int = 0
    local_only_bytes: int = 0
    local_only_shards: int = 0
    local_only_steps: int = 0
    local_only_total: int = 0
    unwanted_bytes: int = 0
    unwanted_shards: int = 0
    unwanted_saves: tuple[tuple[str, int], ...] = ()  # (run, step)
    pinned_steps: int = 0
    pinned_bytes: int = 0
    incomplete_steps: int = 0
    oldest_incomplete_seconds: float = 0.0
    runs: tuple[RunLevel, ...] = ()
    remotes: tuple[RemoteLevel, ...] = ()
