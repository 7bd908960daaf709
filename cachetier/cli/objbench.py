"""``cachetier objbench``: what the remote can do from here, and what to set for it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from cachetier_client.units import parsed_size, shown_size, shown_time

from cachetier.cli.bars import StepLine, line_shown
from cachetier.cli.output import (
    SPAN,
    AsJson,
    console,
    echo,
    ended_by_signal,
    print_json,
    read_option,
    refuse,
    reported,
    table,
)
from cachetier.cli.settings_options import OF_REMOTE, Flags, taking_settings
from cachetier.config.settings import load

if TYPE_CHECKING:
    from cachetier.config.settings import Settings
    from cachetier.doctor.objbench import Advice, Measured, ObjectBench, RemoteBenchOptions
    from cachetier.remote.settings import RemoteSettings

_NOWHERE = "/nonexistent"  # must be set, and is not looked at


@taking_settings(*OF_REMOTE)
def objbench(
    flags: Flags,
    config: Path | None,
    replica: Annotated[
        str | None, typer.Option("--replica", help="Measure this replica of the settings instead.")
    ] = None,
    seconds: Annotated[
        float,
        typer.Option("--seconds", metavar=SPAN, min=1.0, help="About how long to measure."),
    ] = 60.0,
    size: Annotated[
        str, typer.Option("--size", help="The most to write, in all: '4 GiB'.")
    ] = "4 GiB",
    streams: Annotated[
        int, typer.Option("--streams", min=1, max=64, help="The most requests at once.")
    ] = 16,
    as_json: AsJson = False,
) -> None:
    """Measure latency and throughput of the remote by streams and part size; suggest settings.

    Writes below the prefix under .cachetier/, verifies what it reads, and removes it. Costs
    requests and traffic, and takes its share from a drain that runs meanwhile.

    JSON: `latencies`, `small_puts`, `throughputs` (by streams and part size), `advice`
    (`drain_workers`, `max_rate`, `remarks`) and `left_behind`, what could not be removed.
    """
    plan = _plan(seconds, size, streams, as_json)
    with reported(as_json), ended_by_signal():
        from cachetier.doctor.objbench import ObjectBench, advice_for

        settings = load({**flags, "cache_dir": _NOWHERE}, config=config)
        which = _which(settings, replica, as_json)
        now = StepLine("measuring")
        bench = ObjectBench(which, plan, on_step=now.step)
        with line_shown(as_json, lambda: now.text):
            measured = _measured(bench)
        advice = advice_for(measured.throughputs)
        if as_json:
            print_json(_document(which, measured, advice, bench.left_behind))
        else:
            _print(which, measured, advice, bench.left_behind)


def _plan(seconds: float, size: str, streams: int, as_json: bool) -> RemoteBenchOptions:
    from cachetier.doctor.objbench import RemoteBenchOptions

    size_bytes = read_option("size", size, parsed_size, "Give a size such as '4 GiB'.", as_json)
    return RemoteBenchOptions(seconds, size_bytes, streams)


def _measured(bench: ObjectBench) -> Measured:
    from cachetier.errors import RemoteError

    try:
        return bench.run()
    except RemoteError as error:  # its own hint is for those whose service drains
        error.hint = "Run `cachetier doctor --only remote`: it says what is wrong there."
        raise


def _which(settings: Settings, replica: str | None, as_json: bool) -> RemoteSettings:
    from cachetier.config.remotes import remote_settings, replica_settings

    if replica is None:
        return remote_settings(settings)
    known = {each.name: each for each in replica_settings(settings)}
    if replica not in known:
        there_are = f"There are: {', '.join(known)}." if known else "The settings have none at all."
        refuse(f"there is no replica {replica!r}", there_are, as_json=as_json)
    return known[replica]


# --- how it looks --------------------------------------------------------------------------------


def _document(
    which: RemoteSettings, measured: Measured, advice: Advice, left_behind: list[str]
) -> dict[str, Any]:
    from dataclasses import asdict

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


def _print(
    which: RemoteSettings, measured: Measured, advice: Advice, left_behind: list[str]
) -> None:
    shown = console()
    shown.print(f"{which.url} at {which.endpoint or 'AWS'}\n")
    small = table("<4 KiB, one at a time", "p50", "p99", "times")
    for request, times in measured.latencies.items():
        p50, p99 = shown_time(times.p50_seconds), shown_time(times.p99_seconds)
        small.add_row(request, p50, p99, str(times.count))
    shown.print(small)
    if measured.rate is not None:
        rate = measured.rate
        refused = f", {rate.throttled} throttled" if rate.throttled else ""
        shown.print(f"{rate.streams} streams: {rate.per_second:.0f} small puts/s{refused}")
    large = table("<streams", "part", "PUT", "GET", "throttled", "failed")
    for cell in measured.throughputs:
        large.add_row(
            str(cell.streams),
            f"{cell.part_bytes >> 20} MiB",
            f"{shown_size(cell.put_bytes_per_second)}/s",
            f"{shown_size(cell.get_bytes_per_second)}/s",
            str(cell.throttled or "-"),
            str(cell.failed or "-"),
        )
    shown.print()
    shown.print(large)
    shown.print(f"\nsuggested: drain_workers = {advice.drain_workers}", end="")
    shown.print(f', max_rate = "{advice.max_rate}"' if advice.max_rate else ", no max_rate")
    for remark in advice.remarks:
        shown.print(f"  {remark}")
    for key in left_behind:
        echo(f"Could not be removed: {key}", err=True)
