"""What tasks fail of, as the drain reports it, and what is left of the work then."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from cachetier_client.bucket_format.layout import Layout
from cachetier_client.bucket_format.uploads import ObjectInfo
from cachetier_client.identity.names import SaveIds

from cachetier.drain.upload.target import ConflictError
from cachetier.drain.worker import _described
from cachetier.errors import IntegrityError, TransientError
from cachetier.local.catalog import copies
from cachetier.model.lifecycle import ShardState
from cachetier.remote.base import Body, Condition, Headers, Metadata
from cachetier.remote.bucket import Bucket
from tests.fakes.fake_clock import FakeClock
from tests.fakes.memory_store import MemoryObjectStore, bytes_of
from tests.stateful.node import Node
from tests.unit.drain.replica_drain import ReplicaDrain

IDS = SaveIds("run", 1, "save", 0, 1)


@pytest.mark.parametrize(
    ("error", "described"),
    [
        (ConflictError("k is a foreign object"), ("conflict", "k is a foreign object")),
        (IntegrityError("k is damaged", run="r"), ("conflict", "k is damaged")),
        (TransientError("reset", run="r"), (TransientError.code, "reset")),
        (OSError(5, "Input/output error"), ("disk", "[Errno 5] Input/output error")),
        (ValueError("a defect"), ("internal", "ValueError('a defect')")),
    ],
)
def test_a_failure_is_reported_without_the_ids_and_hints_of_its_error(
    error: Exception, described: tuple[str, str]
) -> None:
    assert _described(error) == described


class Breaking(MemoryObjectStore):
    """Changes what happens to puts of keys that have ``broken`` in them."""

    def __init__(self) -> None:
        super().__init__(minimum_part_bytes=1)
        self.broken: str | None = None
        self.breaking: Callable[[bytes], bytes] = lambda body: body

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
        if self.broken is not None and self.broken in key:
            body = self.breaking(bytes_of(body))
        return super().put(
            key,
            body,
            digest=digest,
            metadata=metadata,
            condition=condition,
            headers=headers,
        )


def defect(_body: bytes) -> bytes:
    raise ZeroDivisionError("planned")


def flip(body: bytes) -> bytes:
    return bytes([body[0] ^ 1]) + body[1:]


@pytest.fixture
def remote() -> Breaking:
    return Breaking()


def test_a_defect_in_one_task_is_logged_with_its_ids_and_the_work_comes_again(
    node: Node, remote: Breaking, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("broken", "sound"):
        node.put(IDS, name, bytes(100_000))
    remote.broken, remote.breaking = "/broken", defect

    node.real_drain.drain_all()

    assert {row.name: row.state for row in node.rows()} == {
        "broken": ShardState.DIRTY,
        "sound": ShardState.CLEAN,
    }
    (told,) = [each for each in caplog.records if each.exc_info is not None]
    assert "run/1" in told.getMessage()
    assert told.exc_info is not None
    assert told.exc_info[0] is ZeroDivisionError

    remote.broken = None
    clock.advance(60.0)
    node.checkpoints.seal(IDS, 1)
    node.real_drain.drain_all()
    assert node.bucket.published("run", 1) is not None


@pytest.mark.parametrize(("packed", "key"), [(True, "/pack-"), (False, "/1/a")])
def test_what_never_arrives_as_it_was_sent_stays_dirty_and_is_tried_again_later(
    node: Node, remote: Breaking, clock: FakeClock, packed: bool, key: str
) -> None:
    for name in ("a", "b"):
        node.put(IDS, name, name.encode() * 100_000)
    if packed:
        node.checkpoints.seal(IDS, 1)
    remote.broken, remote.breaking = key, flip

    node.real_drain.drain_all()

    assert node.rows()[0].state is ShardState.DIRTY
    assert not [each for each in remote.list("").keys if key in each]
    remote.broken = None
    clock.advance(60.0)
    node.checkpoints.seal(IDS, 1)
    node.real_drain.drain_all()
    assert node.bucket.published("run", 1) is not None
    assert node.get("run", 1, "a") == b"a" * 100_000


# --- a step deleted at a replica where this node never saw it ----------------------------------


@pytest.fixture
def other(tmp_path: Path, remote: Breaking, clock: FakeClock, vfs: str) -> Iterator[Node]:
    other = Node(tmp_path / "other", remote, clock, vfs=vfs)
    yield other
    other.close()


@pytest.mark.parametrize("there", [None, "save", "another"])
def test_a_step_of_another_node_is_deleted_at_a_replica_that_has_it_and_only_there(
    node: Node, other: Node, clock: FakeClock, there: str | None
) -> None:
    other.put(IDS, "a", bytes(100_000))
    other.checkpoints.seal(IDS, 1)
    other.real_drain.drain_all()
    near = Bucket(MemoryObjectStore(minimum_part_bytes=1), Layout("tier"))
    if there is not None:
        publisher = Node(other.cache_dir.parent / "third", near.objects, clock)
        ids = SaveIds("run", 1, there, 0, 1)
        publisher.put(ids, "a", bytes(100_000))
        publisher.checkpoints.seal(ids, 1)
        publisher.real_drain.drain_all()
        publisher.close()
    node.store.write(copies.configure_replicas, {"near": False})
    drain = ReplicaDrain(node.store, near, clock)

    node.checkpoints.delete_step("run", 1)
    drain.drain_all()
    drain.close()

    assert node.store.read(copies.due_saves, "near") == []
    published = near.published("run", 1)
    assert (published is not None) == (there == "another")
    assert (near.objects.head("tier/run/1/a") is not None) == (there == "another")
