"""Numbers as people list them, of CPUs and of ranks: ``2-3,7``."""

from __future__ import annotations

import re
from collections.abc import Collection

_RANGE = re.compile(r"(\d{1,5})(?:-(\d{1,5}))?", re.ASCII)


def parsed_numbers(text: str, what: str) -> tuple[int, ...]:
    """Return the numbers in ``text``, ascending; none if it is empty.

    Args:
        text: Numbers and ranges, with commas.
        what: What they are of, in the plural.

    Raises:
        ValueError: It says something else.
    """
    numbers: set[int] = set()
    for item in text.split(",") if text.strip() else ():
        found = _RANGE.fullmatch(item.strip())
        if found is None:
            raise ValueError(f"{text!r} is not a list of {what} such as '2-3,7'")
        first, last = int(found[1]), int(found[2] or found[1])
        if last < first:
            raise ValueError(f"{item.strip()!r} is a range that ends before it begins")
        numbers.update(range(first, last + 1))
    return tuple(sorted(numbers))


def shown_numbers(numbers: Collection[int]) -> str:
    """Return ``numbers`` as ``parsed_numbers`` reads them."""
    ranges: list[list[int]] = []
    for number in sorted(numbers):
        if ranges and number == ranges[-1][1] + 1:
            ranges[-1][1] = number
        else:
            ranges.append([number, number])
    return ",".join(f"{a}" if a == b else f"{a}-{b}" for a, b in ranges)
