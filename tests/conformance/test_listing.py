"""Listings are whole, however many pages they take."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from awscrt.checksums import crc64nvme

from cachetier.remote.base import ObjectStore

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
