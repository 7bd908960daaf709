"""A listing is what the bucket will show once all that waits here is there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest
from awscrt.checksums import crc64nvme
from hypothesis import example, given
from hypothesis import strategies as st

from cachetier.model.objects import NO_HEAD, ObjectVersion
from cachetier.objects import listing
from cachetier.objects.listing import Asked, Entry, entries, name_of
from cachetier.remote.base import ListedObject, ListedPage
from tests.fakes.memory_store import MemoryObjectStore

EMPTY = crc64nvme(b"")


def version(key: str, *, deleted: bool = False) -> ObjectVersion:
    return ObjectVersion(1, 1, "s3:m", key, deleted, 0, EMPTY, "e", NO_HEAD, (), 0.0, 0)


class World:
    """What the bucket has, and what waits here: True for a version, False for a deletion."""

    def __init__(self, bucket: Sequence[str], waiting: Mapping[str, bool]) -> None:
        self.store = MemoryObjectStore()
        self.pages = 0
        for key in bucket:
            self.store.put(key, b"", digest=EMPTY)
        self.waiting = sorted(waiting.items())
        dead = {key for key, lives in waiting.items() if not lives}
        self.truth = sorted(({*bucket} - dead) | {key for key, lives in waiting.items() if lives})

    def unshown(self, prefix: str, after: str, limit: int) -> list[ObjectVersion]:
        found = [
            version(key, deleted=not lives)
            for key, lives in self.waiting
            if key > after and key.startswith(prefix)
        ]
        return found[:limit]

    def page(self, prefix: str, delimiter: str, after: str, limit: int) -> ListedPage:
        self.pages += 1
        return self.store.list_page(prefix, delimiter, after, limit)

    def listed(self, asked: Asked, after: str, limit: int) -> list[Entry]:
        return self.page_of(asked, after, limit)[0]

    def page_of(self, asked: Asked, after: str, limit: int) -> tuple[list[Entry], str | None]:
        return entries(
            asked,
            after,
            limit,
            lambda behind, most: self.unshown(asked.prefix, behind, most),
            self.page,
        )

    def expected(self, asked: Asked) -> list[str]:
        keys = [key for key in self.truth if key.startswith(asked.prefix)]
        return list(dict.fromkeys(asked.folded(key) or key for key in keys))


KEYS = st.text("ab/é", min_size=1, max_size=5)
ASKED = st.builds(Asked, st.sampled_from(["", "a", "a/", "b/a"]), st.sampled_from(["", "/", "b"]))


@example({"a/"}, {"a/a": False}, Asked("", "/"), 1)  # an object that is called as its prefix
@given(st.sets(KEYS), st.dictionaries(KEYS, st.booleans()), ASKED, st.integers(1, 5))
def test_pages_are_what_a_sorted_dictionary_has(
    bucket: set[str], waiting: dict[str, bool], asked: Asked, limit: int
) -> None:
    world = World(sorted(bucket), waiting)

    found: list[str] = []
    while page := world.listed(asked, found[-1] if found else "", limit):
        assert len(page) <= limit
        found += map(name_of, page)
        assert len(found) <= 100, "it goes round in circles"

    assert found == world.expected(asked)


@given(st.sets(KEYS), st.dictionaries(KEYS, st.booleans()), ASKED, KEYS)
def test_a_page_begins_behind_any_name(
    bucket: set[str], waiting: dict[str, bool], asked: Asked, after: str
) -> None:
    world = World(sorted(bucket), waiting)

    found = [name_of(each) for each in world.listed(asked, after, 100)]

    behind = [name for name in world.expected(asked) if name > after]
    assert found == [name for name in behind if not after.startswith(name)]


def test_what_waits_stands_in_the_place_of_what_the_bucket_has() -> None:
    world = World(["k", "old"], {"k": True, "old": False})

    (found,) = world.listed(Asked("", ""), "", 10)

    assert isinstance(found, ObjectVersion)
    assert found.key == "k"


@pytest.mark.parametrize("lives", [True, False])
def test_many_that_wait_under_one_common_prefix_cost_few_pages(lives: bool) -> None:
    waiting = dict.fromkeys((f"a/{number:05}" for number in range(2500)), lives)
    world = World([*list(waiting)[:1500], "b"], waiting)

    found = world.listed(Asked("", "/"), "", 10)

    assert [name_of(each) for each in found] == (["a/", "b"] if lives else ["b"])
    assert world.pages <= 3


@pytest.mark.parametrize("limit", [1, 2, 1000])
def test_keys_that_wait_to_be_deleted_are_passed_over_a_thousand_at_a_time(limit: int) -> None:
    gone = [f"a/{number:05}" for number in range(3000)]
    world = World([*gone, "b"], dict.fromkeys(gone, False))

    assert [name_of(each) for each in world.listed(Asked("", ""), "", limit)] == ["b"]
    assert world.pages <= 5


def test_folders_that_wait_to_be_deleted_share_pages() -> None:
    gone = [f"{number:04}/{name}" for number in range(600) for name in "ab"]
    world = World([*gone, "0300-x/a", "0300/z", "x/a"], dict.fromkeys(gone, False))

    found = world.listed(Asked("", "/"), "", 1000)

    assert [name_of(each) for each in found] == ["0300-x/", "0300/", "x/"]
    assert world.pages <= 6


def test_a_page_that_would_cost_too_much_is_short_and_goes_on_behind_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(listing, "LISTS_EACH", 4)
    gone = [f"{number:04}" for number in range(4000)]
    world = World(["!", *gone, "x"], dict.fromkeys(gone, False))

    first, behind = world.page_of(Asked("", ""), "", 10)
    assert [name_of(each) for each in first] == ["!"]
    assert world.pages == 4
    assert behind is not None
    rest, end = world.page_of(Asked("", ""), behind, 10)
    assert ([name_of(each) for each in rest], end) == (["x"], None)


def test_folders_of_which_each_costs_a_page_make_short_pages_that_go_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each has more left than a page, and something that waits to be deleted."""
    monkeypatch.setattr(listing, "LISTS_EACH", 4)
    names = [f"{folder:02}/{number:04}" for folder in range(7) for number in range(1002)]
    world = World(names, {f"{folder:02}/0000": False for folder in range(7)})

    found: list[str] = []
    behind: str | None = ""
    while behind is not None:
        world.pages = 0
        page, behind = world.page_of(Asked("", "/"), behind, 1000)
        found += map(name_of, page)
        assert page and world.pages <= 4
    assert found == world.expected(Asked("", "/"))


def test_entries_of_the_bucket_come_as_it_lists_them() -> None:
    world = World(["a", "b/c"], {})

    found = world.listed(Asked("", "/"), "", 10)

    assert isinstance(found[0], ListedObject)
    assert found[1] == "b/"
