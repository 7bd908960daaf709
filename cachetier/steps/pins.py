"""Pins: steps that may not leave the node until the person who pinned them lets them go.

A pin keeps what is on the node there, whatever room is wanted and whatever ``keep_local`` says, and
no call deletes the step. It brings nothing back that has gone before.

Source: docs/design/0013-pins.md.
"""

from __future__ import annotations

from cachetier_client.clock import Clock
from cachetier_client.identity import names

from cachetier.local.catalog import pins
from cachetier.local.catalog.pins import Pin
from cachetier.local.store import Store


class Pins:
    """Pins and unpins steps of this node. Thread-safe."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock

    def pin(self, run: str, step: int) -> Pin:
        """Keep a step on this node until it is unpinned; return what is here of it.

        Raises:
            NotFoundError: This node knows no such step.
        """
        where = names.checked_run(run), names.checked_step(step)
        return self._store.write(pins.pin, *where, self._clock.now())

    def unpin(self, run: str, step: int) -> bool:
        """Let a step go again; return whether it was pinned."""
        return self._store.write(pins.unpin, names.checked_run(run), names.checked_step(step))

    def all(self) -> list[Pin]:
        """Return the pinned steps, by run and step."""
        return self._store.read(pins.pins)
