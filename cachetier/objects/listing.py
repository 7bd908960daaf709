"""List a mount: the bucket's pages, with what this node has that the bucket does not show yet.

The bucket is what counts for every key but those that wait here: a version that waits stands in the
place of the bucket's entry, a deletion that waits hides it. What waits is read before the bucket is
asked, so that a version which becomes visible in between is in both, and none in neither.

*Entries* are keys and, with a delimiter, common prefixes; all are in the order of their bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from cachetier.model.objects import LAST_CODE_POINT, ObjectVersion
from cachetier.remote.base import ListedObject, ListedPage

LISTS_EACH = 20  # at the bucket, for one page: each passes over up to a thousand hidden keys
_AT_ONCE = 1000

Entry = ObjectVersion | ListedObject | str  # of this node, of the bucket, or a common prefix
Unshown = Callable[[str, int], Sequence[ObjectVersion]]  # behind a key, so many
ListPage = Callable[[str, str, str, int], ListedPage]  # as ``ObjectStore.list_page``


@dataclass(frozen=True, slots=True)
class Asked:
    """The request of a listing; an empty ``delimiter`` means no delimiter."""

    prefix: str
    delimiter: str

    def folded(self, key: str) -> str | None:
        """Return the common prefix that a key is listed as; None where it is listed itself."""
        head, mark, _ = key[len(self.prefix) :].partition(self.delimiter or "\0")
        return self.prefix + head + mark if mark and self.delimiter else None

    def begins_behind(self, after: str) -> str:
        """Return what the keys lie behind whose entries lie behind ``after``."""
        folded = self.folded(after) if after.startswith(self.prefix) else None
        return folded + LAST_CODE_POINT if folded is not None else after


@dataclass(slots=True)
class _Waiting:
    """The waiting changes under one entry: ``shown`` is listed, ``deleted`` are the keys hidden."""

    shown: Entry | None = None
    deleted: set[str] = field(default_factory=set)


def name_of(entry: Entry) -> str:
    return entry if isinstance(entry, str) else entry.key


def entries(
    asked: Asked, after: str, limit: int, unshown: Unshown, page: ListPage
) -> tuple[list[Entry], str | None]:
    """Return entries behind ``after``, and behind what the next ones come; None at the end.

    They are up to ``limit``, and fewer, or none, before the end where the bucket was asked
    ``LISTS_EACH`` times by then: so much is hidden.
    """
    lists = _Lists(page, asked.prefix)
    found: list[Entry] = []
    at, most = after, limit
    while True:
        waiting, waits_until = _waiting(asked, at, most, unshown)
        listed = lists.page_of(asked.prefix, asked.delimiter, at, most)
        ends = [end for end in (waits_until, listed.next_after) if end is not None]
        until = min(ends, default=None)
        there: dict[str, Entry] = {each.key: each for each in listed.objects}
        there |= {each: each for each in listed.prefixes}
        for name in sorted(waiting.keys() | there.keys()):
            if until is not None and name > until:
                break
            here, entry = waiting.get(name), there.get(name)
            if here is not None and here.shown is None:
                if isinstance(entry, str) and lists.left <= 0 and at != after:
                    return found, at
                is_seen = isinstance(entry, str) and lists.has_more(entry, here.deleted)
                entry = entry if is_seen else None
            elif here is not None:
                entry = here.shown
            found += [] if entry is None else [entry]
            at = name
            if len(found) == limit:
                return found, at
        if until is None or lists.left <= 0:
            return found, until
        at, most = until, max(limit, _AT_ONCE)  # what hides much is passed over in large steps


class _Lists:
    """Asks the bucket for pages, at best ``left`` times more."""

    def __init__(self, page: ListPage, prefix: str) -> None:
        self._page = page
        self._prefix = prefix
        self._flat: tuple[str, Sequence[str], str | None] = "", (), ""  # keys behind, until
        self.left = LISTS_EACH

    def page_of(self, prefix: str, delimiter: str, after: str, limit: int) -> ListedPage:
        self.left -= 1
        return self._page(prefix, delimiter, after, limit)

    def has_more(self, folder: str, deleted: set[str]) -> bool:
        """Return whether the bucket has more under a common prefix than what is ``deleted`` here.

        A page of keys tells of many such prefixes where whole trees wait to be deleted.
        """
        begin, keys, end = self._flat
        if not begin < folder or (end is not None and end < folder):
            begin = folder[:-1]
            begin, keys, end = self._flat = begin, *self._keys(self._prefix, begin)
        if end is not None and end < folder:  # others come before, and more than a page of them
            keys, end = self._keys(folder, "")
        while True:
            if any(key.startswith(folder) and key not in deleted for key in keys):
                return True
            if end is None or not end.startswith(folder):
                return False
            keys, end = self._keys(folder, end)

    def _keys(self, prefix: str, after: str) -> tuple[Sequence[str], str | None]:
        listed = self.page_of(prefix, "", after, _AT_ONCE)
        return [each.key for each in listed.objects], listed.next_after


def _waiting(
    asked: Asked, after: str, limit: int, unshown: Unshown
) -> tuple[dict[str, _Waiting], str | None]:
    """Return what waits by up to ``limit`` entries, and the last of them where there are more."""
    found: dict[str, _Waiting] = {}
    at = asked.begins_behind(after)
    while True:
        versions = unshown(at, _AT_ONCE)
        for version in versions:
            if version.key <= at:
                continue  # of a common prefix that is listed anyway
            folded = asked.folded(version.key)
            name = folded or version.key
            if name not in found and len(found) == limit:
                return found, max(found)
            waiting, at = found.setdefault(name, _Waiting()), version.key
            if version.deleted:
                waiting.deleted.add(version.key)
            else:
                waiting.shown = folded or version
                at = folded + LAST_CODE_POINT if folded is not None else at
        if len(versions) < _AT_ONCE:
            return found, None
