"""The CPUs of this machine, by number: ``2-3,7``."""

from __future__ import annotations

import os
import re
from collections.abc import Collection

_RANGE = re.compile(r"(\d{1,5})(?:-(\d{1,5}))?", re.ASCII)


def parsed_cpus(text: str, usable: Collection[int] | None = None) -> tuple[int, ...]:
    """Return the numbers in ``text``, ascending; none if it is empty.

    Args:
        text: Numbers and ranges, with commas.
        usable: What there is; default: what this process may use.

    Raises:
        ValueError: It says something else, or names a CPU that this process may not use.
    """
    usable = os.sched_getaffinity(0) if usable is None else usable
    numbers: set[int] = set()
    for item in text.split(",") if text.strip() else ():
        found = _RANGE.fullmatch(item.strip())
        if found is None:
            raise ValueError(f"{text!r} is not a list of CPUs such as '2-3,7'")
        first, last = int(found[1]), int(found[2] or found[1])
        if last < first:
            raise ValueError(f"{item.strip()!r} is a range that ends before it begins")
        numbers.update(range(first, last + 1))
    missing = sorted(numbers.difference(usable))
    if missing:
        raise ValueError(
            f"there is no CPU {shown_cpus(missing)} for this service, only {shown_cpus(usable)}"
        )
    return tuple(sorted(numbers))


def shown_cpus(numbers: Collection[int]) -> str:
    """Return ``numbers`` as ``parsed_cpus`` reads them."""
    ranges: list[list[int]] = []
    for number in sorted(numbers):
        if ranges and number == ranges[-1][1] + 1:
            ranges[-1][1] = number
        else:
            ranges.append([number, number])
    return ",".join(f"{a}" if a == b else f"{a}-{b}" for a, b in ranges)


def default_threads(cpus: int | None = None) -> int:
    """Return how many threads of the drain may compute beside training: a quarter, at most two."""
    return max(1, min(2, (len(os.sched_getaffinity(0)) if cpus is None else cpus) // 4))
