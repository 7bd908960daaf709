"""Of two writers of a key the older one loses, whichever arrives last, and nothing else waits."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import apsw
import pytest
from cachetier_client.bucket_format.uploads import ObjectInfo
from cachetier_client.io.digests import digest_of

from cachetier.errors import PreconditionFailedError, RemoteRefusedError
from cachetier.local.catalog import figures, notes, objects
from cachetier.local.catalog.objects import KeyCondition
from cachetier.model.lifecycle import ObjectState
from cachetier.model.objects import WHATEVER_IS_THERE
from cachetier.model.superseding import DELETED, RECORD_KEPT_SECONDS, DeletionRecord, Stamp
from cachetier.remote.base import Body, ListedPage
from cachetier.remote.wrapped import Answer, Operation, WrappedObjectStore
from tests.fakes.fake_clock import FakeClock
from tests.fakes.memory_store import MemoryObjectStore
from tests.stateful.node import Node
from tests.unit.drain.mount_node import MOUNT, MountNode

KEY, OTHER = "ckpt/latest", "ckpt/other"
LONG = 60.0


class Bucket(MemoryObjectStore):
    """Answers 412 to the first put of ``refused`` keys, which are not there."""

    def __init__(self, clock: FakeClock) -> None:
        super().__init__(minimum_part_bytes=1, clock=clock)
        self.refused: set[str] = set()
        self.refusals = 0
        self.lists = True

    def put(self, key: str, body: Body, **given: Any) -> ObjectInfo:
        if key in self.refused and given.get("condition") is not None:
            self.refusals += 1
            raise PreconditionFailedError(f"{key}: 412", key=key)
        return super().put(key, body, **given)

    def list_page(self, prefix: str, delimiter: str, after: str, limit: int) -> ListedPage:
        if not self.lists:
            context = {"remote_code": "AccessDenied", "remote_status": 403}
            raise RemoteRefusedError("LIST: 403", **context)  # type: ignore[arg-type]
        return super().list_page(prefix, delimiter, after, limit)

    def records(self) -> list[dict[str, Any]]:
        keys = self.list(f"{MOUNT.prefix}{DELETED}").keys
        return [json.loads(self.get(key)) for key in keys]


class Counting(WrappedObjectStore):
    """Counts the calls of the store inside, and does something once ``before`` one of them."""

    def __init__(self, store: MemoryObjectStore) -> None:
        super().__init__(store)
        self.calls: Counter[str] = Counter()
        self.before: dict[str, Callable[[], None]] = {}

    def _around(
        self, operation: Operation, _size_bytes: int, call: Callable[[], Answer], /
    ) -> Answer:
        self.calls[operation] += 1
        self.before.pop(operation, lambda: None)()
        return call()


@pytest.fixture
def bucket(clock: FakeClock) -> Bucket:
    return Bucket(clock)


@pytest.fixture
def counting(bucket: Bucket) -> Counting:
    return Counting(bucket)


@pytest.fixture
def one(node: Node, counting: Counting, clock: FakeClock) -> Iterator[MountNode]:
    made = MountNode(node, counting, clock)
    yield made
    made.close()


@pytest.fixture
def two(
    tmp_path: Path, remote: MemoryObjectStore, bucket: Bucket, clock: FakeClock, vfs: str
) -> Iterator[MountNode]:
    node = Node(tmp_path / "other", remote, clock, capacity_bytes=1_000_000, vfs=vfs)
    made = MountNode(node, bucket, clock)
    yield made
    made.close()
    node.close()


def drain(mount: MountNode) -> None:
    """Drain until nothing is left to do, over what is put off, in no time."""
    for _ in range(5):
        mount.drain.drain_all()
        mount.drain.queue.forgive_all()


def superseded(mount: MountNode) -> list[str]:
    return [
        each.key for found in mount.node.store.read(figures.mounts, {}) for each in found.superseded
    ]


def incidents(mount: MountNode) -> list[str | None]:
    return [each.name for each in mount.node.store.read(notes.incidents_after, 0)]


# --- puts ----------------------------------------------------------------------------------------


def test_a_backlog_does_not_replace_what_another_node_put_since(
    one: MountNode, two: MountNode, bucket: Bucket, clock: FakeClock
) -> None:
    one.put(KEY, b"v1")
    one.put(OTHER, b"other")
    clock.advance(LONG)
    two.put(KEY, b"v2")
    drain(two)

    drain(one)

    assert bucket.get(KEY) == b"v2" and bucket.get(OTHER) == b"other"
    assert one.unshown() == [] and incidents(one) == []
    assert superseded(one) == [KEY]


def test_what_came_later_replaces_what_another_node_put_before(
    one: MountNode, two: MountNode, bucket: Bucket, clock: FakeClock
) -> None:
    two.put(KEY, b"v1")
    clock.advance(LONG)
    one.put(KEY, b"v2")
    clock.advance(LONG)
    drain(two)

    drain(one)

    assert bucket.get(KEY) == b"v2"
    assert superseded(one) == superseded(two) == []


def test_of_two_puts_at_about_the_same_time_the_one_in_the_bucket_stays(
    one: MountNode, two: MountNode, bucket: Bucket, clock: FakeClock
) -> None:
    two.put(KEY, b"v1")
    clock.advance(4.0)
    one.put(KEY, b"v2")
    clock.advance(LONG)
    drain(two)
    drain(one)

    assert bucket.get(KEY) == b"v1"
    assert superseded(one) == [KEY]


@pytest.mark.parametrize("deletes_first", [True, False])
def test_a_late_deletion_takes_what_was_put_just_before_it_and_nothing_that_came_after(
    one: MountNode, two: MountNode, bucket: Bucket, clock: FakeClock, deletes_first: bool
) -> None:
    if deletes_first:
        one.delete(KEY)
        clock.advance(0.5)
    two.put(KEY, b"v1")
    drain(two)
    if not deletes_first:
        clock.advance(0.5)
        one.delete(KEY)
    clock.advance(LONG)

    drain(one)

    assert (KEY in bucket.list(MOUNT.prefix).keys) == deletes_first


def test_who_goes_at_once_replaces_and_deletes_what_another_node_has_just_put(
    one: MountNode, two: MountNode, bucket: Bucket, clock: FakeClock
) -> None:
    for each, body in ((two, b"v1"), (one, b"v2"), (two, b"v3")):
        each.put(KEY, body)
        clock.advance(0.5)
        drain(each)
        assert bucket.get(KEY) == body

    one.delete(KEY)
    drain(one)

    assert KEY not in bucket.list(MOUNT.prefix).keys
    assert superseded(one) == superseded(two) == []


def test_whoever_waits_for_what_was_superseded_waits_no_longer(
    one: MountNode, bucket: Bucket, clock: FakeClock
) -> None:
    version = one.put(KEY, b"v1")
    clock.advance(LONG)
    bucket.put(KEY, b"v2", digest=digest_of(b"v2"))
    drain(one)
    assert one.version(version) is None
    assert one.node.rows() == []


def test_our_own_late_put_is_recognised(one: MountNode, bucket: Bucket, clock: FakeClock) -> None:
    first = one.put(KEY, b"v1")
    drain(one)
    late = bucket.head(KEY)
    assert late is not None and Stamp.of(late).version == first
    one.delete(KEY)
    drain(one)
    one.put(KEY, b"v2", condition=KeyCondition(if_absent=True))
    bucket.put(KEY, b"v1", digest=digest_of(b"v1"), metadata=late.metadata)  # broken off before

    drain(one)

    assert bucket.get(KEY) == b"v2"
    assert one.unshown() == [] and incidents(one) == [] and superseded(one) == []


def test_a_directory_that_went_back_in_time_steps_aside(
    one: MountNode, bucket: Bucket, clock: FakeClock
) -> None:
    old = one.put(KEY, b"old")  # as it lies in the snapshot
    store_id = one.node.store.store_id
    stamp = Stamp(store_id, old + 40, None).as_metadata(KEY)
    bucket.put(KEY, b"new", digest=digest_of(b"new"), metadata=stamp)
    clock.advance(LONG)

    drain(one)

    assert bucket.get(KEY) == b"new"
    assert superseded(one) == [KEY]
    assert one.put(OTHER, b"later") > old + 40
    one.put(KEY, b"newest")  # after the roll-back
    drain(one)
    assert bucket.get(KEY) == b"newest"


def test_what_was_put_after_the_directory_went_back_counts(
    one: MountNode, bucket: Bucket, clock: FakeClock
) -> None:
    stamp = Stamp(one.node.store.store_id, 40, clock.now()).as_metadata(KEY)
    bucket.put(KEY, b"before", digest=digest_of(b"before"), metadata=stamp)
    clock.advance(LONG)
    one.put(KEY, b"after")

    drain(one)

    assert bucket.get(KEY) == b"after"
    assert one.put(OTHER, b"later") > 40


# --- deletions -----------------------------------------------------------------------------------


def test_a_put_from_before_a_deletion_by_another_node_is_not_written(
    one: MountNode, two: MountNode, bucket: Bucket, clock: FakeClock
) -> None:
    one.put(KEY, b"v1")
    one.put(OTHER, b"other")
    clock.advance(LONG)
    two.delete(KEY, "ckpt/more")
    drain(two)
    clock.advance(LONG)
    late = one.put("ckpt/more", b"put since")

    drain(one)

    assert bucket.head(KEY) is None
    assert bucket.get(OTHER) == b"other" and bucket.get("ckpt/more") == b"put since"
    assert superseded(one) == [KEY] and one.version(late) is not None


def test_a_young_put_is_asked_about_too_if_its_node_was_stopped_since(
    one: MountNode, two: MountNode, bucket: Bucket, clock: FakeClock
) -> None:
    one.put(KEY, b"v1")
    one.close()
    clock.advance(1.0)
    two.put(KEY, b"v2")
    two.delete(KEY)
    drain(two)
    clock.advance(1.0)
    started_again = MountNode(one.node, bucket, clock)

    drain(started_again)
    started_again.close()

    assert bucket.head(KEY) is None
    assert superseded(one) == [KEY]


def test_an_object_whose_key_is_deleted_while_its_parts_are_on_their_way_is_not_shown(
    one: MountNode, two: MountNode, bucket: Bucket, counting: Counting, clock: FakeClock
) -> None:
    pieces = [bytes(8), bytes(8)]

    def deleted_meanwhile() -> None:
        clock.advance(LONG)
        two.delete(KEY)
        drain(two)

    one.put(KEY, *pieces)
    counting.before["create_upload"] = deleted_meanwhile

    drain(one)

    assert counting.calls["upload_part"] == len(pieces)
    assert bucket.head(KEY) is None and not list(bucket.list_uploads(""))
    assert superseded(one) == [KEY]


def test_what_our_own_deletion_came_before_is_written(
    one: MountNode, bucket: Bucket, clock: FakeClock
) -> None:
    one.put(KEY, b"v1")
    one.delete(KEY)
    one.put(KEY, b"v2")
    clock.advance(LONG)

    drain(one)

    assert bucket.get(KEY) == b"v2"
    assert superseded(one) == []


def test_a_request_leaves_one_record_of_all_its_keys_before_the_first_goes(
    one: MountNode, bucket: Bucket
) -> None:
    keys = [f"ckpt/{number}" for number in range(5)]
    for key in keys:
        one.put(key, b"x")
    drain(one)
    first = one.delete(*keys)
    while bucket.head(keys[0]) is not None:
        assert one.drain.drain_one()
        if len(bucket.list("ckpt/").keys) < len(keys) + 1:
            assert len(bucket.records()) == 1

    drain(one)

    (record,) = bucket.records()
    assert record["store_id"] == one.node.store.store_id
    assert record["versions"] == {key: first + number for number, key in enumerate(keys)}
    assert bucket.list("ckpt/", None).keys == (*bucket.list(f"ckpt/{DELETED}").keys,)
    assert one.unshown() == []


def test_the_deletions_of_a_directory_that_went_back_are_not_undone(
    one: MountNode, bucket: Bucket, clock: FakeClock
) -> None:
    old = one.put(KEY, b"old")
    clock.advance(LONG)
    record = DeletionRecord(one.node.store.store_id, clock.now(), {KEY: old + 40})
    body = record.as_bytes()
    bucket.put(record.name(MOUNT.prefix), body, digest=digest_of(body))
    clock.advance(LONG)

    drain(one)

    assert bucket.head(KEY) is None
    assert superseded(one) == [KEY]


def forget_times(mount: MountNode) -> None:
    """Have nobody know when versions were acknowledged, as after a restart without S3."""

    def forget(sql: apsw.Connection) -> None:
        sql.execute("UPDATE objects SET acknowledged_at = NULL")

    mount.node.store.write(forget)


def test_of_a_put_without_a_time_our_own_clock_says_whether_it_was_deleted_since(
    one: MountNode, two: MountNode, bucket: Bucket, clock: FakeClock
) -> None:
    one.put(KEY, b"v1")
    clock.advance(LONG)
    two.delete(KEY, OTHER)
    drain(two)
    clock.advance(LONG)
    one.put(OTHER, b"put since")
    forget_times(one)
    clock.advance(LONG)

    drain(one)

    assert bucket.head(KEY) is None and bucket.get(OTHER) == b"put since"


def test_of_a_put_without_a_time_what_is_in_the_bucket_stays(
    one: MountNode, bucket: Bucket, clock: FakeClock
) -> None:
    bucket.put(KEY, b"theirs", digest=digest_of(b"theirs"))
    clock.advance(LONG)
    one.put(KEY, b"ours")
    forget_times(one)

    drain(one)

    assert bucket.get(KEY) == b"theirs" and superseded(one) == [KEY]


def test_old_records_are_removed_and_nobody_else_s_objects_are_read_as_one(
    one: MountNode, bucket: Bucket, clock: FakeClock
) -> None:
    rubbish = f"{MOUNT.prefix}{DELETED}999999999999-rubbish.json"
    bucket.put(rubbish, b"{", digest=digest_of(b"{"))
    one.delete(KEY)
    drain(one)
    assert len(bucket.list(f"{MOUNT.prefix}{DELETED}").keys) == 2
    clock.advance(RECORD_KEPT_SECONDS + LONG)
    one.put(OTHER, b"other")
    clock.advance(LONG)

    drain(one)

    assert bucket.list(f"{MOUNT.prefix}{DELETED}").keys == ()
    assert bucket.get(OTHER) == b"other"


def test_puts_that_go_at_once_ask_for_no_records_and_a_backlog_lists_them_once(
    one: MountNode, two: MountNode, counting: Counting, clock: FakeClock
) -> None:
    two.delete(*(f"ckpt/gone-{number}" for number in range(3)))
    drain(two)
    for number in range(50):
        one.put(f"ckpt/{number}", b"x")
        drain(one)
    assert counting.calls == {"put": 50, "head": 50}
    for number in range(50):
        one.put(f"ckpt/late-{number}", b"x")
    clock.advance(LONG)

    drain(one)

    assert counting.calls["put"] == counting.calls["head"] == 100
    assert counting.calls["list"] <= 2 and counting.calls["get"] <= 1


def test_a_role_that_may_not_list_holds_nothing_up(
    one: MountNode, bucket: Bucket, clock: FakeClock
) -> None:
    bucket.lists = False
    one.put(KEY, b"v1")
    clock.advance(LONG)
    one.delete(OTHER)

    drain(one)

    assert bucket.get(KEY) == b"v1" and len(one.unshown()) == 1  # a deletion is looked at twice


@pytest.mark.parametrize("since", ["a put", "a deletion"])
def test_what_goes_no_further_leaves_no_upload_behind(
    one: MountNode, two: MountNode, bucket: Bucket, clock: FakeClock, since: str
) -> None:
    first = one.put(OTHER, b"first")
    one.put(KEY, b"one", b"two")
    task = one.drain.next_task()
    assert task is not None and task.version == first
    assert one.drain.drain_one()  # sent ahead
    assert len(list(bucket.list_uploads(""))) == 1
    clock.advance(LONG)
    if since == "a put":
        two.put(KEY, b"v2")
    else:
        two.delete(KEY)
    drain(two)

    one.drain.perform(task)
    drain(one)

    assert superseded(one) == [KEY] and one.unshown() == []
    assert list(bucket.list_uploads("")) == []


# --- conflicts -----------------------------------------------------------------------------------


def test_a_key_that_the_bucket_refuses_though_nothing_is_there_is_a_conflict_of_its_own(
    one: MountNode, bucket: Bucket
) -> None:
    bucket.refused = {KEY}
    refused = one.put(KEY, b"v1")
    one.put(OTHER, b"other")

    drain(one)

    assert bucket.refusals >= 2 and bucket.get(OTHER) == b"other"
    found = one.version(refused)
    assert found is not None and found.state is ObjectState.CONFLICT
    (incident,) = one.node.store.read(notes.incidents_after, 0)
    assert "412" in incident.message and "cachetier s3 resolve" in incident.hint
    one.node.store.write(objects.keep_ours, refused, WHATEVER_IS_THERE)
    drain(one)
    assert bucket.get(KEY) == b"v1" and one.unshown() == []


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_deletion_does_not_wait_for_a_version_that_was_never_uploaded(
    one: MountNode, bucket: Bucket, when: str
) -> None:
    bucket.refused = {KEY}
    one.put(KEY, b"v1")
    if when == "after":
        drain(one)
    one.delete(KEY)

    drain(one)

    assert one.unshown() == [] and bucket.head(KEY) is None
    assert one.node.rows() == []
    assert one.node.store.read(objects.conflict_of, MOUNT.run, KEY) is None


def test_many_conflicts_do_not_hide_what_can_go(one: MountNode, bucket: Bucket) -> None:
    bucket.refused = {f"ckpt/{number}" for number in range(100)}
    for key in sorted(bucket.refused):
        one.put(key, b"x")
    one.put(OTHER, b"other")

    for _ in range(10):
        drain(one)

    assert bucket.get(OTHER) == b"other"
    assert len(one.unshown()) == 100


# --- damage --------------------------------------------------------------------------------------


def damage(mount: MountNode, version: int) -> None:
    (piece,) = mount.node.store.read(objects.pieces_of, version)

    def break_it(sql: apsw.Connection) -> None:
        sql.execute("UPDATE bodies SET body = x'00' WHERE version = ?", (piece.version,))

    mount.node.store.write(break_it)


def test_what_is_damaged_here_and_newer_in_the_bucket_is_let_go(
    one: MountNode, two: MountNode, bucket: Bucket, clock: FakeClock
) -> None:
    damage(one, one.put(KEY, b"v1"))
    clock.advance(LONG)
    two.put(KEY, b"v2")
    drain(two)

    drain(one)

    assert bucket.get(KEY) == b"v2" and one.unshown() == [] and superseded(one) == [KEY]


def test_what_is_damaged_here_and_in_the_bucket_already_is_let_go(
    one: MountNode, bucket: Bucket
) -> None:
    version = one.put(KEY, b"v1")
    drain(one)

    def go_back(sql: apsw.Connection) -> None:
        sql.execute("UPDATE objects SET state = 'dirty', remote_etag = NULL")
        sql.execute("UPDATE shards SET state = 'quarantined'")

    one.node.store.write(go_back)

    drain(one)

    assert bucket.get(KEY) == b"v1" and one.version(version) is None
    assert one.unshown() == []
