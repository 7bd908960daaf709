"""Whole steps, moved: out to files, in from them, back to this node; read and checked; adopted.

``adopt`` takes the checkpoints of trainers that only write files, as they end.
"""

from __future__ import annotations

import os
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from cachetier_client import DeadlineError, IntegrityError, InvalidRequestError, NotFoundError
from cachetier_client.identity.remote_url import remote_of
from cachetier_client.units import counted, shown_size

from cachetier.cli import options
from cachetier.cli.addresses import path_of
from cachetier.cli.connection import reach
from cachetier.cli.output import (
    FAILED,
    INTEGRITY,
    HowFar,
    bytes_shown,
    complain,
    echo,
    ended_by_signal,
    print_json,
    progress,
    refuse,
    show,
    written_bytes,
)
from cachetier.cli.types import FILE, PATH, RANKS, RUN

if TYPE_CHECKING:
    from cachetier_client import Client, Receipt, ShardInfo
    from cachetier_client.adopt.trainer_folder import TrainerFolder
    from cachetier_client.adopt.watcher import Outcome
    from cachetier_client.step_files import StepSourceFile

    from cachetier.remote.base import ObjectStore

Export: TypeAlias = "Callable[[Client, str, int, str, float], list[str]]"

SLICE_SECONDS = 1.0
SHARDS_AT_ONCE = 4
_NEEDS_TORCH = "Install the client's extra `torch` here, as docs/install.md says"
_SOURCE_HINT = (
    "Correct the address of the source, or --remote-endpoint; credentials are those of the AWS "
    "configuration here. Nothing was saved."
)
_NOWHERE = "/nonexistent"  # `cache_dir` must be set, and is not looked at


# --- out ------------------------------------------------------------------------------------------


def get_step(
    client: Client,
    run: str,
    step: int,
    dest: str,
    to: str,
    trusted: bool,
    timeout: float,
    as_json: bool,
) -> None:
    """Write a step in one of the formats; ``dest`` appears whole or not."""
    export = _export_of(to, trusted)
    total = cache(partial(_size_of, client, run, step))
    with bytes_shown(
        as_json, lambda: HowFar(f"get {path_of(run, step)}", written_bytes(dest), total())
    ):
        names = export(client, run, step, dest, timeout)
    root = Path(dest)
    size_bytes = sum(path.stat().st_size for path in (root, *root.rglob("*")) if path.is_file())
    document = {"format": to, "path": dest, "names": names, "size_bytes": size_bytes}
    what = counted(len(names), "file" if to == "files" else "item")
    show(as_json, document, f"{dest}: {shown_size(size_bytes)}, {what}, verified")


def _export_of(to: str, trusted: bool) -> Export:
    """Return what writes a step in one of the formats."""
    if to == "files":
        return _export_files
    try:
        from cachetier_client.identity.addresses import address_of_step
        from cachetier_client.identity.step_names import StepName
        from cachetier_client.torch.exports import export_step
    except ImportError:
        refuse(f"--format {to} needs torch", f"{_NEEDS_TORCH}, or --format files.")

    def export(client: Client, run: str, step: int, dest: str, timeout: float) -> list[str]:
        return export_step(
            address_of_step(run, step, StepName()),
            dest,
            to,
            client=client,
            step_name="{step}",
            timeout_seconds=timeout,
            trusted=trusted,
        )

    return export


def _export_files(client: Client, run: str, step: int, dest: str, timeout: float) -> list[str]:
    from cachetier_client.step_files import export_files, placed

    with placed(dest) as folder:
        return export_files(client, run, step, folder, timeout_seconds=timeout)


def _size_of(client: Client, run: str, step: int) -> int | None:
    """Return how large a step is, None where nobody knows it; its export then says why."""
    try:
        return client.step(run, step).size_bytes
    except NotFoundError:
        return None


# --- in -------------------------------------------------------------------------------------------


def put_step(
    client: Client,
    source: str,
    run: str,
    step: int,
    *,
    overwrite: bool,
    remote_endpoint: str | None,
    timeout: float,
    as_json: bool,
) -> None:
    """Save the files of a folder, or objects of S3, as a step of one rank; sealed."""
    from cachetier_client.step_files import files_of, import_files

    files = _objects_of(source, remote_endpoint) if is_remote(source) else files_of(source)
    _check(files)
    receipts = import_files(client, files, run, step, overwrite=overwrite, timeout_seconds=timeout)
    size_bytes = sum(receipt.size_bytes for receipt in receipts.values())
    shards = [asdict(receipt) for receipt in receipts.values()]
    what = f"{counted(len(shards), 'shard')}, {shown_size(size_bytes)}"
    document = {"run": run, "step": step, "shards": shards}
    show(as_json, document, f"{path_of(run, step)}: {what}, safe on this node")


