"""``cachetier serve``, ``dev`` and ``config``: the service, one to try, and the settings of it.

``config`` takes the options of ``serve``, so that a service's own command line can be asked about.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from cachetier_client.units import shown_size

from cachetier.cli import options
from cachetier.cli.options import COUNT, PATH
from cachetier.cli.output import (
    USAGE,
    complain,
    echo,
    exit_code_of,
    of_system,
    past_proxies,
    print_json,
    refuse,
    reported,
    show,
)
from cachetier.config.settings import SETTINGS, Settings, sourced
from cachetier.config.sources import DEFAULT
from cachetier.config.types import Secret, plain, schema_of
from cachetier.local.files.permissions import keep_files_private
from cachetier.model.bandwidth import parsed_bandwidth
from cachetier.remote.scheme import scheme_of

if TYPE_CHECKING:
    from cachetier.config.settings import Sourced
    from cachetier.errors import CachetierError
    from cachetier.service.service import Service

BUCKET = "checkpoints"
MOUNT = "objects"
DEFAULTS = {
    "http": "127.0.0.1:7070",
    "s3": "127.0.0.1:7071",
    "capacity": "2 GB",
    "log": "warning",
    "allow_volatile": True,
    "grace": "5s",
}
# Of its S3 server, whose bytes end with it: it must not drain a real node's cache there.
OWN = ("cache_dir", "remote", "remote_endpoint", "remote_assume", "s3_mount")

_WELCOME = """\
cachetier dev is up; what its S3 server holds is gone when it stops (Ctrl-C).

  socket  {url}
  HTTP    {http}   token in {token}
  Console {http}/   signed in by what `cachetier console` prints
  S3      {s3}   bucket {bucket}
  S3 door {s3_door}   mount {mount}: s3://{bucket}/{mount}/

In another terminal:

  export CACHETIER_URL={url}
  echo hello | cachetier put - try/1/greeting --seal
  cachetier wait try 1
  cachetier get try/1/greeting
  cachetier status

Watch all of it in a browser, which this signs in:

  cachetier console

Or with any program that speaks S3, written back through this node:

  eval "$(cachetier s3 env)"
  aws s3 cp some-file s3://{bucket}/{mount}/
"""


# --- the service ----------------------------------------------------------------------------------


@options.verb()
@options.settings()
@options.json_flag
def serve(flags: dict[str, Any], config: Path | None, as_json: bool) -> None:
    """Run the service on this node until it is told to stop (SIGTERM, SIGINT).

    Every setting can be given as CACHETIER_<NAME> or in cachetier.toml: see docs/configuration.md.

    JSON: `state` (ready), `socket`, `http`, once it takes requests.
    """
    from cachetier.service.signals import end_as_any_process, have_descriptors

    end_as_any_process()
    keep_files_private()
    have_descriptors()
    with _reported_in_log(as_json, flags.get("log")):
        from cachetier.config.settings import load

        settings = load(flags, config=config)
        from cachetier.carriers.process import Nursery

        # Before there are threads, and the log has one.
        nursery = Nursery(lambda: None, load_after_seconds=1.0) if settings.carriers != 0 else None
        tokens = (settings.token, settings.scrape_token)
        secrets = [each.reveal() for each in tokens if each is not None]
        set_up_logging(settings.log, secrets=secrets)
        from cachetier.service.first_start import refuse_taken, refuse_wrong_remote, room_on_disk

        refuse_taken(settings)
        refuse_wrong_remote(settings)
        from cachetier.service.service import Service

        service = Service(settings, nursery=nursery)
        with room_on_disk(settings.cache_dir):
            service.start()

    def announce() -> None:
        if as_json:
            print_json({"state": "ready", "socket": service.socket, "http": service.url})
            sys.stdout.flush()

    run_to_the_end(service, announce)


def set_up_logging(wanted: str, *, secrets: Sequence[str] = ()) -> None:
    """Log as the setting ``log`` says; ``secrets``, and the environment's, never appear there."""
    from cachetier.telemetry import log_format as logs

    level, _, form = wanted.partition(":")
    logs.set_up(level, form or "auto", secrets=(*secrets, *logs.secrets_in(os.environ)))


