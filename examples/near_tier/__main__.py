"""Run the story of the near tier: ``make near``, or ``python -m examples.near_tier``.

Everything is a process on this machine. Ends with 0 only if every comparison held.
"""

from __future__ import annotations

import sys
from typing import Any

from rich.console import Console
from rich.rule import Rule
from rich.table import Table

from examples.demo.telling import run_story, work_dir_of
from examples.demo.verdict import concluded
from examples.near_tier.story import RANKS, SHARD_BYTES, Story


def main() -> int:
    """Tell the story, print the report, and return the exit status."""
    return run_story(Story, _report, work_dir_of("python -m examples.near_tier", __doc__, ".near"))


def _report(story: Story, console: Console, seconds: float) -> dict[str, Any]:
    """Print the report; return it as a stable object, times in seconds and sizes in bytes."""
    console.print()
    console.print(Rule("[bold]Report[/]", align="left", style="dim"))
    table = Table(box=None, padding=(0, 3, 0, 0), header_style="bold")
    for title in ("step", "size", "local after", "replicated after", "durable after"):
        table.add_column(title, justify="right")
    size = f"{RANKS * SHARD_BYTES / 1e6:.0f} MB"
    for save in story.saves:
        near, far = save.replicated_seconds, save.durable_seconds
        cells = (save.local_seconds, near, far)
        table.add_row(
            str(save.step), size, *("-" if each is None else f"{each:.2f} s" for each in cells)
        )
    console.print(table)
    return {
        **concluded(story.comparisons, console, seconds),
        "checkpoint_bytes": RANKS * SHARD_BYTES,
        "saves": [
            {
                "step": save.step,
                "local_seconds": save.local_seconds,
                "replicated_seconds": save.replicated_seconds,
                "durable_seconds": save.durable_seconds,
            }
            for save in story.saves
        ],
        "restore_seconds": story.restore_seconds,
    }


if __name__ == "__main__":
    sys.exit(main())
