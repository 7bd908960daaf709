"""``cachetier doctor``: is this node, and is each of its remotes, fit for checkpoints?"""

from __future__ import annotations

import shutil
import sys
import textwrap
from collections import Counter
from collections.abc import Iterable
from contextlib import closing
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import cachetier_client

from cachetier.cli import options
from cachetier.cli.output import FAILED, echo, ended_by_signal, print_json
from cachetier.cli.types import CHECK, SIZE
from cachetier.config.settings import load

if TYPE_CHECKING:
    from cachetier.config.settings import Settings
    from cachetier.doctor.findings import CheckResult
    from cachetier.doctor.subject import Subject

_STYLES: dict[str, dict[str, Any]] = {
    "ok": {"fg": "green"},
    "warn": {"fg": "yellow"},
    "fail": {"fg": "red", "bold": True},
    "skipped": {"dim": True},
}
_NAME_CELLS = 12
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
    help="What this node saves at a time: '400 GB'.",
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
        remotes=settings.remotes,
        drain_threads=parsed_cores(settings.drain_cores)[0],
        block_copies=settings.block_copies,
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
