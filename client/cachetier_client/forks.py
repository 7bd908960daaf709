"""Keep a forked child from its parent's sockets, staged files and threads.

A child shares its parent's connections: a byte from it would garble them. And it holds the parent's
staged files open for writing, which makes the service refuse the parent's commit. So a child closes
its copies at once, without a word to the service; what it does afterwards goes over connections of
its own.
"""

from __future__ import annotations

import os
import weakref
from typing import Protocol


class Inherited(Protocol):
    """Something that belongs to the process that made it."""

    def abandon(self) -> None:
        """Drop it in a child, without any effect on the parent; must not raise."""


_owned: weakref.WeakValueDictionary[int, Inherited] = weakref.WeakValueDictionary()


def own(thing: Inherited) -> None:
    """Have ``thing`` abandoned in every child forked before it is disowned."""
    _owned[id(thing)] = thing


def disown(thing: Inherited) -> None:
    """Forget ``thing``; harmless if it was not owned."""
    _owned.pop(id(thing), None)


def _abandon_all() -> None:
    inherited = list(_owned.values())
    _owned.clear()
    for thing in inherited:  # what lives on in the child owns itself again
        thing.abandon()


os.register_at_fork(after_in_child=_abandon_all)
