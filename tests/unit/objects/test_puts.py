"""Objects as the door puts them: what is kept, what is refused, and what that leaves: nothing."""

from __future__ import annotations

import hashlib
import os
import re
import threading
from collections.abc import Callable
from dataclasses import replace

import pytest
from cachetier_client.io.digests import to_hex

from cachetier.access.principals import Caller, Principal, Quota
from cachetier.access.quotas import Quotas
from cachetier.access.roles import Role
from cachetier.callers import working_for
from cachetier.errors import CachetierError, NotDurableError, SizeMismatchError
from cachetier.ingest.shares import Shares
from cachetier.local.catalog import objects
from cachetier.local.catalog.figures import held_by_run
from cachetier.local.catalog.objects import InBucket, KeyCondition
from cachetier.local.catalog.rows import IncidentRecord
from cachetier.local.identity import ObjectIdentity
from cachetier.model.levels import Level
from cachetier.model.objects import RECORD_BYTES, Head, Mode, Mount
from cachetier.objects.base import PutObject
from tests.stateful.invariants import judge_bytes
from tests.stateful.node import Node, content_of
from tests.unit.objects.conftest import MOUNT, Putting

LARGE = bytes(range(256)) * 400
HEAD = Head({"content-type": "text/plain"}, {"author": "ä"}, {"CRC32": "AAAAAA=="})


def code_of(call: Callable[[], object]) -> str:
    with pytest.raises(CachetierError) as refusal:
        call()
    return refusal.value.code


def assert_nothing_left(node: Node) -> None:
    assert node.store.space.used_bytes == 0
    assert list(node.store.files.all()) == []
    assert node.rows() == []


@pytest.mark.parametrize("data", [b"", b"small", LARGE])
def test_an_object_is_there_at_once_as_it_was_put(putting: Putting, data: bytes) -> None:
    answer = putting.put("some/key ü", data, HEAD)

    found = putting.current("some/key ü")
    assert found is not None
    assert (found.version, found.etag, found.head) == (answer.version, answer.etag, HEAD)
    assert putting.read("some/key ü") == data
    assert (answer.level, answer.order) == (Level.LOCAL, "node")
    judge_bytes(putting.node)


def test_an_etag_is_an_md5_only_where_it_is_one(putting: Putting) -> None:
    md5 = hashlib.md5(b"small").hexdigest()

    assert putting.put("a", b"small", md5=md5).etag == md5
    others = {putting.put("a", LARGE).etag for _ in range(2)}
    assert len(others) == 2
    digest = to_hex(content_of(LARGE).digest)
    assert all(re.fullmatch(digest + "[0-9a-f]{16}-1", etag) for etag in others)


def test_an_overwrite_keeps_both_until_the_first_is_shown(putting: Putting) -> None:
    first = putting.put("a", LARGE)
    second = putting.put("a", LARGE + b"!")
    assert putting.node.store.space.used_bytes == 2 * len(LARGE) + 1

    putting.show(first.version)

    assert putting.read("a") == LARGE + b"!"
    assert putting.node.store.space.used_bytes == len(LARGE) + 1
    found = putting.current("a")
    assert found is not None
    assert (found.version, found.base, found.follows) == (second.version, "remote", first.version)
    judge_bytes(putting.node)


def test_a_put_over_what_was_shown_takes_its_files_away(putting: Putting) -> None:
    putting.show(putting.put("a", LARGE).version)

    putting.put("a", b"small")

    assert list(putting.node.store.files.all()) == []
    judge_bytes(putting.node)


def test_keys_are_deleted_together_and_those_that_are_unknown_too(putting: Putting) -> None:
    putting.put("a", LARGE)

    first, second = putting.puts.delete(MOUNT, ["a", "b"])

    assert first.version < second.version
    assert [putting.read(key) for key in "ab"] == [None, None]
    assert putting.puts.delete(MOUNT, ["b"])[0].version > second.version


def test_a_deletion_whose_condition_does_not_hold_deletes_nothing(putting: Putting) -> None:
    etag, at = putting.put("a", LARGE).etag, putting.node.clock.now()
    wrong = (
        KeyCondition(if_match="other"),
        KeyCondition(if_size_bytes=1),
        KeyCondition(if_modified_at=at + 1),
        KeyCondition(if_match=etag, if_size_bytes=len(LARGE), if_modified_at=at - 1),
    )
    for condition in wrong:
        refusal = code_of(lambda c=condition: putting.puts.delete(MOUNT, ["a"], c))  # type: ignore[misc]
        assert refusal == "precondition_failed"
    assert putting.read("a") == LARGE

    putting.puts.delete(MOUNT, ["a"], KeyCondition(False, etag, len(LARGE), at))

    assert putting.read("a") is None
    assert code_of(lambda: putting.puts.delete(MOUNT, ["a"], KeyCondition(if_match="*"))) == (
        "no_such_key"
    )
    putting.puts.delete(
        MOUNT, ["a"], KeyCondition(if_size_bytes=1)
    )  # nothing there has another size
    assert putting.looks == 0


