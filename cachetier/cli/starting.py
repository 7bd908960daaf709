"""How ``cachetier serve`` says that it does not start: where nobody sits at a terminal, in its log.

Containers and units keep what a service writes to standard error, line by line. So that is one line
there, in the form of all the others, with the error's code and what to do about it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import typer

from cachetier.cli.output import exit_code_of, reported

if TYPE_CHECKING:
    from cachetier.errors import CachetierError


@contextmanager
def starting(as_json: bool, log_format: str | None) -> Iterator[None]:
    """Do as ``reported`` does, but tell the log unless a person or a program reads along."""
    from cachetier.errors import CachetierError

    with reported(as_json):
        try:
            yield
        except CachetierError as error:
            if as_json or sys.stderr.isatty():
                raise
            typer.echo(_line(error, log_format), err=True)
            raise typer.Exit(exit_code_of(error.code)) from None


def _line(error: CachetierError, log_format: str | None) -> str:
    """Return the event as the log would show it; a wrong setting comes before there is a log."""
    import os

    from cachetier.telemetry import log_format as logs
    from cachetier.telemetry.events import SERVICE_NOT_STARTED, record_of

    form = log_format or os.environ.get("CACHETIER_LOG_FORMAT", "")
    formatter = logs.formatter_for(
        form if form in logs.FORMS else "auto", tuple(logs.secrets_in(os.environ)), terminal=False
    )
    told = {"reason": error.message, "hint": error.next_move, "code": error.code}
    return formatter.format(record_of(SERVICE_NOT_STARTED, told))
