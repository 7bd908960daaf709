"""Verbs about runs and whole steps: list, seal, wait, flush, pin, delete; and of a node.

``leave`` and ``forget`` are about the steps of a node that goes, or has gone.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Any

import click
from cachetier_client import (
    CachetierClientError,
    NotFoundError,
)
from cachetier_client.identity.names import MOUNT_MARK
from cachetier_client.units import counted, shown_size, shown_span

from cachetier.cli import options
from cachetier.cli.connection import not_durable_if_answering, path_of, paths_below
from cachetier.cli.options import NAME, RUN, STEP
from cachetier.cli.output import (
    FAILED,
    HowFar,
    bytes_shown,
    console,
    echo,
    is_seen,
    print_json,
    refuse,
    show,
    show_rows,
    table,
)
from cachetier.nearest import nearest
from cachetier.visible import on_one_line, visible

if TYPE_CHECKING:
    from cachetier_client import Client, PinInfo, StepInfo
    from cachetier_client.results import Level, ObjectListed
    from rich.table import Table

ANSWER_SECONDS = 2.0
NOTHING_PENDING = {"pending_shards": 0, "pending_bytes": 0, "pending_steps": []}
SEAL_SECONDS = 60.0


@options.verb()
@options.argument(
    "run",
    type=RUN,
    required=False,
    help="List its steps; of s3:MOUNT or s3:MOUNT/PREFIX the objects.",
)
@options.argument("step", type=STEP, required=False, help="List its shards.")
@options.level(None, "Only steps that are local, replicated, or durable.")
@options.flag("--all", "-a", "everything", help="Also steps under other paths, and of all runs.")
@options.flag("--latest", help="Print the number of the newest durable step, or at --level.")
@options.client
def ls(
    run: str | None,
    step: int | None,
    level: Level | None,
    everything: bool,
    latest: bool,
    client: Client,
    as_json: bool,
) -> int:
    """List the runs, the steps of a run, or the shards of a step; or the objects of a mount.

    With --all also what frameworks saved under paths of their own, and what nobody committed.

    With --latest only the newest step of RUN that can be restored: one that is durable, with
    --level local one that this node has whole. Standard error names a newer one, if this node can
    restore one. Exit 1 when there is none.

    JSON: `runs` and `mounts`, or `steps` and `elsewhere` (how many more S3 has; null: it does not
    answer), or `step` with its `shards`, or `objects`; with --latest `step`, or null, and
    `newer_local`, the number of that newer one, or null.
    """
    if latest:
        if run is None or step is not None or everything:
            refuse("--latest needs RUN alone", "Give it: cachetier ls RUN --latest")
        return _latest(client, run, level or "durable", as_json)
    if run is not None and run.startswith(MOUNT_MARK):
        mount, _, prefix = run.removeprefix(MOUNT_MARK).partition("/")
        _show_objects(list(client.objects(mount, prefix)), run, as_json)
        return 0
    if everything and step is None:
        _show_all(client, run, level, as_json)
    elif run is None:
        _show_runs(client.runs(), client.mounts(), as_json)
    elif step is None:
        more = client.steps_elsewhere(run) if level is None else 0
        _show_steps(run, client.steps(run, level), level, as_json, more)
    else:
        _show_step(_step_of(client, run, step), as_json)
    return 0


def _step_of(client: Client, run: str, step: int) -> StepInfo:
    """Return a step; if there is none, name what was saved by itself under its path."""
    try:
        return client.step(run, step)
    except NotFoundError as error:
        if below := paths_below(client, run, step):
            error.hint = f"Saved below that path: {', '.join(below)}. See cachetier ls {below[0]}"
        raise


def _latest(client: Client, run: str, level: Level, as_json: bool) -> int:
    """Print the newest step at a level; return the exit code."""
    found = client.latest(run, level)
    if found is not None:
        newer = found.newer_local
    else:
        here = client.latest(run, "memory")
        newer = None if here is None else here.step
    document = {"step": None if found is None else _step_json(found), "newer_local": newer}
    show(as_json, document, partial(_show_latest, run, level, found, newer))
    return FAILED if found is None else 0


@options.verb()
@options.run_and_step
@options.rank
@options.world_size
@options.save_id
@options.overwrite
@partial(options.client, patient=True, seconds=SEAL_SECONDS)
def seal(
    run: str,
    step: int,
    rank: int | None,
    world_size: int | None,
    save_id: str,
    overwrite: bool,
    client: Client,
    as_json: bool,
) -> None:
    """Say that a rank has put all its shards of a step.

    JSON: `sealed_ranks`, those of the step that this node knows of.
    """
    sealed = client.seal(
        run,
        step,
        rank=rank,
        world_size=world_size,
        save_id=save_id,
        overwrite=overwrite,
        timeout_seconds=SEAL_SECONDS,
    )
    ranks = "rank" if len(sealed) == 1 else "ranks"
    text = f"{path_of(run, step)}: sealed here by {ranks} {', '.join(map(str, sealed))}"
    show(as_json, {"sealed_ranks": list(sealed)}, text)


@options.verb()
@options.run_and_step
@options.option("--name", type=NAME, help="Only this shard.")
@options.level("durable")
@options.timeout("60s", "Until when.")
@partial(options.client, patient=True)
def wait(
    run: str,
    step: int,
    name: str | None,
    level: Level,
    timeout: float,
    client: Client,
    as_json: bool,
) -> None:
    """Wait until a step, or one shard, has reached a level; exit 3 when it does not in time.

    local: safe on this node; replicated: at any remote, too; durable: in S3, and published.

    JSON: `level`, `age_seconds` since its save began.
    """
    with not_durable_if_answering(client.url):
        reached = client.wait(run, step, level, timeout, name=name)
        age = shown_span(reached.age_seconds)
        text = f"{path_of(run, step)}: {reached.level}, {age} after its save began"
        show(as_json, asdict(reached), text)


@options.verb()
@options.optional_run_and_step
@options.timeout("60s", "How long to wait.")
@partial(options.client, patient=True)
def flush(run: str | None, step: int | None, timeout: float, client: Client, as_json: bool) -> None:
    """Drain first what is asked for, and wait until it is durable; exit 3 when it is not in time.

    A step that is named is sent even where a policy keeps it on the node. It is an error, exit 1,
    to name a run or step that neither this node nor S3 knows.

    JSON: `pending_shards`, `pending_bytes`, `pending_steps`: 0, 0 and none.
    """
    with not_durable_if_answering(client.url):
        with _dirty_bytes_shown(client, timeout, as_json):
            _flush_known(client, run, step, timeout)
        show(as_json, NOTHING_PENDING, _flushed(client, run, step))


@options.verb()
@options.timeout("4min", "How long to wait.")
@options.flag("--stay", help="The node does not go: have it take puts again.")
@partial(options.client, patient=True)
def leave(timeout: float, stay: bool, client: Client, as_json: bool) -> None:
    """Take no more puts, and flush, before the node goes; exit 3 when not all is durable in time.

    The node is left, and drains on, when the time is over too. It takes puts again after --stay, or
    when its service starts again. The newest step of a run is sent even where a policy keeps it.

    JSON: `pending_shards`, `pending_bytes`, `pending_steps`: 0, 0 and none.
    """
    if stay:
        client.stay()
        show(as_json, NOTHING_PENDING, "The node takes puts again.")
        return
    with not_durable_if_answering(client.url):
        with _dirty_bytes_shown(client, timeout, as_json):
            client.leave(timeout)
        left = "The node takes no more puts, and all that it has is durable."
        show(as_json, NOTHING_PENDING, left)


def _dirty_bytes_shown(
    client: Client, timeout: float, as_json: bool
) -> AbstractContextManager[None]:
    """Show a bar of what is dirty while a flush goes on; its first look has the flush's time."""
    if not is_seen(as_json):
        return nullcontext()
    before = client.status(timeout_seconds=max(ANSWER_SECONDS, timeout))["dirty_bytes"]

    def how_far() -> HowFar:
        left = client.status(timeout_seconds=ANSWER_SECONDS)["dirty_bytes"]
        return HowFar("flush", before - left, before)

    return bytes_shown(as_json, how_far)


