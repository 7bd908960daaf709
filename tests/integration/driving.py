"""What happens on nodes that drives each metric: real services, brought into each state."""

from __future__ import annotations

import os
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cachetier_client import Client
from cachetier_client.bucket_format.stored import Content
from cachetier_client.clock import SystemClock
from cachetier_client.io.digests import BLOCK_BYTES, digest_of
from prometheus_client.parser import text_string_to_metric_families

from cachetier.drain.serve.eta import TELLING_UPLOADS
from cachetier.local.catalog import shards
from cachetier.model.levels import Level
from cachetier.model.objects import NO_HEAD
from cachetier.model.superseding import Stamp
from cachetier.objects.base import PutObject
from cachetier.reclaim.loop import COLLECT_SECONDS
from cachetier.service.service import Service
from cachetier.status.exposure import PATIENCE_SECONDS
from cachetier.telemetry.metric_table import PREFIX
from cachetier.testing.s3_endpoint import S3Endpoint
from cachetier.testing.troubles import Fault, Trouble, first
from tests.fakes.faulty_files import FaultyFiles, refuse
from tests.integration.changing import new, old
from tests.integration.drain_node import patterned
from tests.integration.serving import Caller, Served, serving, shard_path
from tests.integration.test_copies_at_peers import Cluster
from tests.integration.two_remotes import RUN, Node, Site, running, site, until

LARGE = 300_000
SECONDS = 50.0
MANY = 10**6  # requests: more than any scenario sends


@dataclass
class Seen:
    """The largest value of each series in all looks so far."""

    largest: dict[str, float] = field(default_factory=dict)

    def look(self, service: Service) -> None:
        text = service.metrics.exposition().decode()
        for family in text_string_to_metric_families(text):
            name = family.name.removeprefix(PREFIX)
            for sample in family.samples:
                if not sample.name.endswith(("_bucket", "_created")):
                    self.largest[name] = max(sample.value, self.largest.get(name, 0.0))

    def until(self, service: Service, *names: str) -> None:
        """Look until each of ``names`` was not zero once."""

        deadline = time.monotonic() + SECONDS
        while missing := {name for name in names if not self.largest.get(name)}:
            assert time.monotonic() < deadline, missing
            time.sleep(0.05)
            self.look(service)


class SetForward(SystemClock):
    """The system's clock, which a test may set forward."""

    ahead_seconds = 0.0

    def now(self) -> float:
        return super().now() + self.ahead_seconds

    def monotonic(self) -> float:
        return super().monotonic() + self.ahead_seconds


def put(client: Client, name: str, data: bytes, step: int = 1, save_id: str = "s") -> None:
    client.put_shard(data, run="r", step=step, name=name, save_id=save_id)


# --- a drain that works --------------------------------------------------------------------------


def a_save_that_drains(place: Site, seen: Seen) -> None:
    with running(place.settings(replicas={}, compression="zstd:1")) as node:
        with node.client.training_step():
            seen.until(node.service, "training_busy")
        data = patterned(BLOCK_BYTES)
        node.save(1, {"weights": data})
        node.client.wait(RUN, 1, "durable", 60)
        assert bytes(node.client.get_shard(RUN, 1, "weights")) == data
        node.client.pin(RUN, 1)
        with node.client.open_shard(RUN, 1, "weights", "rb") as reader:
            reader.read(1)
            seen.until(node.service, *A_SAVE_THAT_DRAINS)


A_SAVE_THAT_DRAINS = {
    *("put_seconds", "put_bytes", "get_seconds", "drained_bytes", "drained_shards"),
    *("saved_bytes", "published", "durable_seconds", "drain_seconds", "drain_concurrency"),
    *("drain_writes_per_second", "used_bytes", "capacity_bytes", "clean_bytes", "build_info"),
    *("start_time_seconds", "open_connections", "exposure_objective_seconds", "remote_state"),
    *("run_durable_age_seconds", "training_busy", "pinned_steps", "pinned_bytes", "lent_bytes"),
}


def a_step_that_changed_little(place: Site, seen: Seen) -> None:
    with running(place.settings(replicas={})) as node:
        for step, data in enumerate((old(), new()), start=1):
            node.save(step, {"weights": data})
            node.client.wait(RUN, step, "durable", 60)
        seen.until(node.service, "copied_bytes", "evictable_bytes")


