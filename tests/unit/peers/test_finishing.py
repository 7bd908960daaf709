"""Which parts of others a node finishes: whole ones, whose owner has been silent long enough."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from cachetier_client.bucket_format.documents import PartDocument, ShardEntry, encode
from cachetier_client.bucket_format.layout import Layout
from cachetier_client.bucket_format.uploads import object_metadata
from cachetier_client.identity.names import SaveIds
from cachetier_client.io.digests import digest_of

from cachetier.model.lifecycle import ShardState
from cachetier.peers.finishing import AGAIN_SECONDS, Finisher
from cachetier.peers.keeper import FOLDER, KeptObjects
from tests.fakes.fake_clock import FakeClock
from tests.fakes.memory_store import MemoryObjectStore
from tests.stateful.node import Node, content_of

OWNER = "0" * 16
BODIES = {"small": b"small", "large": bytes(range(256)) * 4000}
DOCUMENT = Layout().part_key("run", "1", 3)
AFTER_SECONDS = 600.0


class Peer:
    """A node with a copy of rank 3 of a world of 4, whose owner is in ``answering`` or gone."""

    def __init__(self, tmp_path: Path) -> None:
        self.clock = FakeClock()
        self.cache = tmp_path / "cache"
        self.cache.mkdir(mode=0o700)
        self.node = Node(self.cache, MemoryObjectStore(), self.clock)
        self.keeper = KeptObjects(self.cache, 100_000_000, self.clock)
        self.answering = [OWNER]
        membership = SimpleNamespace(
            name="f" * 16,
            answering=lambda: [SimpleNamespace(name=each) for each in self.answering],
        )
        self.finisher = Finisher(
            *(self.keeper, self.node.ingest, self.node.checkpoints.seal, cast("Any", membership)),
            AFTER_SECONDS,
            self.clock,
        )
        self._keep()

    def _keep(self) -> None:
        entries = [ShardEntry.of(name, 3, content_of(body)) for name, body in BODIES.items()]
        part = PartDocument(
            run="run",
            step=1,
            save_id="save",
            rank=3,
            world_size=4,
            shards=tuple(entries),
        )
        for name, body in BODIES.items():
            metadata = object_metadata("save", f"{OWNER}-epoch", 7, content_of(body))
            key = Layout().shard_key("run", "1", name)
            self.keeper.put(key, body, digest=digest_of(body), metadata=metadata)
        document = encode(part)
        self.keeper.put(DOCUMENT, document, digest=digest_of(document))

    def look(self, seconds: float = 0.0) -> list[str]:
        """Let time pass, and return what this node has after a look."""
        self.clock.advance(seconds)
        self.finisher.listen()
        self.finisher.finish("run", [each.key for each in self.keeper.listed("")])
        return sorted(shard.name for shard in self.node.rows())


@pytest.fixture
def peer(tmp_path: Path) -> Iterator[Peer]:
    peer = Peer(tmp_path)
    yield peer
    peer.node.close()


def test_a_part_whose_owner_is_gone_is_put_and_sealed_here(peer: Peer) -> None:
    peer.look()
    peer.answering = []
    assert peer.look(AFTER_SECONDS - 1) == []
    assert peer.look(1.5) == sorted(BODIES)
    view, _ = peer.node.checkpoints.step("run", 1)
    assert (view.ranks, view.levels) == ((3,), ("local",))
    assert {shard.state for shard in peer.node.rows()} == {ShardState.DIRTY}
    for name, body in BODIES.items():
        assert peer.node.get("run", 1, name) == body


def test_an_owner_that_answers_now_and_then_finishes_its_step_itself(peer: Peer) -> None:
    for _ in range(5):
        assert peer.look(AFTER_SECONDS - 1) == []


def test_a_node_that_has_just_started_waits_for_an_owner_it_never_heard_of(peer: Peer) -> None:
    peer.answering = []
    assert peer.look() == []
    assert peer.look(AFTER_SECONDS + 1) == sorted(BODIES)


def test_half_a_part_is_nobodys_to_finish(peer: Peer) -> None:
    peer.answering = []
    peer.keeper.delete(Layout().shard_key("run", "1", "large"))
    assert peer.look(AFTER_SECONDS + 1) == []


def test_a_damaged_copy_is_not_sealed_and_looked_at_again_later(peer: Peer) -> None:
    peer.answering = []
    large = max((peer.cache / FOLDER / "files").iterdir(), key=lambda each: each.stat().st_size)
    sound = large.read_bytes()
    large.write_bytes(b"x" * len(sound))
    assert "large" not in peer.look(AFTER_SECONDS + 1)
    large.write_bytes(sound)
    assert "large" not in peer.look(1.0)
    assert peer.look(AGAIN_SECONDS) == sorted(BODIES)


def test_what_was_finished_is_not_put_again(peer: Peer) -> None:
    peer.answering = []
    peer.look(AFTER_SECONDS + 1)
    versions = [shard.version for shard in peer.node.rows()]
    peer.look(AGAIN_SECONDS)
    assert [shard.version for shard in peer.node.rows()] == versions


def test_a_second_node_that_finishes_the_same_part_puts_the_same(peer: Peer) -> None:
    """As the owner that comes back, and as this node after a restart."""
    peer.answering = []
    ids = SaveIds("run", 1, "save", 3, 4)
    for name, body in BODIES.items():
        peer.node.put(ids, name, body)
    peer.node.checkpoints.seal(ids, None)
    before = [shard.version for shard in peer.node.rows()]
    assert peer.look(AFTER_SECONDS + 1) == sorted(BODIES)
    assert [shard.version for shard in peer.node.rows()] == before
