"""What a save left unfinished at the remote is aborted when it has ended, however it ended."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from cachetier_client.identity.names import SaveIds

from cachetier.errors import RemoteRefusedError
from tests.fakes.faulty_store import FaultyObjectStore, fail, lose_reply
from tests.fakes.memory_store import MemoryObjectStore
from tests.integration.drain_node import Node, patterned

IDS = SaveIds("run", 7, "save-1")
LARGE = 17 << 20
THEIRS = ["7/large.theirs", "7/theirs", "8/large", "theirs"]


@pytest.fixture
def objects() -> FaultyObjectStore:
    return FaultyObjectStore(MemoryObjectStore())


@pytest.fixture
def node(tmp_path: Path, objects: FaultyObjectStore) -> Iterator[Node]:
    node = Node(tmp_path / "cache", objects, fraction=lambda: 0.01)
    for key in THEIRS:
        objects.create_upload(f"ckpt/run/{key}")
    yield node
    node.close()


def unfinished(objects: FaultyObjectStore) -> list[str]:
    return [key.removeprefix("ckpt/run/") for key, _ in objects.list_uploads("")]


def begun_upload(node: Node, objects: FaultyObjectStore) -> None:
    """Leave an upload of the save behind, as a drain that was killed in it does."""
    objects.add(fail("upload_part", 1, RemoteRefusedError))
    node.put(IDS, "large", patterned(LARGE))
    node.hurry("run", 7)
    with node.draining():
        node.wait_until(lambda: not objects.pending)
    assert "7/large" in unfinished(objects)


def test_an_upload_whose_id_was_lost_goes_when_the_step_is_published(
    node: Node, objects: FaultyObjectStore
) -> None:
    objects.add(lose_reply("create_upload", 5))  # four are theirs
    node.put(IDS, "large", patterned(LARGE))
    node.seal(IDS)
    with node.draining():
        node.wait_durable(IDS)
        node.wait_until(lambda: unfinished(objects) == THEIRS)

    assert not objects.pending
    assert objects.calls["list_uploads"] >= 2


def test_an_upload_begun_by_a_killed_drain_goes_when_the_step_is_published(
    node: Node, objects: FaultyObjectStore
) -> None:
    node.put(IDS, "large", patterned(LARGE))
    node.seal(IDS)
    objects.create_upload(node.key(IDS, "large"))  # killed before it could record the id
    with node.draining():
        node.wait_durable(IDS)
        node.wait_until(lambda: unfinished(objects) == THEIRS)


def test_an_upload_of_a_replaced_shard_goes(node: Node, objects: FaultyObjectStore) -> None:
    begun_upload(node, objects)
    node.put(IDS, "large", b"small by now")
    node.seal(IDS)
    with node.draining():
        node.wait_durable(IDS)
        node.wait_until(lambda: unfinished(objects) == THEIRS)


def test_an_upload_of_a_superseded_save_goes(node: Node, objects: FaultyObjectStore) -> None:
    begun_upload(node, objects)
    again = SaveIds("run", 7, "save-2")
    node.put(again, "small", b"hello")
    node.seal(again)
    with node.draining():
        node.wait_durable(again)
        node.wait_until(lambda: unfinished(objects) == THEIRS)


def test_an_upload_of_an_aborted_rank_goes_with_its_save(
    node: Node, objects: FaultyObjectStore
) -> None:
    begun_upload(node, objects)
    node.checkpoints.abort_rank(IDS)
    again = SaveIds("run", 7, "save-2")
    node.put(again, "small", b"hello")
    node.seal(again)
    with node.draining():
        node.wait_durable(again)
        node.wait_until(lambda: unfinished(objects) == THEIRS)


def test_an_upload_of_a_deleted_step_goes_and_no_other(
    node: Node, objects: FaultyObjectStore
) -> None:
    begun_upload(node, objects)
    node.checkpoints.delete_step("run", 7)
    with node.draining():
        node.wait_until(lambda: node.save(IDS).location is None)

    assert unfinished(objects) == THEIRS


def test_a_remote_that_refuses_to_abort_is_asked_again_and_keeps_draining(
    node: Node, objects: FaultyObjectStore
) -> None:
    objects.create_upload(node.key(IDS, "large"))
    objects.add(fail("abort_upload", 1, RemoteRefusedError))
    node.put(IDS, "large", patterned(LARGE))
    node.seal(IDS)
    with node.draining():
        node.wait_durable(IDS)
        node.wait_until(lambda: unfinished(objects) == THEIRS)
        node.wait_until(lambda: node.state()["remotes"][0]["state"] == "ok")

    assert not objects.pending


def test_a_step_is_swept_up_after_once(node: Node, objects: FaultyObjectStore) -> None:
    node.put(IDS, "small", b"hello")
    node.seal(IDS)
    with node.draining():
        node.wait_durable(IDS)
        node.wait_until(lambda: objects.calls["list_uploads"] == 1)
    with node.draining():
        node.put(SaveIds("run", 8, "save-1"), "small", b"hello")
        node.seal(SaveIds("run", 8, "save-1"))
        node.wait_durable(SaveIds("run", 8, "save-1"))
        node.wait_until(lambda: objects.calls["list_uploads"] == 2)
