"""The bandwidth that may leave the node, by time of day: the setting ``max_rate``.

A window is a time of day, on the node's own clock, with a rate: ``08:00-20:00 200 MB/s``. It holds
instead of ``max_rate``; ``0`` lets nothing be sent in it. Where two overlap the first one listed
holds. One may reach over midnight: ``22:00-06:00``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from cachetier_client.units import parsed_size

_WINDOW_BEGIN = re.compile(r"[\d:]+\s*-", re.ASCII)
_WINDOW = re.compile(r"(\d\d):(\d\d)\s*-\s*(\d\d):(\d\d)\s+(\S.*)", re.ASCII)
_DAY_MINUTES = 24 * 60


@dataclass(frozen=True, slots=True)
class Window:
    """A time of day, in minutes after midnight, and the rate that holds in it."""

    start: int
    end: int
    bytes_per_second: float

    def holds_at(self, minute: int) -> bool:
        if self.start <= self.end:
            return self.start <= minute < self.end
        return minute >= self.start or minute < self.end


@dataclass(frozen=True, slots=True)
class Bandwidth:
    """The limits as they were set; ``max_rate`` is None without one."""

    max_rate: float | None = None
    windows: tuple[Window, ...] = ()

    def at(self, minute: int, *, hurried: bool = False) -> float | None:
        """Return the bytes a second that may be sent at ``minute`` of the day; None for no limit.

        Args:
            minute: Minutes after midnight.
            hurried: Somebody waits (a flush, or a put for room): windows do not hold.
        """
        if hurried:
            return self.max_rate
        held = (window.bytes_per_second for window in self.windows if window.holds_at(minute))
        return next(held, self.max_rate)


def parsed_bandwidth(max_rate: Iterable[str]) -> Bandwidth:
    """Return the limits that the setting writes down: windows, and at most one rate for all day.

    Raises:
        ValueError: One of them is not a rate, or not a window.
    """
    texts = [text.strip() for text in max_rate if text.strip()]
    windows = tuple(_window(text) for text in texts if _WINDOW_BEGIN.match(text))
    rates = [parsed_rate(text) for text in texts if not _WINDOW_BEGIN.match(text)]
    if len(rates) > 1:
        raise ValueError(
            "two rates without a window: give one of them a window: '08:00-20:00 200 MB/s'"
        )
    if rates == [0]:
        raise ValueError("a max_rate of 0 would never drain anything; give a window for a pause")
    return Bandwidth(rates[0] if rates else None, windows)


def parsed_rate(text: str) -> float:
    """Return bytes a second: ``2 GB/s``, ``500 MiB/s``, ``25 Gbit/s``, ``0``.

    Raises:
        ValueError: It is no rate.
    """
    if text.strip().isdecimal() and int(text):
        number = text.strip()
        raise ValueError(f"{text!r} has no unit: write '{number} MB/s' or '{number} Gbit/s'")
    size, slash, unit = text.strip().partition("/")
    bits = size.removesuffix("bit")
    try:
        if slash and unit.strip() != "s":
            raise ValueError
        return parsed_size(bits) / (8 if bits != size else 1)
    except (ValueError, OverflowError):
        raise ValueError(f"{text!r} is not a rate such as '2 GB/s' or '25 Gbit/s'") from None


def _window(text: str) -> Window:
    match = _WINDOW.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"{text!r} is not a window such as '08:00-20:00 200 MB/s'")
    hours_minutes = [int(group) for group in match.groups()[:4]]
    start, end = (60 * hours_minutes[at] + hours_minutes[at + 1] for at in (0, 2))
    minutes_fit = all(minutes < 60 for minutes in hours_minutes[1::2])
    if not minutes_fit or start >= _DAY_MINUTES or end > _DAY_MINUTES or start == end:
        raise ValueError(f"{text!r} has no such time of day: write 00:00 to 23:59, start and end")
    return Window(start, end, parsed_rate(match.group(5)))