def run_to_the_end(service: Service, on_ready: Callable[[], None]) -> None:
    """Serve, stop, and end the process: a thread that hangs in the remote must not hold it up."""
    service.run(on_ready)
    logging.shutdown()
    os._exit(0)


@contextmanager
def _reported_in_log(as_json: bool, wanted: str | None) -> Iterator[None]:
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
            echo(_line(known, wanted), err=True)
            raise click.exceptions.Exit(exit_code_of(known.code)) from None


def _line(error: CachetierError, wanted: str | None) -> str:
    """Return the event as the log would show it; a wrong setting comes before there is a log.

    The reason stands in the message alone: it would be there twice.
    """
    from cachetier.telemetry import log_format as logs
    from cachetier.telemetry.events import SERVICE_NOT_STARTED, record_of

    form = (wanted or os.environ.get("CACHETIER_LOG", "")).partition(":")[2]
    formatter = logs.formatter_for(
        form if form in logs.FORMS else "auto", tuple(logs.secrets_in(os.environ)), terminal=False
    )
    fields = {"reason": error.message, "hint": error.hint, "code": error.code}
    record = record_of(SERVICE_NOT_STARTED, fields)
    record.msg = record.getMessage().replace("%", "%%")
    record.args = {name: fields[name] for name in ("hint", "code")}
    return formatter.format(record)


# --- the service with an S3 server ----------------------------------------------------------------


@options.verb()
@options.setting("http", "Address of the HTTP door; default port 7070.")
@options.setting("s3", "Address of the S3 door; default port 7071.")
@options.option(
    "--cache-dir", type=PATH, help="Keep the cache here; default: a temporary directory."
)
@options.option(
    "--s3-port",
    type=replace(COUNT, least=0, most=65535),
    default=0,
    help="Port of the S3 server; 0: free.",
)
@options.setting("capacity", "Budget of the cache; default 2 GB.")
@options.setting("log", "How much to log; default warning.")
@options.as_json
def dev(
    http: str | None,
    s3: str | None,
    cache_dir: Path | None,
    s3_port: int,
    capacity: str | None,
    log: str | None,
    as_json: bool,
) -> None:
    """Run the service with an S3 server in the same process: nothing to install or configure.

    It honours CACHETIER_* variables and cachetier.toml as `serve` does, but for the remote and
    the cache directory.

    JSON: `state` (ready), `url`, `http`, `token` (a file), `s3`, `bucket`, `s3_door`, `mount`,
    once it takes requests.
    """
    keep_files_private()
    flags = {"capacity": capacity, "http": http, "s3": s3, "log": log}
    with nullcontext(cache_dir) if cache_dir else _scratch() as directory:
        _run({**_chosen(flags), "cache_dir": directory}, s3_port, as_json)


def _chosen(flags: dict[str, str | None]) -> dict[str, Any]:
    """Return the flags, and a default for each setting that neither flag nor source sets."""
    from cachetier.config.sources import config_file, read_file, variable_of

    path = config_file(None)
    elsewhere = read_file(path).values if path is not None else {}
    given = {name: value for name, value in flags.items() if value is not None}
    ignored = [name for name in OWN if name in elsewhere or variable_of(name) in os.environ]
    if ignored:
        names = ", ".join(ignored)
        echo(f"Not used, as `dev` has an S3 server and a cache of its own: {names}.", err=True)
    usual = {
        name: value
        for name, value in DEFAULTS.items()
        if name not in elsewhere and variable_of(name) not in os.environ
    }
    return {**usual, **given}


