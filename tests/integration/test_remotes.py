"""Two remotes: a replica near by, the system of record far away, and either of them cut off."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest
from cachetier_client import CachetierClientError, DeadlineError, NotDurableError
from cachetier_client.bucket_format.documents import ManifestState
from cachetier_client.calls import caller
from cachetier_client.io.digests import digest_of

from cachetier.testing.moto_server import moto_server
from cachetier.testing.s3_endpoint import S3Endpoint
from tests.fakes.bodies import noise
from tests.integration.test_http_shards import LARGE
from tests.integration.two_remotes import (
    RUN,
    SECONDS,
    Node,
    Site,
    published_at_near,
    running,
    site,
    until,
)


def bodies() -> dict[str, bytes]:
    return {"small": b"small", "large": noise(LARGE)}


@pytest.fixture(scope="module")
def endpoint() -> Iterator[S3Endpoint]:
    with moto_server() as endpoint:
        yield endpoint


@pytest.fixture
def place(endpoint: S3Endpoint, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    for name, value in endpoint.environment().items():
        monkeypatch.setenv(name, value)
    with site(endpoint) as made:
        yield made


def save_and_evict(place: Site, node: Node) -> None:
    """Leave step 1 at both remotes, and nothing of it here."""
    node.save(1, bodies())
    node.client.wait(RUN, 1, "durable", SECONDS)
    until(lambda: published_at_near(place, 1))
    until(lambda: node.remote("near")["pending_shards"] == 0)
    assert node.evict_all() == 2


def test_a_step_reaches_both_remotes_and_is_shown_at_both(place: Site) -> None:
    with running(place.settings()) as node:
        node.save(1, bodies())
        node.client.wait(RUN, 1, "durable", SECONDS)
        node.client.wait(RUN, 1, "replicated", SECONDS)
        until(lambda: node.remote("near")["pending_shards"] == 0)

        near, far = node.remote("near"), node.remote("durable")
        assert (far["role"], near["role"], near["required"]) == ("durable", "replica", False)
        assert near["drain"]["drained_bytes"] == far["pending_bytes"] + LARGE + 5
        assert node.metric('cachetier_drained_bytes_total{remote="near"}') == LARGE + 5
        assert node.metric('cachetier_drained_bytes_total{remote="durable"}') == LARGE + 5
        assert node.metric("cachetier_published_total") == 1
        until(lambda: published_at_near(place, 1))
    far_manifest = place.manifest(place.far_bucket, 1)
    near_manifest = place.manifest(place.near_bucket, 1)
    assert far_manifest is not None
    assert near_manifest is not None
    assert (far_manifest.state, far_manifest.save_id) == ("published", near_manifest.save_id)
    assert far_manifest.shards == near_manifest.shards


def test_a_put_is_replicated_while_the_durable_remote_is_cut_off(place: Site) -> None:
    with running(place.settings()) as node:
        place.far.stop()
        receipt = node.client.put_shard(
            noise(LARGE), run=RUN, step=1, name="large", rank=0, world_size=1, ack="replicated"
        )
        assert receipt.level == "replicated"
        node.client.seal(RUN, 1, rank=0, world_size=1)
        node.client.wait(RUN, 1, "replicated", SECONDS)
        with pytest.raises((NotDurableError, DeadlineError)):
            node.client.wait(RUN, 1, "durable", 0.2)

        (step,) = node.client.steps(RUN, "replicated")
        assert step.levels == ("local", "replicated")
        assert node.client.status()["dirty_bytes"] == LARGE

        place.far.come_back()
        node.client.wait(RUN, 1, "durable", SECONDS)
        assert node.client.step(RUN, 1).levels == ("local", "replicated", "durable")


def test_steps_become_durable_while_the_replica_is_away(place: Site) -> None:
    with running(place.settings()) as node:
        place.near.stop()
        node.save(1, bodies())
        node.client.wait(RUN, 1, "durable", SECONDS)
        node.client.flush(timeout_seconds=SECONDS)
        until(lambda: node.remote("near")["state"] == "unreachable")
        assert node.remote("near")["pending_bytes"] == LARGE + 5

        place.near.come_back()
        until(lambda: node.remote("near")["pending_bytes"] == 0)
        until(lambda: place.manifest(place.near_bucket, 1) is not None)


def test_a_new_node_restores_from_the_replica_while_the_durable_remote_is_cut_off(
    place: Site,
) -> None:
    with running(place.settings()) as node:
        node.save(1, bodies())
        node.client.wait(RUN, 1, "durable", SECONDS)
        until(lambda: place.manifest(place.near_bucket, 1) is not None)
        until(lambda: node.remote("near")["pending_shards"] == 0)
        until(lambda: published_at_near(place, 1))
    place.forget_node()

    with running(place.settings()) as node:
        place.far.stop()
        latest = node.client.latest(RUN, "replicated")
        assert latest is not None
        assert (latest.step, latest.state, latest.levels) == (1, "replicated", ("replicated",))
        for name, body in bodies().items():
            assert bytes(node.client.get_shard(RUN, 1, name)) == body
        # A file that was read is kept behind its reader: a moment later.
        until(lambda: node.client.latest(RUN, "local") is not None)
        local = node.client.latest(RUN, "local")
        assert local is not None
        assert local.step == 1

        place.far.come_back()
        durable = node.client.latest(RUN, "durable")
        assert durable is not None
        assert durable.step == 1
        until(lambda: node.client.wait(RUN, 1, "durable", SECONDS) is not None)
        for name, body in bodies().items():
            assert bytes(node.client.get_shard(RUN, 1, name)) == body


def test_what_only_the_replica_got_before_the_node_was_lost_can_be_restored(place: Site) -> None:
    with running(place.settings(grace="0s")) as node:
        place.far.stop()
        node.save(1, bodies())
        node.client.wait(RUN, 1, "replicated", SECONDS)
    place.forget_node()
    place.far.come_back()

    with running(place.settings()) as node:  # the durable remote answers, and has no such step
        assert node.client.latest(RUN, "durable") is None
        latest = node.client.latest(RUN, "replicated")
        assert latest is not None
        assert (latest.step, latest.levels) == (1, ("replicated",))
        assert bytes(node.client.get_shard(RUN, 1, "large")) == noise(LARGE)
        with pytest.raises((NotDurableError, DeadlineError)):
            node.client.wait(RUN, 1, "durable", 0.2)


def test_a_damaged_copy_at_the_replica_is_passed_over_and_shown(place: Site) -> None:
    with running(place.settings()) as node:
        save_and_evict(place, node)

        flipped = bytearray(noise(LARGE))
        flipped[LARGE // 2] ^= 1
        store, key = place.store(place.near_bucket), f"p/{RUN}/1/large"
        info = store.head(key)
        assert info is not None
        store.delete(key)
        store.put(key, bytes(flipped), digest=digest_of(flipped), metadata=info.metadata)

        assert bytes(node.client.get_shard(RUN, 1, "large")) == noise(LARGE)
        fallbacks = 'cachetier_restore_fallbacks_total{reason="damaged",remote="near"}'
        assert node.metric(fallbacks) == 1
        assert node.client.runs() == [RUN]  # nothing is lost, so no client is told
        assert any("damaged copies at near" in each for each in node.client.status()["warnings"])


def test_a_copy_that_is_gone_from_the_replica_is_passed_over_and_alarms_nobody(place: Site) -> None:
    with running(place.settings()) as node:
        save_and_evict(place, node)
        for key in place.keys(place.near_bucket):
            place.store(place.near_bucket).delete(key)

        for name, body in bodies().items():
            assert bytes(node.client.get_shard(RUN, 1, name)) == body
        fallbacks = 'cachetier_restore_fallbacks_total{reason="missing",remote="near"}'
        assert node.metric(fallbacks) == 2


def test_nothing_is_evicted_before_a_required_replica_has_it(
    place: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(caller, "_SHORTEST_EXCHANGE_SECONDS", 60.0)  # there is an answer
    with running(place.settings(replica={"required": True})) as node:
        place.near.stop()
        node.save(1, bodies())
        node.client.wait(RUN, 1, "durable", SECONDS)
        with pytest.raises(NotDurableError) as pending:
            node.client.flush(timeout_seconds=0.5)
        assert "2 shards" in str(pending.value)
        assert node.evict_all() == 0
        assert node.client.status()["dirty_bytes"] == LARGE + 5

        place.near.come_back()
        node.client.flush(timeout_seconds=SECONDS)
        assert node.client.status()["dirty_bytes"] == 0
        assert node.evict_all() == 2


def test_what_is_evicted_before_a_replica_had_it_is_given_up_there(place: Site) -> None:
    with running(place.settings()) as node:
        place.near.stop()
        node.save(1, bodies())
        node.client.wait(RUN, 1, "durable", SECONDS)
        until(lambda: node.remote("near")["pending_shards"] == 2)
        assert node.evict_all() == 2
        node.save(2, {"other": b"other"})
        place.near.come_back()
        until(lambda: published_at_near(place, 2))

        near = node.remote("near")
        assert (near["given_up_steps"], near["pending_shards"]) == (1, 0)
        assert any("never gets 1 step" in warning for warning in node.client.status()["warnings"])
        assert not published_at_near(place, 1)
        assert bytes(node.client.get_shard(RUN, 1, "large")) == noise(LARGE)


def test_a_deleted_step_goes_from_every_remote(place: Site) -> None:
    with running(place.settings()) as node:
        node.save(1, bodies())
        node.client.wait(RUN, 1, "durable", SECONDS)
        until(lambda: published_at_near(place, 1))
    place.forget_node()

    with running(place.settings()) as node:  # it never saw the step
        node.client.delete_step(RUN, 1)
        tombstone = [f"p/{RUN}/1/.cachetier/manifest.json"]
        until(lambda: place.keys(place.far_bucket) == tombstone)
        until(lambda: place.keys(place.near_bucket) == tombstone)
        assert node.client.latest(RUN, "replicated") is None


def test_killing_the_replicas_drain_holds_up_nothing(place: Site) -> None:
    with running(place.settings()) as node:
        until(lambda: node.remote("near")["drain"]["pid"] is not None)
        killed = node.remote("near")["drain"]["pid"]
        os.kill(killed, signal.SIGKILL)
        node.save(1, bodies())
        node.client.wait(RUN, 1, "durable", SECONDS)
        until(lambda: published_at_near(place, 1))
        assert node.remote("near")["drain"]["restarts"] == 1
        assert node.client.status()["drain"]["restarts"] == 0
        assert node.remote("near")["drain"]["pid"] != killed


def test_a_newer_save_of_a_step_known_from_the_replica_alone_replaces_it(place: Site) -> None:
    with running(place.settings(grace="0s")) as node:
        place.far.stop()
        node.save(1, bodies())
        node.client.wait(RUN, 1, "replicated", SECONDS)
    place.forget_node()

    with running(place.settings()) as node:
        assert bytes(node.client.get_shard(RUN, 1, "small")) == b"small"
        place.far.come_back()
        node.save(1, {"small": b"newer"}, save_id="newer")
        node.client.wait(RUN, 1, "durable", SECONDS)
        assert bytes(node.client.get_shard(RUN, 1, "small")) == b"newer"
        with pytest.raises(CachetierClientError):
            node.client.get_shard(RUN, 1, "large")
        until(lambda: saved_at_near(place, 1) == "newer")


def saved_at_near(place: Site, step: int) -> str:
    manifest = place.manifest(place.near_bucket, step)
    published = manifest is not None and manifest.state is ManifestState.PUBLISHED
    return manifest.save_id if manifest is not None and published else ""
