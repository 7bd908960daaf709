"""``cachetier doctor`` and ``bench``: whether this node and its remotes are fit, and how fast."""

from __future__ import annotations

import os
import shutil
import sys
import textwrap
from collections import Counter
from collections.abc import Iterable
from contextlib import closing
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import cachetier_client
from cachetier_client.units import shown_size, shown_time

from cachetier.cli import options
from cachetier.cli.connection import reach
from cachetier.cli.options import CHECK, COUNT, REPLICA, SIZE, Word
from cachetier.cli.output import (
    FAILED,
    console,
    echo,
    ended_by_signal,
    line_shown,
    print_json,
    refuse,
    show,
    table,
)
from cachetier.config.settings import load
from cachetier.remote.scheme import scheme_of

if TYPE_CHECKING:
    from cachetier.config.settings import Settings
    from cachetier.doctor.findings import CheckResult
    from cachetier.doctor.nodebench import Row
    from cachetier.doctor.objbench import Advice, Measured, ObjectBench
    from cachetier.doctor.subject import Subject
    from cachetier.remote.settings import RemoteSettings

_STYLES: dict[str, dict[str, Any]] = {
    "ok": {"fg": "green"},
    "warn": {"fg": "yellow"},
    "fail": {"fg": "red", "bold": True},
    "skipped": {"dim": True},
}
_NAME_CELLS = 12
_PAGE_BYTES = 4096
NODE_BYTES, REMOTE_BYTES = 256 << 20, 4 << 30
_LOOK_SECONDS = 3.0


@options.verb()
@options.option(
    "--only",
    type=CHECK,
    multiple=True,
    help="Only this check, or group: disk, node, remote. Repeatable.",
)
@options.flag("--skip-remote", help="Leave the buckets alone.")
@options.option(
    "--checkpoint-size",
    type=replace(SIZE, hint="Give a size such as '400 GB'."),
    help="The size of a checkpoint on this node: '400 GB'.",
)
@options.settings("cache_dir", "remote", "remote_endpoint")
@options.as_json
def doctor(
    flags: dict[str, Any],
    config: Path | None,
    only: tuple[str, ...],
    skip_remote: bool,
    checkpoint_size: int | None,
    as_json: bool,
) -> int:
    """Check this node and its remotes: what was measured, and what to do where it is not fine.

    No service is needed; one that runs on the same cache directory is looked at as well. Whatever
    is written is removed again. Exit 1 if any check fails. All checks: docs/doctor.md.

    JSON: `state` (the worst) and `findings`: of each `name`, `group`, `remote`, `state` (ok, warn,
    fail, skipped), `measured`, `fix` and `values`, the figures by name.
    """
    with ended_by_signal():
        from cachetier.doctor.checks import checked_names, examine

        names = checked_names(only)
        settings = load(flags, config=config)
        subject = _subject(settings, checkpoint_size, skip_remote=skip_remote)
        with closing(examine(subject, names)) as found:
            failed = _print_json(found) if as_json else _print(found)
    return FAILED if failed else 0


def _subject(settings: Settings, checkpoint_bytes: int | None, *, skip_remote: bool) -> Subject:
    from cachetier.cpus import parsed_cores
    from cachetier.doctor.subject import Subject

    status, fault = _service(settings)
    return Subject(
        cache_dir=settings.cache_dir,
        capacity_bytes=settings.capacity_bytes,
        socket=settings.socket_path,
        socket_mode=settings.socket_permissions,
        allowed_uids=settings.allowed_uids.union(*(each.uid for each in settings.tenants)),
        allow_volatile=settings.allow_volatile,
        remotes=settings.buckets,
        drain_threads=parsed_cores(settings.drain_cores)[0],
        tls=settings.tls_files,
        service=status,
        service_fault=fault,
        checkpoint_bytes=checkpoint_bytes,
        promised_bytes=settings.promised_bytes,
        skip_remote=skip_remote,
    )


def _service(settings: Settings) -> tuple[dict[str, Any] | None, str]:
    """Ask the service on this directory for its status; return it, or why there is none."""
    if not settings.socket_path.exists():
        return None, ""
    try:
        with cachetier_client.Client(f"unix://{settings.socket_path}", fallback="fail") as client:
            return client.status(timeout_seconds=_LOOK_SECONDS), ""
    except cachetier_client.CachetierClientError as error:
        return None, f"{settings.socket_path} is there, and nobody answers ({error.code})"


# --- how it looks --------------------------------------------------------------------------------


def _print_json(found: Iterable[tuple[str, CheckResult]]) -> bool:
    """Print one document; return whether a check failed."""
    from cachetier.doctor.findings import State, worst

    findings = list(found)
    state = worst(finding for _, finding in findings)
    described = [{**asdict(finding), "group": group} for group, finding in findings]
    print_json({"state": str(state), "findings": described})
    return state is State.FAIL


