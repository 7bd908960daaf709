"""Packs at two remotes: each has its own, and either gives the shards back."""

from __future__ import annotations

from cachetier_client.bucket_format.documents import ManifestState

from tests.integration.packing import body_of, packs_in
from tests.integration.test_remotes import endpoint, place
from tests.integration.two_remotes import RUN, SECONDS, Site, running, until

__all__ = ["endpoint", "place"]  # fixtures

FALLBACKS = 'cachetier_restore_fallbacks_total{reason="missing",remote="near"}'
BODIES = {f"shard-{number}": body_of(number) for number in range(1, 60)}


def test_small_shards_are_packed_at_both_remotes_and_come_back_from_the_replica(
    place: Site,
) -> None:
    with running(place.settings(pack=True)) as node:
        node.save(1, BODIES)
        node.client.wait(RUN, 1, "durable", SECONDS)
        node.client.wait(RUN, 1, "replicated", SECONDS)
        until(lambda: is_published_near(place))
    packs = [packs_in(place.store(b), "p/") for b in (place.far_bucket, place.near_bucket)]
    assert [len(found) for found in packs] == [1, 1]
    # The same shards in the same order are the same pack.
    assert packs[0] == packs[1]

    place.forget_node()
    with running(place.settings(pack=True)) as node:
        place.far.stop()
        before = place.near.troubles.seen["GetObject"]
        for name, body in BODIES.items():
            assert node.client.get_shard(RUN, 1, name) == body
        # Manifest and part, and the windows of the pack.
        assert place.near.troubles.seen["GetObject"] - before <= 2 + 4


def test_a_pack_that_is_gone_from_the_replica_is_passed_over(place: Site) -> None:
    with running(place.settings(pack=True)) as node:
        node.save(1, BODIES)
        node.client.wait(RUN, 1, "durable", SECONDS)
        until(lambda: is_published_near(place))
        assert node.evict_all() == len(BODIES)
        near = place.store(place.near_bucket)
        for key in packs_in(near, "p/"):
            near.delete(key)
        found = {name: bytes(node.client.get_shard(RUN, 1, name)) for name in BODIES}

        assert found == BODIES
        # Neighbours come along from the far pack, so few readers ever look at the near one.
        assert 1 <= node.metric(FALLBACKS) <= 4


def is_published_near(place: Site) -> bool:
    manifest = place.manifest(place.near_bucket, 1)
    return manifest is not None and manifest.state is ManifestState.PUBLISHED
