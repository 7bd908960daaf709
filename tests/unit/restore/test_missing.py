"""A shard whose object is missing where the manifest is damaged, or the shard was replaced."""

from __future__ import annotations

import pytest
from cachetier_client.bucket_format.documents import Manifest, ManifestState
from cachetier_client.identity.names import SaveIds
from cachetier_client.io.digests import digest_of

from cachetier.local.catalog import copies, manifests, notes, saves
from cachetier.model.lifecycle import SaveState, ShardState
from cachetier.model.names import DURABLE
from cachetier.remote.bucket import Remote
from cachetier.restore.knowledge import Absence, Knowledge
from tests.fakes.fake_clock import FakeClock
from tests.fakes.memory_store import MemoryObjectStore
from tests.stateful.node import Node

IDS = SaveIds("run", 1, "save", 0, 1)
DATA = bytes(range(256)) * 400


@pytest.fixture
def missing(node: Node, clock: FakeClock) -> Knowledge:
    return Knowledge(node.store, Remote(DURABLE, node.bucket), clock)


def test_bytes_are_sent_again_though_the_manifest_that_lists_them_is_damaged(
    node: Node, remote: MemoryObjectStore, missing: Knowledge
) -> None:
    node.put(IDS, "a", DATA)
    node.checkpoints.seal(IDS, 1)
    node.drain.drain_all()
    remote.delete("tier/run/1/a")
    key = node.bucket.layout.manifest_key("run", 1)
    remote.put(key, b"{", digest=digest_of(b"{"))
    (shard,) = node.rows()

    assert missing.look_into(shard) is Absence.LOST

    assert node.rows()[0].state is ShardState.DIRTY
    assert node.get("run", 1, "a") == DATA


def test_a_shard_that_was_replaced_meanwhile_is_looked_into_no_more(
    node: Node, missing: Knowledge
) -> None:
    node.put(IDS, "a", DATA)
    assert node.drain.drain_one()
    (shard,) = node.rows()
    node.put(IDS, "a", b"other bytes")

    assert missing.look_into(shard) is None

    assert node.get("run", 1, "a") == b"other bytes"
    assert missing.error_of(shard) is None


def test_a_save_that_ended_here_before_the_bucket_said_so_ends_as_it_did_here(node: Node) -> None:
    node.put(IDS, "a", DATA)
    (shard,) = node.rows()
    before = node.store.read(manifests.settled, "run", 1)
    outcome = node.store.policy, shard.save, SaveState.REFUSED, None, 1.0
    node.store.write(copies.record_outcome, *outcome)
    seen = Manifest(
        state=ManifestState.DELETED,
        run="run",
        step=1,
        save_id="save",
        location="1",
        nonce="n",
        started_at=1.0,
    )

    assert node.store.write(manifests.learn, node.store.policy, seen, before, 2.0) is None

    (save,) = node.store.read(saves.saves_of, "run", 1)
    assert save.state is SaveState.REFUSED
    assert node.store.read(notes.newest_incident) == 0
