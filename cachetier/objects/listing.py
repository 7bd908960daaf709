"""List a mount: the bucket's pages, with what this node has that the bucket does not show yet.

The bucket is what counts for every key but those that wait here: a version that waits stands in the
place of the bucket's entry, a deletion that waits hides it. What waits is read before the bucket is
asked, so that a version which becomes visible in between is in both, and none in neither.

*Entries* are keys and, with a delimiter, common prefixes; all are in the order of their bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from cachetier.model.objects import LAST_CODE_POINT, ObjectVersion
from cachetier.remote.base import ListedObject, ListedPage

_AT_ONCE = 1000

Entry = ObjectVersion | ListedObject | str  # of this node, of the bucket, or a common prefix
Unshown = Callable[[str, int], Sequence[ObjectVersion]]  # behind a key, so many
ListPage = Callable[[str, str, str, int], ListedPage]  # as ``ObjectStore.list_page``


@dataclass(frozen=True, slots=True)
class Asked:
    """What is listed; an empty ``delimiter`` is none."""

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
    """What waits here under one entry: ``shown`` is listed, ``deleted`` are the keys hidden."""

    shown: Entry | None = None
    deleted: set[str] = field(default_factory=set)


def name_of(entry: Entry) -> str:
    return entry if isinstance(entry, str) else entry.key


def entries(asked: Asked, after: str, limit: int, unshown: Unshown, page: ListPage) -> list[Entry]:
    """Return up to ``limit`` entries behind ``after``; fewer only where there are no more."""
    found: list[Entry] = []
    at: str | None = after
    while at is not None and len(found) < limit:
        waiting, waits_until = _waiting(asked, at, limit, unshown)
        listed = page(asked.prefix, asked.delimiter, at, limit)
        ends = [end for end in (waits_until, listed.next_after) if end is not None]
        at = min(ends, default=None)
        found += _merged(waiting, listed, at, page)
    return found[:limit]


def _merged(
    waiting: dict[str, _Waiting],
    listed: ListedPage,
    until: str | None,
    page: ListPage,
) -> Iterator[Entry]:
    """Yield the entries of both, in order, as far as both were read."""
    there: dict[str, Entry] = {each.key: each for each in listed.objects}
    there |= {each: each for each in listed.prefixes}
    for name in sorted(waiting.keys() | there.keys()):
        if until is not None and name > until:
            return
        here, entry = waiting.get(name), there.get(name)
        if here is not None and here.shown is not None:
            yield here.shown
        elif entry is not None and (here is None or _has_more(entry, here.deleted, page)):
            yield entry


def _has_more(entry: Entry, deleted: set[str], page: ListPage) -> bool:
    """Return whether the bucket has more under an entry than what is ``deleted`` here."""
    if not isinstance(entry, str):
        return False
    at: str | None = ""
    while at is not None:
        listed = page(entry, "", at, _AT_ONCE)
        if any(each.key not in deleted for each in listed.objects):
            return True
        at = listed.next_after
    return False


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
