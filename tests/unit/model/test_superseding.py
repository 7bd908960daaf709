"""Which of two writers of a key is newer: the whole table."""

from __future__ import annotations

from itertools import product

import pytest
from cachetier_client.bucket_format.uploads import (
    ACKNOWLEDGED_KEY,
    STORE_KEY,
    VERSION_KEY,
    ObjectInfo,
)

from cachetier.model.superseding import (
    MARGIN_SECONDS,
    DeletionRecord,
    Stamp,
    Verdict,
    is_deleted,
    judge,
    records_behind,
)

AT = 1_700_000_000.0
KEY = "ckpt/latest"
OURS = Stamp("one", 7, AT)
TIMES = {
    "unknown": None,
    "long before": AT - 60.0,
    "just before": AT - MARGIN_SECONDS + 0.1,
    "at once": AT,
    "just after": AT + MARGIN_SECONDS - 0.1,
    "long after": AT + 60.0,
}
WRITERS = {
    "foreign": (None, 0),
    "another node, lower": ("two", 3),
    "another node, higher": ("two", 30),
    "ourselves, lower": ("one", 6),
    "ourselves, the same": ("one", 7),
    "ourselves, higher": ("one", 8),
}


@pytest.mark.parametrize(("writer", "time"), [*product(WRITERS, TIMES)])
def test_what_is_known_to_be_replaced_is_older_whoever_wrote_it_and_when(
    writer: str, time: str
) -> None:
    there = Stamp(*WRITERS[writer], TIMES[time])
    for ours, conditional in product((OURS, Stamp("one", 7)), (False, True)):
        assert judge(ours, there, replaces=True, conditional=conditional) is Verdict.NEWER


@pytest.mark.parametrize(("writer", "time"), [*product(WRITERS, TIMES)])
def test_else_our_own_older_one_is_older_and_then_the_time_decides(writer: str, time: str) -> None:
    there = Stamp(*WRITERS[writer], TIMES[time])
    newer = writer == "ourselves, lower" or time == "long before"
    expected = Verdict.NEWER if newer else Verdict.SUPERSEDED
    assert judge(OURS, there, replaces=False) is expected
    untimed = Verdict.NEWER if writer == "ourselves, lower" else Verdict.SUPERSEDED
    assert judge(Stamp("one", 7), there, replaces=False) is untimed


@pytest.mark.parametrize(("writer", "time"), [*product(WRITERS, TIMES)])
def test_a_conditional_put_replaces_only_what_it_was_put_over_or_our_own_late_write(
    writer: str, time: str
) -> None:
    there = Stamp(*WRITERS[writer], TIMES[time])
    expected = Verdict.NEWER if writer == "ourselves, lower" else Verdict.CONFLICT
    assert judge(OURS, there, replaces=False, conditional=True) is expected


@pytest.mark.parametrize(("writer", "time"), [*product(WRITERS, TIMES)])
def test_a_put_that_comes_at_once_replaces_whatever_was_acknowledged_before_it(
    writer: str, time: str
) -> None:
    there = Stamp(*WRITERS[writer], TIMES[time])
    newer = writer == "ourselves, lower" or time in ("long before", "just before", "at once")
    expected = Verdict.NEWER if newer else Verdict.SUPERSEDED
    assert judge(OURS, there, replaces=False, margin_seconds=0.0) is expected


@pytest.mark.parametrize("seconds", [-60.0, -1.0, 1.0, 60.0])
def test_of_two_plain_puts_at_most_one_thinks_that_it_is_newer(seconds: float) -> None:
    theirs = Stamp("two", 3, AT + seconds)
    verdicts = judge(OURS, theirs, replaces=False), judge(theirs, OURS, replaces=False)
    assert verdicts.count(Verdict.NEWER) == (abs(seconds) >= MARGIN_SECONDS)


def test_the_margin_itself_is_enough() -> None:
    assert judge(OURS, Stamp("two", 3, AT - MARGIN_SECONDS), replaces=False) is Verdict.NEWER


