"""Objects of the S3 door on their way to the bucket: in order, byte by byte, and no victim."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import apsw
import pytest
from cachetier_client.bucket_format.uploads import (
    DIGEST_KEY,
    ETAG_KEY,
    SAVE_KEY,
    ObjectInfo,
    UploadedPart,
)
from cachetier_client.io.digests import digest_of, to_hex
from cachetier_client.s3_errors import kind_of_answer

from cachetier.errors import PreconditionFailedError, TransientError
from cachetier.local.catalog import figures, notes, objects
from cachetier.local.catalog.objects import KeyCondition
from cachetier.model.lifecycle import ObjectState, ShardState
from cachetier.model.objects import Head
from cachetier.model.superseding import DELETED, Stamp
from cachetier.remote.base import Body
from tests.fakes.fake_clock import FakeClock
from tests.fakes.faulty_store import Fault, FaultyObjectStore, fail, lose_reply
from tests.fakes.memory_store import MemoryObjectStore
from tests.stateful.node import Node
from tests.unit.drain.mount_node import MOUNT, MountNode

LARGE = bytes(range(256)) * (12 << 10)  # 3 MiB: what goes in parts here


class Recording(MemoryObjectStore):
    """Remembers which parts came, and how large they were; folders keep no metadata there."""

    def __init__(self, clock: FakeClock) -> None:
        super().__init__(minimum_part_bytes=1, clock=clock)
        self.parts: list[tuple[int, int]] = []

    def put(self, key: str, body: Body, **given: Any) -> ObjectInfo:
        kept = {**given, "metadata": None} if key.endswith("/") else given
        return super().put(key, body, **kept)

    def upload_part(
        self, key: str, upload_id: str, number: int, body: Body, *, digest: int
    ) -> UploadedPart:
        part = super().upload_part(key, upload_id, number, body, digest=digest)
        self.parts.append((number, part.size_bytes))
        return part


@pytest.fixture
def data(clock: FakeClock) -> Recording:
    return Recording(clock)


@pytest.fixture
def faulty(data: Recording) -> FaultyObjectStore:
    return FaultyObjectStore(data, [])


@pytest.fixture
def mount(node: Node, faulty: FaultyObjectStore, clock: FakeClock) -> Iterator[MountNode]:
    made = MountNode(node, faulty, clock)
    yield made
    made.close()


def drain(mount: MountNode) -> None:
    """Drain until nothing is left to do, over what is put off."""
    for _ in range(5):
        mount.drain.drain_all()
        mount.clock.advance(60.0)


def test_an_object_lies_under_its_own_key_byte_by_byte_with_its_headers(
    mount: MountNode, data: Recording
) -> None:
    head = Head({"content-type": "text/plain"}, {"owner": "ada"})
    version = mount.put("ckpt/a.txt", b"alpha", head=head)

    drain(mount)

    info = data.head("ckpt/a.txt")
    found = mount.version(version)
    assert info is not None and found is not None
    assert data.get("ckpt/a.txt") == b"alpha"
    assert found.acknowledged_at is not None
    stamp = Stamp(mount.node.store.store_id, version, found.acknowledged_at)
    assert Stamp.of(info) == stamp
    assert dict(info.headers) == {"content-type": "text/plain"}
    assert info.metadata == {
        "owner": "ada",
        ETAG_KEY: found.etag,
        DIGEST_KEY: to_hex(digest_of(b"alpha")),
        **stamp.as_metadata("ckpt/a.txt"),
    }
    assert (found.state, found.remote_etag) == (ObjectState.CLEAN, info.etag)
    assert [row.state for row in mount.node.rows()] == [ShardState.CLEAN]


def test_an_empty_object_is_an_object(mount: MountNode, data: Recording) -> None:
    mount.put("ckpt/_SUCCESS", b"")

    drain(mount)

    assert data.get("ckpt/_SUCCESS") == b""


def test_the_mark_of_a_folder_holds_nothing_up_where_folders_keep_no_metadata(
    mount: MountNode, data: Recording
) -> None:
    mount.put("ckpt/table/", b"", head=Head({}, {"owner": "ada"}))
    mount.put("ckpt/table/part-0", b"alpha")

    drain(mount)

    mark = data.head("ckpt/table/")
    assert mark is not None and (mark.size_bytes, mark.metadata) == (0, {})
    assert data.get("ckpt/table/part-0") == b"alpha"
    assert mount.unshown() == []


def test_an_object_of_several_parts_has_them_in_the_bucket_too(
    mount: MountNode, data: Recording
) -> None:
    parts = [LARGE[:100_000], LARGE[100_000:100_003], LARGE[100_003:200_000]]
    mount.put("ckpt/a", *parts)

    drain(mount)

    assert sorted(data.parts) == [(1, 100_000), (2, 3), (3, 99_997)]
    assert data.get("ckpt/a") == LARGE[:200_000]
    assert mount.unshown() == []


def test_versions_of_a_key_are_shown_one_after_the_other_and_the_last_one_stays(
    mount: MountNode, data: Recording
) -> None:
    seen: list[bytes] = []
    first = mount.put("ckpt/latest", b"step-1")
    mount.put("ckpt/latest", b"step-2")
    last = mount.put("ckpt/latest", b"step-3")

    while mount.drain.drain_one():
        seen.append(data.get("ckpt/latest"))

    assert seen == [b"step-1", b"step-2", b"step-3"]
    assert mount.version(first) is None  # what was shown goes once something newer is there
    kept = mount.version(last)
    assert kept is not None and kept.shown
    assert len(mount.node.rows()) == 1


def test_a_deletion_goes_in_its_turn_and_leaves_nothing_behind(
    mount: MountNode, data: Recording
) -> None:
    mount.put("ckpt/a", b"alpha")
    mount.put("ckpt/b", b"beta")
    mount.delete("ckpt/a")

    seen = []
    while mount.drain.drain_one():
        seen.append(sorted(key for key in data.list("").keys if DELETED not in key))

    assert seen == [["ckpt/a"], ["ckpt/a", "ckpt/b"], ["ckpt/b"]]
    assert mount.unshown() == []
    assert len(mount.node.rows()) == 1


def test_a_deletion_of_what_is_gone_already_is_done(mount: MountNode) -> None:
    mount.delete("ckpt/never")

    drain(mount)

    assert mount.unshown() == []


def test_parts_of_what_has_to_wait_are_sent_ahead_and_only_then_completed(
    mount: MountNode, data: Recording
) -> None:
    first = mount.put("ckpt/a", b"alpha")
    version = mount.put("ckpt/b", LARGE[:50_000], LARGE[50_000:90_000])
    first_task = mount.drain.next_task()
    assert first_task is not None and first_task.version == first
    assert mount.drain.drain_one()  # the other one, while the first is under way

    assert data.head("ckpt/b") is None
    assert [key for key, _ in data.list_uploads("")] == ["ckpt/b"]
    found = mount.version(version)
    assert found is not None
    sent = mount.node.store.read(objects.sent_ahead, [found], "durable")
    assert sent == {version}
    assert mount.drain.next_task() is None  # nothing more can go ahead

    mount.drain.perform(first_task)
    drain(mount)

    assert data.get("ckpt/b") == LARGE[:90_000]
    assert list(data.list_uploads("")) == []


def test_a_flush_waits_for_objects_and_names_the_mounts_of_those_that_are_left(
    mount: MountNode, data: Recording
) -> None:
    mount.put("ckpt/a", b"alpha")
    mount.delete("ckpt/b")
    left = mount.node.checkpoints.flush(None, None, 0.0)
    assert (left.shards, left.size_bytes) == (2, 5)
    assert "s3:mount (2 objects, " in str(left)

    drain(mount)

    assert not mount.node.checkpoints.flush(None, None, 0.0)


# --- no victim -----------------------------------------------------------------------------------


def test_of_two_puts_the_one_that_was_acknowledged_later_stays(
    mount: MountNode, data: Recording
) -> None:
    data.put("ckpt/a", b"older", digest=digest_of(b"older"))
    mount.clock.advance(60.0)
    mount.put("ckpt/a", b"alpha")
    mount.put("ckpt/b", b"beta")
    mount.clock.advance(60.0)
    data.put("ckpt/b", b"newer", digest=digest_of(b"newer"))

    drain(mount)

    assert data.get("ckpt/a") == b"alpha"
    assert data.get("ckpt/b") == b"newer"
    assert mount.unshown() == []


def superseded(mount: MountNode) -> list[str]:
    (found,) = mount.node.store.read(figures.mounts, {})
    return [each.key for each in found.superseded]


@pytest.mark.parametrize("body", [b"second", LARGE[:3_000_000]])
def test_what_somebody_put_later_stays_and_nothing_else_waits(
    mount: MountNode, data: Recording, body: bytes
) -> None:
    half = len(body) // 2
    mount.put("ckpt/a", b"first")
    drain(mount)
    second = (
        mount.put("ckpt/a", body[:half], body[half:]) if half > 10 else mount.put("ckpt/a", body)
    )
    mount.put("ckpt/latest", b"a is there")
    mount.clock.advance(60.0)
    data.put("ckpt/a", b"foreign", digest=digest_of(b"foreign"))

    drain(mount)

    assert mount.version(second) is None
    assert data.get("ckpt/a") == b"foreign"
    assert data.get("ckpt/latest") == b"a is there"
    assert superseded(mount) == ["ckpt/a"]
    assert mount.node.store.read(notes.incidents_after, 0) == []
    assert list(data.list_uploads("")) == []


@pytest.mark.parametrize("body", [b"second", LARGE[:3_000_000]])
def test_a_foreign_change_under_a_conditional_put_is_a_conflict_of_its_key_alone(
    mount: MountNode, data: Recording, body: bytes
) -> None:
    half = len(body) // 2
    first = mount.put("ckpt/a", b"first")
    drain(mount)
    known = mount.version(first)
    assert known is not None
    data.put("ckpt/a", b"foreign", digest=digest_of(b"foreign"))
    mount.clock.advance(60.0)
    over = KeyCondition(if_match=known.etag)
    pieces = (body[:half], body[half:]) if half > 10 else (body,)
    second = mount.put("ckpt/a", *pieces, condition=over)
    third = mount.put("ckpt/a", b"third")
    mount.put("ckpt/latest", b"a is there")

    drain(mount)

    found = mount.version(second)
    assert found is not None and found.state is ObjectState.CONFLICT
    assert data.get("ckpt/a") == b"foreign"
    assert data.get("ckpt/latest") == b"a is there"
    assert mount.unshown() == [second, third]
    (incident,) = mount.node.store.read(notes.incidents_after, 0)
    assert (incident.run, incident.name) == (MOUNT.run, "ckpt/a")
    assert "cachetier s3 resolve" in incident.hint
    assert list(data.list_uploads("")) == []


def test_a_conditional_put_over_what_nobody_ever_saw_is_a_conflict(
    mount: MountNode, data: Recording
) -> None:
    first = mount.put("ckpt/a", b"first")
    known = mount.version(first)
    assert known is not None
    mount.clock.advance(60.0)
    data.put("ckpt/a", b"foreign", digest=digest_of(b"foreign"))
    mount.clock.advance(60.0)
    second = mount.put("ckpt/a", b"second", condition=KeyCondition(if_match=known.etag))

    drain(mount)

    assert data.get("ckpt/a") == b"foreign"
    assert mount.unshown() == [second]


def test_a_foreign_change_is_no_victim_of_a_deletion_before_it(
    mount: MountNode, data: Recording
) -> None:
    mount.put("ckpt/a", b"first")
    drain(mount)
    mount.delete("ckpt/a")
    mount.clock.advance(60.0)
    data.put("ckpt/a", b"foreign", digest=digest_of(b"foreign"))

    drain(mount)

    assert data.get("ckpt/a") == b"foreign"
    assert mount.unshown() == []
    assert superseded(mount) == ["ckpt/a"]


@pytest.mark.parametrize("keep", ["ours", "theirs"])
def test_a_person_settles_a_conflict_and_all_goes_on(
    mount: MountNode, data: Recording, keep: str
) -> None:
    mount.put("ckpt/a", b"first")
    drain(mount)
    there = data.put("ckpt/a", b"foreign", digest=digest_of(b"foreign")).etag
    second = mount.put("ckpt/a", b"second", condition=KeyCondition(if_match="*"))
    drain(mount)
    found = mount.node.store.read(objects.conflict_of, MOUNT.run, "ckpt/a")
    assert found is not None and found.version == second

    settle = objects.keep_ours if keep == "ours" else objects.keep_theirs
    mount.node.store.write(settle, second, there)
    drain(mount)

    assert data.get("ckpt/a") == (b"second" if keep == "ours" else b"foreign")
    assert mount.unshown() == []


class Particular(Recording):
    """Does not take one key, as long as somebody says so; ``codes`` are S3's."""

    codes = "InvalidArgument", 400
    refuses = True

    def put(self, key: str, body: Body, **given: Any) -> ObjectInfo:
        self._judge(key)
        return super().put(key, body, **given)

    def create_upload(self, key: str, *given: Any) -> str:
        self._judge(key)
        return super().create_upload(key, *given)

    def _judge(self, key: str) -> None:
        if self.refuses and key == "ckpt/bad":
            code, status = self.codes
            kind = kind_of_answer(code, status)
            raise kind(f"{key}: {code}", key=key, remote_code=code, remote_status=status)


