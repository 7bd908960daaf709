"""Which parts of others a node finishes: whole ones, whose owner has been silent long enough."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from cachetier_client.bucket_format.documents import (
    Manifest,
    ManifestState,
    PartDocument,
    ShardEntry,
    encode,
)
from cachetier_client.bucket_format.layout import Layout
from cachetier_client.bucket_format.publication import (
    MANIFEST_NONCE_KEY,
    ClaimState,
    claim_state,
)
from cachetier_client.bucket_format.uploads import object_metadata
from cachetier_client.identity.names import SaveIds
from cachetier_client.io.digests import digest_of

from cachetier.errors import TransientError
from cachetier.local.catalog.manifests import adopt, save_of
from cachetier.local.catalog.rows import NewShard
from cachetier.local.catalog.saves import claimant as claimant_of_save
from cachetier.local.catalog.saves import save_named
from cachetier.model.lifecycle import SaveState, ShardState
from cachetier.model.policy import DRAIN_ALL
from cachetier.peers.finishing import AGAIN_SECONDS, Finisher
from cachetier.peers.keeper import FOLDER, KeptObjects
from cachetier.peers.kept_saves import KeptSaves
from cachetier.remote.bucket import Bucket
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
        self.asked: list[tuple[str, int, str, int]] = []  # what the owner was asked for
        self.owner_knows = True
        self.others = MemoryObjectStore()  # what other peers keep
        self.durable: Manifest | None = None  # in the bucket
        self.is_over = False
        membership = SimpleNamespace(
            name="f" * 16,
            answering=lambda: [
                SimpleNamespace(name=each, knows=self._knows) for each in self.answering
            ],
        )
        self.finisher = Finisher(
            *(
                self.keeper,
                Bucket(self.others, Layout()),
                self.node.ingest,
                self.node.checkpoints,
                cast("Any", membership),
            ),
            AFTER_SECONDS,
            self.clock,
        )
        self._keep()

    def _knows(self, *which: Any) -> bool:
        self.asked.append(which)
        return self.owner_knows

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

    def publish(self, save_id: str, replaces: tuple[str, ...] = ()) -> Manifest:
        """Return a manifest of step 1, which other peers have, too."""
        manifest = Manifest(
            state=ManifestState.PUBLISHED,
            run="run",
            step=1,
            save_id=save_id,
            location="1",
            nonce="nonce",
            started_at=1.0,
            replaces=replaces,
            world_size=4,
        )
        document = encode(manifest)
        key, nonce = Layout().manifest_key("run", 1), {MANIFEST_NONCE_KEY: manifest.nonce}
        self.others.put(key, document, digest=digest_of(document), metadata=nonce)
        return manifest

    def look(self, seconds: float = 0.0) -> list[str]:
        """Let time pass, and return what this node has after a look."""
        self.clock.advance(seconds)
        self.finisher.listen()
        keys = [each.key for each in self.keeper.listed("")]
        self.is_over = self.finisher.finish(("run", 1, "save"), self.durable, keys)
        return sorted(shard.name for shard in self.node.rows())


def _unreachable(*_: Any) -> bool:
    raise TransientError("it does not answer")


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


def test_an_owner_that_is_back_with_an_older_disk_is_asked_and_its_part_is_finished(
    peer: Peer,
) -> None:
    peer.owner_knows = False
    peer.look(AFTER_SECONDS + 1)
    assert peer.look(AFTER_SECONDS - 1) == []
    assert not peer.asked
    assert peer.look(1.5) == sorted(BODIES)
    assert peer.asked == [("run", 1, "save", 3)]


def test_an_owner_that_is_there_is_asked_no_more_often_than_one_that_is_gone_is_awaited(
    peer: Peer,
) -> None:
    for _ in range(4 * 60):
        assert peer.look(AFTER_SECONDS / 60) == []
    assert len(peer.asked) == 3  # the first wait is that of a node that has just started


def test_an_owner_that_cannot_say_what_it_knows_is_asked_again_later(peer: Peer) -> None:
    peer.look(AFTER_SECONDS + 1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(peer, "_knows", _unreachable)
        assert peer.look(AFTER_SECONDS) == []
    peer.owner_knows = False
    assert peer.look(AFTER_SECONDS) == sorted(BODIES)


def test_an_owner_that_is_there_decides_itself_about_a_step_that_is_published(peer: Peer) -> None:
    """It may have been told to overwrite it."""
    peer.look(AFTER_SECONDS + 1)
    peer.durable, peer.owner_knows = peer.publish("other"), False
    assert peer.look(AFTER_SECONDS) == []
    assert not peer.is_over


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


def test_a_part_of_which_another_peer_keeps_the_rest_is_finished(peer: Peer) -> None:
    """A keeper was full, or away, when it was put."""
    peer.answering = []
    key = Layout().shard_key("run", "1", "large")
    info = peer.keeper.head(key)
    assert info is not None
    body = BODIES["large"]
    peer.others.put(key, body, digest=digest_of(body), metadata=info.metadata)
    peer.keeper.delete(key)
    assert peer.look(AFTER_SECONDS + 1) == sorted(BODIES)
    assert peer.node.get("run", 1, "large") == body


def test_a_part_without_shards_is_sealed_with_the_rest_of_its_save(peer: Peer) -> None:
    peer.answering = []
    empty = encode(PartDocument(run="run", step=1, save_id="save", rank=2, world_size=4, shards=()))
    peer.keeper.put(Layout().part_key("run", "1", 2), empty, digest=digest_of(empty))
    peer.look(AFTER_SECONDS + 1)
    view, _ = peer.node.checkpoints.step("run", 1)
    assert view.ranks == (2, 3)


def test_what_was_restored_here_is_drained_once_its_part_is_finished(peer: Peer) -> None:
    """Its shards have rows that are clean, as peers have them: those are never sent on."""
    peer.answering = []
    entries = [NewShard(name, 3, content_of(body)) for name, body in BODIES.items()]
    seen = replace(save_of(peer.publish("save")), state=SaveState.REPLICATED, location=None)
    hearsay = [replace(each, state=ShardState.EVICTED) for each in entries]
    peer.node.store.write(adopt, DRAIN_ALL, seen, hearsay, 1.0)
    assert peer.look(AFTER_SECONDS + 1) == sorted(BODIES)
    assert {shard.state for shard in peer.node.rows()} == {ShardState.DIRTY}
    peer.node.drain.drain_all()
    assert {shard.state for shard in peer.node.rows()} == {ShardState.CLEAN}


def test_a_save_that_a_newer_one_replaced_is_not_finished(peer: Peer) -> None:
    peer.answering = []
    peer.publish("newer", replaces=("save",))
    assert peer.look(AFTER_SECONDS + 1) == []
    assert peer.is_over


def test_a_save_of_which_the_bucket_has_another_is_not_finished(peer: Peer) -> None:
    peer.answering = []
    peer.durable = peer.publish("other")
    assert peer.look(AFTER_SECONDS + 1) == []
    assert peer.is_over


def test_a_save_that_replaced_the_one_in_the_bucket_is_finished(peer: Peer) -> None:
    peer.answering = []
    peer.durable = peer.publish("older")
    peer.publish("save", replaces=("older",))
    assert peer.look(AFTER_SECONDS + 1) == sorted(BODIES)
    assert not peer.is_over


@pytest.mark.parametrize("is_seen", [False, True])
def test_it_is_finished_whichever_of_the_two_is_in_the_bucket_first(
    peer: Peer, is_seen: bool
) -> None:
    peer.answering = []
    older = peer.publish("older")
    peer.publish("save", replaces=("older",))
    if is_seen:
        peer.node.store.write(adopt, DRAIN_ALL, save_of(older), [], 1.0)
    assert peer.look(AFTER_SECONDS + 1) == sorted(BODIES)
    found = peer.node.store.read(save_named, "run", 1, "save")
    assert found is not None
    claimant = peer.node.store.read(claimant_of_save, found)
    assert claim_state(claimant, older) is ClaimState.REPLACE_WHEN_WHOLE


def test_a_step_whose_manifest_is_unreadable_keeps_its_copies_and_holds_up_no_other(
    peer: Peer,
) -> None:
    bucket = Bucket(MemoryObjectStore(), Layout())
    broken, ended = (Layout().manifest_key("run", step) for step in (0, 1))
    bucket.objects.put(broken, b"rotten", digest=digest_of(b"rotten"))
    manifest = peer.publish("save")
    document, nonce = encode(manifest), {MANIFEST_NONCE_KEY: manifest.nonce}
    bucket.objects.put(ended, document, digest=digest_of(document), metadata=nonce)
    metadata = object_metadata("save", f"{OWNER}-epoch", 7, content_of(b"body"))
    older = Layout().shard_key("run", "0", "small")
    peer.keeper.put(older, b"body", digest=digest_of(b"body"), metadata=metadata)
    looks = KeptSaves(peer.node.store, peer.keeper, peer.finisher, bucket, lambda: None, peer.clock)

    looks.look()

    assert [each.key for each in peer.keeper.listed("")] == [older]
