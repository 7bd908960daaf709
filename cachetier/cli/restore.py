"""``cachetier restore`` and ``cachetier verify``: a whole step back here, or read and checked."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Annotated

import typer
from cachetier_client.units import counted, shown_size

from cachetier.cli.bars import HowFar, bytes_shown, progress
from cachetier.cli.output import INTEGRITY, SPAN, AsJson, Url, echo, reach, refuse, reported, show
from cachetier.cli.steps import RunArgument
from cachetier.number_lists import parsed_numbers

if TYPE_CHECKING:
    from cachetier_client import Client, ShardInfo
    from cachetier_client.results import StillComing

SLICE_SECONDS = 1.0
SHARDS_AT_ONCE = 4

Step = Annotated[
    int | None, typer.Argument(help="Default: the newest that is durable.", show_default=False)
]
Ranks = Annotated[
    str | None, typer.Option("--ranks", help="Only what these put: 0-7, or 0,8. Default: all.")
]
Timeout = Annotated[float, typer.Option("--timeout", metavar=SPAN, min=0.0, help="For all of it.")]


def restore(
    run: RunArgument,
    step: Step = None,
    to: Annotated[
        str | None, typer.Option("--to", help="A folder to make, of one file for each shard.")
    ] = None,
    ranks: Ranks = None,
    timeout: Timeout = 3600.0,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Bring a step back to this node, so that jobs that start here read it from this disk.

    What is here already stays, the rest comes from the nearest remote, verified. It goes on after
    the command ends; exit 4 when not all of it is here in time. With --to it is written to files
    instead, each of the name of its shard.

    JSON: `run`, `step`, `brought_shards`, `brought_bytes`; with --to `path` and `names`.
    """
    wanted = _ranks(ranks, as_json)
    if to is not None and wanted:
        refuse("--ranks goes with no --to", "Leave out one of them.", as_json=as_json)
    with reported(as_json), reach(url, patient=True, seconds=timeout) as client:
        chosen = _newest(client, run) if step is None else step
        if to is not None:
            _write(client, run, chosen, to, timeout, as_json)
        else:
            _bring(client, run, chosen, wanted, timeout, as_json)


def verify(
    run: RunArgument,
    step: Step = None,
    timeout: Timeout = 3600.0,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Read a step as a restore would, from the nearest copies, and check every byte; keep nothing.

    Exit 5 when a shard has no good copy: each is named.

    JSON: `run`, `step`, `shards`, `size_bytes`, `local_shards` (what was read on this node), `bad`:
    list of `name`, `rank`, `message`.
    """
    with reported(as_json), reach(url, seconds=timeout) as client:
        from cachetier_client.step_files import whole_step

        step = _newest(client, run) if step is None else step
        found = whole_step(client, run, step, timeout_seconds=timeout)
        bad = _bad_shards(client, run, step, found.shards, timeout, as_json)
        here = sum(shard.state in ("clean", "dirty") for shard in found.shards)
        size_bytes = sum(shard.size_bytes for shard in found.shards)
        what = {"run": run, "step": step, "shards": len(found.shards), "size_bytes": size_bytes}
        where = f"{here} on this node, {len(found.shards) - here} in S3"
        text = f"{run}/{step}: {counted(len(found.shards), 'shard')}, {shown_size(size_bytes)}"
        verdict = f"{counted(len(bad), 'shard')} without a good copy" if bad else "all are good"
        document = {**what, "local_shards": here, "bad": bad}
        show(as_json, document, f"{text} ({where}): {verdict}")
    if bad:
        if not as_json:
            for each in bad:
                echo(f"{each['name']} (rank {each['rank']}): {each['message']}", err=True)
            echo("Next: Restore another step; `cachetier fsck` looks at all of them.", err=True)
        raise typer.Exit(INTEGRITY)


def _ranks(ranks: str | None, as_json: bool) -> list[int]:
    try:
        return list(parsed_numbers(ranks, "ranks")) if ranks is not None else []
    except ValueError as error:
        refuse(str(error), "Write them as 0-7, or 0,8.", as_json=as_json)


def _newest(client: Client, run: str) -> int:
    from cachetier_client import NotFoundError

    found = client.latest(run)
    if found is None:
        raise NotFoundError(
            f"no step of {run} is durable", hint=f"See what there is: cachetier ls {run}"
        )
    return found.step


def _write(client: Client, run: str, step: int, to: str, timeout: float, as_json: bool) -> None:
    from cachetier_client.step_files import export_files, placed

    with placed(to) as folder:
        names = export_files(client, run, step, folder, timeout_seconds=timeout)
    document = {"run": run, "step": step, "path": to, "names": names}
    show(as_json, document, f"{run}/{step}: {counted(len(names), 'file')} in {to}, verified")


def _bring(
    client: Client, run: str, step: int, ranks: list[int], timeout: float, as_json: bool
) -> None:
    ends_at = time.monotonic() + timeout
    coming = client.restore_step(run, step, ranks=ranks, timeout_seconds=0.0)
    bar, left = progress(as_json), coming
    if bar is None:
        left = _rest(client, run, step, ranks, timeout) if coming.shards else coming
    else:
        with bar:
            task = bar.add_task(f"restore {run}/{step}", total=coming.size_bytes)
            while left.shards and (seconds := ends_at - time.monotonic()) > 0:
                left = _rest(client, run, step, ranks, min(SLICE_SECONDS, seconds))
                bar.update(task, completed=coming.size_bytes - left.size_bytes)
    brought = coming.shards - left.shards, coming.size_bytes - left.size_bytes
    if left.shards:
        from cachetier_client import DeadlineError

        still = f"{counted(left.shards, 'shard')}, {shown_size(left.size_bytes)}"
        raise DeadlineError(
            f"{still} of {run}/{step} are still to come after {timeout:g} s",
            hint="It goes on: call it again to wait for the rest.",
        )
    document = {"run": run, "step": step, "brought_shards": brought[0], "brought_bytes": brought[1]}
    came = f"{counted(brought[0], 'shard')}, {shown_size(brought[1])} came back"
    show(as_json, document, f"{run}/{step}: {came if brought[0] else 'all was here already'}")


def _rest(client: Client, run: str, step: int, ranks: list[int], seconds: float) -> StillComing:
    return client.restore_step(run, step, ranks=ranks, timeout_seconds=seconds)


def _bad_shards(
    client: Client,
    run: str,
    step: int,
    shards: tuple[ShardInfo, ...],
    timeout: float,
    as_json: bool,
) -> list[dict[str, object]]:
    """Read all shards, a few at a time; return those without a good copy."""
    from cachetier_client import IntegrityError, NotFoundError

    total, done = sum(shard.size_bytes for shard in shards), 0

    def checked(shard: ShardInfo) -> str | None:
        nonlocal done
        try:
            client.check_shard(run, step, shard.name, timeout_seconds=timeout)
        except (IntegrityError, NotFoundError) as error:
            return error.message
        finally:
            done += shard.size_bytes
        return None

    with (
        bytes_shown(as_json, lambda: HowFar(f"verify {run}/{step}", done, total)),
        ThreadPoolExecutor(SHARDS_AT_ONCE, thread_name_prefix="verify") as threads,
    ):
        messages = list(threads.map(checked, shards))
    return [
        {"name": shard.name, "rank": shard.rank, "message": message}
        for shard, message in zip(shards, messages, strict=True)
        if message is not None
    ]
