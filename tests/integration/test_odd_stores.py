"""Stores and proxies that differ from S3: each works, or is refused with the reason and the fix."""

from __future__ import annotations

from typing import Any

import pytest
from awscrt.checksums import crc64nvme

from cachetier.errors import ObjectMissingError, TransientError
from cachetier.remote.boto_client import Credentials, connect
from cachetier.remote.s3 import S3ObjectStore
from tests.fakes.odd_store import BUCKET, Kept, Oddity, OddStore, odd_store

ANYBODY = Credentials("anybody", "believed")


def store_on(server: OddStore, **change: Any) -> S3ObjectStore:
    client = connect(endpoint=server.url, credentials=ANYBODY)
    return S3ObjectStore(BUCKET, client, verify="readback", **change)


# --- listings ------------------------------------------------------------------------------------

KEYS = [f"p/{number:05}" for number in range(1200)]


def paged(store: S3ObjectStore, delimiter: str = "", limit: int = 1000) -> list[str]:
    """Return what all pages have, in their order."""
    found: list[str] = []
    after: str | None = ""
    while after is not None:
        page = store.list_page("p/", delimiter, after, limit)
        found += sorted([each.key for each in page.objects] + list(page.prefixes))
        after = page.next_after
    return found


UNLIKE = [
    Oddity(order="hashed"),
    Oddity(order="hashed", start_after="ignored", page=300),
    Oddity(order="hashed", start_after="refused"),
    Oddity(start_after="refused", page=500),
    Oddity(start_after="ignored"),
]


@pytest.mark.parametrize("oddity", UNLIKE, ids=lambda odd: f"{odd.order}-{odd.start_after}")
def test_a_listing_that_is_not_sorted_or_cannot_begin_behind_a_key_has_all_keys(
    oddity: Oddity,
) -> None:
    with odd_store(oddity) as server:
        server.fill(*KEYS)
        assert paged(store_on(server)) == KEYS
        assert server.count("continuation-token") > 0
        assert sorted(store_on(server).list("p/").keys) == KEYS


def test_the_first_page_asked_of_an_unsorted_store_may_be_one_in_the_middle() -> None:
    with odd_store(Oddity(order="hashed")) as server:
        server.fill(*KEYS)
        page = store_on(server).list_page("p/", "", KEYS[500], 300)
    assert [each.key for each in page.objects] == KEYS[501:801]
    assert page.next_after == KEYS[800]


def test_pages_too_short_to_tell_an_order_are_read_to_the_end() -> None:
    with odd_store(Oddity(order="hashed", page=3)) as server:
        server.fill(*KEYS[:10])
        assert paged(store_on(server), limit=4) == KEYS[:10]


def test_common_prefixes_of_an_unsorted_listing_are_all_there_once() -> None:
    with odd_store(Oddity(order="hashed", page=100)) as server:
        server.fill(*(f"p/{step:04}/x" for step in range(300)), "p/note")
        assert paged(store_on(server), "/", 70) == [*(f"p/{at:04}/" for at in range(300)), "p/note"]


def test_a_sorted_store_is_asked_for_the_page_alone() -> None:
    with odd_store(Oddity()) as server:
        server.fill(*KEYS)
        assert paged(store_on(server)) == KEYS
        assert server.count("continuation-token") == 0
        assert len(server.asked) <= 4


# --- lengths -------------------------------------------------------------------------------------

BODY = bytes(range(256)) * 40


@pytest.mark.parametrize("framing", ["chunked", "until_close"])
def test_answers_without_a_length_are_read_whole(framing: Any) -> None:
    with odd_store(Oddity(framing=framing)) as server:
        store = store_on(server)
        put = store.put("a", BODY, digest=crc64nvme(BODY), metadata={"cachetier-save": "s"})
        server.objects["empty"] = Kept(b"", {})

        found, empty = store.head("a"), store.head("empty")
        assert found is not None and empty is not None
        assert (found.size_bytes, found.etag) == (len(BODY), put.etag)
        assert found.metadata == {"cachetier-save": "s"}
        assert empty.size_bytes == 0
        assert store.head("missing") is None
        assert store.get("a") == BODY
        assert store.get("a", 10, 20) == BODY[10:30]
        assert store.get("a", 10) == BODY[10:]
        into = memoryview(bytearray(5000))
        store.read_into("a", 1000, into)
        assert into == BODY[1000:6000]
        with pytest.raises(ObjectMissingError):
            store.get("missing")


def test_a_body_without_a_length_that_breaks_off_is_no_body(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with odd_store(Oddity(framing="until_close")) as server:
        store = store_on(server)
        store.put("a", BODY, digest=crc64nvme(BODY))
        whole = Kept.__getattribute__

        def short(kept: Kept, name: str) -> Any:
            value = whole(kept, name)
            return _Short(value) if name == "body" else value

        monkeypatch.setattr(Kept, "__getattribute__", short)
        with pytest.raises(TransientError):
            store.get("a", 10, 20)


class _Short(bytes):
    """A body whose ranges lose their last byte on the way."""

    def __getitem__(self, where: Any) -> Any:
        return bytes(self)[where][:-1]
