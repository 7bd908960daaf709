"""Run the story of the near tier: ``make near``, or ``python -m examples.near_tier``.

Everything is a process on this machine. Ends with 0 only if every comparison held.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
from contextlib import ExitStack
from pathlib import Path
from types import FrameType

from cachetier_client import CachetierClientError
from rich.console import Console
from rich.rule import Rule
from rich.table import Table

from examples.demo.narrate import Narrator
from examples.demo.processes import ROOT, ChildError
from examples.demo.verdict import VoidError, all_held, listed, summary
from examples.demo.work_dir import made_anew, shown
from examples.near_tier.story import RANKS, SHARD_BYTES, Story

INTERRUPTED = 130


def main() -> int:
    """Tell the story, print the report, and return the exit status."""
    options = _arguments()
    console = Console(width=None if sys.stdout.isatty() else 100)
    signal.signal(signal.SIGTERM, _interrupt)
    work_dir = made_anew(options.work_dir.resolve())
    narrator = Narrator(console)
    try:
        with ExitStack() as stack:
            story = Story(work_dir, narrator, stack)
            story.tell()
    except KeyboardInterrupt:
        narrator.say("interrupted; everything it started has ended")
        return INTERRUPTED
    except (ChildError, VoidError, CachetierClientError) as error:
        console.print("\n[bold red]The demo failed.[/]")
        console.print(str(error), markup=False, highlight=False)
        return 1
    _report(story, console, narrator.elapsed_seconds)
    path = work_dir / "report.json"
    path.write_text(json.dumps(_as_json(story, narrator.elapsed_seconds), indent=2) + "\n")
    console.print(f"[dim]Figures: {shown(path)}. Logs: {shown(work_dir / 'logs')}.[/]")
    return 0 if all_held(story.comparisons) else 1


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m examples.near_tier", description=__doc__)
    parser.add_argument(
        "--work-dir",
        type=Path,
        default=ROOT / ".near",
        help="where everything goes, on a local disk; deleted and made anew (default: .near)",
    )
    return parser.parse_args()


def _interrupt(_signal: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _report(story: Story, console: Console, seconds: float) -> None:
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
    console.print()
    console.print(listed(story.comparisons))
    console.print()
    console.print(summary(story.comparisons, seconds))


def _as_json(story: Story, seconds: float) -> dict[str, object]:
    """Return the report as a stable object; times in seconds, sizes in bytes."""
    return {
        "version": 1,
        "held": all_held(story.comparisons),
        "seconds": seconds,
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
        "comparisons": [{"what": each.what, "held": each.held} for each in story.comparisons],
    }


if __name__ == "__main__":
    sys.exit(main())
