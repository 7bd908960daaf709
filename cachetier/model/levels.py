"""How safe bytes are, weakest first. An acknowledgement at a level is never wrong.

Source: docs/architecture.md, "The promise".
"""

from __future__ import annotations

from enum import StrEnum

from cachetier.errors import InvalidRequestError


class Level(StrEnum):
    LOCAL = "local"
    DURABLE = "durable"


def checked_level(level: object) -> Level:
    """Return the level called ``level``."""
    try:
        return Level(str(level))
    except ValueError:
        known = ", ".join(Level)
        raise InvalidRequestError(f"level {level!r} is not one of {known}") from None
