"""The drain process: ``python -m cachetier.drain.process <descriptor> <parent> <group> <cpus>``.

``serve`` starts it with one end of a socket pair, and it ends with ``serve``: the kernel kills it
when its parent dies, and the channel closes. A lock in the cache directory keeps a drain that is
still ending apart from its successor.
"""

from __future__ import annotations

import fcntl
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Collection
from functools import partial
from pathlib import Path

from cachetier_client.clock import SystemClock

from cachetier.carriers.pool import Carriers
from cachetier.carriers.process import Nursery
from cachetier.drain.channel import AskingEnd, ChannelClosedError
from cachetier.drain.loop import DrainLoop, Signals
from cachetier.drain.messages import DrainOrders
from cachetier.drain.pace.found import Found
from cachetier.drain.pace.traffic import Traffic
from cachetier.drain.priority.apply import (
    Courtesy,
    die_with,
    follow,
    lower_priority,
    pinned_to,
)
from cachetier.drain.priority.loop import GivingWay
from cachetier.drain.priority.psi import PROC, Sensors
from cachetier.drain.serve.service import DrainService
from cachetier.errors import StoppingError
from cachetier.local.files.permissions import unfollowed
from cachetier.model.bandwidth import parsed_bandwidth
from cachetier.remote.bucket import Bucket
from cachetier.remote.call_policy import CallPolicy, Pacer, Stragglers
from cachetier.remote.factory import drained_bucket, open_store
from cachetier.remote.scheme import scheme_of
from cachetier.remote.settings import RemoteSettings
from cachetier.remote.stall_guard import StallWatch, Timeouts
from cachetier.remote.store_clock import StoreClock
from cachetier.telemetry import log_format

LOCK_NAME = "drain.lock"
LOCK_TRIES = 100
LOCK_PAUSE_SECONDS = 0.1


def main(descriptor: int, parent: int, group: str, cpus: Collection[int]) -> int:
    """Drain until ``serve`` says so, or ends; for the rest see ``lower_priority``."""
    die_with(parent)
    pinned = pinned_to(cpus)  # before there are other threads, and the log has one
    nursery = Nursery(partial(follow, group), leave=(descriptor,))
    # To serve, which says from which level on; see `said`.
    log_format.set_up("debug", "json", secrets=tuple(log_format.secrets_in(os.environ)))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # for serve, which then tells us
    signals = Signals()
    stop_at_sigterm(signals)
    channel = AskingEnd(socket.socket(fileno=descriptor))
    receiver = signals.listen(channel)
    try:
        orders = channel.serve.hello({"cpus": pinned})
        log_format.set_level(orders.log_level)
        lock = lock_drain(Path(orders.lock), signals)
        found = Found(lock, orders.remote)
        step_back = partial(lower_priority, group, pinned)
        _drain(channel.serve, signals, orders, step_back, found, nursery)
        os.close(lock)
    except (ChannelClosedError, StoppingError):
        pass
    finally:
        channel.close()
        receiver.join()
    return 0


def stop_at_sigterm(signals: Signals) -> None:
    """Have SIGTERM stop ``signals`` from a thread of its own.

    A handler in Python would do it in the middle of whatever the main thread does, and wait for
    ever for a lock that is held there. So the interpreter itself writes into a pipe.
    """
    reader, writer = os.pipe2(os.O_CLOEXEC)
    os.set_blocking(writer, False)

    def listen() -> None:
        os.read(reader, 1)
        signals.stop()

    threading.Thread(target=listen, name="drain-sigterm", daemon=True).start()
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    signal.signal(signal.SIGTERM, lambda _number, _frame: None)  # the pipe knows


def lock_drain(path: Path, signals: Signals) -> int:
    """Take the drain lock, waiting a while for a predecessor to end.

    Raises:
        SystemExit: It does not.
    """
    descriptor = unfollowed(path, os.O_RDWR | os.O_CREAT)
    for _ in range(LOCK_TRIES):
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            signals.sleep(LOCK_PAUSE_SECONDS)
        else:
            return descriptor
    raise SystemExit(f"another drain holds {path}")


def _drain(
    serve: DrainService,
    signals: Signals,
    orders: DrainOrders,
    step_back: Callable[[], Courtesy],
    found: Found,
    nursery: Nursery,
) -> None:
    """Open the store, step behind everybody else (last in line it took a minute), and drain."""
    remote, size, clock = orders.remote, orders.size, SystemClock()
    stalls, store_clock = StallWatch(), StoreClock()
    bandwidth = parsed_bandwidth(orders.max_rate)
    concurrency = size.uploads + size.parts
    timeouts = Timeouts(stalls=stalls)
    carriers = Carriers(nursery, remote, size.carriers, concurrency, timeouts)
    carriers.on_lost = signals.stop  # the next drain has a nursery again
    if not size.carriers:
        nursery.close()

    def moved_bytes() -> int:
        return stalls.moved_bytes() + nursery.counters.moved_bytes()

    traffic = Traffic(concurrency, clock, bandwidth, size.parts, moved_bytes, found)
    pacer = Pacer(traffic.pace, clock, stopping=signals.stopping)
    stragglers = Stragglers((stalls.cut, carriers.cut), traffic.pace.has_room)
    server = scheme_of(remote).server(remote, store_clock, max_connections=concurrency + 1)

    def bucket_of(settings: RemoteSettings) -> Bucket:
        store = open_store(settings, server=server, timeouts=timeouts)
        store = carriers.store(settings, store) if size.carriers else store
        return drained_bucket(settings, store, pacer, stragglers, traffic.observe, signals.sleep)

    probe = CallPolicy(
        open_store(remote, server=server, timeouts=timeouts), observe=traffic.observe
    )
    server.open()
    courtesy = step_back()
    serve.report_courtesy(courtesy.report)
    drain = DrainLoop(
        serve,
        bucket_of(remote),
        orders.store_id,
        clock,
        probe=probe.check,
        signals=signals,
        traffic=traffic,
        size=size,
        open_store=lambda name: bucket_of(remote.beside(name)).objects,
        store_clock=store_clock,
        prepare=carriers.prepare,
    )
    sensors = Sensors(PROC, carriers.pids, nursery.counters.read_seconds)
    giving_way = GivingWay(drain.gates, courtesy, sensors, serve.report_courtesy, clock)
    giving_way.start(signals.sleep)
    drain.run()
    carriers.close()


if __name__ == "__main__":
    _, socket_end, started_by, group_name, cpu_numbers = sys.argv
    cpus = [int(number) for number in cpu_numbers.split(",") if number]
    sys.exit(main(int(socket_end), int(started_by), group_name, cpus))
