"""What the demos have in common: a directory, a console, a story that may fail, and a report."""

from __future__ import annotations

import argparse
import json
import signal
import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from types import FrameType
from typing import Any, Protocol, TypeVar

from cachetier_client import CachetierClientError
from rich.console import Console

from examples.demo.narrate import Narrator
from examples.demo.processes import ROOT, ChildError
from examples.demo.verdict import VoidError
from examples.demo.work_dir import made_anew, shown

INTERRUPTED = 130


class Story(Protocol):
    """A story that can be told."""

    def tell(self) -> None:
        """Go through it from the beginning to the end."""


StoryT = TypeVar("StoryT", bound=Story)
# Shows the report of a story that took so many seconds, and returns it with ``held``: whether all
# comparisons did.
Report = Callable[[StoryT, Console, float], dict[str, Any]]


def run_story(
    story_of: Callable[[Path, Narrator, ExitStack], StoryT], report: Report[StoryT], work_dir: Path
) -> int:
    """Tell a story, show its report and write it down; return the exit status."""
    console = Console(width=None if sys.stdout.isatty() else 100)
    signal.signal(signal.SIGTERM, _interrupt)
    work_dir = made_anew(work_dir.resolve())
    narrator = Narrator(console)
    try:
        with ExitStack() as stack:
            story = story_of(work_dir, narrator, stack)
            story.tell()
    except KeyboardInterrupt:
        narrator.say("interrupted; everything it started has ended")
        return INTERRUPTED
    except (ChildError, VoidError, CachetierClientError) as error:
        console.print("\n[bold red]The demo failed.[/]")
        console.print(str(error), markup=False, highlight=False)
        return 1
    document = report(story, console, narrator.elapsed_seconds)
    path = work_dir / "report.json"
    path.write_text(json.dumps(document, indent=2) + "\n")
    console.print(f"[dim]Figures: {shown(path)}. Logs: {shown(work_dir / 'logs')}.[/]")
    return 0 if document["held"] else 1


def work_dir_of(program: str, description: str | None, default: str) -> Path:
    """Read from the command line where everything goes; ``default`` is below the project."""
    parser = argparse.ArgumentParser(prog=program, description=description)
    parser.add_argument(
        "--work-dir",
        type=Path,
        default=ROOT / default,
        help=f"where everything goes, on a local disk; deleted and made anew (default: {default})",
    )
    work_dir: Path = parser.parse_args().work_dir
    return work_dir


def _interrupt(_signal: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt
