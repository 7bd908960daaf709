"""Blocking code on the clock of the simulation: the real publisher and worker run on strands.

A strand runs until it waits, and is left there until what it waits for has happened: then the same
code goes on, at a later instant. Only one runs at a time, and in an order that the events decide,
so a run is repeated exactly. A lock must never be held while its holder waits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any, TypeVar

from greenlet import getcurrent, greenlet

from cachetier.simulate.events import Events

Item = TypeVar("Item")
Found = TypeVar("Found")


class Strands:
    """Begins strands; those that still wait when the simulation ends are dropped."""

    def __init__(self, events: Events) -> None:
        self._events = events
        self._main = getcurrent()

    def begin(self, work: Callable[[], object]) -> None:
        """Run ``work`` on a strand of its own, from this instant on."""
        self._events.after(0.0, lambda: greenlet(work, self._main).switch())

    def map(self, function: Callable[[Item], Found], items: Iterable[Item]) -> Iterator[Found]:
        """Call ``function`` for all items at once, as a pool does; called on a strand."""
        todo = list(items)
        found: list[Any] = [None] * len(todo)
        errors: list[Exception] = []

        def gather(resume: Callable[[object], None]) -> None:
            left = len(todo)

            def one(at: int) -> None:
                nonlocal left
                try:
                    found[at] = function(todo[at])
                except Exception as error:
                    errors.append(error)
                left -= 1
                if not left:
                    self._events.after(0.0, partial(resume, None))

            for at in range(len(todo)):
                self.begin(partial(one, at))

        if todo:
            wait(gather)
        if errors:
            raise errors[0]
        return iter(found)


def wait(begin: Callable[[Callable[[object], None]], object]) -> Any:
    """Let the strand wait until the function that ``begin`` gets is called; return what with.

    That is done by an event, never on a strand.
    """
    strand = getcurrent()
    assert strand.parent is not None, "nothing may wait but on a strand"
    begin(strand.switch)
    return strand.parent.switch()