def is_remote(source: str) -> bool:
    """Return whether a source is an address, of s3:// or what was meant by it."""
    return re.match(r"\w+:/", source) is not None


def step_in(source: str) -> int:
    """Return the step that the name of a source says."""
    from cachetier_client.identity.step_names import find_step

    in_name = find_step([source.rstrip("/").rpartition("/")[2]])
    if in_name is None:
        refuse(f"no step is in the name of {source}", "Give it: cachetier put SOURCE RUN STEP")
    return in_name.step


def _check(files: list[StepSourceFile]) -> None:
    """Hold files against the metadata of DCP among them, if torch is there to read it."""
    described = [file for file in files if Path(file.name).name == ".metadata"]
    if not described:
        return
    try:
        from cachetier_client.torch import metadata
    except ImportError:
        echo(f"not checked against .metadata: no torch here. {_NEEDS_TORCH}", err=True)
        return
    for file in described:
        folder = file.name.removesuffix(".metadata")
        sizes = {each.name.removeprefix(folder): each.size_bytes for each in files}
        metadata.check_files(metadata.load(b"".join(file.pieces())), sizes)


def _objects_of(source: str, endpoint: str | None) -> list[StepSourceFile]:
    """Return the objects under a prefix, or the one of that key."""
    from cachetier_client.errors import RemoteError

    from cachetier.config.settings import load
    from cachetier.doctor.refusals import reason_of
    from cachetier.remote.factory import open_remote

    remote_of(source)  # here nobody gave it by --remote
    flags = {"remote": source, "remote_endpoint": endpoint, "cache_dir": _NOWHERE}
    where = load(flags).durable
    store = open_remote(where).objects
    prefix = f"{where.prefix}/" if where.prefix else ""
    try:
        return _found(store, source, where.prefix, prefix)
    except RemoteError as error:
        reason, _ = reason_of(error, where)
        raise type(error)(f"cannot read {source}: {reason}", hint=_SOURCE_HINT) from error


def _found(
    store: ObjectStore, source: str, key_or_prefix: str, prefix: str
) -> list[StepSourceFile]:
    from cachetier_client.io import digests
    from cachetier_client.step_files import StepSourceFile

    keys = [key for key in store.list(prefix).keys if not key.endswith("/")]
    if not keys and key_or_prefix:
        keys, prefix = [key_or_prefix], key_or_prefix.rpartition("/")[0] + "/"
    found = []
    for key in keys:
        info = store.head(key)
        if info is None:
            raise InvalidRequestError(f"there is no object in {source}", hint="Look for another.")
        found.append(
            StepSourceFile(
                key.removeprefix(prefix),
                info.size_bytes,
                partial(_read, store, key, info.etag, info.size_bytes),
                None if info.digest is None else digests.to_hex(info.digest),
            )
        )
    return found


def _read(store: ObjectStore, key: str, etag: str, size_bytes: int) -> Iterator[memoryview]:
    from cachetier_client.step_files import PIECE_BYTES

    memory = memoryview(bytearray(min(PIECE_BYTES, size_bytes)))
    for start in range(0, size_bytes, PIECE_BYTES):
        piece = memory[: min(PIECE_BYTES, size_bytes - start)]
        store.read_into(key, start, piece)
        yield piece
    after = store.head(key)
    if after is None or after.etag != etag:
        raise IntegrityError(f"{key} changed while it was read", hint="Import it once it is done.")


# --- back -----------------------------------------------------------------------------------------


@options.verb()
@options.run_and_newest
@options.option("--to", type=FILE, help="A folder to make, of one file for each shard.")
@options.option("--ranks", type=RANKS, help="Only what these put: 0-7, or 0,8. Default: all.")
@options.timeout("1h", "For all of it.")
@partial(options.client, patient=True)
def restore(
    run: str,
    step: int | None,
    to: str | None,
    ranks: list[int] | None,
    timeout: float,
    client: Client,
    as_json: bool,
) -> None:
    """Bring a step back to this node, so that jobs that start here read it from this disk.

    What is here already stays, the rest comes from the nearest remote, verified. It goes on after
    the command ends; exit 4 when not all of it is here in time. With --to it is written to files
    instead, each of the name of its shard.

    JSON: `run`, `step`, `brought_shards`, `brought_bytes`; with --to `path` and `names`.
    """
    if to is not None and ranks:
        refuse("--ranks goes with no --to", "Leave out one of them.")
    chosen = _newest(client, run) if step is None else step
    if to is not None:
        _write(client, run, chosen, to, timeout, as_json)
    else:
        _bring(client, run, chosen, ranks or [], timeout, as_json)


