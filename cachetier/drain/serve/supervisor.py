"""The supervisor: keeps one remote's drain process running, and reports its state.

The drain may die at any time; what it had in flight is handed to its successor, which goes on from
the last recorded part.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from cachetier_client.clock import Clock

from cachetier.drain.channel import DrainLink
from cachetier.drain.messages import DrainOrders, Size
from cachetier.drain.priority import cgroup
from cachetier.drain.process import LOCK_NAME
from cachetier.drain.schedule.queue_state import EQUAL, QueueState, Weights
from cachetier.drain.serve.eta import etas
from cachetier.drain.serve.remote_state import RemoteState
from cachetier.drain.serve.service import DrainContext, DrainService
from cachetier.drain.serve.stats import DrainSnapshot, DrainStats
from cachetier.drain.serve.stderr_relay import StderrRelay
from cachetier.local.catalog import shards
from cachetier.local.catalog.rows import Backlog
from cachetier.local.store import Store
from cachetier.model.checkpoint import Save
from cachetier.model.compression import UNCOMPRESSED, Rules
from cachetier.model.objects import Mount
from cachetier.notifier import Changes
from cachetier.remote.settings import RemoteSettings
from cachetier.remote.store_clock import StoreClock
from cachetier.steps.incidents import Incidents
from cachetier.telemetry import events, log_format
from cachetier.telemetry.events import tell
from cachetier.telemetry.metrics import Metrics
from cachetier.training_hints import Phases

log = logging.getLogger(__name__)

RESTART_SECONDS = 0.2
RESTART_LIMIT_SECONDS = 10.0
STEADY_SECONDS = 10.0
KILLED_SECONDS = 3.0
# glibc keeps memory for each thread that ever allocated; two arenas are enough for ours. Frames of
# 4 MiB come from memory that is kept, as touching fresh pages costs a tenth of compressing them.
ENVIRONMENT = {
    "MALLOC_ARENA_MAX": "2",
    "MALLOC_MMAP_THRESHOLD_": str(8 << 20),
    "MALLOC_TRIM_THRESHOLD_": str(32 << 20),
}


@dataclass(frozen=True, slots=True)
class DrainSettings:
    """Where to drain to, and how much at once."""

    remote: RemoteSettings
    cache_dir: Path
    size: Size = field(default_factory=Size)
    cpus: tuple[int, ...] = ()
    max_rate: tuple[str, ...] = ()
    weights: Weights = EQUAL
    compression: Rules = UNCOMPRESSED
    packing: bool = False
    mounts: tuple[Mount, ...] = ()
    store_clock: StoreClock = field(default_factory=StoreClock)


def _own_name(name: str, remote: RemoteSettings) -> str:
    """Return ``name`` for one of several drains; the durable one's stays as it is."""
    return name if remote.role == "durable" else f"{name}-{remote.name}"