def _run(given: dict[str, Any], s3_port: int, as_json: bool) -> None:
    from cachetier.access.tokens import OWNER_FILE
    from cachetier.config.settings import load
    from cachetier.doors.listening import bound
    from cachetier.errors import ConfigError
    from cachetier.service.first_start import refuse_taken, room_on_disk
    from cachetier.service.service import Service
    from cachetier.testing.moto_server import moto_server

    if find_spec("moto") is None or find_spec("flask") is None:
        raise ConfigError(
            "the S3 server for `dev` is not installed",
            hint="Install the extra `dev`, as docs/install.md says.",
        )
    os.environ.update(past_proxies("127.0.0.1"))
    remote = {
        "remote": f"s3://{BUCKET}/dev",
        "s3_mount": [{"name": MOUNT, "bucket": f"{BUCKET}/{MOUNT}"}],
    }
    settings = load({**given, **remote})
    set_up_logging(settings.log)
    refuse_taken(settings)
    bound("s3-port", ("127.0.0.1", s3_port)).close()  # its server would wait for another port
    with moto_server(port=s3_port, bucket=BUCKET) as endpoint:
        os.environ.update(endpoint.environment())
        bucket = replace(settings.remote, endpoint=endpoint.url, assume=(endpoint.verify,))
        settings = replace(settings, remote=bucket)
        service = Service(settings)
        with room_on_disk(settings.cache_dir):
            service.start()
        where = {
            "url": f"unix://{service.socket}",
            "http": service.url,
            "token": str(Path(given["cache_dir"]) / OWNER_FILE),
            "s3": endpoint.url,
            "bucket": BUCKET,
            "s3_door": service.s3_url,
            "mount": MOUNT,
        }
        welcome = _WELCOME.format(**{name: value or "off" for name, value in where.items()})
        show(as_json, {"state": "ready", **where}, partial(echo, *welcome.split("\n")))
        sys.stdout.flush()
        service.run()


def _scratch() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory("", "cachetier-", _home(), ignore_cleanup_errors=True)


def _home() -> str | None:
    """Return where the scratch directory can be: in a container only memory is no overlay."""
    from cachetier.errors import ConfigError
    from cachetier.local.files.filesystem import checked_mount

    try:
        checked_mount(Path(tempfile.gettempdir()), allow_volatile=True)
    except ConfigError:
        return "/dev/shm"
    return None


# --- config ---------------------------------------------------------------------------------------


@options.verb()
@options.flag("--check", help="Show every wrong setting; exit 2 if there is one.")
@options.flag("--schema", help="Print the JSON schema of cachetier.toml, for editors.")
@options.flag("--origin", help="Show where each setting comes from.")
@options.settings()
@options.as_json
def config(
    flags: dict[str, Any],
    config: Path | None,
    check: bool,
    schema: bool,
    origin: bool,
    as_json: bool,
) -> int:
    """Show each setting as the service would read it now, in the form of a cachetier.toml.

    With --origin each says where it comes from: an option, a variable, a line of the file, or the
    default. A token is never shown. With --check only what is wrong is said, each with its place;
    nothing is started, and no remote is asked: `cachetier doctor` does that.

    JSON: `file`, `settings`: `value` and `origin` of each, of `max_rate` also `bytes_per_second`;
    with --check `file`, `problems`: `message` and `hint` of each; `warnings`: right, perhaps not
    meant; with --schema a JSON schema (draft 2020-12).
    """
    if check + schema + origin > 1:
        refuse(
            "--check, --schema and --origin exclude each other", "Leave out all but one of them."
        )
    if schema:
        head = {
            "$schema": "https://json-schema.org/draft/2020-12/schema",
            "title": "cachetier.toml",
            "description": "Settings of the cachetier service.",
        }
        print_json({**head, **schema_of(Settings)})
        return 0
    found = sourced(flags, config=config)
    if check:
        return _checked(found, as_json)
    if found.settings is None:
        raise found.problems[0]
    document = {"file": found.file, "settings": _described(found)}
    show(as_json, document, partial(echo, *written(found, with_origins=origin)))
    return 0


def _checked(found: Sourced, as_json: bool) -> int:
    """Say what is wrong with the settings; return the exit code."""
    warnings = _warnings(found) if found.settings is not None else []
    if as_json:
        problems = [{"message": each.message, "hint": each.hint} for each in found.problems]
        print_json({"file": found.file, "problems": problems, "warnings": warnings})
    for problem in found.problems:
        complain(problem.message, problem.hint)
    if not (found.problems or as_json):
        echo(f"The settings are correct: {_summary(found)}.", *warnings)
    return USAGE if found.problems else 0