def _flush_known(client: Client, run: str | None, step: int | None, seconds: float) -> None:
    """Flush; if nobody knows the run, say also which one was probably meant."""
    try:
        client.flush(run, step, seconds)
    except NotFoundError as error:
        meant = nearest(run or "", run_names(client.runs()))
        if meant not in (None, run):
            error.message += f": did you mean {meant}?"
        raise


def _flushed(client: Client, run: str | None, step: int | None) -> str:
    """Say what a flush has reached: other nodes' parts of a step are not this node's to send."""
    if run is not None and step is not None:
        with suppress(CachetierClientError):  # what was flushed stays flushed
            if "durable" not in client.step(run, step).levels:
                return (
                    f"All that this node has of {path_of(run, step)} is in S3. It is not durable: "
                    f"`cachetier status {run} {step}` says what it waits for."
                )
    return "Everything asked for is durable."


@options.verb()
@options.run_and_step
@options.yes
@partial(options.client, exact=True)
def delete(run: str, step: int, yes: bool, client: Client, as_json: bool) -> None:
    """Delete a step: here at once, and in S3 as soon as the drain gets to it.

    Objects between its own that cachetier did not put there stay.

    JSON: `deleted_shards`, how many were here.
    """
    if not yes and not sys.stdin.isatty():
        refuse("deleting a step must be confirmed", "Add --yes.")
    if not yes:
        click.confirm(visible(f"Delete {path_of(run, step)}, here and in S3?"), abort=True)
    deleted = client.delete_step(run, step)
    text = f"{path_of(run, step)}: deleted; shards that were here: {deleted}"
    show(as_json, {"deleted_shards": deleted}, text)


