"""What a benchmark gives back: a figure, its bar, and whether it holds.

Figures are medians of runs that were taken in pairs, one after the other, so that a machine that
slows down meanwhile slows both sides.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Bar:
    """What a figure has to reach, or not to exceed."""

    limit: float
    at_least: bool

    def holds(self, value: float) -> bool:
        return value >= self.limit if self.at_least else value <= self.limit

    def __str__(self) -> str:
        return f"{'>=' if self.at_least else '<='} {self.limit:g}"


def at_least(limit: float) -> Bar:
    return Bar(limit, at_least=True)


def at_most(limit: float) -> Bar:
    return Bar(limit, at_least=False)


@dataclass(frozen=True, slots=True)
class Result:
    """One row of the table; without a bar it is there for context.

    ``values`` are the runs behind the figure. ``value`` is None when it could not be measured, and
    ``note`` then says why.
    """

    measure: str
    value: float | None
    unit: str
    bar: Bar | None = None
    values: tuple[float, ...] = ()
    note: str = ""

    @property
    def holds(self) -> bool | None:
        """Whether the bar holds; None without a bar."""
        if self.bar is None:
            return None
        return self.value is not None and self.bar.holds(self.value)

    def as_json(self, group: str) -> dict[str, Any]:
        """Return the entry of ``results.json``."""
        return {
            "group": group,
            "measure": self.measure,
            "value": None if self.value is None else float(f"{self.value:.4g}"),
            "unit": self.unit,
            "bar": None if self.bar is None else str(self.bar),
            "holds": self.holds,
            "runs": len(self.values),
        }


def median_of(
    measure: str, values: Sequence[float], unit: str, bar: Bar | None = None, note: str = ""
) -> Result:
    """Return the median of ``values`` as a result."""
    return Result(measure, statistics.median(values), unit, bar, tuple(values), note)


def ratios(above: Sequence[float], below: Sequence[float]) -> list[float]:
    """Return the ratio of each pair."""
    return [high / low for high, low in zip(above, below, strict=True)]