@options.verb()
@options.run_and_newest
@options.timeout("1h", "For all of it.")
@options.client
def verify(run: str, step: int | None, timeout: float, client: Client, as_json: bool) -> int:
    """Read a step as a restore would, from the nearest copies, and check every byte; keep nothing.

    Exit 5 when a shard has no good copy: each is named.

    JSON: `run`, `step`, `shards`, `size_bytes`, `local_shards` (what was read on this node), `bad`:
    list of `name`, `rank`, `message`.
    """
    from cachetier_client.step_files import whole_step

    step = _newest(client, run) if step is None else step
    found = whole_step(client, run, step, timeout_seconds=timeout)
    bad = _bad_shards(client, run, step, found.shards, timeout, as_json)
    here = sum(shard.state in ("clean", "dirty") for shard in found.shards)
    size_bytes = sum(shard.size_bytes for shard in found.shards)
    what = {"run": run, "step": step, "shards": len(found.shards), "size_bytes": size_bytes}
    where = f"{here} on this node, {len(found.shards) - here} in S3"
    text = f"{path_of(run, step)}: {counted(len(found.shards), 'shard')}, {shown_size(size_bytes)}"
    verdict = f"{counted(len(bad), 'shard')} without a good copy" if bad else "all are good"
    document = {**what, "local_shards": here, "bad": bad}
    show(as_json, document, f"{text} ({where}): {verdict}")
    if bad and not as_json:
        named = (f"{each['name']} (rank {each['rank']}): {each['message']}" for each in bad)
        move = "Next: Restore another step; `cachetier fsck` looks at all of them."
        echo(*named, move, err=True)
    return INTEGRITY if bad else 0


def _newest(client: Client, run: str) -> int:
    found = client.latest(run)
    if found is None:
        raise NotFoundError(
            f"no step of {run} is durable", hint=f"See what there is: cachetier ls {run}"
        )
    return found.step


def _write(client: Client, run: str, step: int, to: str, timeout: float, as_json: bool) -> None:
    names = _export_files(client, run, step, to, timeout)
    document = {"run": run, "step": step, "path": to, "names": names}
    show(
        as_json, document, f"{path_of(run, step)}: {counted(len(names), 'file')} in {to}, verified"
    )


def _bring(
    client: Client, run: str, step: int, ranks: list[int], timeout: float, as_json: bool
) -> None:
    ends_at = time.monotonic() + timeout
    rest = partial(client.restore_step, run, step, ranks=ranks)
    coming = rest(timeout_seconds=0.0)
    bar, left = progress(as_json), coming
    if bar is None:
        left = rest(timeout_seconds=timeout) if coming.shards else coming
    else:
        with bar:
            task = bar.add_task(f"restore {path_of(run, step)}", total=coming.size_bytes)
            while left.shards and (seconds := ends_at - time.monotonic()) > 0:
                left = rest(timeout_seconds=min(SLICE_SECONDS, seconds))
                bar.update(task, completed=coming.size_bytes - left.size_bytes)
    brought = coming.shards - left.shards, coming.size_bytes - left.size_bytes
    if left.shards:
        still = f"{counted(left.shards, 'shard')}, {shown_size(left.size_bytes)}"
        raise DeadlineError(
            f"{still} of {path_of(run, step)} are still to come after {timeout:g} s",
            hint="It goes on: call it again to wait for the rest.",
        )
    document = {"run": run, "step": step, "brought_shards": brought[0], "brought_bytes": brought[1]}
    came = f"{counted(brought[0], 'shard')}, {shown_size(brought[1])} came back"
    show(
        as_json, document, f"{path_of(run, step)}: {came if brought[0] else 'all was here already'}"
    )


def _bad_shards(
    client: Client,
    run: str,
    step: int,
    shards: tuple[ShardInfo, ...],
    timeout: float,
    as_json: bool,
) -> list[dict[str, object]]:
    """Read all shards, a few at a time; return those without a good copy."""
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
        bytes_shown(as_json, lambda: HowFar(f"verify {path_of(run, step)}", done, total)),
        ThreadPoolExecutor(SHARDS_AT_ONCE, thread_name_prefix="verify") as threads,
    ):
        messages = list(threads.map(checked, shards))
    return [
        {"name": shard.name, "rank": shard.rank, "message": message}
        for shard, message in zip(shards, messages, strict=True)
        if message is not None
    ]