def test_a_condition_of_a_deletion_is_held_against_what_only_the_bucket_has(
    putting: Putting,
) -> None:
    putting.there["a"] = InBucket("etag", "remote-etag", 7, 100.5)
    for condition in (KeyCondition(if_match="x"), KeyCondition(if_size_bytes=8)):
        refusal = code_of(lambda c=condition: putting.puts.delete(MOUNT, ["a"], c))  # type: ignore[misc]
        assert refusal == "precondition_failed"
    assert putting.current("a") is None

    putting.puts.delete(MOUNT, ["a"], KeyCondition(False, "etag", 7, 100.0))

    found = putting.current("a")
    assert found is not None
    assert (found.deleted, found.conditional, found.base) == (True, True, "remote-etag")
    assert putting.looks == 3


def test_a_deletion_is_held_against_what_readers_see_in_a_conflict_too(putting: Putting) -> None:
    answer = putting.put("a", b"x")
    incident = IncidentRecord("conflict", "somebody wrote", "", MOUNT.run, 0, "a")
    putting.node.store.write(objects.record_conflict, answer.version, incident, 1.0)

    putting.puts.delete(MOUNT, ["a"], KeyCondition(if_match=answer.etag))

    assert putting.read("a") is None


@pytest.mark.parametrize("data", [b"new", LARGE])
def test_a_condition_that_does_not_hold_leaves_nothing(putting: Putting, data: bytes) -> None:
    putting.there["a"] = InBucket("etag", "remote-etag")

    assert code_of(lambda: putting.put("a", data, if_absent=True)) == "precondition_failed"
    assert code_of(lambda: putting.put("b", data, if_match="etag")) == "no_such_key"
    assert putting.looks == 2
    assert_nothing_left(putting.node)

    putting.put("a", data, if_match="etag")
    assert putting.read("a") == data
    assert code_of(lambda: putting.put("a", data, if_absent=True)) == "precondition_failed"
    assert putting.looks == 3  # what is here is newer than the bucket


def test_a_put_without_a_condition_asks_nobody(putting: Putting) -> None:
    putting.put("a", b"x")
    assert putting.looks == 0


@pytest.mark.parametrize(
    "key", ["", "other/a", "in/.cachetier/order/x", "in/" + "x" * 1022, "in/" + "ü" * 511]
)
def test_what_is_no_key_of_the_mount_is_refused(node: Node, key: str) -> None:
    putting = Putting(node, Mount("data", "bucket", "in/"))

    for data in (b"x", LARGE):
        assert code_of(lambda data=data: putting.put(key, data)) == "invalid_request"  # type: ignore[misc]
    assert code_of(lambda: putting.puts.delete(putting.mount, [key])) == "invalid_request"
    assert_nothing_left(node)


def test_a_read_only_mount_takes_nothing(node: Node) -> None:
    putting = Putting(node, replace(MOUNT, mode=Mode.READ_ONLY))

    assert code_of(lambda: putting.put("a", b"x")) == "read_only"
    assert code_of(lambda: putting.put("a", LARGE)) == "read_only"
    assert code_of(lambda: putting.puts.delete(putting.mount, ["a"])) == "read_only"
    assert_nothing_left(node)


def test_bytes_that_are_not_what_was_declared_are_not_kept(putting: Putting) -> None:
    staged = putting.staged(LARGE)
    put = PutObject("a", HEAD, 0)

    short = content_of(LARGE[:-1])
    with pytest.raises(SizeMismatchError):
        putting.puts.commit(MOUNT, put, content=short, bytes_of=staged)
    putting.intake.abort(putting.staged(LARGE))
    assert_nothing_left(putting.node)


@pytest.mark.parametrize("data", [b"x" * 60_000, LARGE])
def test_a_put_without_room_is_refused_and_leaves_nothing(putting: Putting, data: bytes) -> None:
    space = putting.node.store.space
    space.account(space.capacity_bytes - 10)

    assert code_of(lambda: putting.put("a", data)) == "backpressure"

    space.release(space.capacity_bytes - 10)
    assert_nothing_left(putting.node)


def test_a_mount_counts_for_the_shares_of_those_who_see_its_name(putting: Putting) -> None:
    store = putting.node.store
    quota = Quota(size_bytes=len(LARGE) + 100)
    tenant = Principal("tenant", Role.WRITE, runs=("da*",), quota=quota)
    quotas = Quotas([tenant], lambda: store.look(held_by_run), lambda: 0.0)
    putting.intake._shares = Shares(quotas, waits=False, ring=lambda: None)

    with working_for(None, Caller(tenant)):
        putting.put("a", LARGE)
        assert code_of(lambda: putting.put("b", LARGE)) == "backpressure"
        putting.put("b", b"x" * 100)
        assert code_of(lambda: putting.put("c", b"x")) == "backpressure"
    (described,) = quotas.described("tenant")
    assert described["size_bytes"]["used"] == len(LARGE) + 100


