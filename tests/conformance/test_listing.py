"""Listings are whole, however many pages they take."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from awscrt.checksums import crc64nvme

from cachetier.remote.base import ListedPage, ObjectStore

EMPTY = crc64nvme(b"")
BEYOND_ONE_PAGE = 1003  # S3 lists a thousand at a time


def fill(store: ObjectStore, *keys: str) -> None:
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda key: store.put(key, b"", digest=EMPTY), keys))


def test_a_prefix_lists_its_keys_in_order_and_no_others(store: ObjectStore, folder: str) -> None:
    fill(store, folder + "b", folder + "a", folder + "a/deep", "x" + folder + "c")

    found = store.list(folder)

    assert found.keys == (folder + "a", folder + "a/deep", folder + "b")
    assert found.prefixes == ()


def test_a_delimiter_folds_what_lies_deeper(store: ObjectStore, folder: str) -> None:
    names = ("100/model", "100/optimizer", "200~s1/model", "notes", "200/a/b")
    fill(store, *(folder + name for name in names))

    found = store.list(folder, "/")

    assert found.keys == (folder + "notes",)
    assert found.prefixes == (folder + "100/", folder + "200/", folder + "200~s1/")


def test_a_prefix_without_objects_lists_nothing(store: ObjectStore, folder: str) -> None:
    assert store.list(folder) == store.list(folder, "/")
    assert store.list(folder).keys == ()


def test_more_than_a_page_is_listed_to_the_end(store: ObjectStore, folder: str) -> None:
    prefixes = [f"{folder}{step:05}/" for step in range(BEYOND_ONE_PAGE)]
    keys = [prefix + "model" for prefix in prefixes]
    fill(store, *keys)

    assert store.list(folder).keys == tuple(keys)
    assert store.list(folder, "/").prefixes == tuple(prefixes)
    assert store.list(folder, "/").keys == ()


TREE = ("a", "a-b", "b/1", "b/2", "b/3/x", "c", "d/1", "é", "\U0001f600")


def pages(store: ObjectStore, prefix: str, delimiter: str, limit: int) -> Iterator[ListedPage]:
    """Yield page after page, each from behind the last."""
    after: str | None = ""
    while after is not None:
        page = store.list_page(prefix, delimiter, after, limit)
        yield page
        after = page.next_after


@pytest.mark.parametrize("limit", [1, 2, 3, 100])
@pytest.mark.parametrize("delimiter", ["", "/"])
def test_pages_together_are_the_listing_and_none_is_too_long(
    store: ObjectStore, folder: str, delimiter: str, limit: int
) -> None:
    fill(store, *(folder + name for name in TREE))

    found = list(pages(store, folder, delimiter, limit))

    whole = store.list(folder, delimiter or None)
    assert [each.key for page in found for each in page.objects] == sorted(whole.keys)
    assert [each for page in found for each in page.prefixes] == sorted(whole.prefixes)
    assert all(1 <= len(page.objects) + len(page.prefixes) <= limit for page in found)


def test_a_page_describes_its_objects(store: ObjectStore, folder: str) -> None:
    put = store.put(folder + "a", b"hello", digest=crc64nvme(b"hello"))

    (found,) = store.list_page(folder, "", "", 10).objects

    described = store.head(folder + "a")
    assert described is not None
    assert described.modified_at is not None
    assert (found.key, found.size_bytes, found.etag) == (folder + "a", 5, put.etag)
    assert abs(found.modified_at - described.modified_at) <= 1  # HEAD has no fractions


def test_a_page_begins_behind_a_key_that_is_not_there(store: ObjectStore, folder: str) -> None:
    fill(store, *(folder + name for name in TREE))

    page = store.list_page(folder, "/", folder + "aaa", 2)

    assert (page.objects, page.prefixes) == (page.objects[:1], (folder + "b/",))
    assert page.objects[0].key == folder + "c"
    assert page.next_after == folder + "c"
