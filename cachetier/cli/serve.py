"""``cachetier serve``: one option for each setting; what is not given comes from elsewhere."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cachetier.cli.output import AsJson, print_json
from cachetier.cli.starting import starting
from cachetier.service.signals import end_as_any_process

if TYPE_CHECKING:
    from cachetier.service.service import Service


def _option(flag: str, text: str) -> Any:
    return typer.Option(flag, help=text, show_default=False)


def serve(
    config: Annotated[
        Path | None,
        _option("--config", "Settings file; default CACHETIER_CONFIG, then ./cachetier.toml."),
    ] = None,
    cache_dir: Annotated[
        str | None, _option("--cache-dir", "Directory of the cache, on a local ext4 or XFS disk.")
    ] = None,
    capacity: Annotated[
        str | None, _option("--capacity", "200 GB, 1.5 TiB, or a share of the filesystem: 80%.")
    ] = None,
    socket: Annotated[
        str | None, _option("--socket", "Unix socket; default <cache-dir>/cachetier.sock.")
    ] = None,
    socket_mode: Annotated[
        str | None, _option("--socket-mode", "Permissions of the socket; default 0600.")
    ] = None,
    allowed_uids: Annotated[
        str | None, _option("--allowed-uids", "Users who may use the socket: 1000,1001.")
    ] = None,
    http: Annotated[
        str | None, _option("--http", "Address of the HTTP door, '' for none; 127.0.0.1:7070.")
    ] = None,
    token: Annotated[
        str | None, _option("--token", "Token of HTTP callers; better in CACHETIER_TOKEN.")
    ] = None,
    remote: Annotated[
        str | None, _option("--remote", "Where checkpoints go: s3://bucket/prefix.")
    ] = None,
    remote_endpoint: Annotated[
        str | None, _option("--remote-endpoint", "URL of an S3-compatible store.")
    ] = None,
    remote_region: Annotated[
        str | None, _option("--remote-region", "Region of the bucket.")
    ] = None,
    remote_verify: Annotated[
        str | None, _option("--remote-verify", "checksum, or readback for a store without.")
    ] = None,
    conditional_writes: Annotated[
        str | None, _option("--conditional-writes", "on, or off for a store without.")
    ] = None,
    key_layout: Annotated[
        str | None, _option("--key-layout", "plain, or spread over sixteen prefixes.")
    ] = None,
    when_full: Annotated[
        str | None, _option("--when-full", "wait, write_through or reject; default wait.")
    ] = None,
    compression: Annotated[
        str | None, _option("--compression", "off, auto, zstd:1 to :19 or planes:1 to :19.")
    ] = None,
    compression_rules: Annotated[
        str | None, _option("--compression-rules", """By run or name: '{"big-*": "auto"}'.""")
    ] = None,
    block_copies: Annotated[
        str | None, _option("--block-copies", "on, or off to send unchanged bytes again.")
    ] = None,
    pack: Annotated[
        bool | None, _option("--pack", "Send a rank's shards of up to 1 MiB as one object.")
    ] = None,
    high_watermark: Annotated[
        str | None, _option("--high-watermark", "Share of capacity where eviction starts; 0.9.")
    ] = None,
    low_watermark: Annotated[
        str | None, _option("--low-watermark", "Share of capacity where it stops; 0.8.")
    ] = None,
    durable_every: Annotated[
        str | None, _option("--durable-every", "Drain only steps divisible by it; 1.")
    ] = None,
    supersede: Annotated[
        bool | None, _option("--supersede", "Skip steps older than a published one.")
    ] = None,
    keep_local: Annotated[
        str | None, _option("--keep-local", "Complete steps of a run that stay here; 0: no limit.")
    ] = None,
    replicas: Annotated[
        str | None,
        _option(
            "--replicas", """Second copies: '{"near": {"remote": "s3://..."}}', nearest first."""
        ),
    ] = None,
    run_weights: Annotated[
        str | None, _option("--run-weights", """Shares of the drain: '{"big-*": 4}'.""")
    ] = None,
    max_rate: Annotated[
        str | None, _option("--max-rate", "The most the drain sends: '2 GB/s'; default no limit.")
    ] = None,
    windows: Annotated[
        str | None, _option("--windows", "Rates by time of day: '08:00-20:00 200 MB/s, ...'.")
    ] = None,
    drain_workers: Annotated[
        str | None, _option("--drain-workers", "Shards uploaded at once; 8.")
    ] = None,
    drain_threads: Annotated[
        str | None, _option("--drain-threads", "Threads that compress at once; up to 2.")
    ] = None,
    drain_cpus: Annotated[
        str | None, _option("--drain-cpus", "CPUs that the drain may use: 2-3,7; default all.")
    ] = None,
    grace_seconds: Annotated[
        str | None, _option("--grace-seconds", "Time to finish what is in flight at a stop; 30.")
    ] = None,
    notice_seconds: Annotated[
        str | None, _option("--notice-seconds", "Time to flush on SIGTERM before the stop; 0.")
    ] = None,
    allow_volatile: Annotated[
        bool | None, _option("--allow-volatile", "Accept a cache in memory, for a try.")
    ] = None,
    exposure_objective: Annotated[
        str | None,
        _option("--exposure-objective", "Seconds that training may be unsafe for; 1800."),
    ] = None,
    log_level: Annotated[
        str | None, _option("--log-level", "debug, info, warning or error; default info.")
    ] = None,
    log_format: Annotated[
        str | None, _option("--log-format", "json or console; default text on a terminal only.")
    ] = None,
    trace: Annotated[
        bool | None, _option("--trace", "Trace each checkpoint with OpenTelemetry.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Run the service on this node until it is told to stop (SIGTERM, SIGINT).

    Every option can be given as CACHETIER_<NAME> or in cachetier.toml: see docs/configuration.md.

    JSON: `state` (ready), `socket`, `http`, once it takes requests.
    """
    flags = {name: value for name, value in locals().items() if name not in ("config", "as_json")}
    end_as_any_process()
    with starting(as_json, log_format):
        from cachetier.config.settings import load

        settings = load(flags, config=config)
        token = settings.token.reveal() if settings.token is not None else ""
        set_up_logging(settings.log_level, settings.log_format, secrets=(token,))
        from cachetier.service.first_start import refuse_wrong_remote

        refuse_wrong_remote(settings)
        from cachetier.service.service import Service

        service = Service(settings)
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
