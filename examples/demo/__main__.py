"""Run the demo: ``make demo``, or ``python -m examples.demo``. Ends with 0 only if all held."""

from __future__ import annotations

import argparse
import json
import shutil
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
from examples.demo.story import Story, VoidError

INTERRUPTED = 130
MARK = ".cachetier-demo"  # a directory with it may be deleted


def main() -> int:
    """Tell the story, print the report, and return the exit status."""
    options = _arguments()
    console = Console(width=None if sys.stdout.isatty() else 100)
    signal.signal(signal.SIGTERM, _interrupt)
    work_dir = _made_anew(options.work_dir.resolve())
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
    console.print(f"[dim]Figures: {_shown(path)}. Logs: {_shown(work_dir / 'logs')}.[/]")
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


def _made_anew(work_dir: Path) -> Path:
    """Empty the directory of an earlier demo, and nobody else's."""
    mark = work_dir / MARK
    if work_dir.exists() and any(work_dir.iterdir()) and not mark.exists():
        sys.exit(f"{work_dir} holds something else: give the demo a directory of its own")
    if work_dir.exists():
        shutil.rmtree(work_dir)
    (work_dir / "logs").mkdir(parents=True)
    mark.touch()
    return work_dir


def _shown(path: Path) -> str:
    return str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path)


def _interrupt(_signal: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