def _described(found: Sourced) -> dict[str, dict[str, Any]]:
    assert found.settings is not None
    values = plain(found.settings)
    values["socket"] = str(found.settings.socket_path)
    described = {name: {"value": values[name], "origin": found.origins[name]} for name in values}
    described["max_rate"]["bytes_per_second"] = parsed_bandwidth(found.settings.max_rate).max_rate
    return described


def _summary(found: Sourced) -> str:
    given = sum(origin != DEFAULT for origin in found.origins.values())
    where = f"file {found.file}" if found.file else "no file"
    return f"{given} given, {len(found.origins) - given} by default, {where}"


def _warnings(found: Sourced) -> list[str]:
    """Return what is right, but may not be meant: names, rates in bits, and shares."""
    settings = found.settings
    assert settings is not None
    return [
        *(
            f"Warning: {each.called}: {oddity}"
            for each in settings.remotes
            if (oddity := scheme_of(each).oddity(each)) is not None
        ),
        *(
            f"Note: `max_rate` = {toml_of(plain(settings.max_rate))} is {meant}."
            for meant in (_meaning(settings),)
            if meant
        ),
        *_promised_beyond(found),
    ]


def _meaning(settings: Settings) -> str:
    """Return rates in bytes if they are written in bits, or may look so; else nothing."""
    if not any("b" in text for text in settings.max_rate):
        return ""
    limits = parsed_bandwidth(settings.max_rate)
    rates = [limits.max_rate, *(each.bytes_per_second for each in limits.windows)]
    return ", ".join(f"{shown_size(rate)}/s" for rate in rates if rate is not None)


def _promised_beyond(found: Sourced) -> list[str]:
    """Say if principals may together have more than there is: allowed, but maybe not meant."""
    assert found.settings is not None
    promised, where = found.settings.promised_bytes, found.settings.cache_dir.absolute()
    there = next(each for each in (where, *where.parents) if each.exists())
    capacity = found.settings.capacity_bytes(shutil.disk_usage(there).total)
    if promised <= capacity:
        return []
    more = f"{shown_size(promised)} together, `capacity` is {shown_size(capacity)}"
    return [f"Warning: the principals may have {more}: it can be full before a share is."]


# --- as TOML --------------------------------------------------------------------------------------


def written(found: Sourced, *, with_origins: bool) -> list[str]:
    """Return the lines of a ``cachetier.toml`` that gives the same settings again.

    A setting that is not set, or a secret, is a comment.
    """
    assert found.settings is not None
    settings = found.settings
    values = {name: getattr(settings, name) for name in found.origins}
    values["socket"] = settings.socket_path
    width = max(map(len, values))
    lines = {name: _toml_line(name.ljust(width), value) for name, value in values.items()}
    column = min(44, max(map(len, lines.values())))
    shown = []
    for name, line in lines.items():
        meaning = _meaning(settings) if name == "max_rate" else ""
        notes = [meaning] * bool(meaning) + [found.origins[name]] * with_origins
        shown.append(f"{line.ljust(column)}  # {', '.join(notes)}" if notes else line)
    return shown


def _toml_line(name: str, value: Any) -> str:
    if value is None:
        return f"# {name} not set"
    if isinstance(value, Secret):
        return f"# {name} {value!r}"
    return f"{name} = {toml_of(SETTINGS[name.strip()].kind.written(value))}"


def toml_of(value: Any) -> str:
    """Return a plain value as TOML writes it, on one line."""
    if isinstance(value, dict):
        given = ((key, each) for key, each in value.items() if each is not None)
        pairs = [f"{_quoted(key)} = {toml_of(each)}" for key, each in given]
        return f"{{ {', '.join(pairs)} }}" if pairs else "{}"
    if isinstance(value, list):
        return f"[{', '.join(map(toml_of, value))}]"
    if isinstance(value, bool):
        return "true" if value else "false"
    return _quoted(value) if isinstance(value, str) else str(value)


def _quoted(text: str) -> str:
    """Return ``text`` as TOML quotes it: as JSON, but for pairs of surrogates, and DEL."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
