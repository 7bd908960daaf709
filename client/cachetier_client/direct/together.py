"""Do the same for many things, a few at once."""

from __future__ import annotations

import itertools
from collections.abc import Callable

from cachetier_client.workers import Workers


def for_each(count: int, work: Callable[[int], None], workers: Workers) -> None:
    """Do ``work`` for each number below ``count``; after a failure no thread takes another."""
    numbers = itertools.count()  # one C call takes a number: no two threads get the same
    failed = False

    def share() -> None:
        nonlocal failed
        try:
            while not failed and (number := next(numbers)) < count:
                work(number)
        except BaseException:  # an interrupt too
            failed = True
            raise

    if count:
        workers.run(share, min(workers.threads, count))
