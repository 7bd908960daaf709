"""How verbs talk: JSON or text on stdout, errors with a next move on stderr, exit codes.

Exit codes are a stable interface: ``EXITS``.
"""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

import click
from cachetier_client import CachetierClientError

from cachetier.visible import visible

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress, ProgressColumn
    from rich.table import Table
    from rich.text import Text

FAILED, USAGE, NOT_DURABLE, UNREACHABLE, INTEGRITY, FULL = range(1, 7)
EXITS = {
    0: "done",
    FAILED: "failed; standard error says why, and what to do next",
    USAGE: "usage: a verb, option, name or setting is wrong, or a port or directory is taken",
    NOT_DURABLE: "not durable in time; the bytes are safe on the node and keep draining",
    UNREACHABLE: "the service cannot be reached, or did not do it in time",
    INTEGRITY: "integrity: bytes failed their checksum and were not served, or not taken",
    FULL: "full: no room before the deadline",
}

LOOK_SECONDS = 0.5  # between two looks at how far work is
_UNWRAPPED_CELLS = 10_000  # of a pipe: a row is a line there, for grep and awk

_EXIT_CODES = {
    "config": USAGE,
    "directory_in_use": USAGE,  # a setting that cannot be had here, as an address in use
    "invalid_name": USAGE,
    "invalid_request": USAGE,
    "save_identity": USAGE,
    "not_durable": NOT_DURABLE,
    "unavailable": UNREACHABLE,
    "deadline": UNREACHABLE,  # nobody can tell one that hangs from one that is far away
    "integrity": INTEGRITY,
    "digest_mismatch": INTEGRITY,
    "backpressure": FULL,
}


# What the library calls otherwise than the command line.
_ARGUMENTS = {"ack": "--level", "run": "RUN", "step": "STEP"}


class UsageMistakeError(click.UsageError):
    """The command line cannot be run; ``hint`` is the next move."""

    def __init__(self, message: str, hint: str, ctx: click.Context | None = None) -> None:
        super().__init__(message, ctx)
        self.hint = hint


def exit_code_of(code: str) -> int:
    """Return the exit code for an error's stable code."""
    return _EXIT_CODES.get(code, FAILED)


@contextmanager
def reported(as_json: bool) -> Iterator[None]:
    """Turn errors of the service, the client or the machine into a message and an exit code."""
    try:
        yield
    except CachetierClientError as error:
        ids = {"run": error.run, "step": error.step, "rank": error.rank, "name": error.name}
        because = system_message_of(error)
        adds = because and because not in error.message
        message = f"{error.message}: {because}" if adds else error.message
        fail(as_json, error.code, message, _in_options(error.hint), **ids)
    except ValueError as error:  # an address or a fallback that there is not
        fail(as_json, "invalid_request", str(error), "Correct the option or the variable.")
    except BrokenPipeError:
        raise
    except OSError as error:
        known = of_system(error)
        fail(as_json, known.code, known.message, known.hint)
    except KeyboardInterrupt:
        raise click.exceptions.Exit(130) from None


def system_message_of(error: BaseException) -> str | None:
    """Return in words what the system said below an error of the client; None if it was nothing."""
    cause = error.__cause__
    if getattr(error, "code", "") == "unavailable":
        if isinstance(cause, FileNotFoundError):
            return "no such socket"
        if isinstance(cause, ConnectionRefusedError):
            return "nobody listens there"
    return cause.strerror if isinstance(cause, OSError) else None


def of_system(error: OSError) -> CachetierClientError:
    """Return what the system refused as an error with a next move."""
    what = f"{error.filename}: {error.strerror}" if error.filename else str(error)
    hint = "Look at the file, or at the disk it is on."
    if error.errno is None:  # as libraries raise it that speak HTTP
        hint = "Look at the network, and at its proxies: HTTP_PROXY, HTTPS_PROXY, NO_PROXY."
    return CachetierClientError(what, hint=hint, code="io")


def refuse(message: str, hint: str) -> NoReturn:
    """End with a usage error, which the group of all verbs reports."""
    raise UsageMistakeError(message, hint)


def _in_options(hint: str) -> str:
    """Return what the library says to its callers as this command's: arguments are options here."""
    hint = hint.replace("Raise timeout_seconds", "Give it more time")

    def option(argument: re.Match[str]) -> str:
        if argument[1] in _ARGUMENTS:
            return _ARGUMENTS[argument[1]]
        return f"--{argument[1].removesuffix('_seconds').replace('_', '-')}"

    return re.sub(r"\b([a-z]+(?:_[a-z]+)*)=(?:True\b|(?=[\s,.]|$))", option, hint)


def fail(as_json: bool, code: str, message: str, hint: str, **ids: str | int | None) -> NoReturn:
    """Print an error and its next move, with ``as_json`` also as a document; end with its code."""
    known = {name: value for name, value in ids.items() if value is not None}
    where = " ".join(f"{name}={value}" for name, value in known.items())
    complain(f"{message.rstrip('.')} ({where})" if where else message, hint)
    if as_json:
        print_json({"error": {"code": code, "message": message, "hint": hint, **known}})
    raise click.exceptions.Exit(exit_code_of(code))