class Supervisor:
    """Starts, watches, restarts and stops the drain process of one remote."""

    def __init__(
        self,
        store: Store,
        changes: Changes,
        incidents: Incidents,
        clock: Clock,
        settings: DrainSettings,
        *,
        metrics: Metrics | None = None,
        phases: Phases | None = None,
    ) -> None:
        self.queue = QueueState(clock, weights=settings.weights, phases=phases)
        self._store = store
        self._stats = DrainStats(settings.remote.name, clock, metrics)
        context = DrainContext(
            store,
            self.queue,
            self._stats,
            changes,
            incidents,
            clock,
            RemoteState(store, settings.remote.name),
            settings.packing,
            {mount.run: mount for mount in settings.mounts},
            settings.store_clock,
        )
        orders = DrainOrders(
            settings.remote,
            store.store_id,
            str(settings.cache_dir / _own_name(LOCK_NAME, settings.remote)),
            settings.size,
            settings.max_rate,
            log_format.level(),
        )
        self._service = DrainService(context, orders, settings.compression)
        self._changes = changes
        group = _own_name(f"{cgroup.NAME}{store.store_id}", settings.remote)
        self._arguments = [group, ",".join(map(str, settings.cpus))]
        self._clock = clock
        self._stopping = threading.Event()
        self._process: subprocess.Popen[bytes] | None = None
        self._watcher = threading.Thread(
            target=self._watch, name=f"drain-watch-{settings.remote.name}", daemon=True
        )

    # --- running ---------------------------------------------------------------------------------

    def start(self) -> None:
        """Start the drain, and keep it running until ``stop``."""
        self._watcher.start()

    def stop(self, grace_seconds: float) -> None:
        """Let the drain finish the parts in flight, for up to ``grace_seconds``, then end it."""
        self.ask_to_end()
        if self._watcher.ident is None:
            return
        self._watcher.join(grace_seconds)
        if self._watcher.is_alive():
            self._send(signal.SIGKILL)
            self._watcher.join(KILLED_SECONDS)

    def ask_to_end(self) -> None:
        """Let the drain finish the parts in flight and end; it is not started again."""
        self._stopping.set()
        self._send(signal.SIGTERM)

    def _send(self, number: int) -> None:
        process = self._process
        if process is not None:
            process.send_signal(number)

    def _watch(self) -> None:
        """Run one drain after the other; this thread stays, as the kernel ends a drain with it."""
        failures = 0
        while not self._stopping.is_set():
            started_at = self._clock.monotonic()
            try:
                self._run_one(again=failures > 0)
            except (OSError, RuntimeError) as error:  # no memory, descriptor or thread is left
                tell(log, events.DRAIN_NOT_STARTED, remote=self._stats.remote, error=error)
            if self._stopping.is_set():
                break
            steady = self._clock.monotonic() - started_at > STEADY_SECONDS
            failures = 1 if steady else failures + 1
            pause_seconds = RESTART_SECONDS * 2.0 ** min(failures - 1, 10)
            self._stopping.wait(min(RESTART_LIMIT_SECONDS, pause_seconds))

    def _run_one(self, *, again: bool) -> None:
        """Start a drain, and return when it has ended.

        Raises:
            OSError, RuntimeError: It could not be started, or not be listened to and was ended.
        """
        cgroup.sweep()  # what was left when a service was killed
        ours, theirs = socket.socketpair()
        link = DrainLink(ours, self._service, self._changes)
        process = None
        try:
            with theirs:
                link.start()
                process = self._process = spawn(theirs, self._arguments)
            self._stats.process_started(process.pid, again=again)
            if self._stopping.is_set():
                process.terminate()
            self._follow(process)
        finally:
            self._process = None
            self._stats.process_ended()
            link.close()
            if process is not None:
                _end(process)
            self.queue.forget_tasks()
            cgroup.sweep()

    def _follow(self, process: subprocess.Popen[bytes]) -> None:
        """Log what the process says, until it has ended."""
        assert process.stderr is not None
        relay = StderrRelay(process.stderr, self._stats.remote)
        status = process.wait()
        relay.close()
        if not self._stopping.is_set():
            ended = {"remote": self._stats.remote, "pid": process.pid, "status": status}
            tell(log, events.DRAIN_DIED, **ended)

    # --- asked by serve --------------------------------------------------------------------------

    def hurry(self, run: str | None, step: int | None) -> None:
        """Drain a step, a run, or (None) everything first."""
        self.queue.hurry(run, step)
        self.nudge()

    def nudge(self) -> None:
        """Let the drain look for work soon: a put waits for room."""
        self._changes.ring()

    def retry(self) -> None:
        """Forget for how long what failed was put off."""
        self.queue.forgive_all()
        self.nudge()

    def limit_rate(self, bytes_per_second: float | None) -> None:
        """Send no more than this, whatever the settings allow; None: what they allow."""
        self.queue.rate_limit = bytes_per_second
        self.nudge()

    def passed_by(self, size_bytes: int) -> None:
        """Count a shard that was written straight to the remote, past the drain."""
        self._stats.passed_by(size_bytes)

    def published(self, save: Save) -> None:
        """Count a step of this node that was published, as a read of its manifest says."""
        here = self._store.read(shards.summary_of, save.number)
        self._stats.published(save, here, None, decides=True)

    def etas(self, backlog: Sequence[Backlog]) -> dict[int, float]:
        """Return in how many seconds each save of ``backlog`` will be durable, where known."""
        rate = self._stats.rate(self.queue.in_flight())
        return etas(backlog, rate, self.queue.hurried, self.queue.weights)

    def refusal(self, run: str, step: int, since: float) -> str | None:
        """Return why its remote takes nothing of a step now; see ``DrainStats.refusal``."""
        return self._stats.refusal(run, step, since)

    def state(self) -> DrainSnapshot:
        """Return this drain as it is now."""
        return self._stats.snapshot(self.queue.in_flight())


def _end(process: subprocess.Popen[bytes]) -> None:
    """Make sure that a drain has ended; most have by now."""
    if process.poll() is None:
        process.kill()
        process.wait()
        assert process.stderr is not None
        process.stderr.close()


def environment_of_drain(environment: Mapping[str, str]) -> dict[str, str]:
    """Return what a drain gets of the service's environment: the keys to its bucket, but no other.

    Settings come by the channel, and the token of the doors is not one of its business.
    """
    return {
        name: value
        for name, value in environment.items()
        if name.startswith("AWS_")
        or not (name.startswith("CACHETIER_") or log_format.names_secret(name))
    }


def spawn(theirs: socket.socket, arguments: list[str]) -> subprocess.Popen[bytes]:
    """Start a drain in a session of its own, which gives it a scheduling group of its own."""
    descriptor = theirs.fileno()
    return subprocess.Popen(
        [
            *(sys.executable, "-m", "cachetier.drain.process"),
            *(str(descriptor), str(os.getpid())),
            *arguments,
        ],
        stdin=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        pass_fds=(descriptor,),
        start_new_session=True,
        env={**environment_of_drain(os.environ), **ENVIRONMENT},
    )
