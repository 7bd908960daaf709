"""The nearest known word to one that nobody knows: most errors of this kind are slips."""

from __future__ import annotations

from collections.abc import Iterable

CUTOFF = 0.6


def nearest(word: str, known: Iterable[str]) -> str | None:
    """Return the word of ``known`` that was probably meant by ``word``, or None if none is near.

    Case, dashes in front, ``_`` for ``-`` and letters that have swapped places hardly count.
    """
    from difflib import SequenceMatcher

    plain = _plain(word)
    best, best_likeness = None, CUTOFF
    for candidate in known:
        other = _plain(candidate)
        likeness = SequenceMatcher(None, other, plain, autojunk=False).ratio()
        if sorted(other) == sorted(plain):
            likeness = max(likeness, 0.9)
        if likeness > best_likeness or (best is None and likeness == CUTOFF):
            best, best_likeness = candidate, likeness
    return best


def _plain(word: str) -> str:
    return word.lower().replace("_", "-").lstrip("-")