def _print(found: Iterable[tuple[str, CheckResult]]) -> bool:
    """Print each finding as it comes, and a line of sums; return whether a check failed."""
    counts: Counter[str] = Counter()
    title = ""
    held_back: list[CheckResult] = []
    for group, finding in found:
        heading = f"remote {finding.remote}" if finding.remote else group
        if held_back and (heading != title or finding.measured != held_back[0].measured):
            _print_skipped(held_back)
        if heading != title:
            echo(*([""] if title else []), heading, bold=True)
            title = heading
        if finding.state == "skipped":
            held_back.append(finding)
        else:
            _print_finding(finding)
        sys.stdout.flush()
        counts[str(finding.state)] += 1
    _print_skipped(held_back)
    echo("", ", ".join(f"{counts[state]} {state}" for state in _STYLES if counts[state]))
    return bool(counts["fail"])


def _print_skipped(held_back: list[CheckResult]) -> None:
    """Print what was skipped for one reason as one finding, and forget it."""
    if len(held_back) > 1:
        names = ", ".join(finding.name for finding in held_back)
        held_back[0] = replace(held_back[0], name="", measured=f"{names}: {held_back[0].measured}")
    if held_back:
        _print_finding(held_back[0])
    held_back.clear()


def _print_finding(finding: CheckResult) -> None:
    """Print state, name, what was measured and the fix; long lines hang below their beginning."""
    state = str(finding.state)
    head = f"  {state:<7} {finding.name:<{_NAME_CELLS}}"
    lines = _wrapped(finding.measured, len(head))
    fixes = _wrapped(f"fix: {finding.fix}", len(head)) if finding.fix else []
    echo(head, nl=False, **_STYLES[state])
    echo(lines[0])
    for line in lines[1:]:
        echo(" " * len(head) + line)
    for line in fixes:
        echo(" " * len(head) + line, fg="cyan")


def _wrapped(text: str, indent: int) -> list[str]:
    """Cut a text for the terminal; where there is none a line stays whole, for grep."""
    if not sys.stdout.isatty():
        return [text]
    width = max(40, shutil.get_terminal_size().columns - indent)
    return textwrap.wrap(text, width, break_on_hyphens=False)


# --- bench: through the service -------------------------------------------------------------------


@options.verb()
@options.option(
    "--remote",
    type=Word("URL"),
    is_flag=False,
    flag_value="",
    help="Measure the remote of the settings, or this one, and not the node.",
)
@options.option("--replica", type=REPLICA, help="Measure this replica of the settings.")
@options.option(
    "--size",
    type=replace(SIZE, hint="Give a size such as '256 MiB'."),
    help="Size of a large shard, default 256 MiB; of a remote, the most to write, default 4 GiB.",
)
@options.option(
    "--ranks",
    type=replace(COUNT, least=1, most=64),
    default=1,
    help="Shards put, and got, at once: up to 64.",
)
@options.option(
    "--rounds",
    type=replace(COUNT, least=1, most=100),
    default=3,
    help="Repetitions, up to 100; medians are shown.",
)
@options.duration("--for", "About how long to measure a remote.", default="60s", least=1.0)
@options.option(
    "--streams",
    type=replace(COUNT, least=1, most=64),
    default=16,
    help="The most requests at once to a remote, up to 64.",
)
@options.settings("remote_endpoint")
@options.service
def bench(
    flags: dict[str, Any],
    config: Path | None,
    remote: str | None,
    replica: str | None,
    size: int | None,
    url: str | None,
    as_json: bool,
    **given: Any,
) -> None:
    """Measure puts and gets through the service, and the same bytes on its bare disk.

    Needs a service that runs (`cachetier serve`, or `cachetier dev` to try). Uses a run of its own,
    which never becomes whole, and deletes it.

    With --remote or --replica it measures latency and throughput of a remote instead, by streams
    and part size, and suggests settings. That needs no service. It writes below the prefix under
    .cachetier/, verifies what it reads, and removes it; it costs requests and traffic, and takes
    its share from a drain that runs meanwhile.

    JSON: `measured`, of each figure `what`, `unit`, `service`, `disk` (null where the directory is
    not ours) and `ratio`; and `size_bytes`, `ranks`, `rounds`, `directory`, `filesystem`. Of a
    remote `latencies`, `small_puts`, `throughputs` (by streams and part size), `advice`
    (`drain_workers`, `max_rate`, `remarks`) and `left_behind`, what could not be removed.
    """
    with ended_by_signal():
        if remote is None and replica is None:
            _bench_node(size or NODE_BYTES, given["ranks"], given["rounds"], url, as_json)
            return
        flags = {**flags, "cache_dir": options.NOWHERE, **({"remote": remote} if remote else {})}
        which = _which(load(flags, config=config), replica)
        _bench_remote(which, given["for"], size or REMOTE_BYTES, given["streams"], as_json)


