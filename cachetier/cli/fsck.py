"""``cachetier fsck``: data files against the catalog against the remotes."""

from __future__ import annotations

from collections import Counter
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from cachetier_client.units import counted, shown_size

from cachetier.cli.bars import HowFar, bytes_shown, line_shown
from cachetier.cli.output import INTEGRITY, AsJson, echo, print_json, refuse, reported
from cachetier.cli.settings_options import Flags, taking_settings
from cachetier.config.settings import load
from cachetier.local.files.permissions import keep_files_private

if TYPE_CHECKING:
    from cachetier.config.settings import Settings
    from cachetier.fsck.findings import Finding, FsckReport
    from cachetier.fsck.run import FsckOptions
    from cachetier.remote.bucket import Remote
    from cachetier.remote.mounted import MountBuckets

LISTED = 20


Repair = Annotated[
    bool, typer.Option("--repair", help="Repair what can be; the service must be stopped.")
]
Data = Annotated[bool, typer.Option("--data", help="Read and check every byte on this node, too.")]
Local = Annotated[bool, typer.Option("--local", help="Look at this node only, and ask no remote.")]
Run = Annotated[str | None, typer.Option("--run", help="Only this run's shards.")]
Adopt = Annotated[
    bool, typer.Option("--adopt", help="Take files of lost+found back that no row accounts for.")
]
Rebuild = Annotated[
    bool, typer.Option("--rebuild", help="Make a lost catalog anew from the data files.")
]


@taking_settings("cache_dir", "remote", "remote_endpoint")
def fsck(
    flags: Flags,
    config: Path | None,
    repair: Repair = False,
    data: Data = False,
    local: Local = False,
    run: Run = None,
    adopt: Adopt = False,
    rebuild: Rebuild = False,
    as_json: AsJson = False,
) -> None:
    """Check data files against the catalog against the remotes; exit 5 if a problem remains.

    Looking changes nothing, and may be done while the service runs. With --repair each repair is
    said before it is made; nothing that is the only copy of a shard goes, and nothing that is not
    cachetier's is touched. Settings are those of `cachetier serve`.

    JSON: `clean`, `online`, `shards`, `size_bytes`, `checked_bytes`, `objects`, `counts`,
    `remaining`, `findings`, `repairs`, `unanswered`.
    """
    if local and (adopt or rebuild):
        refuse("--adopt and --rebuild need the remote", "Leave out --local.", as_json=as_json)
    if local:
        flags["remote"] = "s3://not-asked"
    keep_files_private()
    with reported(as_json):
        from cachetier.fsck.run import FsckOptions

        settings = load(flags, config=config)
        mounts = None if local else _mounts(settings)
        options = FsckOptions(data, run, repair, adopt, rebuild, mounts)
        report = _checked(settings, options, local, as_json)
    if as_json:
        print_json(report.as_json())
    else:
        _show_outcomes(report)
        echo(_summary(report, options.changes))
    if report.remaining():
        raise typer.Exit(INTEGRITY)
    if report.unanswered:
        raise typer.Exit(1)


def _checked(settings: Settings, options: FsckOptions, local: bool, as_json: bool) -> FsckReport:
    from cachetier_client.clock import SystemClock

    from cachetier.fsck.findings import FsckReport
    from cachetier.fsck.run import fsck as check

    report = FsckReport()
    with ExitStack() as looking:

        def found(report: FsckReport) -> None:
            looking.close()  # the bar goes before anything is said
            if not as_json:
                _show_found(report)

        looking.enter_context(_watched(report, options, as_json))
        return check(
            settings.cache_dir,
            [] if local else _remotes(settings),
            SystemClock(),
            options,
            capacity_bytes=_capacity_bytes(settings),
            found=found,
            say=lambda line: echo(line, err=as_json),
            report=report,
        )


