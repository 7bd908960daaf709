"""The faults of the soak: each does its harm, takes it back, and is counted when it took place.

Those of nodes and those of S3 run beside each other, each kind one after the other.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

from cachetier_client.bucket_format.documents import Manifest
from cachetier_client.errors import CachetierClientError

from benchmarks.processes import children_of
from cachetier.testing.s3proxy import S3Proxy
from cachetier.testing.troubles import Fault, Trouble, When, share
from tests.fakes.loop_disk import Disk, LoopDisk
from tests.soak.bucket import BareBucket
from tests.soak.history import History, StepHistory
from tests.soak.jobs import Jobs
from tests.soak.nodes import REPAIR_SECONDS, START_SECONDS, Node, copy_tree

AWAY_SECONDS = 2.0
LOCKED_SECONDS = 7.0
FULL_SECONDS = 6.0
JUMPS = (-3600.0, -300.0, 120.0, 3600.0, 86_400.0)

# Holds the catalog's lock as a backup would, until it is killed.
LOCK = """
import sqlite3, sys, time
sql = sqlite3.connect(sys.argv[1], isolation_level=None, timeout=30)
sql.execute("BEGIN IMMEDIATE")
print("locked", flush=True)
time.sleep(3600)
"""


@dataclass
class World:
    """What faults can be done to, and what they did."""

    nodes: dict[str, Node]  # those that may be harmed
    proxy: S3Proxy
    jobs: Jobs
    history: History
    bucket: BareBucket
    dice: random.Random
    fired: Counter[str] = field(default_factory=Counter)
    crashes: int = 0
    crashes_with_dirty: int = 0
    excuses: list[tuple[str, float, float]] = field(default_factory=list)

    def some_node(self, *, own_disk: bool = False) -> Node:
        fit = [node for node in self.nodes.values() if node.disk.own or not own_disk]
        return self.dice.choice(fit)

    def crashed(self, node: Node) -> None:
        """Count a crash, and whether something acknowledged was undrained at that instant."""
        self.crashes += 1
        self.crashes_with_dirty += node.dirty_shards() > 0


# --- of nodes and ranks -------------------------------------------------------------------------


def kill_service(world: World) -> bool:
    node = world.some_node()
    node.kill()
    world.crashed(node)
    time.sleep(world.dice.uniform(0, AWAY_SECONDS))
    node.start()
    return True


def kill_drain(world: World) -> bool:
    with suppress(CachetierClientError, ProcessLookupError):
        pid = world.some_node().drain_pid()
        if pid is not None:
            os.kill(pid, signal.SIGKILL)
            return True
    return False


def kill_carrier(world: World) -> bool:
    """SIGKILL a process that carries for a drain or for restores, or the one that forks those."""
    with suppress(CachetierClientError, OSError):
        node = world.some_node()
        drain = node.drain_pid()
        carriers = [pid for pid in children_of(node.pid) if pid != drain]
        if carriers:
            os.kill(world.dice.choice(sorted(carriers)), signal.SIGKILL)
            return True
    return False


def stop_service(world: World) -> bool:
    node = world.some_node()
    node.stop()
    time.sleep(world.dice.uniform(0, AWAY_SECONDS))
    node.start()
    return True


def kill_rank(world: World) -> bool:
    """One rank dies, so its job is started again, with a new save id, from its last whole step."""
    return world.jobs.kill_one(world.dice)


def cut_power(world: World) -> bool:
    node = world.some_node(own_disk=True)
    assert isinstance(node.disk, LoopDisk)
    node.disk.cut_power()
    node.kill()
    node.disk.power_on()
    world.crashed(node)
    node.start()
    return True


def jump_clock(world: World) -> bool:
    node = world.some_node()
    usual = node.clock_offset
    node.set_clock(usual + world.dice.choice(JUMPS))
    time.sleep(world.dice.uniform(3, 8))
    node.set_clock(usual)
    return True


def lock_catalog(world: World) -> bool:
    """Another program holds the catalog's lock for longer than a write waits."""
    node = world.some_node()
    holder = subprocess.Popen(
        [sys.executable, "-c", LOCK, str(node.cache_dir / "catalog.db")], stdout=subprocess.PIPE
    )
    assert holder.stdout is not None
    try:
        locked = holder.stdout.readline() == b"locked\n"
        time.sleep(LOCKED_SECONDS)
        return locked
    finally:
        holder.kill()  # a clean end might take the write-ahead log with it
        holder.wait()
        holder.stdout.close()


def fill_disk(world: World) -> bool:
    node = world.some_node(own_disk=True)
    assert isinstance(node.disk, LoopDisk)
    try:
        node.disk.fill()
        time.sleep(FULL_SECONDS)
        return True
    finally:
        node.disk.make_room()


def restore_older_disk(world: World) -> bool:
    """The disk is taken back to where it was a while ago, under a service that is killed."""
    node = world.some_node()
    copy = node.home / "older"
    node.stop()
    shutil.rmtree(copy, ignore_errors=True)
    copy_tree(node.cache_dir, copy)
    since = time.monotonic()
    node.start()
    time.sleep(world.dice.uniform(3, 8))
    node.kill()
    shutil.rmtree(node.cache_dir)
    copy_tree(copy, node.cache_dir)
    shutil.rmtree(copy)
    world.excuses.append((node.name, since, time.monotonic()))
    node.start()
    return True