def _bench_node(size: int, ranks: int, rounds: int, url: str | None, as_json: bool) -> None:
    from cachetier.doctor.nodebench import NodeBench, NodeBenchOptions

    size_bytes = max(1, size // _PAGE_BYTES) * _PAGE_BYTES
    plan = NodeBenchOptions(size_bytes, ranks, rounds)
    with reach(url, seconds=None) as client:
        disk = client.status()["disk"]
        there = Path(disk["directory"])
        is_ours = there.is_dir() and os.access(there, os.W_OK | os.X_OK)
        steps = [""]
        measure = NodeBench(client, plan, there if is_ours else None, on_step=steps.append)
        with line_shown(as_json, lambda: f"measuring {steps[-1]}"):
            rows = measure.run()
    document = {
        "size_bytes": plan.size_bytes,
        "ranks": plan.ranks,
        "rounds": plan.rounds,
        "directory": disk["directory"],
        "filesystem": disk["filesystem"],
        "measured": [{**asdict(row), "ratio": row.ratio} for row in rows],
    }
    show(as_json, document, partial(_print_node, document, rows))


def _print_node(document: dict[str, Any], rows: list[Row]) -> None:
    shown = console()
    size, ranks = shown_size(document["size_bytes"]), document["ranks"]
    at_once = f", {ranks} at once" if ranks > 1 else ""
    shown.print(f"{document['directory']} ({document['filesystem']}), shards of {size}{at_once}\n")
    compared = (
        (
            row.what,
            _figure(row.service, row.unit),
            "-" if row.disk is None else _figure(row.disk, row.unit),
            "-" if row.ratio is None else f"{row.ratio:.2f}",
        )
        for row in rows
    )
    shown.print(table("<", "through cachetier", "bare disk", "ratio", rows=compared))
    if all(row.disk is None for row in rows):
        echo("", "The bare disk was not measured: the directory is not ours to write.")


def _figure(value: float, unit: str) -> str:
    return shown_time(value) if unit == "seconds" else f"{shown_size(value)}/s"


# --- bench: the remote ---------------------------------------------------------------------------


def _bench_remote(
    which: RemoteSettings, seconds: float, size: int, streams: int, as_json: bool
) -> None:
    from cachetier.doctor.objbench import ObjectBench, RemoteBenchOptions, advice_for

    steps = [""]
    bench = ObjectBench(which, RemoteBenchOptions(seconds, size, streams), on_step=steps.append)
    with line_shown(as_json, lambda: f"measuring {steps[-1]}"):
        measured = _measured(bench)
    advice = advice_for(measured.throughputs)
    found = which, measured, advice, bench.left_behind
    show(as_json, _document(*found), partial(_print_remote, *found))


def _measured(bench: ObjectBench) -> Measured:
    from cachetier.errors import RemoteError

    try:
        return bench.run()
    except RemoteError as error:  # its own hint is for those whose service drains
        error.hint = "Run `cachetier doctor --only remote`: it says what is wrong there."
        raise


def _which(settings: Settings, replica: str | None) -> RemoteSettings:
    durable, *replicas = settings.buckets
    if replica is None:
        return durable
    known = {each.name: each for each in replicas}
    if replica not in known:
        there_are = f"There are: {', '.join(known)}." if known else "The settings have none at all."
        refuse(f"there is no replica {replica!r}", there_are)
    return known[replica]


def _document(
    which: RemoteSettings, measured: Measured, advice: Advice, left_behind: list[str]
) -> dict[str, Any]:
    return {
        "remote": which.url,
        "endpoint": which.endpoint,
        "latencies": [
            {"request": request, **asdict(times)} for request, times in measured.latencies.items()
        ],
        "small_puts": asdict(measured.rate) if measured.rate is not None else None,
        "throughputs": [asdict(each) for each in measured.throughputs],
        "advice": asdict(advice),
        "left_behind": left_behind,
    }


def _print_remote(
    which: RemoteSettings, measured: Measured, advice: Advice, left_behind: list[str]
) -> None:
    shown = console()
    shown.print(f"{scheme_of(which).shown(which)}\n")
    small = (
        (request, shown_time(each.p50_seconds), shown_time(each.p99_seconds), str(each.count))
        for request, each in measured.latencies.items()
    )
    shown.print(table("<4 KiB, one at a time", "p50", "p99", "times", rows=small))
    if measured.rate is not None:
        rate = measured.rate
        refused = f", {rate.throttled} throttled" if rate.throttled else ""
        shown.print(f"{rate.streams} streams: {rate.per_second:.0f} small puts/s{refused}")
    large = (
        (
            str(cell.streams),
            f"{cell.part_bytes >> 20} MiB",
            f"{shown_size(cell.put_bytes_per_second)}/s",
            f"{shown_size(cell.get_bytes_per_second)}/s",
            str(cell.throttled or "-"),
            str(cell.failed or "-"),
        )
        for cell in measured.throughputs
    )
    shown.print()
    shown.print(table("<streams", "part", "PUT", "GET", "throttled", "failed", rows=large))
    shown.print(f"\nsuggested: drain_workers = {advice.drain_workers}", end="")
    shown.print(f', max_rate = "{advice.max_rate}"' if advice.max_rate else ", no max_rate")
    for remark in advice.remarks:
        shown.print(f"  {remark}")
    for key in left_behind:
        echo(f"Could not be removed: {key}", err=True)