def test_deletions_that_wait_and_open_uploads_count_in_a_share(putting: Putting) -> None:
    store = putting.node.store
    tenant = Principal("tenant", Role.WRITE, runs=("data",), quota=Quota(shards=4))
    bytes_alone = Principal("other", Role.WRITE, runs=("data",), quota=Quota(size_bytes=100_000))
    quotas = Quotas([tenant, bytes_alone], lambda: store.look(held_by_run), lambda: 0.0)
    shares = Shares(quotas, waits=True, ring=lambda: None)
    putting.intake._shares = shares

    first, *_ = putting.puts.delete(MOUNT, ["a", "b", "c"])
    upload_id = putting.uploads.create_upload(MOUNT, "u", HEAD, "tenant")
    for more in (
        lambda: putting.puts.delete(MOUNT, ["d"]),
        lambda: putting.uploads.create_upload(MOUNT, "v", HEAD, "tenant"),
    ):
        assert code_of(more) == "backpressure"
    for described in quotas.described():
        assert described["shards"]["used"] == 4
        assert described["size_bytes"]["used"] == 4 * RECORD_BYTES + len(HEAD.as_text())

    putting.show(first.version, "")
    putting.uploads.abort_upload(MOUNT, "u", upload_id)
    quotas.changed()
    putting.puts.delete(MOUNT, ["d", "e"])
    assert code_of(lambda: putting.puts.delete(MOUNT, ["f"])) == "backpressure"


def test_small_objects_that_come_together_are_all_kept(putting: Putting) -> None:
    keys = [f"k{number}" for number in range(8)]
    together = threading.Barrier(len(keys))

    def put(key: str) -> None:
        together.wait()
        putting.put(key, key.encode())

    threads = [threading.Thread(target=put, args=(key,)) for key in keys]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert [putting.read(key) for key in keys] == [key.encode() for key in keys]


def identity_of(node: Node) -> ObjectIdentity:
    (file_id,) = dict(node.store.files.all())
    identity = ObjectIdentity.parsed(node.store.files.identity(file_id))
    assert identity is not None
    return identity


def test_a_file_says_which_object_it_is(putting: Putting) -> None:
    answer = putting.put("key ü", LARGE, HEAD)

    found = identity_of(putting.node)
    assert (found.run, found.key, found.store_id) == ("s3:data", "key ü", found.store_id)
    assert (found.etag, found.pieces, found.part, found.head) == (answer.etag, 1, 0, HEAD)
    content = content_of(LARGE)
    assert (found.size_bytes, found.digest) == (content.size_bytes, content.digest)


def test_a_head_that_no_attribute_holds_is_left_out_of_the_file(putting: Putting) -> None:
    head = Head({}, {"long": os.urandom(3_000).hex()})

    putting.put("k" * 1024, LARGE, head)

    assert identity_of(putting.node).head is None
    found = putting.current("k" * 1024)
    assert found is not None
    assert found.head == head


@pytest.mark.parametrize("data", [b"x", LARGE])
def test_a_wait_ends_once_the_bucket_shows_the_version(putting: Putting, data: bytes) -> None:
    answer = putting.put("a", data)
    putting.puts.wait(MOUNT, answer.version, Level.LOCAL, 0.0)
    with pytest.raises(NotDurableError, match="not within 0 s"):
        putting.puts.wait(MOUNT, answer.version, Level.DURABLE, 0.0)

    shown = threading.Thread(target=putting.show, args=(answer.version,))
    shown.start()
    putting.puts.wait(MOUNT, answer.version, Level.DURABLE, 60.0)
    shown.join()


def test_a_wait_for_a_deletion_ends_though_nothing_is_left_of_it(putting: Putting) -> None:
    (answer,) = putting.puts.delete(MOUNT, ["a"])
    putting.show(answer.version, "")

    putting.puts.wait(MOUNT, answer.version, Level.DURABLE, 0.0)


def test_a_wait_for_what_is_in_conflict_ends_at_once(putting: Putting) -> None:
    answer = putting.put("a", b"x")
    incident = IncidentRecord("conflict", "somebody wrote", "", MOUNT.run, 0, "a")
    putting.node.store.write(objects.record_conflict, answer.version, incident, 1.0)

    with pytest.raises(NotDurableError, match="a is in conflict"):
        putting.puts.wait(MOUNT, answer.version, Level.DURABLE, 60.0)


@pytest.mark.parametrize("text", [b"", b"{}", b"[]", b'{"object": 1}', b"\xff"])
def test_what_is_no_identity_of_an_object_is_none(text: bytes) -> None:
    assert ObjectIdentity.parsed(text) is None
