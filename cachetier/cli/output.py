"""How verbs talk: JSON or text on stdout, errors with a next move on stderr, exit codes.

Exit codes are a stable interface: ``EXITS``.
"""

from __future__ import annotations

import json
import logging
import os
import re
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any, NoReturn, TypeVar

import typer

from cachetier.visible import visible

if TYPE_CHECKING:
    from cachetier_client import CachetierClientError, Client
    from rich.console import Console
    from rich.table import Table

Value = TypeVar("Value")

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

SPAN = "SPAN"  # the metavar of an option in seconds that takes 4m and 12h, too
_UNWRAPPED_CELLS = 10_000  # of a pipe: a row is a line there, for grep and awk
LOOK_SECONDS = 30.0  # what the client gives a call that only looks

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

AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]
Url = Annotated[
    str | None,
    typer.Option(
        "--url",
        envvar="CACHETIER_URL",
        help="unix:///path/to/cachetier.sock or http://host:port.",
    ),
]


def exit_code_of(code: str) -> int:
    """Return the exit code for an error's stable code."""
    return _EXIT_CODES.get(code, FAILED)


@contextmanager
def reported(as_json: bool) -> Iterator[None]:
    """Turn errors of the service, the client or the machine into a message and an exit code."""
    from cachetier_client import CachetierClientError

    try:
        yield
    except CachetierClientError as error:
        from cachetier.cli.waiting import system_message_of

        ids = {"run": error.run, "step": error.step, "rank": error.rank, "name": error.name}
        because = system_message_of(error)
        adds = because and because not in error.message
        message = f"{error.message}: {because}" if adds else error.message
        _fail(as_json, error.code, message, _in_options(error.hint), **ids)
    except ValueError as error:  # an address or a fallback that there is not
        _fail(as_json, "invalid_request", str(error), "Correct the option or the variable.")
    except BrokenPipeError:
        raise
    except OSError as error:
        known = of_system(error)
        _fail(as_json, known.code, known.message, known.hint)
    except KeyboardInterrupt:
        raise typer.Exit(130) from None


def of_system(error: OSError) -> CachetierClientError:
    """Return what the system refused as an error with a next move."""
    from cachetier_client import CachetierClientError

    what = f"{error.filename}: {error.strerror}" if error.filename else str(error)
    hint = "Look at the file, or at the disk it is on."
    if error.errno is None:  # as libraries raise it that speak HTTP
        hint = "Look at the network, and at its proxies: HTTP_PROXY, HTTPS_PROXY, NO_PROXY."
    return CachetierClientError(what, hint=hint, code="io")


def refuse(message: str, hint: str, *, as_json: bool = False) -> NoReturn:
    """End with a usage error."""
    _fail(as_json, "invalid_request", message, hint)


def read_option(
    option: str, text: str, read: Callable[[str], Value], hint: str, as_json: bool
) -> Value:
    """Return what an option says, as ``read`` reads it; end with a usage error if it cannot."""
    try:
        return read(text)
    except ValueError as error:
        refuse(f"--{option}: {error}", hint, as_json=as_json)


def _in_options(hint: str) -> str:
    """Return what the library says to its callers as this command's: arguments are options here."""
    hint = hint.replace("Raise timeout_seconds", "Give it more time")

    def option(argument: re.Match[str]) -> str:
        return f"--{argument[1].replace('_', '-')}"

    return re.sub(r"\b([a-z]+(?:_[a-z]+)*)=(?:True\b|(?=[\s,.]|$))", option, hint)


def _fail(as_json: bool, code: str, message: str, hint: str, **ids: str | int | None) -> NoReturn:
    known = {name: value for name, value in ids.items() if value is not None}
    where = " ".join(f"{name}={value}" for name, value in known.items())
    complain(f"{message.rstrip('.')} ({where})" if where else message, hint)
    if as_json:
        print_json({"error": {"code": code, "message": message, "hint": hint, **known}})
    raise typer.Exit(exit_code_of(code))


def echo(*lines: object, err: bool = False, nl: bool = True, **style: Any) -> None:
    """Write lines, whoever wrote them: what steers terminals, or breaks a line, only shows."""
    shown = "\n".join(visible(str(line)).replace("\n", "\\n") for line in lines)
    typer.echo(typer.style(shown, **style) if style else shown, err=err, nl=nl)


def complain(message: str, hint: str) -> None:
    """Write an error and its next move to stderr, a line for each."""
    text = message.rstrip(".")
    if text.split(" ")[0].isalpha():  # a word, and no name: `head_bucket`
        text = f"{text[:1].upper()}{text[1:]}"
    echo(f"Error: {text}{'' if text.endswith('?') else '.'}", f"Next: {hint}", err=True)


@contextmanager
def reach(
    url: str | None, *, patient: bool = False, seconds: float | None = LOOK_SECONDS
) -> Iterator[Client]:
    """Yield a client that never goes past its service: only this process could seal that again.

    Args:
        url: Default: the environment's.
        patient: While there is no service, repeat until the call's deadline, for verbs that move
            bytes; others say so at once. ``CACHETIER_FALLBACK`` (wait, fail) decides for all.
        seconds: How long a call of the verb may take, to be named where it waits for a service
            that does not answer; None: nothing is said.
    """
    from cachetier_client import Client

    from cachetier.cli.waiting import announced_wait

    chosen = os.environ.get("CACHETIER_FALLBACK") or "s3"
    if chosen not in ("wait", "fail", "s3"):
        raise ValueError(f"CACHETIER_FALLBACK={chosen!r} is none of 's3', 'wait' and 'fail'")
    if chosen != "s3":  # which is for ranks
        patient = chosen == "wait"
    # One verb puts and another seals: what this process leaves unsealed is no news.
    logging.getLogger("cachetier_client.calls.unsealed").setLevel(logging.ERROR)
    with Client(url, fallback="wait" if patient else "fail") as client:
        if seconds is None:
            yield client
            return
        with announced_wait(client.url, seconds, repeats=patient):
            yield client


def print_json(value: Any, *, one_line: bool = False) -> None:
    """Print a document: for a person who looks on more lines than one."""
    indent = 2 if sys.stdout.isatty() and not one_line else None
    typer.echo(json.dumps(value, indent=indent).replace("\x7f", "\\u007f"))


def show(as_json: bool, document: dict[str, Any], text: str) -> None:
    """Print what a verb did: its document, or a line for people."""
    if as_json:
        print_json(document)
    else:
        echo(text)


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
    )


def table(*titles: str) -> Table:
    """Return a table of figures; ``<`` before a title: of words, ``~``: of words that may wrap."""
    from rich.table import Table

    shown = Table(box=None, pad_edge=False, header_style="bold")
    for title in titles:
        shown.add_column(
            title.lstrip("<~"),
            justify="left" if title[:1] in ("<", "~") else "right",
            no_wrap=not title.startswith("~"),
            overflow="fold" if title.startswith("~") else "ellipsis",
        )
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
