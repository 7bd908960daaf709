"""The CPUs of this machine, by number: ``2-3,7``."""

from __future__ import annotations

import os
from collections.abc import Collection

from cachetier.number_lists import parsed_numbers, shown_numbers

MOST_THREADS = 256


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


def parsed_cores(text: str) -> tuple[int, tuple[int, ...]]:
    """Return how many threads may compute, and on which CPUs: ``3``, ``of 2-3,7``, ``2 of 4-7``.

    Raises:
        ValueError: It says something else, or names a CPU that this process may not use.
    """
    count, of, cpus = (part.strip() for part in text.partition("of"))
    fits = count.isdecimal() and 1 <= int(count) <= MOST_THREADS
    if (count and not fits) or (of and not cpus):
        raise ValueError(
            f"{text!r} is not 1 to {MOST_THREADS} cores: '3', 'of 2-3,7' or '2 of 4-7'"
        )
    return int(count) if count else default_threads(), parsed_cpus(cpus)


def default_threads(cpus: int | None = None) -> int:
    """Return how many threads of the drain may compute beside training: a quarter, at most two."""
    return max(1, min(2, (len(os.sched_getaffinity(0)) if cpus is None else cpus) // 4))


def default_carriers(cpus: Collection[int]) -> int:
    """Return how many processes may send for a drain on ``cpus``, or any: half of them, up to 4."""
    return max(1, min(4, len(cpus or os.sched_getaffinity(0)) // 2))