def _watched(
    report: FsckReport, options: FsckOptions, as_json: bool
) -> AbstractContextManager[None]:
    """Show what was looked at; a bar where bytes are read, which takes the time."""

    def line() -> str:
        looked = f"{counted(report.shards, 'shard')} here"
        return f"{looked}, {report.objects} objects in S3" if report.objects else looked

    def how_far() -> HowFar:
        due = report.due_bytes if options.run is None else 0  # that is of all runs
        return HowFar(line(), report.checked_bytes, due or None)

    return bytes_shown(as_json, how_far) if options.data else line_shown(as_json, line)


def _remotes(settings: Settings) -> list[Remote]:
    """Open the remotes of the settings, the durable one first."""
    from cachetier.config.remotes import all_remotes
    from cachetier.remote.bucket import Remote
    from cachetier.remote.factory import open_remote

    all_of_them = all_remotes(settings)
    return [Remote(each.name, open_remote(each)) for each in all_of_them]


def _mounts(settings: Settings) -> MountBuckets:
    """Open the buckets of the mounts when they are asked first."""
    from dataclasses import replace

    from cachetier.config.remotes import remote_settings
    from cachetier.remote.bucket import Bucket
    from cachetier.remote.factory import client_of, open_remote
    from cachetier.remote.mounted import MountBuckets
    from cachetier.remote.store_clock import StoreClock

    durable, store_clock = remote_settings(settings), StoreClock()
    client = client_of(durable, store_clock)

    def opened(name: str) -> Bucket:
        return open_remote(replace(durable, bucket=name, prefix=""), client=client)

    return MountBuckets(settings.s3_mounts, opened, store_clock)


def _capacity_bytes(settings: Settings) -> int:
    import os

    try:
        status = os.statvfs(settings.cache_dir)
    except FileNotFoundError:
        return 0
    return settings.capacity_bytes(status.f_blocks * status.f_frsize)


# --- how it looks --------------------------------------------------------------------------------


def _show_found(report: FsckReport) -> None:
    _show_findings([f for f in report.findings if f.is_problem], "problem")
    _show_findings([f for f in report.findings if not f.is_problem], "note")
    for unanswered in report.unanswered:
        echo(f"not asked  {unanswered}")


def _show_outcomes(report: FsckReport) -> None:
    for outcome in report.outcomes[: LISTED * 5]:
        word = "repaired" if outcome.repaired else "left"
        echo(f"{word:<10} {outcome.finding.where}: {outcome.what}")
    if len(report.outcomes) > LISTED * 5:
        echo(f"... and {len(report.outcomes) - LISTED * 5} more")


def _show_findings(findings: list[Finding], word: str) -> None:
    """List findings, and of each kind the first few."""
    counts: Counter[Any] = Counter()
    for finding in findings:
        counts[finding.kind] += 1
        if counts[finding.kind] <= LISTED:
            echo(f"{word:<10} {finding.where}: {finding.message} ({finding.kind})")
    for kind, count in counts.items():
        if count > LISTED:
            echo(f"{word:<10} ... and {count - LISTED} more ({kind})")


def _summary(report: FsckReport, repaired: bool) -> str:
    looked = f"{report.shards} shards, {shown_size(report.size_bytes)} here"
    if report.checked_bytes:
        looked += f", {shown_size(report.checked_bytes)} of it read"
    looked += f", {report.objects} objects asked for" if report.objects else ", no remote asked"
    remaining = len(report.remaining())
    if remaining:
        next_move = "" if repaired else f"\nNext: {_next_move(report)}"
        return f"{looked}: {counted(remaining, 'problem')}.{next_move}"
    return f"{looked}: {'not everything could be asked' if report.unanswered else 'clean'}."


def _next_move(report: FsckReport) -> str:
    stop = "stop the service, and " if report.online else ""
    if report.unreadable:
        return f"read docs/recovery.md; then, if need be, {stop}run it again with --rebuild."
    return f"{stop}run it again with --repair."
