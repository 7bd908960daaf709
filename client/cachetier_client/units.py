"""Format amounts for people, in the messages of this library and of the service."""

from __future__ import annotations

_UNITS = ("B", "kB", "MB", "GB", "TB", "PB")


def shown_size(size_bytes: float) -> str:
    """Return ``size_bytes`` in three digits and a decimal unit: ``7 B``, ``4.1 kB``, ``200 GB``."""
    power = 0
    while size_bytes >= 999.5 and power < len(_UNITS) - 1:
        size_bytes, power = size_bytes / 1000, power + 1
    digits = 1 if power and size_bytes < 99.95 else 0
    return f"{size_bytes:.{digits}f} {_UNITS[power]}"


def counted(number: int, noun: str) -> str:
    """Return how many there are of what ``noun`` calls one: ``1 shard``, ``2 shards``."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
