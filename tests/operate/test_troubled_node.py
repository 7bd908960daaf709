"""Trouble is brought about for real, and Prometheus finds the condition of its alert met.

The waiting time of an alert (`for`) is promtool's to test, in deploy/alerts_test.yml.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from cachetier_client import BackgroundError, BackpressureError, DeadlineError, NotDurableError
from cachetier_client.io.digests import digest_of

from cachetier.testing.moto_server import moto_server
from cachetier.testing.s3_endpoint import S3Endpoint, free_ports
from cachetier.testing.troubles import ALWAYS, Fault, Trouble
from tests.fakes.bodies import noise
from tests.integration.serving import Caller
from tests.integration.test_http_shards import LARGE
from tests.integration.two_remotes import RUN, Node, Site, published_at_near, until
from tests.operate.nodes import (
    TOKEN,
    JumpingClock,
    alerted,
    eventually,
    instance_of,
    node_at,
    place_for,
    until_alerted,
    until_quiet,
    watching,
)
from tests.operate.prometheus import Prometheus, needs_prometheus

pytestmark = needs_prometheus

MINUTE = 60.0


@pytest.fixture(scope="module")
def endpoint() -> Iterator[S3Endpoint]:
    with moto_server() as endpoint:
        yield endpoint


@pytest.fixture
def place(endpoint: S3Endpoint) -> Iterator[Site]:
    with place_for(endpoint) as made:
        yield made


def until_scraped(watch: Prometheus, node: Node) -> None:
    """Wait until Prometheus has seen this very start of the service."""
    began_at = node.client.status()["started_at"]
    eventually(lambda: watch.query(f"abs(cachetier_start_time_seconds - {began_at}) < 0.01"))


def kill_drain(node: Node) -> None:
    """Kill the drain process and wait for the next."""
    pid = node.client.status()["drain"]["pid"]
    os.kill(pid, signal.SIGKILL)
    until(lambda: node.client.status()["drain"]["pid"] not in (None, pid))


def test_a_run_is_exposed_while_the_remote_is_away_and_safe_when_it_is_back(
    place: Site, tmp_path: Path
) -> None:
    clock = JumpingClock()
    with node_at(place, clock=clock) as node:
        node.save(1, {"large": noise(LARGE)})
        node.client.wait(RUN, 1, "durable", 60)
        place.far.stop()
        node.save(2, {"large": noise(LARGE)})
        until(lambda: node.remote("durable")["state"] == "unreachable")
        clock.ahead_seconds = 40 * MINUTE
        with watching(tmp_path, instance_of(node)) as watch:
            exposed = until_alerted(watch, "CachetierExposureOverObjective")
            assert exposed["run"] == RUN
            assert until_alerted(watch, "CachetierRemoteUnreachable")["remote"] == "durable"
            assert "CachetierOldestDirty" not in alerted(watch)
            assert "CachetierDrainStalled" not in alerted(watch)

            place.far.come_back()
            until_quiet(watch, "CachetierExposureOverObjective")
            node.client.wait(RUN, 2, "durable", 60)


def test_a_shard_that_nothing_moves_is_a_stalled_drain(place: Site, tmp_path: Path) -> None:
    clock = JumpingClock()
    with pytest.raises(BackgroundError), node_at(place, clock=clock) as node:
        place.store(place.far_bucket).put(
            f"p/{RUN}/1/large", b"foreign", digest=digest_of(b"foreign")
        )
        node.save(1, {"large": noise(LARGE)})
        until(lambda: bool(node.client.status()["drain"]["conflicts"]))
        clock.ahead_seconds = 16 * MINUTE
        with watching(tmp_path, instance_of(node)) as watch:
            assert until_alerted(watch, "CachetierDrainStalled")["remote"] == "durable"


def test_a_refusal_and_a_replica_that_is_away_are_told_apart(place: Site, tmp_path: Path) -> None:
    with node_at(place) as node:
        place.far.troubles.add(Fault(Trouble.ACCESS_DENIED, when=ALWAYS))
        place.near.stop()
        node.save(1, {"large": noise(LARGE)})
        until(lambda: node.remote("durable")["state"] == "refused")
        until(lambda: node.remote("near")["state"] == "unreachable")
        with watching(tmp_path, instance_of(node)) as watch:
            assert until_alerted(watch, "CachetierRemoteRefused")["remote"] == "durable"
            assert until_alerted(watch, "CachetierReplicaAway")["remote"] == "near"

            place.far.troubles.clear()
            until_quiet(watch, "CachetierRemoteRefused")


def test_bytes_that_rot_before_they_are_durable_are_told_at_once(
    place: Site, tmp_path: Path
) -> None:
    with (
        pytest.raises(BackgroundError),
        node_at(place) as node,
        watching(tmp_path, instance_of(node)) as watch,
    ):
        place.far.stop()
        place.near.stop()
        node.save(1, {"large": noise(LARGE)})
        (file,) = (path for path in (place.scratch / "cache/data").rglob("*") if path.is_file())
        damaged = bytearray(file.read_bytes())
        damaged[100] ^= 1
        file.chmod(0o600)
        file.write_bytes(damaged)
        place.far.come_back()

        assert until_alerted(watch, "CachetierDamagedShard")["alertstate"] == "firing"
        node.client.delete_step(RUN, 1)
        until_quiet(watch, "CachetierDamagedShard")


def test_a_damaged_copy_at_a_replica_is_told_though_the_reader_got_its_bytes(
    place: Site, tmp_path: Path
) -> None:
    with node_at(place) as node, watching(tmp_path, instance_of(node)) as watch:
        node.save(1, {"large": noise(LARGE)})
        node.client.wait(RUN, 1, "durable", 60)
        until(lambda: published_at_near(place, 1) and not node.remote("near")["pending_shards"])
        near = place.store(place.near_bucket)
        other = b"x" * LARGE
        near.put(f"p/{RUN}/1/large", other, digest=digest_of(other))
        assert node.evict_all() == 1
        eventually(lambda: watch.query("cachetier_evicted_bytes_total"))

        assert bytes(node.client.get_shard(RUN, 1, "large")) == noise(LARGE)
        assert until_alerted(watch, "CachetierDamagedCopy")["remote"] == "near"


def test_a_rank_that_never_seals_leaves_an_incomplete_checkpoint(
    place: Site, tmp_path: Path
) -> None:
    clock = JumpingClock()
    with node_at(place, clock=clock) as node:
        node.client.put_shard(b"lone", run=RUN, step=1, name="a", rank=0, world_size=2, save_id="s")
        clock.ahead_seconds = 31 * MINUTE
        with watching(tmp_path, instance_of(node)) as watch:
            until_alerted(watch, "CachetierIncompleteCheckpoint")
            assert watch.query("cachetier_run_exposure_seconds > 0") == []

            node.client.delete_step(RUN, 1)
            until_quiet(watch, "CachetierIncompleteCheckpoint")


def test_a_store_that_throttles_everything_is_told_once_the_drain_is_late(
    place: Site, tmp_path: Path
) -> None:
    clock = JumpingClock()
    with node_at(place, clock=clock) as node:
        place.far.troubles.add(Fault(Trouble.SLOW_DOWN, when=ALWAYS))
        node.save(1, {"large": noise(LARGE)})
        until(lambda: node.remote("durable")["state"] == "throttled")
        with watching(tmp_path, instance_of(node)) as watch:
            throttled = 'cachetier_remote_state{remote="durable", state="throttled"} == 1'
            eventually(lambda: watch.query(throttled))
            assert "CachetierThrottled" not in alerted(watch)
            clock.ahead_seconds = 20 * MINUTE
            assert until_alerted(watch, "CachetierThrottled")["remote"] == "durable"


def test_a_cache_full_of_what_is_not_durable_is_told(place: Site, tmp_path: Path) -> None:
    with (
        node_at(place, capacity="8 MB", when_full="reject") as node,
        watching(tmp_path, instance_of(node)) as watch,
    ):
        eventually(lambda: watch.query("cachetier_backpressure_total"))
        place.far.stop()
        node.save(1, {"most": noise(7_000_000)})
        until_alerted(watch, "CachetierNearlyFull")
        with pytest.raises(BackpressureError):
            node.client.put_shard(noise(2_000_000), run=RUN, step=2, name="more")

        until_alerted(watch, "CachetierPutsWait")


def test_a_cache_full_of_what_is_pinned_is_told_before_puts_wait(
    place: Site, tmp_path: Path
) -> None:
    with (
        node_at(place, capacity="8 MB") as node,
        watching(tmp_path, instance_of(node)) as watch,
    ):
        node.save(1, {"most": noise(7_000_000)})
        node.client.wait(RUN, 1, "durable", 60)
        until(lambda: not node.client.status()["dirty_bytes"])
        eventually(lambda: watch.query("cachetier_evictable_bytes > 6e6"))
        assert "CachetierNearlyFull" not in alerted(watch)
        node.client.pin(RUN, 1)
        until_alerted(watch, "CachetierNearlyFull")

        node.client.unpin(RUN, 1)
        until_quiet(watch, "CachetierNearlyFull")


def test_a_run_that_ended_on_a_step_of_a_policy_wakes_nobody_until_somebody_wants_it(
    place: Site, tmp_path: Path
) -> None:
    clock = JumpingClock()
    with node_at(place, clock=clock, durable_every=2) as node:
        node.save(2, {"large": noise(LARGE)})
        node.client.wait(RUN, 2, "durable", 60)
        clock.ahead_seconds = 5 * MINUTE
        node.save(3, {"large": noise(LARGE)})
        clock.ahead_seconds = 600 * MINUTE
        with watching(tmp_path, instance_of(node)) as watch:
            eventually(lambda: watch.query("cachetier_run_exposure_seconds > 299"))
            assert "CachetierExposureOverObjective" not in alerted(watch)
            place.far.stop()
            with pytest.raises((NotDurableError, DeadlineError)):
                node.client.flush(RUN, 3, 1.0)
            until_alerted(watch, "CachetierExposureOverObjective")

            place.far.come_back()
            until_quiet(watch, "CachetierExposureOverObjective")


def test_a_node_that_cannot_read_its_catalog_is_not_called_down(
    place: Site, tmp_path: Path
) -> None:
    with node_at(place) as node, watching(tmp_path, instance_of(node)) as watch:
        eventually(lambda: watch.query('cachetier_scrape_errors_total{source="catalog"} == 0'))
        node.service.store._looker.close()

        until_alerted(watch, "CachetierFiguresMissing")
        assert "CachetierDown" not in alerted(watch)
        assert watch.query("cachetier_dirty_bytes") == []
        assert watch.value("cachetier_fenced") == 0.0


def test_a_fenced_store_is_critical_at_once(place: Site, tmp_path: Path) -> None:
    with node_at(place) as node, watching(tmp_path, instance_of(node)) as watch:
        node.service.store.fence("the disk failed a sync")

        fenced = until_alerted(watch, "CachetierFenced")
        assert (fenced["alertstate"], fenced["severity"]) == ("firing", "critical")


def test_a_service_that_is_down_is_critical_only_with_something_of_its_own(
    place: Site, tmp_path: Path
) -> None:
    (nobody,) = free_ports(1)
    with node_at(place) as node, watching(tmp_path, instance_of(node)) as watch:
        place.far.stop()
        node.save(1, {"large": noise(LARGE)})
        eventually(lambda: watch.query("instance:cachetier_dirty_bytes:last_seen > 0"))
        node.service.stop()
        down = until_alerted(watch, "CachetierDown")
        assert down["severity"] == "critical"
    other = tmp_path / "other"
    other.mkdir()
    with watching(other, f"127.0.0.1:{nobody}") as watch:
        assert until_alerted(watch, "CachetierDown")["severity"] == "warning"


def test_a_prometheus_without_targets_says_so(tmp_path: Path) -> None:
    with watching(tmp_path) as watch:
        until_alerted(watch, "CachetierNotScraped")


def test_a_service_that_starts_again_and_again_is_told(place: Site, tmp_path: Path) -> None:
    (port,) = free_ports(1)
    http = f"127.0.0.1:{port}"
    with watching(tmp_path, http) as watch:
        for start in range(4):
            with node_at(place, http=http) as node:
                until_scraped(watch, node)
                assert ("CachetierRestarting" in alerted(watch)) <= (start == 3)
        assert until_alerted(watch, "CachetierRestarting")["process"] == "service"


def test_a_drain_that_dies_again_and_again_is_told(place: Site, tmp_path: Path) -> None:
    with node_at(place) as node, watching(tmp_path, instance_of(node)) as watch:
        eventually(lambda: watch.query("cachetier_drain_restarts_total == 0"))
        for _ in range(5):
            kill_drain(node)
        assert until_alerted(watch, "CachetierRestarting")["process"] == "drain"


def test_shards_that_went_past_the_service_are_told(place: Site, tmp_path: Path) -> None:
    with node_at(place) as node, watching(tmp_path, instance_of(node)) as watch:
        eventually(lambda: watch.query("cachetier_fallback_shards_total"))
        call = Caller(int(instance_of(node).rpartition(":")[2]))
        headers = {"Content-Type": "application/json", "Authorization": f"Bearer {TOKEN}"}
        answer = call("POST", "/v1/fallback", b'{"shards": 24, "size_bytes": 96}', headers)
        assert answer.status == 200

        until_alerted(watch, "CachetierBypassed")
