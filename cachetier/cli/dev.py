"""``cachetier dev``: the service and an S3 server in one process, to try things on a laptop."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

import typer

from cachetier.cli.output import AsJson, echo, print_json, read_option, reported
from cachetier.cli.s3 import past_proxies
from cachetier.cli.serve import set_up_logging
from cachetier.local.files.permissions import keep_files_private

BUCKET = "checkpoints"
MOUNT = "objects"

_WELCOME = """\
cachetier dev is up; what its S3 server holds is gone when it stops (Ctrl-C).

  socket  {url}
  HTTP    {http}   token in {token}
  Console {http}/   signed in by what `cachetier link` prints
  S3      {s3}   bucket {bucket}
  S3 door {s3_door}   mount {mount}: s3://{bucket}/{mount}/

In another terminal:

  export CACHETIER_URL={url}
  echo hello | cachetier put - --run try --step 1 --name greeting --seal
  cachetier wait try 1
  cachetier get --run try --step 1 --name greeting
  cachetier status

Watch all of it in a browser, which this signs in:

  cachetier link

Or with any program that speaks S3, written back through this node:

  eval "$(cachetier s3 env)"
  aws s3 cp some-file s3://{bucket}/{mount}/
"""


def dev(
    http: Annotated[
        str, typer.Option("--http", help="Address of the HTTP door; port 0 for a free one.")
    ] = "127.0.0.1:7070",
    s3_door: Annotated[
        str, typer.Option("--s3-door", help="Address of the S3 door; port 0 for a free one.")
    ] = "127.0.0.1:7071",
    cache_dir: Annotated[
        Path | None,
        typer.Option("--cache-dir", help="Keep the cache here; default: a temporary directory."),
    ] = None,
    s3_port: Annotated[
        int, typer.Option("--s3-port", min=0, max=65535, help="Port of the S3 server; 0: free.")
    ] = 0,
    capacity: Annotated[str, typer.Option("--capacity", help="Budget of the cache.")] = "2 GB",
    log_level: Annotated[str, typer.Option("--log-level", help="How much to log.")] = "warning",
    as_json: AsJson = False,
) -> None:
    """Run the service with an S3 server in the same process: nothing to install or configure.

    JSON: `state` (ready), `url`, `http`, `token` (a file), `s3`, `bucket`, `s3_door`, `mount`,
    once it takes requests.
    """
    from cachetier.config.settings import SETTINGS

    keep_files_private()
    level_of = SETTINGS["log_level"].kind.read
    read_option("log-level", log_level, level_of, "Choose one of them.", as_json)
    with reported(as_json), _scratch(cache_dir) as directory:
        set_up_logging(log_level)
        given = {"cache_dir": directory, "capacity": capacity, "http": http, "log_level": log_level}
        given["s3"] = s3_door
        _run(given, s3_port, as_json)


def _run(given: dict[str, Any], s3_port: int, as_json: bool) -> None:
    from cachetier.access.tokens import OWNER_FILE
    from cachetier.config.settings import load
    from cachetier.errors import ConfigError
    from cachetier.service.service import Service
    from cachetier.testing.moto_server import moto_server

    if find_spec("moto") is None or find_spec("flask") is None:
        raise ConfigError(
            "the S3 server for `dev` is not installed",
            hint="Install it: pip install 'cachetier[dev]'",
        )
    os.environ.update(past_proxies("127.0.0.1"))
    with moto_server(port=s3_port, bucket=BUCKET) as endpoint:
        os.environ.update(endpoint.environment())
        remote = {
            "remote": f"s3://{BUCKET}/dev",
            "remote_endpoint": endpoint.url,
            "remote_verify": endpoint.verify,
            "s3_mount": [{"name": MOUNT, "bucket": BUCKET, "prefix": MOUNT}],
        }
        service = Service(load({**given, **remote, "allow_volatile": True, "grace_seconds": 5}))
        service.start()
        url = f"unix://{service.socket}"
        token = str(Path(given["cache_dir"]) / OWNER_FILE)
        where = {"url": url, "http": service.url, "token": token}
        where |= {"s3": endpoint.url, "bucket": BUCKET}
        where |= {"s3_door": service.s3_url, "mount": MOUNT}
        if as_json:
            print_json({"state": "ready", **where})
            sys.stdout.flush()
        else:
            shown = {name: value or "off" for name, value in where.items()}
            text = _WELCOME.format(**shown)
            echo(*text.split("\n"))
        service.run()


@contextmanager
def _scratch(cache_dir: Path | None) -> Iterator[Path]:
    """Lend a directory: the caller's own, or one that goes away afterwards."""
    if cache_dir is not None:
        yield cache_dir
        return
    directory = Path(tempfile.mkdtemp(prefix="cachetier-", dir=_home()))
    try:
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _home() -> str | None:
    """Return where the scratch directory can be: in a container only memory is no overlay."""
    from cachetier.errors import ConfigError
    from cachetier.local.files.filesystem import checked_mount

    try:
        checked_mount(Path(tempfile.gettempdir()), allow_volatile=True)
    except ConfigError:
        return "/dev/shm"
    return None
