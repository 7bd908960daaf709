"""Verbs about runs and whole steps: list, seal, wait, flush, delete."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer
from cachetier_client.identity.names import MOUNT_MARK
from cachetier_client.units import counted, shown_size, shown_span

from cachetier.cli.bars import progress
from cachetier.cli.output import (
    SPAN,
    AsJson,
    Url,
    console,
    echo,
    print_json,
    reach,
    refuse,
    reported,
    show,
    table,
)
from cachetier.cli.shards import (
    DEFAULT_SAVE_ID,
    Overwrite,
    Rank,
    SaveId,
    WorldSize,
    chosen_level,
)
from cachetier.nearest import nearest
from cachetier.visible import on_one_line, visible

if TYPE_CHECKING:
    from cachetier_client import Client, ShardInfo, StepInfo
    from cachetier_client.results import Level as LevelName
    from cachetier_client.results import ObjectListed
    from rich.table import Table

SLICE_SECONDS = 1.0
NOTHING_PENDING = {"pending_shards": 0, "pending_bytes": 0, "pending_steps": []}
SEAL_SECONDS = 60.0

RunArgument = Annotated[str, typer.Argument(help="The training run.")]
StepArgument = Annotated[int, typer.Argument(help="The training step.")]
Level = Annotated[str, typer.Option("--level", help="local, replicated or durable.")]
Timeout = Annotated[float, typer.Option("--timeout", metavar=SPAN, min=0.0, help="Until when.")]


def ls(
    run: Annotated[
        str | None,
        typer.Argument(help="List its steps; of s3:MOUNT or s3:MOUNT/PREFIX the objects."),
    ] = None,
    step: Annotated[int | None, typer.Argument(help="List its shards.")] = None,
    level: Annotated[
        str | None,
        typer.Option("--level", help="Only steps that are local, replicated, or durable."),
    ] = None,
    everything: Annotated[
        bool,
        typer.Option("--all", "-a", help="With what lies under other paths, and in all runs."),
    ] = False,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """List the runs, the steps of a run, or the shards of a step; or the objects of a mount.

    With --all also what frameworks saved under paths of their own, and what nobody committed.

    JSON: `runs` and `mounts`, or `steps` and `elsewhere` (how many more S3 has; null: it does not
    answer), or `step` with its `shards`, or `objects`.
    """
    if run is not None and run.startswith(MOUNT_MARK):
        mount, _, prefix = run.removeprefix(MOUNT_MARK).partition("/")
        with reported(as_json), reach(url) as client:
            _show_objects(list(client.objects(mount, prefix)), run, as_json)
        return
    wanted = None if level is None else chosen_level(level, "level", as_json)
    with reported(as_json), reach(url) as client:
        if everything and step is None:
            _show_all(client, run, wanted, as_json)
        elif run is None:
            _show_runs(client.runs(), client.mounts(), as_json)
        elif step is None:
            more = client.steps_elsewhere(run) if wanted is None else 0
            _show_steps(run, client.steps(run, wanted), wanted, as_json, more)
        else:
            _show_step(client.step(run, step), as_json)


def latest(
    run: RunArgument, level: Level = "durable", url: Url = None, as_json: AsJson = False
) -> None:
    """Print the newest step that can be restored; exit 1 when there is none.

    With --level local: one that this node has whole. Standard error names a newer one, if this
    node can restore one.

    JSON: `step`, or null; `newer_local`, the number of that newer one, or null.
    """
    wanted = chosen_level(level, "level", as_json)
    with reported(as_json), reach(url) as client:
        found = client.latest(run, wanted)
        newer = found.newer_local if found is not None else _newest_here(client, run)
        if as_json:
            step = None if found is None else _step_json(found)
            print_json({"step": step, "newer_local": newer})
        else:
            _show_latest(run, level, found, newer)
    if found is None:
        raise typer.Exit(1)


def seal(
    run: RunArgument,
    step: StepArgument,
    rank: Rank = None,
    world_size: WorldSize = None,
    save_id: SaveId = DEFAULT_SAVE_ID,
    overwrite: Overwrite = False,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Say that a rank has put all its shards of a step.

    JSON: `sealed_ranks`, those of the step that this node knows of.
    """
    with reported(as_json), reach(url, patient=True, seconds=SEAL_SECONDS) as client:
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
        text = f"{run}/{step}: sealed here by {ranks} {', '.join(map(str, sealed))}"
        show(as_json, {"sealed_ranks": list(sealed)}, text)


