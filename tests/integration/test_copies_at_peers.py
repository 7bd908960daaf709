"""Copies at neighbours: whole services of one cluster, whose bucket can be cut off."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from cachetier.errors import BackpressureError, CachetierError, NotDurableError
from cachetier.local.catalog import notes
from cachetier.peers.keeper import KeptObjects
from cachetier.remote.neighbours import client
from cachetier.testing.moto_server import moto_server
from cachetier.testing.s3_endpoint import S3Endpoint
from examples.peers.cluster import port_of_all
from tests.fakes.bodies import noise
from tests.integration.test_http_shards import LARGE
from tests.integration.test_peers import TOKEN
from tests.integration.two_remotes import RUN, SECONDS, Node, Site, running, site, until

BODIES = {"small": b"small", "large": noise(LARGE)}


@pytest.fixture(scope="module")
def endpoint() -> Iterator[S3Endpoint]:
    with moto_server() as endpoint:
        yield endpoint


@pytest.fixture
def place(endpoint: S3Endpoint, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    for name, value in endpoint.environment().items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(client, "SILENCE_SECONDS", 30.0)  # nobody here is slow on purpose
    with site(endpoint) as made:
        yield made


class Cluster:
    """Nodes that keep copies for each other."""

    def __init__(self, place: Site, count: int = 3, copies: Any = 1, **settings: Any) -> None:
        self.place = place
        self._copies = copies
        self._settings = settings
        self._port = port_of_all()
        self._count = count
        self._running: dict[int, ExitStack] = {}
        trust = place.scratch / "trust"
        trust.write_text(TOKEN)
        self.nodes = [self.start(number) for number in range(count)]

    def start(self, number: int) -> Node:
        listed = [f"127.0.0.{each + 2}:{self._port}" for each in range(self._count)]
        peers = {
            "nodes": listed,
            "listen": listed[number],
            "trust": str(self.place.scratch / "trust"),
            "copies": self._copies,
        }
        settings: dict[str, Any] = self.place.settings(
            peers=peers, grace="0s", **self._settings
        ) | {
            "cache_dir": self.place.scratch / f"cache-{number}",
            "socket": self.place.scratch / f"s{number}",
            "replicas": {},
        }
        self._running[number] = ExitStack()
        return self._running[number].enter_context(running(settings))

    def lose(self, number: int, to: Path | None = None) -> None:
        """Stop a node, and lose its disk, or move it."""
        self._running.pop(number).close()
        cache = self.place.scratch / f"cache-{number}"
        if to is None:
            shutil.rmtree(cache)
        else:
            cache.rename(to)

    def alone(self, cache_dir: Path) -> dict[str, Any]:
        """Return the settings of a node without peers."""
        return self.place.settings(grace="0s", replicas={}) | {"cache_dir": cache_dir}

    def close(self) -> None:
        for each in self._running.values():
            each.close()


@pytest.fixture
def cluster(place: Site) -> Iterator[Cluster]:
    made = Cluster(place)
    yield made
    made.close()


def knows_a_step(node: Node) -> bool:
    return node.client.latest(RUN, "replicated") is not None


def keeper_of(node: Node) -> KeptObjects:
    peers = node.service._peers
    assert peers is not None
    assert peers.keeper is not None
    return peers.keeper


def kept_bytes(node: Node) -> int:
    return keeper_of(node).used_bytes


def test_a_step_outlives_its_node_while_the_bucket_is_cut_off(cluster: Cluster) -> None:
    owner, *others = cluster.nodes
    cluster.place.far.stop()
    owner.save(1, BODIES)
    owner.client.wait(RUN, 1, "replicated", SECONDS)
    assert sum(map(kept_bytes, others)) > LARGE
    assert kept_bytes(owner) < LARGE
    cluster.lose(0)
    for node in others:
        until(partial(knows_a_step, node))
        latest = node.client.latest(RUN, "replicated")
        assert latest is not None
        assert (latest.step, latest.levels) == (1, ("replicated",))
        for name, body in BODIES.items():
            assert bytes(node.client.get_shard(RUN, 1, name)) == body


@pytest.mark.parametrize(
    ("when_full", "kind", "seconds"),
    [("reject", BackpressureError, SECONDS), ("wait", NotDurableError, 4.0)],
)
def test_a_copy_that_no_peer_has_room_for_is_refused_or_waits_and_each_peer_is_named(
    place: Site, when_full: str, kind: type[CachetierError], seconds: float
) -> None:
    with closing(Cluster(place, when_full=when_full)) as made:
        owner, *others = made.nodes
        place.far.stop()
        owner.save(1, BODIES)
        owner.client.wait(RUN, 1, "replicated", SECONDS)  # they have found each other
        for each in others:
            keeper_of(each).room_bytes = 1
        owner.save(2, BODIES)
        with pytest.raises(kind, match="it has no room for copies") as refused:
            owner.client.wait(RUN, 2, "replicated", seconds)
        assert any(each.service.store.store_id in str(refused.value) for each in others)


def test_copies_go_once_the_step_is_durable(cluster: Cluster) -> None:
    owner = cluster.nodes[0]
    cluster.place.far.stop()
    owner.save(1, BODIES)
    owner.client.wait(RUN, 1, "replicated", SECONDS)
    cluster.place.far.come_back()
    owner.client.wait(RUN, 1, "durable", SECONDS)
    until(lambda: sum(map(kept_bytes, cluster.nodes)) < LARGE)
    until(lambda: owner.remote("peers")["pending_shards"] == 0)
    assert owner.evict_all() == 2
    for name, body in BODIES.items():
        assert bytes(owner.client.get_shard(RUN, 1, name)) == body
    assert owner.metric('cachetier_restore_fallbacks_total{reason="missing"}') == 0


def test_what_a_lost_owner_left_goes_when_the_bucket_has_the_step(cluster: Cluster) -> None:
    owner, *others = cluster.nodes
    cluster.place.far.stop()
    owner.save(1, BODIES)
    owner.client.wait(RUN, 1, "replicated", SECONDS)
    saved = cluster.place.scratch / "saved"
    cluster.lose(0, saved)
    assert sum(map(kept_bytes, others)) > LARGE
    cluster.place.far.come_back()
    with running(cluster.alone(saved)) as returned:  # it knows no peers, and tells them nothing
        returned.client.wait(RUN, 1, "durable", SECONDS)
    until(lambda: sum(map(kept_bytes, others)) < LARGE)


# --- owners that never return --------------------------------------------------------------------


@pytest.fixture
def finishing(place: Site) -> Iterator[Cluster]:
    made = Cluster(place, copies=2, exposure_objective="6s")
    yield made
    made.close()


def test_the_step_of_a_node_that_is_gone_for_good_is_published_by_its_peers(
    finishing: Cluster,
) -> None:
    others = lose_the_owner_of_a_step(finishing)
    for node in others:  # both have a copy, and finish it
        until(partial(is_durable, node))
    until(lambda: sum(map(kept_bytes, others)) < LARGE)
    manifest = finishing.place.manifest(finishing.place.far_bucket, 1)
    assert manifest is not None
    assert {each.name for each in manifest.shards} == BODIES.keys()
    for node in others:
        for name, body in BODIES.items():
            assert bytes(node.client.get_shard(RUN, 1, name)) == body


def test_an_owner_that_comes_back_after_its_step_was_finished_finds_it_durable(
    finishing: Cluster,
) -> None:
    saved = finishing.place.scratch / "saved"
    others = lose_the_owner_of_a_step(finishing, saved)
    until(partial(is_durable, others[0]))
    before = finishing.place.manifest(finishing.place.far_bucket, 1)
    with running(finishing.alone(saved)) as returned:
        returned.client.wait(RUN, 1, "durable", SECONDS)
        for name, body in BODIES.items():
            assert bytes(returned.client.get_shard(RUN, 1, name)) == body
        assert returned.service.store.read(notes.incidents_after, 0) == []
    assert finishing.place.manifest(finishing.place.far_bucket, 1) == before


def lose_the_owner_of_a_step(cluster: Cluster, to: Path | None = None) -> list[Node]:
    """Return the nodes that are left with copies of a step that the bucket never saw."""
    owner, *others = cluster.nodes
    cluster.place.far.stop()
    owner.save(1, BODIES)
    owner.client.wait(RUN, 1, "replicated", SECONDS)
    cluster.lose(0, to)
    cluster.place.far.come_back()
    return others


def is_durable(node: Node) -> bool:
    return node.client.latest(RUN, "durable") is not None
