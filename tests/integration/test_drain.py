"""The drain on threads over a real store and a store in memory: every turn an upload may take."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from cachetier_client.bucket_format.documents import ManifestState
from cachetier_client.bucket_format.uploads import PART_BYTES
from cachetier_client.identity.names import SaveIds
from cachetier_client.io.digests import digest_of

from cachetier.drain.pace import remote_health
from cachetier.errors import RemoteDigestError, RemoteRefusedError
from cachetier.model.lifecycle import ShardState
from cachetier.remote.wrapped import Operation
from tests.fakes.faulty_store import FaultyObjectStore, corrupt, fail, lose_reply
from tests.fakes.memory_store import MemoryObjectStore
from tests.integration.drain_node import Node, keys_of_saves, patterned
from tests.integration.faulty_node import node, objects

__all__ = ["node", "objects"]  # fixtures

IDS = SaveIds("run", 7, "save-1")
LARGE = 20 << 20  # in three parts


def test_small_and_large_shards_are_drained_and_the_step_published(
    node: Node, objects: FaultyObjectStore
) -> None:
    large = patterned(LARGE)
    node.put(IDS, "small", b"hello")
    node.put(IDS, "empty", b"")
    node.put(IDS, "middle", large[:100_001])
    node.put(IDS, "large", large)
    node.seal(IDS)

    with node.draining():
        view = node.wait_durable(IDS)

    assert view.dirty_bytes == 0
    assert objects.get(node.key(IDS, "small")) == b"hello"
    assert objects.get(node.key(IDS, "empty")) == b""
    assert objects.get(node.key(IDS, "middle")) == large[:100_001]
    assert objects.get(node.key(IDS, "large")) == large
    assert objects.calls["upload_part"] == 3
    manifest = node.bucket.published("run", 7)
    assert manifest is not None
    assert [shard.name for shard in manifest.shards] == ["empty", "large", "middle", "small"]
    assert node.seen.steps == [7]
    assert node.seen.drained_bytes == LARGE + 100_001 + 5
    assert node.state()["in_flight"] == 0


def test_a_store_without_digests_is_read_back(tmp_path: Path) -> None:
    objects = FaultyObjectStore(MemoryObjectStore(keeps_digests=False))
    node = Node(tmp_path / "cache", objects)
    node.put(IDS, "large", patterned(LARGE))
    node.seal(IDS)

    with node.draining():
        node.wait_durable(IDS)

    assert objects.calls["read_into"] >= 2
    node.close()


def test_bytes_that_flip_on_the_way_to_a_store_without_digests_are_sent_again(
    tmp_path: Path,
) -> None:
    plan = [corrupt("put", 2), corrupt("upload_part", 2)]  # the first put is the claim
    objects = FaultyObjectStore(MemoryObjectStore(keeps_digests=False), plan)
    node = Node(tmp_path / "cache", objects)
    node.put(IDS, "small", b"hello")
    node.put(IDS, "large", patterned(LARGE))
    node.seal(IDS)

    with node.draining():
        node.wait_durable(IDS)

    assert not objects.pending
    assert objects.get(node.key(IDS, "small")) == b"hello"
    assert objects.get(node.key(IDS, "large")) == patterned(LARGE)
    node.close()


def test_bytes_that_flip_on_the_way_are_refused_by_the_store_and_sent_again(
    node: Node, objects: FaultyObjectStore
) -> None:
    objects.add(corrupt("put", 2))
    objects.add(corrupt("upload_part", 2))
    node.put(IDS, "small", b"hello")
    node.put(IDS, "large", patterned(LARGE))
    node.seal(IDS)

    with node.draining():
        node.wait_durable(IDS)

    assert not objects.pending
    assert objects.get(node.key(IDS, "large")) == patterned(LARGE)
    assert node.told() == []


@pytest.mark.parametrize(
    ("operation", "call"),
    [
        *(("put", call) for call in (1, 2, 3, 4)),  # claim, shard, part, manifest
        *(("upload_part", call) for call in (1, 2, 3)),
        *(("head", call) for call in (1, 2, 3, 4, 5)),
        ("create_upload", 1),
        ("complete_upload", 1),
    ],
)
def test_lost_replies_cost_nothing(
    node: Node, objects: FaultyObjectStore, operation: Operation, call: int
) -> None:
    objects.add(lose_reply(operation, call))
    node.put(IDS, "small", b"hello")
    node.put(IDS, "large", patterned(LARGE))
    node.seal(IDS)

    with node.draining():
        node.wait_durable(IDS)
        node.wait_until(lambda: not list(objects.list_uploads("")))

    assert len(objects.fired) == 1
    assert objects.get(node.key(IDS, "small")) == b"hello"
    assert objects.get(node.key(IDS, "large")) == patterned(LARGE)


def test_a_foreign_object_is_a_conflict_and_never_a_victim(
    node: Node, objects: FaultyObjectStore
) -> None:
    objects.put(node.key(IDS, "small"), b"theirs", digest=digest_of(b"theirs"))
    objects.put(node.key(IDS, "large"), b"theirs", digest=digest_of(b"theirs"))
    node.put(IDS, "small", b"hello")
    node.put(IDS, "large", patterned(LARGE))
    node.seal(IDS)

    with node.draining():
        node.wait_until(lambda: len(node.told()) == 2)
        assert len(node.state()["conflicts"]) == 2
        assert objects.get(node.key(IDS, "small")) == b"theirs"
        assert objects.calls["upload_part"] == 0

        objects.delete(node.key(IDS, "small"))
        objects.delete(node.key(IDS, "large"))
        node.queue.forgive_all()  # instead of waiting for the slow next attempt
        node.changes.ring()
        node.wait_durable(IDS)

    assert node.state()["conflicts"] == []
    assert len(node.told()) == 2


def test_a_remote_that_refuses_is_probed_shown_and_taken_up_again(
    node: Node, objects: FaultyObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote_health, "PROBE_SECONDS", 0.2)
    probes = node.watched_probes(objects.calls.total)
    objects.go_down(RemoteRefusedError)
    for number in range(20):
        node.put(IDS, f"shard-{number}", b"hello")
    node.seal(IDS)

    with node.draining():
        node.wait_until(lambda: node.state()["remotes"][0]["state"] == "refused")
        node.wait_for_probes_alone(probes, 0.2)  # nobody hammers a remote that refuses
        objects.mend()
        node.wait_durable(IDS)

    assert node.state()["remotes"][0]["state"] == "ok"


def test_a_remote_that_is_away_is_taken_up_again(node: Node, objects: FaultyObjectStore) -> None:
    objects.go_down()
    node.put(IDS, "large", patterned(LARGE))
    node.seal(IDS)

    with node.draining():
        node.wait_until(lambda: node.state()["remotes"][0]["state"] == "unreachable")
        objects.mend()
        node.wait_durable(IDS)

    assert node.state()["last_error"]["code"] == "remote_transient"


def test_a_shard_replaced_while_it_drains_ends_as_its_last_version(
    node: Node, objects: FaultyObjectStore
) -> None:
    first, second = patterned(LARGE), patterned(LARGE, seed=1)
    node.put(IDS, "large", first)
    node.hurry("run", 7)
    replace_at = threading.Barrier(2)
    original = objects.upload_part

    def upload_part(*arguments: object, **options: object) -> object:
        if objects.calls["upload_part"] == 0:
            objects.upload_part = original  # type: ignore[method-assign]
            replace_at.wait(60)
            replace_at.wait(60)
        return original(*arguments, **options)  # type: ignore[arg-type]

    objects.upload_part = upload_part  # type: ignore[method-assign,assignment]
    with node.draining():
        replace_at.wait(60)
        node.put(IDS, "large", second)
        node.seal(IDS)
        replace_at.wait(60)
        node.wait_durable(IDS)

    assert objects.get(node.key(IDS, "large")) == second
    assert list(objects.list_uploads("")) == []
    assert node.told() == []


def test_a_shard_deleted_after_it_was_sent_leaves_nothing_behind(
    node: Node, objects: FaultyObjectStore
) -> None:
    node.put(IDS, "small", b"hello")
    node.hurry("run", 7)
    sent, go_on = threading.Event(), threading.Event()
    original = objects.head

    def head(key: str) -> object:
        if key.endswith("/small") and not sent.is_set():
            sent.set()
            go_on.wait(60)
        return original(key)

    objects.head = head  # type: ignore[method-assign,assignment]
    with node.draining():
        assert sent.wait(60)
        assert original(node.key(IDS, "small")) is not None
        node.checkpoints.delete_shard("run", 7, "small")
        go_on.set()
        node.wait_until(lambda: original(node.key(IDS, "small")) is None)


def test_a_deleted_step_leaves_only_its_tombstone(node: Node, objects: FaultyObjectStore) -> None:
    node.put(IDS, "small", b"hello")
    node.put(IDS, "large", patterned(LARGE))
    node.seal(IDS)
    with node.draining():
        node.wait_durable(IDS)
        node.checkpoints.delete_step("run", 7)
        node.wait_until(lambda: node.save(IDS).location is None)

    assert keys_of_saves(objects) == ("ckpt/run/7/.cachetier/manifest.json",)
    seen = node.bucket.manifest("run", 7)
    assert seen is not None
    assert seen.manifest.state is ManifestState.DELETED


def test_an_object_that_vanished_before_its_part_was_written_is_sent_again(
    node: Node, objects: FaultyObjectStore
) -> None:
    node.put(IDS, "small", b"hello")
    with node.draining():
        node.wait_clean(IDS, "small")
        objects.delete(node.key(IDS, "small"))
        node.seal(IDS)
        node.wait_durable(IDS)

    assert objects.get(node.key(IDS, "small")) == b"hello"
    assert "lost" in node.seen.codes
    assert node.told() == []  # it healed by itself


def test_an_object_that_vanished_with_the_only_copy_is_told(
    node: Node, objects: FaultyObjectStore
) -> None:
    node.put(IDS, "small", b"hello")
    with node.draining():
        node.wait_clean(IDS, "small")
        shard = node.shard(IDS, "small")
        assert shard is not None
        assert node.store.evict(shard)
        objects.delete(node.key(IDS, "small"))
        node.seal(IDS)
        node.wait_until(lambda: len(node.told()) == 1)

    assert node.told()[0].name == "small"
    assert node.bucket.published("run", 7) is None


def test_parts_finished_before_are_not_sent_again(node: Node, objects: FaultyObjectStore) -> None:
    objects.add(fail("upload_part", 3, RemoteDigestError))
    objects.add(fail("upload_part", 4, RemoteDigestError))
    objects.add(fail("upload_part", 5, RemoteDigestError))
    node.put(IDS, "large", patterned(LARGE))
    node.seal(IDS)

    with node.draining():
        node.wait_durable(IDS)

    assert node.seen.codes == ["remote_digest"]
    assert objects.calls["create_upload"] == 1
    assert objects.calls["upload_part"] == 2 + 3 + 1
    assert objects.calls["list_parts"] == 1


def test_an_upload_that_the_store_forgot_begins_anew(
    node: Node, objects: FaultyObjectStore
) -> None:
    node.put(IDS, "large", patterned(LARGE))
    for call in (3, 4, 5):
        objects.add(fail("upload_part", call, RemoteDigestError))
    node.seal(IDS)
    forgotten = threading.Event()
    original = objects.list_parts

    def list_parts(key: str, upload_id: str) -> dict[int, tuple[str, int]]:
        if not forgotten.is_set():
            forgotten.set()
            objects.abort_upload(key, upload_id)
        return original(key, upload_id)

    objects.list_parts = list_parts  # type: ignore[method-assign]
    with node.draining():
        node.wait_durable(IDS)

    assert forgotten.is_set()
    assert objects.calls["create_upload"] == 2
    assert objects.get(node.key(IDS, "large")) == patterned(LARGE)


def test_plain_puts_without_a_seal_drain_when_somebody_waits(
    node: Node, objects: FaultyObjectStore
) -> None:
    node.put(IDS, "small", b"hello")
    with node.draining():
        node.wait_clean(IDS, "small", timeout_seconds=10)

    assert objects.get(node.key(IDS, "small")) == b"hello"
    assert node.bucket.published("run", 7) is None


def test_two_nodes_publish_one_step(tmp_path: Path, objects: FaultyObjectStore) -> None:
    nodes = [Node(tmp_path / f"cache-{rank}", objects) for rank in range(2)]
    for rank, each in enumerate(nodes):
        ids = SaveIds("run", 7, "save-1", rank, 2)
        each.put(ids, f"shard-{rank}", b"hello %d" % rank)
        each.put(ids, f"large-{rank}", patterned(PART_BYTES + 1, rank))
        each.seal(ids)
    with nodes[0].draining(), nodes[1].draining():
        for each in nodes:
            each.wait_durable(IDS)
            each.wait_until(lambda each=each: each.seen.steps == [7])  # type: ignore[misc]

    manifest = nodes[0].bucket.published("run", 7)
    assert manifest is not None
    assert [part.rank for part in manifest.parts] == [0, 1]
    assert len(manifest.shards) == 4
    for each in nodes:
        each.close()


def test_an_overwrite_becomes_visible_when_it_is_whole(
    node: Node, objects: FaultyObjectStore
) -> None:
    again = SaveIds("run", 7, "save-2", overwrite=True)
    node.put(IDS, "small", b"old")
    node.seal(IDS)
    with node.draining():
        node.wait_durable(IDS)
        node.put(again, "small", b"new")
        node.hurry("run", 7)
        node.wait_until(lambda: node.save(again).location == "7~save-2")
        manifest = node.bucket.published("run", 7)
        assert manifest is not None
        assert manifest.save_id == "save-1"
        node.seal(again)
        node.wait_until(lambda: node.seen.steps == [7, 7])

    manifest = node.bucket.published("run", 7)
    assert manifest is not None
    assert (manifest.save_id, manifest.location) == ("save-2", "7~save-2")
    assert objects.get(node.key(IDS, "small")) == b"old"
    assert objects.get(node.key(IDS, "small", "7~save-2")) == b"new"


def test_a_save_that_another_node_beat_is_refused_and_its_clients_told(
    tmp_path: Path, objects: FaultyObjectStore
) -> None:
    first, second = (Node(tmp_path / name, objects) for name in ("a", "b"))
    late = SaveIds("run", 7, "save-2")
    first.put(IDS, "small", b"first")
    first.seal(IDS)
    second.put(late, "small", b"second")
    second.seal(late)
    with first.draining():
        first.wait_durable(IDS)
    with second.draining():
        second.wait_until(lambda: second.save(late).state == "refused")

    assert [incident.code for incident in second.told()] == ["step_published"]
    assert objects.get(first.key(IDS, "small")) == b"first"
    first.close()
    second.close()


def test_unsealed_shards_are_drained_when_a_put_waits_for_room(
    tmp_path: Path, objects: FaultyObjectStore
) -> None:
    node = Node(tmp_path / "cache", objects, capacity_bytes=3 << 20)
    body = patterned(2 << 20)
    node.put(IDS, "first", body)
    waiting = threading.Thread(target=node.put, args=(IDS, "second", body))
    with node.draining():
        waiting.start()
        node.wait_until(lambda: objects.head(node.key(IDS, "first")) is not None)
        node.wait_clean(IDS, "first")
        first = node.shard(IDS, "first")
        assert first is not None
        node.wait_until(lambda: node.store.evict(first))
        waiting.join()

    second = node.shard(IDS, "second")
    assert second is not None
    assert second.state is ShardState.DIRTY
    node.close()
