"""What has to hold for a demo to succeed, and how that is shown."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.text import Text


class VoidError(RuntimeError):
    """The demo proved nothing, because nothing was at stake when it killed."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """One thing that must hold for the demo to succeed."""

    what: str
    held: bool


def all_held(comparisons: Sequence[Comparison]) -> bool:
    """Return whether everything did; without any comparison nothing was shown."""
    return bool(comparisons) and all(each.held for each in comparisons)


def listed(comparisons: Sequence[Comparison]) -> RenderableType:
    """Return one line for each, with a tick or a cross."""
    return Group(
        *(
            Text.from_markup(f"[green]✓[/] {each.what}" if each.held else f"[red]✗ {each.what}[/]")
            for each in comparisons
        )
    )


def summary(comparisons: Sequence[Comparison], seconds: float) -> str:
    """Return the last line, in rich's markup."""
    if all_held(comparisons):
        return f"[bold green]Everything held[/], in {seconds:.0f} s."
    return f"[bold red]Not everything held[/], in {seconds:.0f} s: see the crosses above."


def concluded(
    comparisons: Sequence[Comparison], console: Console, seconds: float
) -> dict[str, Any]:
    """Print what held and the last line; return what every report says of it."""
    console.print()
    console.print(listed(comparisons))
    console.print()
    console.print(summary(comparisons, seconds))
    return {
        "version": 1,
        "held": all_held(comparisons),
        "seconds": seconds,
        "comparisons": [{"what": each.what, "held": each.held} for each in comparisons],
    }
