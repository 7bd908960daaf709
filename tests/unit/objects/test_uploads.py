"""Uploads in parts: which parts count, what completing makes of them, and what goes."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from cachetier_client.io.digests import joined, to_hex

from cachetier.errors import CachetierError
from cachetier.local.catalog import objects
from cachetier.local.identity import ObjectIdentity
from cachetier.model.objects import NO_HEAD, UPLOAD_EXPIRES_SECONDS, Head
from cachetier.objects.base import DeclaredPart, PutObject, StoredPart
from tests.fakes.fake_clock import FakeClock
from tests.stateful.invariants import judge_bytes
from tests.stateful.node import Node, content_of
from tests.unit.objects.conftest import MINIMUM_PART_BYTES, MOUNT, Putting

LARGE, OTHER, SMALL = b"a" * 100_000, b"b" * 100_001, b"c" * MINIMUM_PART_BYTES
HEAD = Head({"content-type": "text/plain"})


@pytest.fixture
def upload_id(putting: Putting) -> str:
    return putting.uploads.create_upload(MOUNT, "key", HEAD, "somebody")


def code_of(call: Callable[[], object]) -> str:
    with pytest.raises(CachetierError) as refusal:
        call()
    return refusal.value.code


def test_parts_in_any_order_become_an_object_without_being_touched(
    putting: Putting, upload_id: str
) -> None:
    third = putting.part("key", upload_id, 9, b"end")
    first = putting.part("key", upload_id, 2, LARGE)
    second = putting.part("key", upload_id, 5, SMALL)
    files = dict(putting.node.store.files.all())

    answer = putting.complete("key", upload_id, [first, second, third])

    assert putting.read("key") == LARGE + SMALL + b"end"
    assert dict(putting.node.store.files.all()) == files
    found = putting.current("key")
    assert found is not None
    assert (found.part_sizes, found.head, found.version) == (
        *((len(LARGE), len(SMALL), 3), HEAD),
        answer.version,
    )
    whole = joined((content_of(b).digest, len(b)) for b in (LARGE, SMALL, b"end"))
    assert found.digest == whole
    assert answer.etag.startswith(to_hex(whole))
    assert answer.etag.endswith("-3")
    judge_bytes(putting.node)


def test_a_part_that_is_put_again_replaces_the_first(putting: Putting, upload_id: str) -> None:
    before = putting.part("key", upload_id, 1, LARGE)
    after = putting.part("key", upload_id, 1, OTHER)

    assert code_of(lambda: putting.complete("key", upload_id, [before])) == "invalid_part"
    putting.complete("key", upload_id, [after])

    assert putting.read("key") == OTHER
    judge_bytes(putting.node)


def test_the_same_part_put_twice_completes_by_the_answer_to_either(
    putting: Putting, upload_id: str
) -> None:
    first = putting.part("key", upload_id, 1, LARGE)
    again = putting.part("key", upload_id, 1, LARGE)

    assert first.etag == again.etag
    putting.complete("key", upload_id, [first])

    assert putting.read("key") == LARGE


def test_parts_that_are_not_listed_go(putting: Putting, upload_id: str) -> None:
    parts = [putting.part("key", upload_id, number, LARGE) for number in (1, 2, 3)]

    putting.complete("key", upload_id, [parts[0], parts[2]])

    assert putting.read("key") == LARGE * 2
    assert putting.node.store.space.used_bytes == 2 * len(LARGE)
    judge_bytes(putting.node)


def test_an_upload_that_is_not_complete_is_listed_and_seen_by_nobody(
    putting: Putting, upload_id: str
) -> None:
    part = putting.part("key", upload_id, 1, LARGE)
    other = putting.uploads.create_upload(MOUNT, "a", HEAD, "somebody")

    assert putting.read("key") is None
    upload, parts = putting.uploads.parts(MOUNT, "key", upload_id)
    assert (upload.key, upload.owner, upload.head, parts) == ("key", "somebody", HEAD, [part])
    listed = putting.uploads.uploads(MOUNT, "")
    assert [each.upload_id for each in listed] == [other, upload_id]
    assert [each.key for each in putting.uploads.uploads(MOUNT, "k")] == ["key"]


def test_a_completion_that_was_not_heard_is_answered_again(
    putting: Putting, upload_id: str
) -> None:
    part = putting.part("key", upload_id, 1, LARGE)
    answer = putting.complete("key", upload_id, [part])
    putting.put("key", b"newer")
    putting.show(answer.version)

    assert putting.complete("key", upload_id, [part]) == answer

    assert putting.read("key") == b"newer"
    other = StoredPart(1, 1, "other", 0.0)
    assert code_of(lambda: putting.complete("key", upload_id, [other])) == "no_such_upload"
    assert code_of(lambda: putting.part("key", upload_id, 1, LARGE)) == "no_such_upload"
    assert code_of(lambda: putting.uploads.parts(MOUNT, "key", upload_id)) == "no_such_upload"
    assert putting.uploads.uploads(MOUNT, "") == []


def test_a_completion_that_lists_what_is_not_there_changes_nothing(
    putting: Putting, upload_id: str
) -> None:
    first = putting.part("key", upload_id, 1, LARGE)
    small = putting.part("key", upload_id, 2, SMALL[:-1])
    last = putting.part("key", upload_id, 3, LARGE)
    lists = {
        "entity_too_small": [first, small, last],
        "invalid_part_order": [last, first],
        "invalid_part": [StoredPart(4, 1, first.etag, 0.0)],
    }

    for code, listed in lists.items():
        assert code_of(lambda listed=listed: putting.complete("key", upload_id, listed)) == code  # type: ignore[misc]
    assert code_of(lambda: putting.complete("key", upload_id, [])) == "invalid_part"
    assert code_of(lambda: putting.complete("key", upload_id, [first, first])) == (
        "invalid_part_order"
    )
    assert putting.current("key") is None

    putting.complete("key", upload_id, [first, small])
    assert putting.read("key") == LARGE + SMALL[:-1]


def test_a_completion_that_declares_another_checksum_is_refused(
    putting: Putting, upload_id: str
) -> None:
    part = putting.uploads.commit_part(
        MOUNT,
        "key",
        upload_id,
        1,
        content=content_of(b"x"),
        bytes_of=b"x",
        checksums={"CRC32": "x"},
    )
    put = PutObject("key", NO_HEAD, 0)

    def complete(crc: str) -> object:
        declared = DeclaredPart(1, part.etag, {"CRC32": crc})
        return putting.uploads.complete_upload(MOUNT, put, upload_id, [declared])

    assert code_of(lambda: complete("y")) == "invalid_part"
    complete("x")


@pytest.mark.parametrize("number", [0, 10_001])
@pytest.mark.parametrize("data", [b"x", LARGE])
def test_numbers_that_no_part_has_are_refused(
    putting: Putting, upload_id: str, number: int, data: bytes
) -> None:
    assert code_of(lambda: putting.part("key", upload_id, number, data)) == "invalid_part"
    assert putting.node.store.space.used_bytes == 0


@pytest.mark.parametrize("data", [b"x", LARGE])
def test_an_upload_is_that_of_one_key(putting: Putting, upload_id: str, data: bytes) -> None:
    assert code_of(lambda: putting.part("other", upload_id, 1, data)) == "no_such_upload"
    assert code_of(lambda: putting.part("key", "0" * 32, 1, data)) == "no_such_upload"
    abort = putting.uploads.abort_upload
    assert code_of(lambda: abort(MOUNT, "other", upload_id)) == "no_such_upload"
    assert putting.node.store.space.used_bytes == 0
    assert list(putting.node.store.files.all()) == []


def test_an_aborted_upload_leaves_nothing(putting: Putting, upload_id: str) -> None:
    part = putting.part("key", upload_id, 1, LARGE)
    putting.part("key", upload_id, 2, b"x")

    putting.uploads.abort_upload(MOUNT, "key", upload_id)

    assert putting.node.rows() == []
    assert putting.node.store.space.used_bytes == 0
    assert code_of(lambda: putting.complete("key", upload_id, [part])) == "no_such_upload"
    judge_bytes(putting.node)


def test_uploads_that_nobody_goes_on_with_expire(
    putting: Putting, upload_id: str, clock: FakeClock
) -> None:
    putting.part("key", upload_id, 1, LARGE)
    done = putting.uploads.create_upload(MOUNT, "done", HEAD, "somebody")
    putting.complete("done", done, [putting.part("done", done, 1, b"x")])
    clock.advance(UPLOAD_EXPIRES_SECONDS - 1)
    other = putting.uploads.create_upload(MOUNT, "other", HEAD, "somebody")
    late = putting.part("other", other, 1, b"x")
    assert putting.uploads.expire() == 0

    clock.advance(2)

    assert putting.uploads.expire() == 2
    assert [each.upload_id for each in putting.uploads.uploads(MOUNT, "")] == [other]
    assert putting.read("done") == b"x"
    clock.advance(UPLOAD_EXPIRES_SECONDS - 3)
    assert putting.uploads.expire() == 0  # it had a part since
    putting.complete("other", other, [late])
    judge_bytes(putting.node)


def test_the_first_piece_says_what_object_it_begins(putting: Putting, upload_id: str) -> None:
    parts = [putting.part("key", upload_id, number, LARGE) for number in (3, 4)]
    files = putting.node.store.files

    def told() -> list[ObjectIdentity | None]:
        return [
            ObjectIdentity.parsed(files.identity(shard.file_id or ""))
            for shard in putting.node.rows()
        ]

    before = told()
    assert [each and (each.upload_id, each.part, each.pieces) for each in before] == [
        (upload_id, 3, 0),
        (upload_id, 4, 0),
    ]

    answer = putting.complete("key", upload_id, parts)

    first, second = told()
    assert first is not None
    assert (first.upload_id, first.part, first.pieces) == (upload_id, 3, 2)
    assert (first.etag, first.head, first.key) == (answer.etag, HEAD, "key")
    assert second == before[1]


def test_pieces_are_found_after_a_restart_of_the_names(putting: Putting, upload_id: str) -> None:
    """Completing renames rows: their digests have to go with their names."""
    parts = [putting.part("key", upload_id, number, b"x" * 200) for number in range(1, 21)]
    answer = putting.complete("key", upload_id, parts)

    pieces = putting.node.store.read(objects.pieces_of, answer.version)

    assert [piece.name.rpartition("/")[2] for piece in pieces] == [
        f"{number:05d}" for number in range(1, 21)
    ]


def test_a_condition_counts_when_an_upload_is_completed(putting: Putting, upload_id: str) -> None:
    part = putting.part("key", upload_id, 1, LARGE)
    putting.put("key", b"there")
    put = PutObject("key", NO_HEAD, 0, if_absent=True)
    listed = [DeclaredPart(part.number, part.etag)]

    def complete() -> object:
        return putting.uploads.complete_upload(MOUNT, put, upload_id, listed)

    assert code_of(complete) == "precondition_failed"
    assert putting.read("key") == b"there"

    putting.puts.delete(MOUNT, ["key"])
    complete()
    assert putting.read("key") == LARGE
    judge_bytes(putting.node)


def test_a_damaged_part_is_not_made_an_object(node: Node, putting: Putting, upload_id: str) -> None:
    part = putting.part("key", upload_id, 1, LARGE)
    node.store.write(lambda sql: sql.execute("UPDATE shards SET state = 'quarantined'").fetchall())

    assert code_of(lambda: putting.complete("key", upload_id, [part])) == "invalid_part"