def a_drain_beside_training(place: Site, seen: Seen) -> None:
    settings = place.settings(replicas={}, compression="zstd:1", drain_cores="1")
    with running(settings) as node, node.client.training_step():
        until(lambda: restraint(node) == "compressor")
        node.save(1, {"weights": patterned(4 * BLOCK_BYTES)})
        seen.until(node.service, "drain_slowed_seconds")


def restraint(node: Node) -> Any:
    return node.client.status()["drain"]["courtesy"].get("restraint")


# --- a remote that does not ----------------------------------------------------------------------


def a_remote_in_trouble(place: Site, seen: Seen) -> None:
    with running(place.settings(replicas={})) as node:
        node.save(1, {f"weights-{number}": b"x" * 1000 for number in range(TELLING_UPLOADS)})
        node.client.wait(RUN, 1, "durable", 60)
        put(node.client, "unsealed", b"x" * LARGE)  # the drain lets it be for a while
        seen.until(node.service, "drain_eta_seconds")
        troubles = place.far.troubles
        troubles.add(Fault(Trouble.SLOW_DOWN, when=first(3)))
        node.save(2, {"weights": b"y" * LARGE})
        seen.until(node.service, "throttled")
        troubles.add(Fault(Trouble.ACCESS_DENIED, when=first(MANY)))
        node.save(3, {"weights": b"z" * LARGE})
        seen.until(node.service, "remote_refused", "drain_failures", "drain_last_progress_seconds")
        kill_the_drain(node)
        seen.until(node.service, "drain_restarts")


def kill_the_drain(node: Node) -> None:
    os.kill(node.client.status()["drain"]["pid"], signal.SIGKILL)


def a_damaged_replica(place: Site, seen: Seen) -> None:
    with running(place.settings(replica={"required": True})) as node:
        node.save(1, {"weights": b"x" * LARGE})
        node.client.wait(RUN, 1, "durable", 60)
        until(lambda: node.remote("near")["pending_shards"] == 0)
        assert node.evict_all() == 1
        store, key = place.store(place.near_bucket), f"p/{RUN}/1/weights"
        info = store.head(key)
        assert info is not None
        store.delete(key)
        store.put(key, b"y" * LARGE, digest=digest_of(b"y" * LARGE), metadata=info.metadata)
        assert bytes(node.client.get_shard(RUN, 1, "weights")) == b"x" * LARGE
        seen.until(node.service, "restore_fallbacks", "restored_bytes")


def a_restore_that_is_held_back(place: Site, seen: Seen) -> None:
    with running(place.settings(replicas={}, max_restore_rate="8 MB/s")) as node:
        node.save(1, {"weights": patterned(12 * BLOCK_BYTES)})
        node.client.wait(RUN, 1, "durable", 60)
        assert node.evict_all() == 1
        assert node.client.restore_step(RUN, 1, timeout_seconds=0).shards == 1
        seen.until(node.service, *RESTORED)


RESTORED = {
    f"restore_{each}" for each in ("read_bytes", "wanted_bytes", "done_bytes", "eta_seconds")
}


# --- a node by itself ----------------------------------------------------------------------------


@contextmanager
def alone(**settings: Any) -> Iterator[tuple[Served, Client]]:
    """Lend a service whose drain does nothing."""
    with serving(**settings) as served, Client(served.unix_url, fallback="fail") as client:
        yield served, client


def a_node_that_nobody_drains(_place: Site, seen: Seen) -> None:
    clock = SetForward()
    with alone(clock=clock) as (served, client):
        put(client, "weights", b"x" * LARGE)
        client.seal("r", 1, save_id="s")
        put(client, "unsealed", b"x", step=2)
        put(client, "weights", b"first", step=3, save_id="first")
        put(client, "weights", b"second", step=3, save_id="second")
        seen.until(served.service, *NOBODY_DRAINS - {"incomplete_steps"} - OLDEST_INCOMPLETE)
        clock.ahead_seconds = PATIENCE_SECONDS + 60
        seen.until(served.service, *NOBODY_DRAINS)


OLDEST_INCOMPLETE = {"oldest_incomplete_seconds"}
NOBODY_DRAINS = {
    *("dirty_bytes", "dirty_shards", "oldest_dirty_seconds", "run_exposure_seconds"),
    *("run_dirty_bytes", "remote_pending_bytes", "drain_last_progress_seconds"),
    *("unwanted_bytes", "incomplete_steps", "oldest_incomplete_seconds"),
}


