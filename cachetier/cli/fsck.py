"""``cachetier fsck`` and ``prune``: what is wrong here, and what nobody needs any more."""

from __future__ import annotations

import os
from collections import Counter
from contextlib import AbstractContextManager, ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cachetier_client.units import counted, shown_size

from cachetier.cli import options
from cachetier.cli.options import DURATION, RUN
from cachetier.cli.output import (
    FAILED,
    INTEGRITY,
    HowFar,
    bytes_shown,
    console,
    echo,
    line_shown,
    refuse,
    show,
    table,
)
from cachetier.config.settings import load
from cachetier.local.files.permissions import keep_files_private

if TYPE_CHECKING:
    from cachetier_client import Client

    from cachetier.config.settings import Settings
    from cachetier.fsck.findings import Finding, FsckReport
    from cachetier.fsck.run import FsckOptions
    from cachetier.remote.bucket import Remote
    from cachetier.remote.mounted import MountBuckets

LISTED = 20
COLLECT_SECONDS = 300.0
_TITLES = {
    "incomplete_save": "incomplete",
    "replaced_save": "replaced",
    "set_aside_file": "set aside",
    "unfinished_upload": "upload",
}


# --- fsck -----------------------------------------------------------------------------------------


@options.verb()
@options.flag("--repair", help="Repair what can be repaired; the service must be stopped.")
@options.flag("--data", help="Read and check every byte on this node, too.")
@options.flag("--local", help="Look at this node only, and ask no remote.")
@options.option("--run", type=RUN, help="Only this run's shards.")
@options.flag("--adopt", help="Take files of lost+found back that no row accounts for.")
@options.flag("--rebuild", help="Rebuild a lost catalog from the data files.")
@options.settings("cache_dir", "remote", "remote_endpoint")
@options.as_json
def fsck(
    flags: dict[str, Any],
    config: Path | None,
    repair: bool,
    data: bool,
    local: bool,
    run: str | None,
    adopt: bool,
    rebuild: bool,
    as_json: bool,
) -> int:
    """Check data files against the catalog against the remotes; exit 5 if a problem remains.

    Looking changes nothing, and may be done while the service runs. With --repair each repair is
    said before it is made; nothing that is the only copy of a shard goes, and nothing that is not
    cachetier's is touched. Settings are those of `cachetier serve`.

    JSON: `clean`, `online`, `shards`, `size_bytes`, `checked_bytes`, `objects`, `counts`,
    `remaining`, `findings`, `repairs`, `unanswered`.
    """
    if local and (adopt or rebuild):
        refuse("--adopt and --rebuild need the remote", "Leave out --local.")
    if local:
        flags["remote"] = "s3://not-asked"
    keep_files_private()
    from cachetier.fsck.run import FsckOptions

    settings = load(flags, config=config)
    mounts = None if local else _mounts(settings)
    given = FsckOptions(data, run, repair, adopt, rebuild, mounts)
    report = _checked(settings, given, local, as_json)
    show(as_json, report.as_json(), partial(_show_outcomes, report, given.changes))
    return INTEGRITY if report.remaining() else FAILED if report.unanswered else 0


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
    from cachetier.remote.bucket import Remote
    from cachetier.remote.factory import open_remote

    return [Remote(each.name, open_remote(each)) for each in settings.buckets]


def _mounts(settings: Settings) -> MountBuckets:
    """Open the buckets of the mounts when they are asked first."""
    from cachetier.remote.bucket import Bucket
    from cachetier.remote.factory import open_remote
    from cachetier.remote.mounted import MountBuckets
    from cachetier.remote.scheme import scheme_of
    from cachetier.remote.store_clock import StoreClock

    durable, store_clock = settings.durable, StoreClock()
    server = scheme_of(durable).server(durable, store_clock)

    def opened(name: str) -> Bucket:
        return open_remote(durable.beside(name), server=server)

    return MountBuckets(settings.s3_mounts, opened, store_clock)