def echo(*lines: object, err: bool = False, nl: bool = True, **style: Any) -> None:
    """Write lines of any origin: control characters and line breaks are shown, not obeyed."""
    shown = "\n".join(visible(str(line)).replace("\n", "\\n") for line in lines)
    click.echo(click.style(shown, **style) if style else shown, err=err, nl=nl)


def complain(message: str, hint: str) -> None:
    """Write an error and its next move to stderr, a line for each."""
    text = message.rstrip(".")
    if text.split(" ")[0].isalpha():  # a word, and no name: `head_bucket`
        text = f"{text[:1].upper()}{text[1:]}"
    echo(f"Error: {text}{'' if text.endswith('?') else '.'}", f"Next: {hint}", err=True)


def print_json(value: Any, *, one_line: bool = False) -> None:
    """Print a document: for a person who looks on more lines than one."""
    indent = 2 if sys.stdout.isatty() and not one_line else None
    click.echo(json.dumps(value, indent=indent).replace("\x7f", "\\u007f"))


def show(as_json: bool, document: dict[str, Any], shown: str | Callable[[], object]) -> None:
    """Print what a verb did: its document, or a line for people, or what ``shown`` writes."""
    if as_json:
        print_json(document)
    elif callable(shown):
        shown()
    else:
        echo(shown)


def show_rows(as_json: bool, document: dict[str, Any], rows: Table | None, none: str) -> None:
    """Print a list: its document, or a table for people; ``none`` where there are no rows."""
    if as_json:
        print_json(document)
    elif rows is None:
        echo(none, err=True)
    else:
        console().print(rows)


def console(*, err: bool = False) -> Console:
    """Return the console for text that is worth colours; plain where there is no terminal.

    It shows texts as ``echo`` does. Without a terminal no line is wrapped, however long.
    """
    from rich.console import Console
    from rich.segment import Segment

    class VisibleConsole(Console):
        def render(self, renderable: Any, options: Any = None) -> Iterator[Segment]:
            for each in super().render(renderable, options):
                yield each if each.control else Segment(visible(each.text), each.style)

    terminal = (sys.stderr if err else sys.stdout).isatty()
    return VisibleConsole(
        stderr=err,
        highlight=False,
        markup=False,
        emoji=False,
        width=None if terminal else _UNWRAPPED_CELLS,
        soft_wrap=not terminal,
        force_terminal=terminal,  # whatever FORCE_COLOR says: a pipe is for grep and awk
    )


def table(*titles: str, rows: Iterable[Sequence[str | Text]] = (), more: int = 0) -> Table:
    """Return a table of figures; ``<`` before a title: of words, ``~``: of words that may wrap.

    Its last row says how many ``more`` there are.
    """
    from rich.table import Table

    shown = Table(box=None, pad_edge=False, header_style="bold")
    for title in titles:
        shown.add_column(
            title.lstrip("<~"),
            justify="left" if title[:1] in ("<", "~") else "right",
            no_wrap=not title.startswith("~"),
            overflow="fold" if title.startswith("~") else "ellipsis",
        )
    for row in rows:
        shown.add_row(*row)
    if more > 0:
        shown.add_row(f"and {more} more", style="dim")
    return shown


@contextmanager
def ended_by_signal() -> Iterator[None]:
    """Turn SIGTERM into an exception, so that what was written is removed as on Ctrl-C."""

    def end(number: int, _frame: object) -> None:
        raise SystemExit(128 + number)

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def past_proxies(host: str) -> dict[str, str]:
    """Return the variables that have requests to ``host`` go past proxies, if there are any."""
    from urllib.request import getproxies, proxy_bypass

    if not getproxies().keys() & {"http", "https"} or proxy_bypass(host):
        return {}
    hosts = ",".join(filter(None, (os.environ.get("no_proxy") or os.environ.get("NO_PROXY"), host)))
    return {"NO_PROXY": hosts, "no_proxy": hosts}


# --- how far long work is -------------------------------------------------------------------------
#
# Bars and lines are shown on standard error, and only on a terminal. The work is not asked to
# report: a thread looks twice a second at what it counts anyway, so it is as fast as without.


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
    """How far work is: what it is at, and how many bytes are done, of how many if that is known."""

    description: str
    completed: int
    total: int | None


def bytes_shown(as_json: bool, how_far: Callable[[], HowFar]) -> AbstractContextManager[None]:
    """Show a bar while work goes on, as far as it is."""
    return _watched(progress(as_json), lambda: how_far()._asdict())


def line_shown(as_json: bool, line: Callable[[], str]) -> AbstractContextManager[None]:
    """Show a line, and for how long it has been, while work goes on that has no end to measure."""
    if not is_seen(as_json):
        return nullcontext()
    from rich.progress import SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn()
    return _watched(_shown(*columns), lambda: {"description": line()})


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
def _watched(bar: Progress | None, look: Callable[[], Mapping[str, Any]]) -> Iterator[None]:
    """Move a bar to what ``look`` returns now and then, on a thread of its own."""
    if bar is None:
        yield
        return
    over = threading.Event()

    def go_on() -> None:
        while not over.wait(LOOK_SECONDS):
            with suppress(CachetierClientError):  # a service that starts again is soon back
                bar.update(task, **look())

    with bar:
        task = bar.add_task("", total=None)
        bar.update(task, **look())
        thread = threading.Thread(target=go_on, name="bar", daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()