def a_full_cache(_place: Site, seen: Seen) -> None:
    with alone(capacity="1 MB", when_full="reject") as (served, client):
        put(client, "x", b"x" * LARGE)
        assert served.put("y", b"y" * 900_000).status == 507
        served.drained("x", b"x" * LARGE)
        assert served.put("z", b"z" * 900_000).status == 201
        seen.until(served.service, "backpressure", "evicted_bytes")
    with alone(capacity="1 MB") as (served, client):
        put(client, "x", b"x" * 900_000)
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(served.put, "y", b"y" * LARGE, timeout_seconds=20)
            seen.until(served.service, "waiting_puts_bytes")
            served.drained("x", b"x" * 900_000)
            assert waiting.result().status == 201


def reads_of_what_is_only_remote(_place: Site, seen: Seen) -> None:
    data = patterned(12 * BLOCK_BYTES)
    with alone() as (served, client):
        put(client, "x", data)
        served.drained("x", data)
        store = served.service.store
        for shard in store.read(shards.clean_local_shards):
            assert store.evict(shard)
        with client.open_shard("r", 1, "x", "rb") as opened:
            opened.seek(5 * BLOCK_BYTES)
            assert opened.read(100) == data[5 * BLOCK_BYTES :][:100]
        seen.until(served.service, "range_read_bytes")


def a_put_that_stays_in_memory(_place: Site, seen: Seen) -> None:
    with tempfile.TemporaryDirectory(dir="/dev/shm") as tmpfs:
        memory = f"100 MB in {tmpfs}"
        with alone(capacity="1 MB", memory=memory) as (served, client):
            put(client, "x", b"x" * 900_000)  # the disk has no room for the other one
            client.put_shard(b"y" * LARGE, run="r", step=2, name="y", save_id="s", ack="memory")
            seen.until(served.service, "memory_bytes")


def a_copy_that_a_neighbour_keeps(place: Site, seen: Seen) -> None:
    place.far.stop()
    with closing(Cluster(place, count=2)) as cluster:
        owner, keeper = cluster.nodes
        owner.save(1, {"weights": b"x" * LARGE})
        owner.client.wait(RUN, 1, "replicated", 60)
        seen.until(keeper.service, "kept_for_peers_bytes")
    place.far.come_back()


def steps_that_a_policy_keeps(_place: Site, seen: Seen) -> None:
    clock = SetForward()
    with alone(clock=clock, durable_every=10, keep_local=1) as (served, client):
        for step in (1, 2):
            put(client, "x", b"x" * LARGE, step=step)
            client.seal("r", step, save_id="s")
            seen.look(served.service)
        clock.ahead_seconds = COLLECT_SECONDS
        put(client, "x", b"x", step=3)  # housekeeping looks again
        seen.until(served.service, *KEPT)


KEPT = {"local_only_bytes", "local_only_steps", "removed_local_only_steps"}


def a_disk_that_fails(_place: Site, seen: Seen) -> None:
    with alone() as (served, _client):
        served.put("x", b"x" * LARGE)
        (path,) = served.data_files()
        damage(path)
        assert served.call("GET", shard_path("x")).code == "integrity"
        store = served.service.store
        store.files = faults = FaultyFiles(store.files, [refuse("create"), refuse("seal")])
        assert served.put("y", b"y" * LARGE).code == "backpressure"
        assert served.put("z", b"z" * LARGE).code == "fenced"
        assert len(faults.fired) == 2
        seen.until(served.service, *DISK)


DISK = {"quarantined", "quarantined_shards", "write_errors", "fenced"}


def damage(path: Path) -> None:
    with path.open("r+b") as file:
        file.write(b"damage")


def callers_that_are_refused_or_went_past(_place: Site, seen: Seen) -> None:
    with alone() as (served, _client):
        assert served.call("GET", "/nothing").code == "not_found"
        past = {"shards": 2, "size_bytes": 20}
        assert served.call.post("/v1/fallback", past).status == 200
        seen.until(served.service, *CALLERS)


CALLERS = {"errors", "fallback_shards", "fallback_bytes"}


def a_catalog_that_cannot_be_read(_place: Site, seen: Seen) -> None:
    with alone() as (served, client):
        put(client, "weights", b"x" * LARGE)
        served.service.store._looker.close()
        answer = served.call("GET", "/metrics")
        assert answer.status == 200
        figures = answer.body.decode()
        assert "\ncachetier_fenced 0.0" in figures  # what the catalog need not be asked for
        assert f"\ncachetier_put_bytes_total {float(LARGE)}" in figures
        assert "cachetier_dirty_bytes" not in figures  # no zero where nobody knows
        seen.until(served.service, "scrape_errors")


