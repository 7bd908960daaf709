"""Versions of keys in the catalog: what replaces what, and what stays until it was shown."""

from __future__ import annotations

import pytest
from cachetier_client.io.digests import digest_of

from cachetier.errors import CatalogDamagedError, ConditionError, NoSuchKeyError
from cachetier.local.catalog import objects
from cachetier.local.catalog.objects import (
    NEVER_THERE,
    UNCONDITIONAL,
    CommittedObject,
    InBucket,
    KeyCondition,
    NewObject,
    NewPiece,
)
from cachetier.local.catalog.rows import IncidentRecord
from cachetier.local.store import Store
from cachetier.model.lifecycle import ObjectState, ShardState
from cachetier.model.objects import (
    Head,
    ObjectVersion,
    may_show,
    piece_name,
    placed_piece,
    upload_piece_name,
)
from cachetier.model.shard import Shard
from tests.stateful.node import content_of

RUN = "s3:data"
HEAD = Head({"content-type": "text/plain"}, {"author": "somebody"}, {"CRC32": "AAAAAA=="})


def put(
    store: Store, key: str, body: bytes = b"body", condition: KeyCondition = UNCONDITIONAL
) -> CommittedObject:
    content = content_of(body)
    follows = store.read(objects.watermark)
    new = NewObject(key, HEAD, follows, f"etag-{body!r}", len(body), content.digest)
    piece = NewPiece(content, body=body)
    assert store.space.try_reserve(len(body))
    committed = store.commit_body(
        len(body),
        lambda sql, now: objects.commit_object(sql, RUN, new, piece, condition, now),
    )()
    assert isinstance(committed, CommittedObject)
    return committed


def delete(store: Store, *keys: str) -> list[CommittedObject]:
    gone = [NewObject(key, Head(), 0, "", 0, 0, deleted=True) for key in keys]
    deleted = store.write(objects.delete_keys, RUN, gone, 1.0)
    store.drop(deleted.replaced)
    return list(deleted.versions)


def show(store: Store, version: int, etag: str) -> list[Shard]:
    dropped = store.write(objects.record_shown, version, etag, "durable", 1.0)
    store.drop(dropped)
    return dropped


def current(store: Store, key: str) -> ObjectVersion:
    found = store.read(objects.current, RUN, key)
    assert found is not None
    return found


def versions(store: Store) -> list[int]:
    save = store.read(objects.mount_saves)[RUN]
    return store.read(objects.unshown_versions, save)


def test_an_object_reads_back_as_it_was_put(store: Store) -> None:
    version = put(store, "a/b", b"four").version

    found = current(store, "a/b")
    (piece,) = store.read(objects.pieces_of, version)

    assert (found.version, found.run, found.head, found.state) == (
        *(version, RUN, HEAD),
        ObjectState.DIRTY,
    )
    assert (found.size_bytes, found.digest) == (4, digest_of(b"four"))
    assert (piece.content, piece.state, piece.inline) == (
        *(content_of(b"four"), ShardState.DIRTY),
        True,
    )
    assert store.space.used_bytes == 4


def test_what_the_bucket_has_not_shown_stays_when_it_is_overwritten(store: Store) -> None:
    first, second = put(store, "a", b"1"), put(store, "a", b"22")

    assert second.replaced == ()
    assert versions(store) == [first.version, second.version]
    assert current(store, "a").version == second.version
    assert store.space.used_bytes == 3


def test_what_the_bucket_has_shown_goes_once_something_newer_is_committed(store: Store) -> None:
    first = put(store, "a", b"1")
    show(store, first.version, "remote-1")

    second = put(store, "a", b"22")

    assert [piece.content.size_bytes for piece in second.replaced] == [1]
    assert store.read(objects.by_version, first.version) is None
    assert current(store, "a").base == "remote-1"
    assert store.space.used_bytes == 2