def lose_log(world: World) -> bool:
    """The catalog's log is gone after a kill: no start until it was repaired."""
    node = world.some_node()
    node.stop()
    since = time.monotonic()
    node.start()
    time.sleep(world.dice.uniform(3, 8))
    node.kill()
    (node.cache_dir / "catalog.db-wal").unlink()
    node.launch()
    if node.wait(START_SECONDS) == 0:
        raise RuntimeError(f"node {node.name} started without the log of its catalog")
    give_up_at = time.monotonic() + 2 * REPAIR_SECONDS
    while node.wait(START_SECONDS) != 0:
        if time.monotonic() > give_up_at:
            raise RuntimeError(f"node {node.name} is not repaired")
        node.repair()  # the remote must answer, which has its own faults
        node.launch()
    world.excuses.append((node.name, since, time.monotonic()))
    return True


def clone_disk(world: World) -> bool:
    """A copy of a disk is started as a node of its own, beside the one that it was copied from."""
    node = world.some_node()
    home = node.home.parent / "clone"
    home.mkdir()
    clone = Node("clone", home, Disk(home), node.endpoint, node.settings)
    node.stop()
    copy_tree(node.cache_dir, clone.cache_dir)
    node.start()
    try:
        clone.start()
        time.sleep(world.dice.uniform(4, 10))
        return True
    finally:
        clone.close()
        shutil.rmtree(home)


def lose_object(world: World) -> bool:
    """Somebody else deletes an object of a published step, whose bytes may be nowhere else."""
    found = _published_step(world)
    if found is None:
        return False
    manifest, shard = found[0], world.dice.choice(found[0].shards)
    layout = world.bucket.layout
    key = layout.object_key(manifest.run, manifest.location, shard.name, shard.pack_name)
    found[1].vanished = True
    world.bucket.objects.delete(key)
    return True


def expire_step(world: World) -> bool:
    """A rule of the bucket takes every object of a step, and its manifest."""
    found = _published_step(world)
    if found is None:
        return False
    manifest, step = found
    step.vanished = True
    world.bucket.objects.delete(world.bucket.layout.manifest_key(manifest.run, manifest.step))
    for key in world.bucket.layout.prefixes(manifest.run, manifest.location):
        for each in world.bucket.objects.list(key).keys:
            world.bucket.objects.delete(each)
    return True


def _published_step(world: World) -> tuple[Manifest, StepHistory] | None:
    steps = [(at, step) for at, step in world.history.update().items() if not step.excused]
    world.dice.shuffle(steps)
    for at, step in steps:
        manifest = world.bucket.published(*at)
        if manifest is not None and manifest.shards and not step.maybe_deleted:
            return manifest, step
    return None


# --- of S3 --------------------------------------------------------------------------------------


def _window(*faults: Fault, seconds: tuple[float, float]) -> Callable[[World], bool]:
    """Return a fault: these troubles for a while, and longer if none struck so far."""

    def strike(world: World) -> bool:
        troubles = world.proxy.troubles
        before = troubles.fired.total()
        troubles.add(*faults)
        try:
            time.sleep(world.dice.uniform(*seconds))
            give_up_at = time.monotonic() + 20
            while troubles.fired.total() == before and time.monotonic() < give_up_at:
                time.sleep(0.2)
            return troubles.fired.total() > before
        finally:
            troubles.clear()

    return strike


def outage(world: World) -> bool:
    before = world.proxy.connections
    world.proxy.stop()
    time.sleep(world.dice.uniform(3, 15))
    world.proxy.come_back()
    return before > 0


NODE_FAULTS: dict[str, Callable[[World], bool]] = {
    "service killed": kill_service,
    "drain killed": kill_drain,
    "carrier killed": kill_carrier,
    "rank killed": kill_rank,
    "power cut": cut_power,
    "service stopped": stop_service,
    "clock jumped": jump_clock,
    "catalog locked": lock_catalog,
    "disk full": fill_disk,
    "older disk restored": restore_older_disk,
    "disk cloned": clone_disk,
    "log lost": lose_log,
    "object vanished": lose_object,
    "step expired": expire_step,
}
OWN_DISK = frozenset(("power cut", "disk full"))
S3_FAULTS: dict[str, Callable[[World], bool]] = {
    "throttled": _window(Fault(Trouble.SLOW_DOWN, when=share(0.4)), seconds=(4, 12)),
    "errors": _window(
        Fault(Trouble.INTERNAL_ERROR, when=share(0.2)),
        Fault(Trouble.BAD_GATEWAY, when=share(0.2)),
        seconds=(4, 10),
    ),
    "resets": _window(Fault(Trouble.RESET, when=share(0.3)), seconds=(4, 10)),
    "lost replies": _window(Fault(Trouble.LOST_REPLY, when=share(0.3)), seconds=(4, 10)),
    "cut replies": _window(Fault(Trouble.CUT_REPLY, when=share(0.3)), seconds=(4, 10)),
    "hangs": _window(Fault(Trouble.STALL, when=When(times=4)), seconds=(2, 6)),
    "damaged bodies": _window(Fault(Trouble.CORRUPT, when=share(0.3)), seconds=(4, 10)),
    "wrong checksums": _window(Fault(Trouble.WRONG_CHECKSUM, when=share(0.3)), seconds=(4, 10)),
    "late requests": _window(
        Fault(Trouble.LATE, "CompleteMultipartUpload", share(0.7)),
        Fault(Trouble.LATE, "UploadPart", share(0.2)),
        seconds=(6, 12),
    ),
    "refusals": _window(Fault(Trouble.ACCESS_DENIED, when=share(0.5)), seconds=(2, 5)),
    "outages": outage,
}
