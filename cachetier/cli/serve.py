"""``cachetier serve``: one option for each setting; what is not given comes from elsewhere."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from cachetier.cli.output import AsJson, echo, exit_code_of, of_system, print_json, reported
from cachetier.cli.settings_options import Flags, taking_settings
from cachetier.local.files.permissions import keep_files_private
from cachetier.service.signals import end_as_any_process, have_descriptors

if TYPE_CHECKING:
    from cachetier.errors import CachetierError
    from cachetier.service.service import Service


@taking_settings()
def serve(flags: Flags, config: Path | None, as_json: AsJson = False) -> None:
    """Run the service on this node until it is told to stop (SIGTERM, SIGINT).

    Every option can be given as CACHETIER_<NAME> or in cachetier.toml: see docs/configuration.md.

    JSON: `state` (ready), `socket`, `http`, once it takes requests.
    """
    end_as_any_process()
    keep_files_private()
    have_descriptors()
    with _reported_in_log(as_json, flags["log_format"]):
        from cachetier.config.settings import load

        settings = load(flags, config=config)
        tokens = (settings.token, settings.scrape_token)
        secrets = [each.reveal() for each in tokens if each is not None]
        set_up_logging(settings.log_level, settings.log_format, secrets=secrets)
        from cachetier.service.first_start import refuse_taken, refuse_wrong_remote, room_on_disk

        refuse_taken(settings)
        refuse_wrong_remote(settings)
        from cachetier.service.service import Service

        service = Service(settings)
        with room_on_disk(settings.cache_dir):
            service.start()

    def announce() -> None:
        if as_json:
            print_json({"state": "ready", "socket": service.socket, "http": service.url})
            sys.stdout.flush()

    run_to_the_end(service, announce)


def set_up_logging(level: str, form: str = "auto", *, secrets: Sequence[str] = ()) -> None:
    """Log to standard error; ``secrets``, and those of the environment, never appear there."""
    from cachetier.telemetry import log_format as logs

    logs.set_up(level, form, secrets=(*secrets, *logs.secrets_in(os.environ)))


def run_to_the_end(service: Service, on_ready: Callable[[], None]) -> None:
    """Serve, stop, and end the process: a thread that hangs in the remote must not hold it up."""
    service.run(on_ready)
    logging.shutdown()
    os._exit(0)


@contextmanager
def _reported_in_log(as_json: bool, log_format: str | None) -> Iterator[None]:
    """Do as ``reported`` does, but tell the log unless a person or a program reads along.

    Containers and units keep what a service writes to standard error, line by line. So that is one
    line there, in the form of all the others, with the error's code and what to do about it.
    """
    from cachetier.errors import CachetierError

    with reported(as_json):
        try:
            yield
        except (CachetierError, OSError) as error:
            if as_json or sys.stderr.isatty():
                raise
            known = error if isinstance(error, CachetierError) else of_system(error)
            echo(_line(known, log_format), err=True)
            raise typer.Exit(exit_code_of(known.code)) from None


def _line(error: CachetierError, log_format: str | None) -> str:
    """Return the event as the log would show it; a wrong setting comes before there is a log.

    The reason stands in the message alone: it would be there twice.
    """
    from cachetier.telemetry import log_format as logs
    from cachetier.telemetry.events import SERVICE_NOT_STARTED, record_of

    form = log_format or os.environ.get("CACHETIER_LOG_FORMAT", "")
    formatter = logs.formatter_for(
        form if form in logs.FORMS else "auto", tuple(logs.secrets_in(os.environ)), terminal=False
    )
    fields = {"reason": error.message, "hint": error.hint, "code": error.code}
    record = record_of(SERVICE_NOT_STARTED, fields)
    record.msg = record.getMessage().replace("%", "%%")
    record.args = {name: fields[name] for name in ("hint", "code")}
    return formatter.format(record)