@pytest.fixture
def particular(node: Node, clock: FakeClock) -> Iterator[tuple[MountNode, Particular]]:
    store = Particular(clock)
    made = MountNode(node, store, clock)
    yield made, store
    made.close()


@pytest.mark.parametrize("body", [b"small", LARGE], ids=["whole", "in parts"])
@pytest.mark.parametrize("keep", ["ours", "theirs"])
def test_an_object_that_the_bucket_refuses_is_a_conflict_that_a_person_settles(
    particular: tuple[MountNode, Particular], body: bytes, keep: str
) -> None:
    mount, store = particular
    refused = mount.put("ckpt/bad", body)
    mount.put("ckpt/latest", b"bad is there")

    drain(mount)

    found = mount.version(refused)
    assert found is not None and found.state is ObjectState.CONFLICT
    assert store.get("ckpt/latest") == b"bad is there"  # a conflict holds up its own key alone
    (incident,) = mount.node.store.read(notes.incidents_after, 0)
    assert "InvalidArgument" in incident.message
    assert "sends it again" in incident.hint

    store.refuses = False
    settle = objects.keep_ours if keep == "ours" else objects.keep_theirs
    mount.node.store.write(settle, refused, "")
    drain(mount)
    assert (store.head("ckpt/bad") is not None) == (keep == "ours")