@options.verb()
@options.argument("node", help="Its host name, or the id of its cache directory.")
@options.argument("run", type=RUN, required=False, help="Only this run.")
@options.client
def forget(node: str, run: str | None, client: Client, as_json: bool) -> None:
    """Give up the steps that a node holds which will not return, so that jobs start without them.

    A node that is alive says again within minutes what it holds.

    JSON: `forgotten`, the steps: `run`, `step`, `save_id`, `world_size`, `ranks`, `nodes`.
    """
    steps = client.forget(node, run)
    lines = [
        f"{path_of(each.run, each.step)}: given up, with save {each.save_id}" for each in steps
    ]
    document = {"forgotten": [asdict(each) for each in steps]}
    show(as_json, document, "\n".join(lines) or f"{node} is forgotten; it held no step.")


@options.verb()
@options.optional_run_and_step
@options.flag("--list", "list_", help="List the pinned steps.")
@options.flag("--remove", help="Let the step go again, as room and `keep_local` want.")
@options.client
def pin(
    run: str | None,
    step: int | None,
    list_: bool,
    remove: bool,
    client: Client,
    as_json: bool,
) -> None:
    """Keep a step on this node: it is not evicted, trimmed or deleted until `pin --remove`.

    A pin keeps what is here; what has left the node already stays in S3 until somebody reads it.

    JSON: `pin`, or with --list `pins`: `run`, `step`, `pinned_at`, `shards`, `local_shards`,
    `size_bytes`, `local_bytes`; with --remove `was_pinned`.
    """
    if list_ and run is not None:
        refuse("--list takes no step", "Leave out RUN and STEP.")
    if not list_ and (run is None or step is None):
        refuse(
            "`cachetier pin` needs RUN and STEP",
            "Give both: cachetier pin RUN STEP; --list shows the pinned steps.",
        )
    if run is None or step is None:
        _show_pins(client.pins(), as_json)
    elif remove:
        was_pinned = client.unpin(run, step)
        text = f"{path_of(run, step)}: {'pinned no more' if was_pinned else 'was not pinned'}"
        show(as_json, {"was_pinned": was_pinned}, text)
    else:
        _show_pin(client.pin(run, step), as_json)


# --- how they look -------------------------------------------------------------------------------


def run_names(runs: list[str]) -> list[str]:
    """Return the runs of which these are, or are branches."""
    from cachetier_client.identity.names import base_run

    return sorted({base_run(run) for run in runs})


def _show_runs(runs: list[str], mounts: list[str], as_json: bool) -> None:
    if as_json:
        print_json({"runs": runs, "mounts": mounts})
    elif runs or mounts:
        echo(*run_names(runs), *(f"{MOUNT_MARK}{name}" for name in mounts))
    else:
        echo("This node knows no run yet.", err=True)
        echo("Next: See one in S3 with `cachetier ls RUN --level durable`.", err=True)


def _show_objects(found: list[ObjectListed], of: str, as_json: bool) -> None:
    rows = [
        (
            on_one_line(each.key),
            shown_size(each.size_bytes),
            each.level,
            each.etag,
            shown_span(max(0.0, time.time() - each.modified_at)),
        )
        for each in found
    ]
    listed = table("~key", "size", "~level", "~etag", "age", rows=rows) if rows else None
    document = {"objects": [asdict(each) for each in found]}
    show_rows(as_json, document, listed, f"No object of {of}.")


def _show_all(client: Client, run: str | None, level: Level | None, as_json: bool) -> None:
    """Show the steps and branches of a run, or of all, by path; and say what nobody committed."""
    runs = run_names(client.runs()) if run is None else [run]
    found: list[StepInfo] = []
    for each in runs:
        found += client.steps(each, level)
        found += client.branches(each, level)
    if as_json:
        print_json({"steps": [_step_json(step) for step in found]})
        return
    if not found:
        _show_steps(run or "any run", found, level, as_json)
        return
    console().print(_table_of(found, _path))
    left = [_path(step) for step in found if step.state == "open"]
    if left:
        echo(f"Not committed, so it cannot be restored: {', '.join(left)}", err=True)
        echo("Next: Look whether all ranks seal, or what ends the save: docs/fsspec.md.", err=True)


def _path(step: StepInfo) -> str:
    return path_of(step.run, step.step)


