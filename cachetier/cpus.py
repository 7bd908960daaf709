"""The CPUs of this machine, by number: ``2-3,7``."""

from __future__ import annotations

import os
from collections.abc import Collection

from cachetier.number_lists import parsed_numbers, shown_numbers


def parsed_cpus(text: str, usable: Collection[int] | None = None) -> tuple[int, ...]:
    """Return the numbers in ``text``, ascending; none if it is empty.

    Args:
        text: Numbers and ranges, with commas.
        usable: What there is; default: what this process may use.

    Raises:
        ValueError: It says something else, or names a CPU that this process may not use.
    """
    usable = os.sched_getaffinity(0) if usable is None else usable
    numbers = parsed_numbers(text, "CPUs")
    missing = set(numbers).difference(usable)
    if missing:
        raise ValueError(
            f"there is no CPU {shown_numbers(missing)} for this service, "
            f"only {shown_numbers(usable)}"
        )
    return numbers


def default_threads(cpus: int | None = None) -> int:
    """Return how many threads of the drain may compute beside training: a quarter, at most two."""
    return max(1, min(2, (len(os.sched_getaffinity(0)) if cpus is None else cpus) // 4))