@pytest.mark.parametrize("codes", [("AccessDenied", 403), ("ExpiredToken", 400), ("400", 400)])
def test_what_is_refused_for_who_asks_is_tried_again_until_it_is_mended(
    particular: tuple[MountNode, Particular], codes: tuple[str, int]
) -> None:
    mount, store = particular
    store.codes = codes
    mount.put("ckpt/bad", b"small")
    drain(mount)
    assert len(mount.unshown()) == 1

    store.refuses = False
    drain(mount)
    assert store.get("ckpt/bad") == b"small"
    assert mount.node.store.read(notes.incidents_after, 0) == []


class Late(Recording):
    """Takes a deletion, and deletes only when ``arrive`` is called; until then it says nothing."""

    def __init__(self, clock: FakeClock) -> None:
        super().__init__(clock)
        self.late: list[tuple[str, str | None]] = []
        self.patience = 1

    def delete(self, key: str, etag: str | None = None) -> None:
        if len(self.late) < self.patience:
            self.late.append((key, etag))
            raise TransientError("no answer", key=key)
        super().delete(key, etag)

    def arrive(self) -> None:
        for key, etag in self.late:
            with suppress(PreconditionFailedError):
                super().delete(key, etag)


def test_a_deletion_that_arrives_late_takes_nothing_that_was_put_since(
    node: Node, clock: FakeClock
) -> None:
    store = Late(clock)
    mount = MountNode(node, store, clock)
    mount.put("ckpt/a", b"first")
    mount.delete("ckpt/a")
    mount.put("ckpt/a", b"second")
    drain(mount)
    assert store.get("ckpt/a") == b"second"

    store.arrive()

    assert store.late and store.get("ckpt/a") == b"second"
    mount.close()


