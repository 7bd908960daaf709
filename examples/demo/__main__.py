"""Run the demo: ``make demo``, or ``python -m examples.demo``. Ends with 0 only if all held."""

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

from examples.demo import report
from examples.demo.narrate import Narrator
from examples.demo.processes import ROOT, ChildError
from examples.demo.story import Story
from examples.demo.verdict import VoidError
from examples.demo.work_dir import made_anew, shown

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
    outcome = story.outcome
    outcome.seconds = narrator.elapsed_seconds
    report.show(outcome, console)
    path = work_dir / "report.json"
    path.write_text(json.dumps(report.as_json(outcome), indent=2) + "\n")
    console.print(f"[dim]Figures: {shown(path)}. Logs: {shown(work_dir / 'logs')}.[/]")
    return 0 if outcome.held else 1


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m examples.demo", description=__doc__)
    parser.add_argument(
        "--work-dir",
        type=Path,
        default=ROOT / ".demo",
        help="where everything goes, on a local disk; deleted and made anew (default: .demo)",
    )
    return parser.parse_args()


def _interrupt(_signal: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
