"""The levels of safety, weakest first. An acknowledgement at a level is never wrong.

Source: docs/guarantees.md, "Levels".
"""

from __future__ import annotations

from enum import StrEnum

from cachetier.errors import InvalidRequestError


class Level(StrEnum):
    """``memory``: on this node, and some of it in memory only, so that a power cut would take it.

    ``replicated``: at any remote, replica or durable; so whatever is durable is replicated.
    """

    MEMORY = "memory"
    LOCAL = "local"
    REPLICATED = "replicated"
    DURABLE = "durable"


HERE = (Level.MEMORY, Level.LOCAL)  # the levels at which this node alone has all


def covers(reached: Level, wanted: Level) -> bool:
    """Return whether what has reached one level is as safe as another asks for."""
    order = tuple(Level)
    return order.index(reached) >= order.index(wanted)


def checked_level(level: object) -> Level:
    """Return the level called ``level``."""
    try:
        return Level(str(level))
    except ValueError:
        known = ", ".join(Level)
        raise InvalidRequestError(f"level {level!r} is not one of {known}") from None