@pytest.mark.parametrize(
    ("deletion", "expected"),
    [
        (Stamp("two", 3, AT + 0.1), True),
        (Stamp("two", 30, AT - 0.1), False),
        (Stamp("one", 6, AT + 60.0), False),  # our own, and it came before the put
        (Stamp("one", 8, AT - 1.0), True),  # our own, and came later: the directory went back
        (Stamp("one", 8, AT - 60.0), False),  # as before; this was put after it went back
    ],
)
def test_a_put_that_came_before_the_deletion_of_its_key_is_deleted(
    deletion: Stamp, expected: bool
) -> None:
    assert is_deleted(OURS, deletion) is expected


# --- what an object says -------------------------------------------------------------------------


def info_of(metadata: dict[str, str], key: str = KEY) -> ObjectInfo:
    return ObjectInfo(key, 4, "etag", None, metadata, modified_at=AT + 100.0)


def test_a_stamp_comes_back_from_the_metadata_of_its_object() -> None:
    for stamp in (OURS, Stamp("one", 7)):
        found = Stamp.of(info_of(stamp.as_metadata(KEY)))
        at = stamp.acknowledged_at
        assert found == Stamp("one", 7, AT + 100.0 if at is None else at)


def test_what_was_copied_from_another_key_was_acknowledged_when_it_was_written() -> None:
    copied = info_of(OURS.as_metadata("ckpt/step-1"))
    assert Stamp.of(copied) == Stamp(acknowledged_at=AT + 100.0)


@pytest.mark.parametrize(
    "wrong",
    [
        {VERSION_KEY: "9" * 30},
        {VERSION_KEY: "-1"},
        {VERSION_KEY: "\uff17"},
        {ACKNOWLEDGED_KEY: "nan"},
        {ACKNOWLEDGED_KEY: "1e999"},
        {ACKNOWLEDGED_KEY: "soon"},
        {ACKNOWLEDGED_KEY: str(AT + 1e9)},
    ],
    ids=str,
)
def test_what_anybody_may_have_written_is_no_later_than_the_store_wrote_it(
    wrong: dict[str, str],
) -> None:
    found = Stamp.of(info_of({**OURS.as_metadata(KEY), **wrong}))
    assert found.acknowledged_at is not None
    assert AT + 100.0 <= found.acknowledged_at <= AT + 101.0
    assert found.version in (0, 7)


def test_a_store_of_no_name_is_nobodys() -> None:
    there = Stamp.of(info_of({**OURS.as_metadata(KEY), STORE_KEY: ""}))
    assert not Stamp("one", 7).is_behind(there)
    assert not Stamp(None, 7).is_of(Stamp(None, 7))


# --- records -------------------------------------------------------------------------------------


def test_a_record_comes_back_from_its_bytes() -> None:
    record = DeletionRecord("one", AT, {"ckpt/ü": 7, 'ckpt/"': 8})
    assert DeletionRecord.of_bytes(record.as_bytes(), AT + 1.0) == record
    assert record.name("ckpt/") == "ckpt/.cachetier/deleted/001700000000-one-7.json"


def test_records_of_deletions_since_a_time_are_listed_behind_it() -> None:
    times = [0.0, 9.9, 10.0, 999_999_999.0, AT, AT + 1e9]
    names = [DeletionRecord("one", at, {"a": 1}).name("p/") for at in times]
    assert names == sorted(names)
    for number, at in enumerate(times):
        behind = [name for name in names if name > records_behind("p/", at)]
        assert set(names[number:]) <= set(behind)


def test_nothing_was_deleted_after_its_record_was_written() -> None:
    late = DeletionRecord("one", AT + 1e9, {"a": 1}).as_bytes()
    assert DeletionRecord.of_bytes(late, AT).acknowledged_at <= AT + 1.0


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\xff",
        b"[]",
        b"{}",
        b'{"store_id": "a", "acknowledged_at": 1, "versions": {}}',
        b'{"store_id": "a", "acknowledged_at": 1, "versions": ["a"]}',
        b'{"store_id": "a", "acknowledged_at": 1, "versions": {"a": -1}}',
        b'{"store_id": "a", "acknowledged_at": {}, "versions": {"a": 1}}',
        b"[" * 100_000,
    ],
)
def test_what_is_no_record_is_refused(body: bytes) -> None:
    with pytest.raises((ValueError, RecursionError)):
        DeletionRecord.of_bytes(body, AT)
