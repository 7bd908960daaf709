"""The rule of what becomes of a put while only dirty bytes remain.

Source: docs/configuration.md, "When the cache is full".
"""

from __future__ import annotations

from enum import StrEnum


class WhenFull(StrEnum):
    WAIT = "wait"
    WRITE_THROUGH = "write_through"
    REJECT = "reject"
