"""The claim on a store id: a copied or restored cache directory is noticed, and no other."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from cachetier_client.bucket_format.documents import StoreClaim, encode
from cachetier_client.bucket_format.uploads import STORE_KEY, ObjectInfo
from cachetier_client.identity.names import SaveIds
from cachetier_client.io.digests import digest_of

from cachetier.errors import TransientError
from cachetier.local.catalog import notes
from cachetier.model.lifecycle import SaveState
from cachetier.remote.base import Body, Condition, Headers, Metadata
from tests.fakes.memory_store import MemoryObjectStore, bytes_of
from tests.integration.drain_node import REMOTE, Node, patterned


class Bucket(MemoryObjectStore):
    """Fails puts of claims: ``before`` it has them, or ``after``; of the first so many.

    While ``held_back`` nothing is published.
    """

    def __init__(self) -> None:
        super().__init__()
        self.before = self.after = 0
        self.claims = 0
        self.held_back = False

    def put(
        self,
        key: str,
        body: Body,
        *,
        digest: int,
        metadata: Metadata | None = None,
        condition: Condition | None = None,
        headers: Headers | None = None,
    ) -> ObjectInfo:
        claim = "/.cachetier/stores/" in key
        self.claims += claim
        if self.held_back and b'"state":"published"' in bytes_of(body):
            raise TransientError("not now")
        if claim and self.before:
            self.before -= 1
            raise TransientError("it never arrived")
        info = super().put(
            key, body, digest=digest, metadata=metadata, condition=condition, headers=headers
        )
        if claim and self.after:
            self.after -= 1
            raise TransientError("its answer is lost")
        return info


@pytest.fixture
def bucket() -> Bucket:
    return Bucket()


@pytest.fixture
def nodes(tmp_path: Path, bucket: Bucket) -> Iterator[Nodes]:
    made = Nodes(tmp_path, bucket)
    yield made
    made.close()


class Nodes:
    """Nodes by the name of their directory."""

    def __init__(self, top: Path, bucket: Bucket) -> None:
        self._top = top
        self._bucket = bucket
        self._open: dict[str, Node] = {}

    def __getitem__(self, name: str) -> Node:
        if name not in self._open:
            self._open[name] = Node(self._top / name, self._bucket)
        return self._open[name]

    def restart(self, name: str = "node") -> Node:
        self._open.pop(name).close()
        return self[name]

    def copied(self, name: str, to: str) -> None:
        shutil.rmtree(self._top / to, ignore_errors=True)
        shutil.copytree(self._top / name, self._top / to)

    def close(self) -> None:
        for node in self._open.values():
            node.close()
        self._open.clear()


def noticed(node: Node) -> bool:
    return bool(node.store.read(notes.noticed_since, 0.0))


def saved(node: Node, step: int) -> None:
    ids = SaveIds("run", step, f"save-{step}")
    node.put(ids, "shard", b"of step %d" % step)
    node.seal(ids)
    node.wait_durable(ids)


def identity(node: Node, step: int) -> str:
    found = node.bucket.objects.head(node.key(SaveIds("run", step, "any"), "shard"))
    assert found is not None
    return found.metadata[STORE_KEY]


def test_starts_and_publications_of_one_directory_are_its_own(nodes: Nodes) -> None:
    for step in range(3):
        node = nodes["node"]
        with node.draining():
            saved(node, 2 * step)
            saved(node, 2 * step + 1)
        assert not noticed(nodes.restart())
    assert identity(nodes["node"], 5) == nodes["node"].store.store_id


def test_each_publication_costs_one_put_and_each_start_another(
    nodes: Nodes, bucket: Bucket
) -> None:
    with nodes["node"].draining():
        for step in range(3):
            saved(nodes["node"], step)
    assert bucket.claims == 4


@pytest.mark.parametrize("fault", ["before", "after"])
@pytest.mark.parametrize("restarted", [True, False], ids=["killed", "going_on"])
def test_a_claim_that_is_lost_on_the_way_is_known_for_our_own(
    nodes: Nodes, bucket: Bucket, fault: str, *, restarted: bool
) -> None:
    with nodes["node"].draining():
        saved(nodes["node"], 1)
    nodes.restart()
    setattr(bucket, fault, 1)
    ids = SaveIds("run", 2, "save-2")
    if restarted:
        nodes["node"].put(ids, "shard", b"of step 2")
        nodes["node"].seal(ids)
        with nodes["node"].draining(abruptly=True):
            nodes["node"].wait_until(lambda: not getattr(bucket, fault))
        nodes.restart()
    with nodes["node"].draining():
        saved(nodes["node"], 2)

    assert not getattr(bucket, fault), "the fault struck"
    assert not noticed(nodes["node"])


def test_a_lost_reply_before_a_publication_is_no_other_node(nodes: Nodes, bucket: Bucket) -> None:
    with nodes["node"].draining():
        saved(nodes["node"], 1)
        bucket.after = 1
        saved(nodes["node"], 2)
    assert not bucket.after
    assert not noticed(nodes["node"])


def test_a_restored_directory_is_noticed_and_goes_on_as_another(nodes: Nodes) -> None:
    with nodes["node"].draining():
        saved(nodes["node"], 1)
    nodes.close()
    nodes.copied("node", "snapshot")
    with nodes["node"].draining():
        saved(nodes["node"], 2)
    nodes.close()
    nodes.copied("snapshot", "node")
    node = nodes["node"]
    with node.draining():
        saved(node, 3)

    assert noticed(node)
    assert identity(node, 3).startswith(f"{node.store.store_id}-")
    node = nodes.restart()
    before = node.store.read(notes.own_claim, REMOTE).epoch
    with node.draining():
        saved(node, 4)
    assert node.store.read(notes.own_claim, REMOTE).epoch == before, "it is noticed once"


def test_a_catalog_that_fell_behind_within_one_start_is_noticed_by_its_counter(
    nodes: Nodes,
) -> None:
    with nodes["node"].draining():
        saved(nodes["node"], 1)
        nodes.copied("node", "snapshot")
        saved(nodes["node"], 2)
    nodes.close()
    nodes.copied("snapshot", "node")
    with nodes["node"].draining():
        saved(nodes["node"], 3)
    assert noticed(nodes["node"])


def test_of_copied_nodes_one_goes_on_as_another_and_both_publish(nodes: Nodes) -> None:
    with nodes["node"].draining():
        saved(nodes["node"], 1)
    nodes.close()
    nodes.copied("node", "copy")
    first, second = nodes["node"], nodes["copy"]
    with first.draining(), second.draining():
        saved(first, 2)
        saved(second, 3)
        saved(first, 4)
        saved(second, 5)
        saved(first, 6)

    assert [noticed(first), noticed(second)].count(True) == 1
    identities = {step: identity(first, step) for step in (5, 6)}
    assert len(set(identities.values())) == 2
    for step in range(1, 7):
        assert first.bucket.published("run", step) is not None


def test_what_is_no_claim_under_its_key_keeps_nothing_from_being_drained(
    nodes: Nodes, bucket: Bucket
) -> None:
    node = nodes["node"]
    key = node.bucket.layout.store_claim_key(node.store.store_id)
    for body in (b"{}", b"\xff", b'{"format":1,"store":"ab","nonce":"","counter":NaN}'):
        bucket.put(key, body, digest=digest_of(body))
        with node.draining():
            saved(node, len(body))
        node = nodes.restart()
    assert noticed(node)


def test_a_remote_that_is_away_at_the_start_is_claimed_once_it_is_back(
    nodes: Nodes, bucket: Bucket
) -> None:
    bucket.before = 3
    with nodes["node"].draining():
        saved(nodes["node"], 1)
    assert not bucket.before
    assert not noticed(nodes["node"])
    assert nodes["node"].save(SaveIds("run", 1, "save-1")).state is SaveState.PUBLISHED


def test_a_claim_that_fails_leaves_no_data_file_open(
    nodes: Nodes, bucket: Bucket, tmp_path: Path
) -> None:
    ids = SaveIds("run", 1, "save-1")
    bucket.before = 3
    with nodes["node"].draining():
        nodes["node"].put(ids, "shard", patterned(100_000))
        nodes["node"].seal(ids)
        nodes["node"].wait_durable(ids)
        opened = [os.readlink(each.path) for each in os.scandir("/proc/self/fd")]
    assert not bucket.before
    assert not [path for path in opened if path.startswith(str(tmp_path / "node" / "data"))]


@pytest.mark.parametrize("world_size", [1, 2], ids=["at_the_publication", "at_an_upload"])
def test_what_was_sent_before_another_node_claimed_is_looked_at_before_it_is_published(
    nodes: Nodes, bucket: Bucket, world_size: int
) -> None:
    node, ids = nodes["node"], SaveIds("run", 1, "save-1", 0, world_size)
    bucket.held_back = True
    node.put(ids, "shard", b"of step 1")
    node.seal(ids)
    with node.draining():
        node.wait_until(lambda: node.bucket.part_ranks("run", "1") == {0})
    node = nodes.restart()
    claim = StoreClaim(store=node.store.store_id, nonce="another", counter=0)
    body, key = encode(claim), node.key(ids, "shard")
    bucket.put(node.bucket.layout.store_claim_key(claim.store), body, digest=digest_of(body))
    there = bucket.head(key)
    assert there is not None
    bucket.put(key, b"of others", digest=digest_of(b"of others"), metadata=there.metadata)
    bucket.held_back = False
    if world_size == 2:
        node.put(replace(ids, rank=1), "shard-1", b"of rank 1")
        node.seal(replace(ids, rank=1))
    with node.draining():
        node.wait_durable(ids)

    assert noticed(node)
    assert bucket.get(key) == b"of step 1"