def test_an_overwritten_version_goes_as_soon_as_it_is_shown_and_hands_on_its_etag(
    store: Store,
) -> None:
    first, second = put(store, "a", b"1"), put(store, "a", b"22")
    assert current(store, "a").base is None

    dropped = show(store, first.version, "remote-1")

    assert [piece.content.size_bytes for piece in dropped] == [1]
    assert current(store, "a").base == "remote-1"
    assert versions(store) == [second.version]
    assert store.read(objects.is_shown, first.version)
    assert not store.read(objects.is_shown, second.version)


def test_a_shown_version_is_clean_and_at_the_remote(store: Store) -> None:
    version = put(store, "a").version

    assert show(store, version, "remote") == []

    (piece,) = store.read(objects.pieces_of, version)
    assert piece.state is ShardState.CLEAN
    assert current(store, "a").remote_etag == "remote"
    assert show(store, version, "again") == []
    assert current(store, "a").remote_etag == "remote"


def test_a_deletion_is_a_version_of_a_key_that_is_not_known_here(store: Store) -> None:
    (deleted,) = delete(store, "unknown")

    found = current(store, "unknown")
    assert (found.version, found.deleted, found.pieces) == (deleted.version, True, 0)
    assert versions(store) == [deleted.version]

    show(store, deleted.version, "")
    assert store.read(objects.current, RUN, "unknown") is None


def test_deletions_follow_all_that_was_committed_and_are_all_made(store: Store) -> None:
    """Somebody else may have put the key since the first one, which waits still."""
    first = put(store, "a").version

    deleted = delete(store, "a", "b")
    assert [current(store, key).follows for key in "ab"] == [first, first]

    again = delete(store, "b", "a")
    numbers = [each.version for each in (*deleted, *again)]
    assert [current(store, key).version for key in "ba"] == numbers[2:]
    assert versions(store) == [first, *numbers]
    assert put(store, "a").version > numbers[-1]
    assert not current(store, "a").deleted


def test_a_version_is_shown_after_those_that_it_may_speak_of(store: Store) -> None:
    first, second = put(store, "a").version, put(store, "latest").version

    follows = current(store, "latest").follows
    assert not may_show(follows, versions(store))
    show(store, first, "remote")
    assert may_show(follows, versions(store))
    assert versions(store) == [second]


@pytest.mark.parametrize(
    ("condition", "holds"),
    [
        (KeyCondition(if_absent=True), False),
        (KeyCondition(if_match="etag-b'1'"), True),
        (KeyCondition(if_match="*"), True),
        (KeyCondition(if_match="other"), False),
        # What this node knows of a key is newer than any look into the bucket.
        (KeyCondition(if_absent=True, looked=InBucket()), False),
    ],
)
def test_a_condition_is_held_against_the_newest_version(
    store: Store, condition: KeyCondition, holds: bool
) -> None:
    put(store, "a", b"1")

    if holds:
        put(store, "a", b"2", condition)
    else:
        with pytest.raises(ConditionError):
            put(store, "a", b"2", condition)

    assert len(versions(store)) == 1 + holds
    assert store.space.used_bytes == 1 + holds


def test_a_deleted_key_is_absent_to_conditions(store: Store) -> None:
    put(store, "a")
    delete(store, "a")

    with pytest.raises(NoSuchKeyError):
        put(store, "a", b"2", KeyCondition(if_match="*"))
    put(store, "a", b"2", KeyCondition(if_absent=True))


def test_of_a_key_that_is_not_known_here_the_look_into_the_bucket_counts(store: Store) -> None:
    there = InBucket("etag", "remote-etag")

    with pytest.raises(ConditionError):
        put(store, "a", b"2", KeyCondition(if_absent=True, looked=there))
    with pytest.raises(NoSuchKeyError):
        put(store, "b", b"2", KeyCondition(if_match="etag", looked=InBucket()))
    put(store, "a", b"2", KeyCondition(if_match="etag", looked=there))
    put(store, "b", b"2", KeyCondition(if_absent=True, looked=InBucket()))

    assert current(store, "a").base == "remote-etag"
    assert current(store, "b").base == ""


