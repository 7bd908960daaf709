"""Bars and lines that show how far long work is: on standard error, and only on a terminal.

The work is not asked to report: a thread looks four times a second at what it counts anyway, so it
is as fast as without. With ``--json``, or where nobody would see it, there is nothing at all.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from cachetier.cli.output import console

if TYPE_CHECKING:
    from rich.progress import Progress, ProgressColumn

LOOK_SECONDS = 0.25


def is_seen(as_json: bool) -> bool:
    """Return whether somebody would see a bar."""
    return not as_json and sys.stderr.isatty()


def progress(as_json: bool) -> Progress | None:
    """Return a bar for bytes, with their rate and what is left, or None where nobody sees it."""
    if not is_seen(as_json):
        return None
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        TextColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )

    return _shown(
        TextColumn("{task.description}"),
        BarColumn(bar_width=None),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(compact=True),
    )


class HowFar(NamedTuple):
    """How far work is: ``what`` it is at, and how many bytes are ``done``, of how many if known."""

    what: str
    done: int
    total: int | None


@contextmanager
def bytes_shown(as_json: bool, how_far: Callable[[], HowFar]) -> Iterator[None]:
    """Show a bar while work goes on, as far as it is."""
    bar = progress(as_json)
    if bar is None:
        yield
        return

    def look() -> None:
        at = how_far()
        bar.update(task, description=at.what, completed=at.done, total=at.total)

    with bar:
        task = bar.add_task("", total=None)
        with _looking(look):
            yield


class StepLine:
    """The line of work that reports its steps: ``verb``, and the step that it is at."""

    def __init__(self, verb: str) -> None:
        self._verb = verb
        self.text = verb

    def step(self, what: str) -> None:
        self.text = f"{self._verb} {what}"


@contextmanager
def line_shown(as_json: bool, line: Callable[[], str]) -> Iterator[None]:
    """Show a line, and for how long it has been, while work goes on that has no end to measure."""
    if not is_seen(as_json):
        yield
        return
    from rich.progress import SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn()
    with _shown(*columns) as bar:
        task = bar.add_task("", total=None)
        with _looking(lambda: bar.update(task, description=line())):
            yield


def written_bytes(dest: str) -> int:
    """Return how many bytes lie in what an export makes beside ``dest`` before it is in place."""
    target = Path(dest).absolute()
    found = 0
    for folder in target.parent.glob(f".{target.name[:64]}.*"):
        for path in folder.rglob("*"):
            try:
                found += 512 * path.stat().st_blocks
            except FileNotFoundError:  # it is in place now
                continue
    return found


def _shown(*columns: ProgressColumn) -> Progress:
    from rich.progress import Progress

    return Progress(*columns, console=console(err=True), transient=True)


@contextmanager
def _looking(look: Callable[[], object]) -> Iterator[None]:
    """Call ``look`` now and then, on a thread of its own."""
    over = threading.Event()

    def go_on() -> None:
        while not over.wait(LOOK_SECONDS):
            look()

    look()
    thread = threading.Thread(target=go_on, name="bar", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