class Deaf(Recording):
    """Says that it deletes, and does so only the second time."""

    asked = 0

    def delete(self, key: str, etag: str | None = None) -> None:
        self.asked += 1
        if self.asked > 1:
            super().delete(key, etag)


def test_a_deletion_is_done_when_nothing_is_there_any_more(node: Node, clock: FakeClock) -> None:
    store = Deaf(clock)
    mount = MountNode(node, store, clock)
    mount.put("ckpt/a", b"first")
    mount.delete("ckpt/a")
    drain(mount)
    assert store.asked == 2 and store.head("ckpt/a") is None
    assert mount.unshown() == []
    mount.close()


# --- faults --------------------------------------------------------------------------------------


@pytest.mark.parametrize("pieces", [(b"alpha",), (b"alpha", b"beta")])
@pytest.mark.parametrize(
    "fault",
    [
        lose_reply("put"),
        lose_reply("complete_upload"),
        lose_reply("upload_part", 2),
        lose_reply("create_upload"),
        fail("head"),
        fail("head", 2),
        fail("put"),
        fail("complete_upload"),
    ],
    ids=str,
)
def test_a_lost_reply_is_recognised_and_a_failure_repeated(
    mount: MountNode,
    data: Recording,
    faulty: FaultyObjectStore,
    pieces: tuple[bytes, ...],
    fault: Fault,
) -> None:
    faulty.add(fault)
    in_one_put = len(pieces) == 1
    fires = fault.operation == "head" or (fault.operation == "put") == in_one_put
    if fault.operation == "put":
        fires = True  # the marker's
    mount.put("ckpt/a", *pieces)
    mount.put("ckpt/latest", b"a is there")

    drain(mount)

    assert data.get("ckpt/a") == b"".join(pieces)
    assert data.get("ckpt/latest") == b"a is there"
    assert mount.unshown() == []
    assert (fault in faulty.fired) or not fires