def a_tenant_with_a_quota(_place: Site, seen: Seen) -> None:
    with alone(principal=[{"name": "tenant", "bytes": "1 MB"}]) as (served, client):
        put(client, "x", b"x" * LARGE)
        seen.until(served.service, *QUOTA)


def a_client_of_s3_that_signs_nothing(_place: Site, seen: Seen) -> None:
    mount = {"name": "data", "bucket": "bucket/train"}
    with alone(s3="127.0.0.1:0", s3_mount=[mount]) as (served, _client):
        assert served.service.s3_url is not None
        door = Caller(int(served.service.s3_url.rsplit(":", 1)[1]))
        door.bearer = {}
        assert door("GET", "/bucket/train/a").status == 403
        seen.until(served.service, "s3_requests")


def objects_that_wait(place: Site, seen: Seen) -> None:
    mount = {"name": "data", "bucket": f"{place.far_bucket}/train", "order": "cluster"}
    with running(place.settings(replicas={}, s3="127.0.0.1:0", s3_mount=[mount])) as node:
        objects, store = node.service.objects, place.store(place.far_bucket)
        (data,) = objects.mounts

        def put_object(name: str, over: str | None = None) -> int:
            put = PutObject(f"train/{name}", NO_HEAD, objects.watermark(data), if_match=over)
            content = Content.of_block(body := name.encode())
            return objects.commit(data, put, content=content, bytes_of=body).version

        objects.wait(data, put_object("a"), Level.DURABLE, 60.0)
        foreign = b"of somebody else"
        for key in ("train/a", "train/.cachetier/order/other-1"):
            store.put(key, foreign, digest=digest_of(foreign))
        put_object("latest")
        put_object("a", over="*")
        put_object("b")
        later = Stamp("other", 1, 1e12).as_metadata("train/b")  # as late as the store believes
        store.put("train/b", foreign, digest=digest_of(foreign), metadata=later)
        after = {"object_conflicts", "mount_conflicts", "objects_superseded"}
        seen.until(node.service, *OBJECTS - after)
        node.client.settle_object("data", "train/latest", "release")
        seen.until(node.service, *OBJECTS)


OBJECTS = {
    *("drained_objects", "object_conflicts", "waiting_markers", "objects_superseded"),
    *("mount_dirty_bytes", "mount_unshown_objects", "mount_exposure_seconds", "mount_conflicts"),
}
QUOTA = {"quota_used_bytes", "quota_limit_bytes"}


@dataclass(frozen=True)
class Scenario:
    """What happens, and which series that drives."""

    happens: Callable[[Site, Seen], None]
    drives: set[str]

    def played(self, endpoint: S3Endpoint) -> Seen:
        seen = Seen()
        with site(endpoint) as place:
            self.happens(place, seen)
        return seen


SCENARIOS = (
    Scenario(objects_that_wait, OBJECTS),
    Scenario(a_save_that_drains, A_SAVE_THAT_DRAINS),
    Scenario(a_step_that_changed_little, {"copied_bytes", "evictable_bytes"}),
    Scenario(a_drain_beside_training, {"drain_slowed_seconds"}),
    Scenario(
        a_remote_in_trouble,
        {
            *("throttled", "drain_failures", "drain_restarts", "drain_eta_seconds"),
            *("remote_refused", "drain_last_progress_seconds"),
        },
    ),
    Scenario(a_damaged_replica, {"restore_fallbacks", "restored_bytes"}),
    Scenario(a_restore_that_is_held_back, RESTORED),
    Scenario(a_put_that_stays_in_memory, {"memory_bytes"}),
    Scenario(a_copy_that_a_neighbour_keeps, {"kept_for_peers_bytes"}),
    Scenario(a_node_that_nobody_drains, NOBODY_DRAINS),
    Scenario(a_full_cache, {"backpressure", "evicted_bytes", "waiting_puts_bytes"}),
    Scenario(reads_of_what_is_only_remote, {"range_read_bytes"}),
    Scenario(steps_that_a_policy_keeps, KEPT),
    Scenario(a_disk_that_fails, DISK),
    Scenario(a_catalog_that_cannot_be_read, {"scrape_errors"}),
    Scenario(callers_that_are_refused_or_went_past, CALLERS),
    Scenario(a_tenant_with_a_quota, QUOTA),
    Scenario(a_client_of_s3_that_signs_nothing, {"s3_requests"}),
)