@pytest.mark.parametrize(
    ("condition", "base"), [(KeyCondition(if_match="*"), NEVER_THERE), (UNCONDITIONAL, None)]
)
def test_a_put_on_condition_of_what_never_was_shown_meets_nothing_in_the_bucket(
    store: Store, condition: KeyCondition, base: str | None
) -> None:
    first = put(store, "a", b"1").version
    put(store, "a", b"22", condition)

    gone = store.write(objects.record_superseded, first, "another node's is newer", 1.0)
    store.drop(gone)

    assert current(store, "a").base == base


def test_a_page_has_the_newest_version_of_each_key_that_waits_in_the_order_of_bytes(
    store: Store,
) -> None:
    keys = ["b", "a/2", "a/\U0001f600", "a/1", "a/\uffee", "a", "a0"]
    for key in keys:
        put(store, key)
    put(store, "a/1", b"newer")
    delete(store, "a/2")

    def listed(prefix: str, after: str = "", limit: int = 100) -> list[str]:
        return [each.key for each in store.read(objects.unshown_page, RUN, prefix, after, limit)]

    everything = sorted(keys, key=str.encode)
    assert listed("") == everything
    assert listed("", limit=2) == everything[:2]
    assert listed("a/") == ["a/1", "a/2", "a/\uffee", "a/\U0001f600"]
    assert listed("a/", after="a/2", limit=1) == ["a/\uffee"]
    assert listed("c") == []
    page = store.read(objects.unshown_page, RUN, "a/", "", 2)
    assert [(each.etag, each.deleted) for each in page] == [("etag-b'newer'", False), ("", True)]


@pytest.mark.parametrize("prefix", ["", "\U0010ffff", "a\U0010ffff", "\ud7ff"])
def test_a_prefix_may_end_with_the_last_code_point(store: Store, prefix: str) -> None:
    for key in (
        "a",
        "a\U0010ffff",
        "a\U0010ffffz",
        "b",
        "\U0010ffff\U0010ffff",
        "\ud7ff1",
        "\ue000",
    ):
        put(store, key)

    found = [each.key for each in store.read(objects.unshown_page, RUN, prefix, "", 100)]

    every = [each.key for each in store.read(objects.unshown_page, RUN, "", "", 100)]
    assert found == [key for key in every if key.startswith(prefix)]
    assert found


def test_a_conflict_stays_unshown_and_is_told_once(store: Store) -> None:
    version = put(store, "a").version
    incident = IncidentRecord("conflict", "somebody else wrote a", "", RUN, 0, "a")

    for _ in range(2):
        store.write(objects.record_conflict, version, incident, 1.0)

    assert current(store, "a").state is ObjectState.CONFLICT
    assert versions(store) == [version]
    told = store.read(lambda sql: sql.execute("SELECT count(*) FROM incidents").get)
    assert told == 1


@pytest.mark.parametrize(
    "change",
    [
        "size_bytes = 5",
        "etag = 'other'",
        "key = 'b'",
        "head = '{}'",
        "deleted = 1",
        "follows = 9",
        "part_sizes = '1,3'",
    ],
)
def test_a_row_that_is_not_what_was_written_is_not_believed(store: Store, change: str) -> None:
    version = put(store, "a").version
    store.write(lambda sql: sql.execute(f"UPDATE objects SET {change}").fetchall())

    with pytest.raises(CatalogDamagedError):
        store.read(objects.by_version, version)


def test_every_mount_has_versions_of_its_own(store: Store) -> None:
    put(store, "a")
    other = NewObject("a", Head(), 0, "other", 0, 0)
    piece = NewPiece(content_of(b""), body=b"")
    store.write(objects.commit_object, "s3:other", other, piece, UNCONDITIONAL, 1.0)

    assert current(store, "a").etag == "etag-b'body'"
    assert [each.etag for each in store.read(objects.unshown_page, "s3:other", "", "", 9)] == [
        "other"
    ]
    assert sorted(store.read(objects.mount_saves)) == [RUN, "s3:other"]


@pytest.mark.parametrize("version", [1, 16, 255, 2**40])
def test_the_name_of_a_piece_says_of_which_version_it_is(version: int) -> None:
    assert placed_piece(piece_name(version, 12)) == (version, 12)
    assert placed_piece(upload_piece_name("a1", 12)) is None
