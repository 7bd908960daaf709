"""Make many calls to a store, one after the other or some at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor
from itertools import islice
from typing import Protocol, TypeVar

BATCH_CALLS = 64

Item = TypeVar("Item")
Found = TypeVar("Found")


class Each(Protocol):
    """``map``, or something that calls in parallel and keeps the order."""

    def __call__(
        self, function: Callable[[Item], Found], items: Iterable[Item], /
    ) -> Iterator[Found]: ...


class InBatches:
    """``map`` on a pool: in parallel and in order, with a bounded number of calls under way."""

    def __init__(self, pool: Executor) -> None:
        self._pool = pool

    def __call__(
        self, function: Callable[[Item], Found], items: Iterable[Item], /
    ) -> Iterator[Found]:
        rest = iter(items)
        while batch := list(islice(rest, BATCH_CALLS)):
            yield from self._pool.map(function, batch)
