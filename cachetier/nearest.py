"""Find the known word nearest to an unknown one: most such errors are slips."""

from __future__ import annotations

from collections.abc import Iterable


def nearest(word: str, known: Iterable[str]) -> str | None:
    """Return the word of ``known`` that was probably meant by ``word``, or None if none is near.

    Case, dashes in front, ``_`` for ``-`` and letters that have swapped places hardly count.
    """
    from difflib import get_close_matches

    plain, by_plain = _plain(word), {_plain(each): each for each in known}
    swapped = [each for each in by_plain if sorted(each) == sorted(plain)]
    found = [plain] if plain in by_plain else swapped or get_close_matches(plain, by_plain, 1)
    return by_plain[found[0]] if found else None


def _plain(word: str) -> str:
    return word.lower().replace("_", "-").lstrip("-")