def wait(
    run: RunArgument,
    step: StepArgument,
    name: Annotated[str | None, typer.Option("--name", help="Only this shard.")] = None,
    level: Level = "durable",
    timeout: Timeout = 60.0,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Wait until a step, or one shard, has reached a level; exit 3 when it does not in time.

    local: safe on this node; replicated: at any remote, too; durable: in S3, and published.

    JSON: `level`, `age_seconds` since its save began.
    """
    wanted = chosen_level(level, "level", as_json)
    with _reach_until(timeout, url, as_json) as client:
        reached = client.wait(run, step, wanted, timeout, name=name)
        age = shown_span(reached.age_seconds)
        text = f"{run}/{step}: {reached.level}, {age} after its save began"
        show(as_json, asdict(reached), text)


def flush(
    run: Annotated[str | None, typer.Option("--run", help="Only this run.")] = None,
    step: Annotated[int | None, typer.Option("--step", help="Only this step of it.")] = None,
    deadline: Annotated[
        float,
        typer.Option("--deadline", metavar=SPAN, min=0.0, help="The most to wait: 240, 4m."),
    ] = 60.0,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Drain first what is asked for, and wait until it is durable; exit 3 when it is not in time.

    A step that is named is sent even where a policy keeps it on the node. It is an error, exit 1,
    to name a run or step that neither this node nor S3 knows.

    JSON: `pending_shards`, `pending_bytes`, `pending_steps`: 0, 0 and none.
    """
    if step is not None and run is None:
        refuse("--step needs --run", "Name the run of the step.", as_json=as_json)
    with _reach_until(deadline, url, as_json) as client:
        _in_slices(client, partial(_flush_known, client, run, step), deadline, as_json)
        show(as_json, NOTHING_PENDING, _flushed(client, run, step))


def leave(
    deadline: Annotated[
        float,
        typer.Option("--deadline", metavar=SPAN, min=0.0, help="The most to wait: 240, 4m."),
    ] = 240.0,
    stay: Annotated[
        bool, typer.Option("--stay", help="The node does not go: have it take puts again.")
    ] = False,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Take no more puts, and flush, before the node goes; exit 3 when not all is durable in time.

    The node is left, and drains on, when the time is over too. It takes puts again after --stay, or
    when its service starts anew. The newest step of a run is sent even where a policy keeps it.

    JSON: `pending_shards`, `pending_bytes`, `pending_steps`: 0, 0 and none.
    """
    if stay:
        with reported(as_json), reach(url) as client:
            client.stay()
            show(as_json, NOTHING_PENDING, "The node takes puts again.")
        return
    with _reach_until(deadline, url, as_json) as client:
        _in_slices(client, client.leave, deadline, as_json)
        left = "The node takes no more puts, and all that it has is durable."
        show(as_json, NOTHING_PENDING, left)


def _in_slices(
    client: Client, flushed: Callable[[float], None], deadline: float, as_json: bool
) -> None:
    """Flush in one call, or in slices that move a bar."""
    from cachetier_client import (
        DeadlineError,
        NotDurableError,
        ServiceUnavailableError,
        StoppingError,
    )

    not_yet = (NotDurableError, DeadlineError, ServiceUnavailableError, StoppingError)
    bar = progress(as_json)
    if bar is None:
        flushed(deadline)
        return
    ends_at = time.monotonic() + deadline
    with bar:
        dirty = _dirty_bytes(client, ends_at)
        task = bar.add_task("flush", total=dirty)
        while True:
            left = ends_at - time.monotonic()
            try:
                flushed(max(0.0, min(SLICE_SECONDS, left)))
            except not_yet:
                if left <= SLICE_SECONDS:
                    raise
                bar.update(task, completed=dirty - _dirty_bytes(client, ends_at))
            else:
                return


@contextmanager
def _reach_until(seconds: float, url: str | None, as_json: bool) -> Iterator[Client]:
    """Yield a client for a verb that waits for bytes to be safe, whose time may be over."""
    from cachetier.cli.waiting import not_durable_if_answering

    client = reach(url, patient=True, seconds=seconds)
    with reported(as_json), not_durable_if_answering(url), client as reached:
        yield reached


def _flush_known(client: Client, run: str | None, step: int | None, seconds: float) -> None:
    """Flush; if nobody knows the run, say also which one was probably meant."""
    from cachetier_client import NotFoundError

    try:
        client.flush(run, step, seconds)
    except NotFoundError as error:
        meant = nearest(run or "", run_names(client.runs()))
        if meant not in (None, run):
            error.message += f": did you mean {meant}?"
        raise


def _flushed(client: Client, run: str | None, step: int | None) -> str:
    """Say what a flush has reached: other nodes' parts of a step are not this node's to send."""
    from cachetier_client import CachetierClientError

    if run is not None and step is not None:
        with suppress(CachetierClientError):  # what was flushed stays flushed
            if "durable" not in client.step(run, step).levels:
                return (
                    f"All that this node has of {run}/{step} is in S3. The step is not durable: "
                    f"`cachetier explain {run} {step}` says what it waits for."
                )
    return "Everything asked for is durable."


def _dirty_bytes(client: Client, ends_at: float) -> int:
    """Return what is dirty; while the service is away, it is asked until the flush must end."""
    left = max(SLICE_SECONDS, ends_at - time.monotonic())
    return int(client.status(timeout_seconds=left)["dirty_bytes"])


def delete(
    run: RunArgument,
    step: StepArgument,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Delete a step: here at once, and in S3 as soon as the drain gets to it.

    Objects between its own that cachetier did not put there stay.

    JSON: `deleted_shards`, how many were here.
    """
    if not yes and not sys.stdin.isatty():
        refuse("deleting a step needs a yes", "Add --yes.", as_json=as_json)
    if not yes:
        typer.confirm(visible(f"Delete step {step} of {run}, here and in S3?"), abort=True)
    with reported(as_json), reach(url) as client:
        deleted = client.delete_step(run, step)
        text = f"{run}/{step}: deleted; shards that were here: {deleted}"
        show(as_json, {"deleted_shards": deleted}, text)


def forget(
    node: Annotated[str, typer.Argument(help="Its host name, or the id of its cache directory.")],
    run: Annotated[str | None, typer.Argument(help="Only this run.")] = None,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Give up the steps that a node holds which will not return, so that jobs start without them.

    A node that is alive says again within minutes what it holds.

    JSON: `forgotten`, the steps: `run`, `step`, `save_id`, `world_size`, `ranks`, `nodes`.
    """
    with reported(as_json), reach(url) as client:
        steps = client.forget(node, run)
        lines = [f"{each.run}/{each.step}: given up, with save {each.save_id}" for each in steps]
        document = {"forgotten": [asdict(each) for each in steps]}
        show(as_json, document, "\n".join(lines) or f"{node} is forgotten; it held no step.")


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
    if as_json:
        print_json({"objects": [asdict(each) for each in found]})
        return
    if not found:
        echo(f"No object of {of}.", err=True)
        return
    shown = table("~key", "size", "~level", "~etag", "age")
    now = time.time()
    for each in found:
        age = shown_span(max(0.0, now - each.modified_at))
        shown.add_row(
            on_one_line(each.key), shown_size(each.size_bytes), each.level, each.etag, age
        )
    console().print(shown)


def _show_all(client: Client, run: str | None, level: LevelName | None, as_json: bool) -> None:
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
        echo(f"Not committed, so nobody restores it: {', '.join(left)}", err=True)
        echo("Next: Look whether all ranks seal, or what ends the save: docs/fsspec.md.", err=True)


def _path(step: StepInfo) -> str:
    from cachetier_client.identity.places import place_of
    from cachetier_client.identity.step_names import StepName

    return place_of(step.run, step.step, StepName.chosen()).path


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
        echo(f"What else S3 has cannot be said: it does not answer. Later: {see}.", err=True)
    elif more:
        echo(f"{counted(more, 'more step')} of {run} in S3: {see} lists all.", err=True)
    if not steps and more:
        echo(f"Next: Bring the newest here with `cachetier restore {run}`.", err=True)
    elif not steps and level in (None, "local"):
        echo(f"Next: See S3 with {see}, other paths with `cachetier ls {run} --all`.", err=True)


def _table_of(steps: list[StepInfo], called: Callable[[StepInfo], str]) -> Table:
    shown = table("step", "~state", "~restorable", "ranks", "shards", "size", "dirty", "age")
    now = time.time()
    for step in steps:
        shown.add_row(
            called(step),
            _state(step, now),
            _restorable(step) or "-",
            f"{_sealed(step)}/{step.world_size}",
            str(step.shard_count),
            shown_size(step.size_bytes),
            shown_size(step.dirty_bytes) if step.dirty_bytes else "-",
            shown_span(max(0.0, now - step.started_at)) if step.started_at else "-",
        )
    return shown


def _sealed(step: StepInfo) -> int:
    """Return how many ranks have sealed, as far as is known here; all, of what remotes have."""
    return step.world_size if "replicated" in step.levels else len(step.ranks)


def _newest_here(client: Client, run: str) -> int | None:
    here = client.latest(run, "local")
    return None if here is None else here.step


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
    if as_json:
        print_json({"step": _step_json(step)})
        return
    levels = _restorable(step) or "nowhere"
    state = _state(step, time.time())
    echo(f"{step.run}/{step.step}: {state}, save {step.save_id}, restorable: {levels}")
    shown = table("~name", "rank", "size", "<digest", "~state")
    for shard in step.shards:
        shown.add_row(*_shard_row(shard))
    console().print(shown)


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


def _shard_row(shard: ShardInfo) -> tuple[str, ...]:
    size = shown_size(shard.size_bytes)
    return shard.name, str(shard.rank), size, shard.digest, shard.state


def _step_json(step: StepInfo) -> dict[str, Any]:
    described = asdict(step)
    if step.shards or not step.shard_count:
        described["shards"] = [asdict(shard) for shard in step.shards]
    else:
        described["shards"] = step.shard_count
    del described["shard_count"], described["newer_local"]
    return described