def _show_steps(
    run: str, steps: list[StepInfo], level: str | None, as_json: bool, more: int | None = 0
) -> None:
    """Show steps, and how many ``more`` only S3 has; None: nobody can say."""
    if as_json:
        elsewhere = {"elsewhere": more} if level is None else {}
        print_json({"steps": [_step_json(step) for step in steps], **elsewhere})
        return
    see = f"`cachetier ls {run} --level durable`"
    if steps:
        console().print(_table_of(steps, lambda step: str(step.step)))
    else:
        where = f"is {level}" if level else "is on this node"
        echo(f"No step of {run} {where}.", err=True)
    if more is None:
        echo(f"S3 does not answer, so this list may be incomplete. Try later: {see}.", err=True)
    elif more:
        echo(f"{counted(more, 'more step')} of {run} in S3: {see} lists all.", err=True)
    if not steps and more:
        echo(f"Next: Bring the newest here with `cachetier restore {run}`.", err=True)
    elif not steps and level in (None, "memory", "local"):
        echo(f"Next: See S3 with {see}, other paths with `cachetier ls {run} --all`.", err=True)


def _sealed(step: StepInfo) -> int:
    """Return how many ranks have sealed, as far as is known here; all, of what remotes have."""
    return step.world_size if "replicated" in step.levels else len(step.ranks)


def _table_of(steps: list[StepInfo], called: Callable[[StepInfo], str]) -> Table:
    titles = "step", "~state", "~restorable", "ranks", "shards", "size", "dirty", "age"
    now = time.time()
    rows = (
        (
            called(step),
            _state(step, now),
            _restorable(step) or "-",
            f"{_sealed(step)}/{step.world_size}",
            str(step.shard_count),
            shown_size(step.size_bytes),
            shown_size(step.dirty_bytes) if step.dirty_bytes else "-",
            shown_span(max(0.0, now - step.started_at)) if step.started_at else "-",
        )
        for step in steps
    )
    return table(*titles, rows=rows)


def _show_latest(run: str, level: str, found: StepInfo | None, newer: int | None) -> None:
    if found is not None:
        echo(found.step)
    else:
        echo(f"No step of {run} can be restored at {level}.", err=True)
    if newer is not None:
        echo(f"This node can restore step {newer}, which is newer.", err=True)
    if found is None:
        echo(f"Next: See how far its steps are with `cachetier ls {run}`.", err=True)


def _show_step(step: StepInfo, as_json: bool) -> None:
    if not as_json:
        levels = _restorable(step) or "nowhere"
        state = _state(step, time.time())
        echo(f"{_path(step)}: {state}, save {step.save_id}, restorable: {levels}")
    rows = (
        (each.name, str(each.rank), shown_size(each.size_bytes), each.digest, each.state)
        for each in step.shards
    )
    listed = table("~name", "rank", "size", "<digest", "~state", rows=rows)
    show_rows(as_json, {"step": _step_json(step)}, listed, "")


def _state(step: StepInfo, now: float) -> str:
    from cachetier.status.words import unchecked

    notes = "pinned" if step.pinned else "", unchecked(step.state, step.checked_at, now)
    return ", ".join(filter(None, (step.state, *notes)))


def _restorable(step: StepInfo) -> str:
    """Return the levels of a step; what is durable is replicated, which need not be said."""
    levels = [
        level for level in step.levels if level != "replicated" or "durable" not in step.levels
    ]
    return ", ".join(levels)


def _step_json(step: StepInfo) -> dict[str, Any]:
    described = asdict(step)
    if step.shards or not step.shard_count:
        described["shards"] = [asdict(shard) for shard in step.shards]
    else:
        described["shards"] = step.shard_count
    del described["shard_count"], described["newer_local"]
    return described


def _show_pin(pinned: PinInfo, as_json: bool) -> None:
    here = f"{shown_size(pinned.local_bytes)} stay on this node"
    show(as_json, {"pin": asdict(pinned)}, f"{path_of(pinned.run, pinned.step)}: pinned, {here}")
    gone = pinned.shards - pinned.local_shards
    if gone and not as_json:
        what = "1 shard is" if gone == 1 else f"{gone} shards are"
        bring = f"cachetier restore {pinned.run} {pinned.step}"
        echo(f"{what} only in S3: `{bring}` brings them, to stay.", err=True)


def _show_pins(pins: list[PinInfo], as_json: bool) -> None:
    titles = "~run", "step", "shards here", "bytes here", "of", "pinned for"
    rows = [
        (
            each.run,
            str(each.step),
            f"{each.local_shards}/{each.shards}",
            shown_size(each.local_bytes),
            shown_size(each.size_bytes),
            shown_span(max(0.0, time.time() - each.pinned_at)),
        )
        for each in pins
    ]
    document = {"pins": [asdict(pinned) for pinned in pins]}
    listed = table(*titles, rows=rows) if rows else None
    show_rows(as_json, document, listed, "Nothing is pinned on this node.")