# --- as trainers write them -----------------------------------------------------------------------


@options.verb()
@options.argument("folder", type=PATH, help="The folder that the trainer writes to.")
@options.argument("run", type=RUN, envvar="CACHETIER_RUN", help="The training run.")
@options.rank
@options.world_size
@options.option(
    "--save-id",
    envvar="CACHETIER_SAVE_ID",
    help="With more than one watcher: equal for all, new for every start of the job.",
)
@options.option(
    "--marker", multiple=True, help="The file that ends a save, as a pattern; may be repeated."
)
@options.option("--step-name", help="How steps are called, such as `round-{step}`.")
@options.duration(
    "--quiet-commits", "A step has ended, too, when nothing happened to it for so long."
)
@options.flag("--once", help="Take what has ended by now, and leave.")
@options.service
def adopt(
    folder: Path,
    run: str,
    rank: int | None,
    world_size: int | None,
    save_id: str | None,
    marker: tuple[str, ...],
    step_name: str | None,
    quiet_commits: float | None,
    once: bool,
    url: str | None,
    as_json: bool,
) -> int:
    """Take each step that a trainer writes as files, as soon as it has ended; until Ctrl-C.

    One watcher for each node whose files are its own, and for a shared folder one in all: --rank
    and --world-size count watchers. What is stored already is not sent again. Nothing in the folder
    is deleted or written to, but for a hidden one of links. Exit 1: a step could not be taken.

    JSON: a line for each step: `path`, `step`, `receipts`, `trouble`, `hint`, `failed`.
    """
    if not folder.is_dir():
        refuse(
            f"there is no folder {folder}", "Name the one that the trainer writes to, or make it."
        )
    _check_place(rank, world_size)
    ids = {"run": run, "rank": rank, "world_size": world_size, "save_id": save_id}
    with ended_by_signal():
        from cachetier.drain.priority.apply import step_aside

        found = _trainer_folder(folder, step_name, marker)
        courtesy = step_aside()
        with reach(url, patient=True) as client:
            took = ", ".join(f"{what} {how}" for what, how in courtesy.items() if how is not None)
            echo(f"Watching {found.root} for run {run}; {took}.", err=True)
            failed = _watched(found, client, ids, quiet_commits, once, as_json)
    return FAILED if failed else 0


def _watched(
    folder: TrainerFolder,
    client: Client,
    ids: dict[str, Any],
    quiet_commits: float | None,
    once: bool,
    as_json: bool,
) -> bool:
    """Watch until the end; return whether a step that had ended is not stored."""
    from cachetier_client.adopt.watcher import Watcher

    failed = threading.Event()

    def adopt(source: str, step: int, origin: str) -> list[Receipt]:
        return client.adopt(source, step=step, origin=origin, **ids)

    def tell(outcome: Outcome) -> None:
        if outcome.failed:
            failed.set()
        _tell(outcome, as_json)

    Watcher(folder, adopt, tell, quiet_commits=quiet_commits).run(once=once)
    return failed.is_set()


def _trainer_folder(folder: Path, step_name: str | None, markers: tuple[str, ...]) -> TrainerFolder:
    from cachetier_client.adopt.rules import SaveRules
    from cachetier_client.adopt.trainer_folder import TrainerFolder
    from cachetier_client.identity.step_names import StepName

    form = StepName(step_name) if step_name else None
    return TrainerFolder(os.path.abspath(folder), SaveRules(form, markers))


def _check_place(rank: int | None, world_size: int | None) -> None:
    """Refuse to guess that nobody else watches: two that do would save each step in turns."""
    from cachetier_client.identity.ranks import place_of

    if place_of(os.environ).origin == "alone" and (rank is None or world_size is None):
        refuse(
            "nothing says how many watchers there are",
            "Pass --rank 0 --world-size 1 for the only one; else start them with srun, one a node, "
            "or give each its --rank.",
        )


def _tell(outcome: Outcome, as_json: bool) -> None:
    where = outcome.path + ("" if outcome.step is None else f" (step {outcome.step})")
    if outcome.trouble:
        complain(f"{where}: {outcome.trouble}", outcome.hint)
    if as_json:
        print_json(asdict(outcome), one_line=True)
    elif outcome.receipts:
        size = shown_size(sum(receipt.size_bytes for receipt in outcome.receipts))
        files = counted(len(outcome.receipts), "file")
        echo(f"{where}: {files}, {size}, safe on this node")
    sys.stdout.flush()
