"""Format and parse sizes and spans of time for people."""

from __future__ import annotations

import re

_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgtp]?)(i?)b?", re.ASCII | re.IGNORECASE)
_SPAN = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|min|h|d)", re.ASCII)
_UNITS = ("B", "kB", "MB", "GB", "TB", "PB")
_PREFIXES = "kmgtp"
_SPANS = ((86_400, "d"), (3_600, "h"), (60, "min"))


def parsed_size(text: str) -> int:
    """Return the bytes that ``text`` writes: ``200 GB``, ``64MiB``, ``1.5T``, ``4096``.

    Raises:
        ValueError: It is no size.
    """
    match = _SIZE.fullmatch(text.strip())
    if match is None or (match.group(3) and not match.group(2)):
        raise ValueError(f"{text!r} is not a size such as '200 GB', '1.5 TiB' or '4096'")
    from decimal import Decimal  # takes longer to import than the rest of the module

    number, prefix, binary = match.groups()
    power = _PREFIXES.index(prefix.lower()) + 1 if prefix else 0
    return int(Decimal(number) * (1024 if binary else 1000) ** power)


def parsed_span(text: str) -> float:
    """Return the seconds that ``text`` writes: ``90s``, ``30min``, ``12 h``, ``7d``.

    Raises:
        ValueError: It is no span of time, or has no unit.
    """
    match = _SPAN.fullmatch(text.strip())
    if re.fullmatch(r"\s*\d+(\.\d+)?\s*", text, re.ASCII):
        raise ValueError(f"{text!r} has no unit: write '{text.strip()}s' for seconds")
    if match is None:
        raise ValueError(f"{text!r} is not a span of time such as '30min', '12h' or '7d'")
    units = {"ms": 0.001, "s": 1, "m": 60, "min": 60, "h": 3_600, "d": 86_400}
    return float(match.group(1)) * units[match.group(2)]


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


def shown_span(seconds: float) -> str:
    """Return a span of time roughly: ``3.2 s``, ``4.0 min``, ``12 h``."""
    for unit_seconds, unit in _SPANS:
        if seconds >= unit_seconds:
            amount = seconds / unit_seconds
            return f"{amount:.0f} {unit}" if amount >= 10 else f"{amount:.1f} {unit}"
    return f"{seconds:.0f} s" if seconds >= 10 else f"{seconds:.1f} s"


def shown_time(seconds: float) -> str:
    """Return a duration in two or three digits: ``85 us``, ``1.2 ms``, ``3.4 s``."""
    for unit_seconds, unit in ((1e-6, "us"), (1e-3, "ms")):
        if seconds < 1000 * unit_seconds:
            amount = seconds / unit_seconds
            return f"{amount:.0f} {unit}" if amount >= 10 else f"{amount:.1f} {unit}"
    return f"{seconds:.0f} s" if seconds >= 10 else f"{seconds:.1f} s"
