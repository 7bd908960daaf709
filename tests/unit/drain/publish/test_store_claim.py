"""A store id that cannot be claimed: nothing is sent under it, and nothing is lost."""

from __future__ import annotations

from cachetier_client.bucket_format.documents import StoreClaim
from cachetier_client.bucket_format.publication import RACES
from cachetier_client.identity.names import SaveIds

from cachetier.model.lifecycle import ShardState
from cachetier.remote.bucket import SeenStoreClaim
from tests.fakes.fake_clock import FakeClock
from tests.fakes.memory_store import MemoryObjectStore
from tests.stateful.node import Node

IDS = SaveIds("run", 1, "save", 0, 1)


def test_while_others_keep_claiming_the_store_nothing_is_sent(
    node: Node, remote: MemoryObjectStore, clock: FakeClock
) -> None:
    node.put(IDS, "a", bytes(100_000))
    claims: list[StoreClaim] = []
    put = node.bucket.put_store_claim

    def lost(claim: StoreClaim, over: SeenStoreClaim | None) -> SeenStoreClaim | None:
        claims.append(claim)
        return None

    node.bucket.put_store_claim = lost  # type: ignore[method-assign]
    node.real_drain.drain_all()

    assert len(claims) == RACES
    assert remote.head("tier/run/1/a") is None
    assert node.rows()[0].state is ShardState.DIRTY

    node.bucket.put_store_claim = put  # type: ignore[method-assign]
    clock.advance(60.0)
    node.checkpoints.seal(IDS, 1)
    node.real_drain.drain_all()
    assert node.bucket.published("run", 1) is not None