def _capacity_bytes(settings: Settings) -> int:
    try:
        status = os.statvfs(settings.cache_dir)
    except FileNotFoundError:
        return 0
    return settings.capacity_bytes(status.f_blocks * status.f_frsize)


def _show_found(report: FsckReport) -> None:
    _show_findings([f for f in report.findings if f.is_problem], "problem")
    _show_findings([f for f in report.findings if not f.is_problem], "note")
    for unanswered in report.unanswered:
        echo(f"not asked  {unanswered}")


def _show_outcomes(report: FsckReport, repaired: bool) -> None:
    for outcome in report.outcomes[: LISTED * 5]:
        word = "repaired" if outcome.repaired else "left"
        echo(f"{word:<10} {outcome.finding.where}: {outcome.what}")
    if len(report.outcomes) > LISTED * 5:
        echo(f"... and {len(report.outcomes) - LISTED * 5} more")
    echo(_summary(report, repaired))


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


# --- prune ----------------------------------------------------------------------------------------


@options.verb()
@options.flag("--yes", "-y", help="Remove it; without this, only list it.")
@options.option(
    "--older-than", type=DURATION, default="1d", help="Keep what is younger: 12h, 7d, 0s."
)
@partial(options.client, seconds=COLLECT_SECONDS)
def prune(yes: bool, older_than: float, client: Client, as_json: bool) -> int:
    """Say what nobody needs any more, and with --yes remove it.

    That is: saves that will never be whole while a newer step is published, saves that another
    save of their step replaced, files in lost+found that the catalog can account for, and multipart
    uploads of saves that have ended. Never what is pinned, and nothing that a step can be restored
    from. What other nodes may still complete is left, and said to be. Exit 1 if a remote did not
    answer: what is there stays.

    JSON: `dry_run`, `found`, `size_bytes`, `objects`, `rubbish` (the first 1000: `kind`, `what`,
    `why`, `run`, `step`, `save_id`, `remote`, `shards`, `size_bytes`, `objects`), `left` (the first
    1000: `what`, `why`, `run`, `step`, `save_id`, `command`), `unanswered`.
    """
    with line_shown(as_json, lambda: "looking on this node and in S3 for data that is not needed"):
        found = client.collect(
            dry_run=not yes,
            older_than_seconds=older_than,
            timeout_seconds=COLLECT_SECONDS,
        )
    show(as_json, found, partial(_show_collected, found))
    return FAILED if found["unanswered"] else 0


def _show_collected(found: dict[str, Any]) -> None:
    if found["found"]:
        _show_rubbish(found)
    elif found["unanswered"]:
        echo("Not everything could be asked.")
    else:
        echo("There is nothing to collect.")
    _show_left(found["left"])
    for unanswered in found["unanswered"]:
        echo(f"Not asked: {unanswered}. Nothing was removed there.", err=True)


def _show_left(left: list[dict[str, Any]]) -> None:
    for each in left[:LISTED]:
        echo(f"Left: {each['what']}: {each['why']}.")
        if each["command"]:
            echo(f"      If nobody will complete it: {each['command']}")
    if len(left) > LISTED:
        echo(f"... and {len(left) - LISTED} more that are left")


def _show_rubbish(found: dict[str, Any]) -> None:
    rows = (
        (
            _TITLES.get(each["kind"], each["kind"]),
            each["what"],
            each["why"],
            shown_size(each["size_bytes"]) if each["size_bytes"] else "-",
            str(each["objects"]) if each["objects"] else "-",
        )
        for each in found["rubbish"][:LISTED]
    )
    console().print(table("~", "~what", "~why", "here", "objects", rows=rows))
    if found["found"] > LISTED:
        echo(f"... and {found['found'] - LISTED} more")
    size = shown_size(found["size_bytes"])
    count = counted(found["found"], "thing")
    if found["dry_run"]:
        echo(f"{count}, {size} on this node. Nothing was removed: add --yes.")
    else:
        later = "; the drain now deletes the objects" if found["objects"] else ""
        echo(f"Removed {count}, {size} on this node{later}.")