def test_a_damaged_piece_is_quarantined_and_nothing_of_it_is_shown(
    mount: MountNode, data: Recording
) -> None:
    version = mount.put("ckpt/a", b"alpha", b"beta")
    mount.put("ckpt/latest", b"a is there")
    (_, piece) = mount.node.store.read(objects.pieces_of, version)

    def damage(sql: apsw.Connection) -> None:
        sql.execute("UPDATE bodies SET body = x'00' WHERE version = ?", (piece.version,))

    mount.node.store.write(damage)

    drain(mount)

    found = mount.version(version)
    assert found is not None and found.state is ObjectState.CONFLICT
    assert [row.state for row in mount.node.rows() if row.version == piece.version] == [
        ShardState.QUARANTINED
    ]
    assert data.head("ckpt/a") is None and data.get("ckpt/latest") == b"a is there"
    assert mount.unshown() == [version]


def test_a_drain_that_dies_goes_on_from_the_parts_that_are_there(
    mount: MountNode, data: Recording, faulty: FaultyObjectStore
) -> None:
    faulty.add(fail("upload_part", 3))
    mount.put("ckpt/a", b"one", b"two", b"three")
    mount.drain.drain_all()
    assert [number for number, _ in data.parts] == [1, 2]
    mount.drain.close()  # its successor begins anew
    mount.clock.advance(60.0)

    drain(mount)

    assert [number for number, _ in data.parts] == [1, 2, 3]
    assert data.get("ckpt/a") == b"onetwothree"


def test_nothing_in_the_bucket_says_that_it_is_a_shard(mount: MountNode, data: Recording) -> None:
    mount.put("ckpt/a", b"alpha")

    drain(mount)

    info = data.head("ckpt/a")
    assert info is not None and SAVE_KEY not in info.metadata


class Lying(Recording):
    """Says once of a key that nothing is there, as of a bucket that is not there."""

    def __init__(self, clock: FakeClock) -> None:
        super().__init__(clock)
        self.lies: list[str] = []

    def head(self, key: str) -> ObjectInfo | None:
        if key in self.lies:
            self.lies.remove(key)
            return None
        return super().head(key)


@pytest.mark.parametrize("following", [None, b"second", LARGE], ids=["deletion", "whole", "parts"])
def test_that_nothing_is_there_is_not_believed_of_one_answer(
    node: Node, clock: FakeClock, following: bytes | None
) -> None:
    store = Lying(clock)
    mount = MountNode(node, store, clock)
    mount.put("ckpt/a", b"first")
    drain(mount)
    if following is None:
        mount.delete("ckpt/a")
    else:
        mount.put("ckpt/a", following)
    store.lies = ["ckpt/a"]

    drain(mount)

    assert store.lies == [] and mount.unshown() == []
    assert store.head("ckpt/a") is None if following is None else store.get("ckpt/a") == following
    assert mount.node.store.read(notes.incidents_after, 0) == []
    mount.close()
