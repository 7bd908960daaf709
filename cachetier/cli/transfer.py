"""Shards and whole steps, moved: put, got, restored to this node; verified; adopted.

``adopt`` takes the checkpoints of trainers that only write files, as they end.
"""

from __future__ import annotations

import os
import re
import stat
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import asdict
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import click
from cachetier_client import DeadlineError, IntegrityError, InvalidRequestError, NotFoundError
from cachetier_client.identity.remote_url import remote_of
from cachetier_client.units import counted, shown_size

from cachetier.cli import options
from cachetier.cli.connection import path_of, reach, target
from cachetier.cli.options import (
    ELEMENT_SIZE,
    FILE,
    NAME,
    PATH,
    RANGE,
    RANGE_HINT,
    RANKS,
    RUN,
    STEP,
    one_of,
)
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

if TYPE_CHECKING:
    from cachetier_client import Client, Receipt, ShardInfo
    from cachetier_client.adopt.trainer_folder import TrainerFolder
    from cachetier_client.adopt.watcher import Outcome
    from cachetier_client.step_files import StepSourceFile

    from cachetier.cli.connection import StepOrPath
    from cachetier.remote.base import ObjectStore

SHARDS_AT_ONCE = 4
_NEEDS_TORCH = "Install the client's extra `torch` here, as docs/install.md says"
_SOURCE_HINT = (
    "Correct the address of the source, or --remote-endpoint; credentials are those of the AWS "
    "configuration here. Nothing was saved."
)


# --- one shard, or a whole step -------------------------------------------------------------------

PIECE_BYTES = 4 << 20
SHARD_SECONDS, STEP_SECONDS = 60.0, 300.0
_STANDARD_INPUT = ("-", "/dev/stdin", "/dev/fd/0", "/proc/self/fd/0")
_SAFE = {
    "memory": "safe on this node, until a power cut",
    "local": "safe on this node",
    "replicated": "safe at a remote",
    "durable": "safe in S3",
}


@options.verb()
@options.argument(
    "source", type=FILE, help="A file, - for standard input, a folder, or s3://bucket/prefix."
)
@options.run_argument
@options.argument(
    "step", type=STEP, required=False, help="Default: as SOURCE's name says: step-1000."
)
@options.option("--name", type=NAME, help="The shard's name; default: the file's.")
@options.rank
@options.world_size
@options.save_id
@options.overwrite
@options.flag("--seal", help="Then seal the rank's part: the step is complete.")
@options.option(
    "--element-size", type=ELEMENT_SIZE, help="Bytes of one value: 2, 4 or 8; helps compression."
)
@options.level("local", "local; memory is enough; or wait for replicated, durable.")
@options.option("--remote-endpoint", help="Server of an s3:// source; default: the service's.")
@options.duration("--timeout", "Deadline of each call; default 60s, of a whole step 5min.")
@options.url
@options.as_json
def put(
    source: str,
    run: str,
    step: StepOrPath | None,
    name: str | None,
    remote_endpoint: str | None,
    timeout: float | None,
    url: str | None,
    as_json: bool,
    **given: Any,
) -> None:
    """Put a file, or standard input, as one shard, or a folder as a step; safe on return.

    Shards put one by one belong to one save, called `cli` unless --save-id says otherwise. RUN STEP
    may be RUN/STEP/NAME. With --element-size 2 (bf16) or 4 (fp32) compression can split planes.

    Of a folder, or of objects under s3://, each file becomes a shard of its name, and the step is
    sealed. What DCP has saved can then be loaded from cachetier://RUN/STEP. It is checked first
    against its .metadata, where torch is there to read it. Where S3 has the CRC-64/NVME of an
    object, it is compared. How S3 is reached is read where `cachetier serve` reads it.

    JSON: `run`, `step`, `name`, `save_id`, `size_bytes`, `digest`, `level`, `sealed_ranks`; of a
    folder `run`, `step`, `shards`: each a receipt.
    """
    is_whole = is_remote(source) or Path(source).is_dir()
    if timeout is None:
        timeout = STEP_SECONDS if is_whole else SHARD_SECONDS
    if sys.stdin is None and source in _STANDARD_INPUT:
        refuse("standard input is closed", "Name a file, or redirect one.")
    number = step_in(source) if step is None else step
    if isinstance(number, tuple):
        run, number, name = target(run, number, name, is_file=not is_whole)
    if is_whole:
        _refuse_options_of_one(name, given)
        with ended_by_signal(), reach(url, patient=True, seconds=timeout) as client:
            put_step(
                client,
                source,
                run,
                number,
                overwrite=given["overwrite"],
                remote_endpoint=remote_endpoint,
                timeout=timeout,
                as_json=as_json,
            )
        return
    if name is None and source in _STANDARD_INPUT:
        refuse("standard input needs --name", "Give it: --name NAME")
    with reach(url, patient=True, seconds=timeout) as client:
        ids = {"run": run, "step": number, "name": name or Path(source).name}
        _put_one(client, source, ids, {**given, "timeout_seconds": timeout}, as_json)


def _put_one(
    client: Client, source: str, ids: dict[str, Any], given: dict[str, Any], as_json: bool
) -> None:
    """Put one shard; then seal its part, if that is wanted."""
    seal, element_size, ack = (given.pop(each) for each in ("seal", "element_size", "level"))
    receipt = _put(
        client, source, ids, {**given, "ack": ack, "element_size": element_size}, as_json
    )
    sealed = client.seal(ids["run"], ids["step"], **given) if seal else ()
    what = f"{shown_size(receipt.size_bytes)}, {receipt.digest}"
    path = path_of(ids["run"], ids["step"], receipt.name)
    document = {**asdict(receipt), "sealed_ranks": list(sealed)}
    show(as_json, document, f"{path}: {what}, {_SAFE[receipt.level]}")


def _refuse_options_of_one(name: str | None, given: dict[str, Any]) -> None:
    """Refuse the options of one file where a folder is put."""
    one = {"name": name, "level": given["level"] != "local"}
    one |= {each: given[each] for each in ("rank", "world_size", "element_size")}
    if option := next((each for each, value in one.items() if value), None):
        refuse(
            f"--{option.replace('_', '-')} is about one file, not a folder",
            "Leave it out, or name the file.",
        )


def _put(
    client: Client, file: str, ids: dict[str, Any], given: dict[str, Any], as_json: bool
) -> Receipt:
    """Stream what has no length, or somebody watching; leave a plain file to the fast path."""
    bar = progress(as_json)
    if file != "-" and bar is None:
        return client.put_shard(Path(file), **ids, **given)
    with (
        click.open_file(file, "rb") as source,
        client.open_shard(**ids, mode="wb", **given) as writer,
    ):
        about = os.fstat(source.fileno()) if file != "-" else None
        total = about.st_size if about and stat.S_ISREG(about.st_mode) else None
        for piece in _pieces(source, bar, f"put {ids['name']}", total):
            writer.write(piece)
    assert writer.receipt is not None
    return writer.receipt


@options.verb()
@options.run_and_step
@options.argument(
    "dest",
    type=FILE,
    required=False,
    help="Destination: of a shard a file (default: standard output), of a step what to make.",
)
@options.option("--name", type=NAME, help="The shard's name; without it the whole step.")
@options.option(
    "--range",
    "part",
    type=RANGE,
    help="Only bytes FIRST-LAST of the shard, from FIRST- on, or the -COUNT last.",
)
@options.option(
    "--format",
    "form",
    type=one_of("FORMAT", "files", "dcp", "safetensors", "torch"),
    help="Of a whole step: files (the default), dcp, safetensors or torch.",
)
@options.flag("--trusted", help="Let objects of the step run code as they are read.")
@options.timeout("5min")
@partial(options.client, patient=True)
def get(
    run: str,
    step: int,
    dest: str | None,
    name: str | None,
    part: tuple[int | None, int | None] | None,
    form: str | None,
    trusted: bool,
    timeout: float,
    client: Client,
    as_json: bool,
) -> None:
    """Get a shard, or write a whole step to DEST, verified, from the nearest copy.

    RUN STEP may be RUN/STEP/NAME. A range is as in `curl -r`: 0-1023 is the first KiB. Of a shard
    that is only remote it fetches little more than that.

    A whole step is written in bounded memory; DEST appears whole or not. files: each shard as it
    was put; the only one for steps that DCP has not saved, and the only one that needs no torch
    here. dcp: a folder that torch.distributed.checkpoint loads. safetensors: its tensors, by name,
    and beside them objects.pt. torch: one file for torch.load.

    JSON: `run`, `step`, `name`, `size_bytes`, `digest`, `file`; with --range also `start` and
    `end`, the first byte and the one after the last; of a whole step `format`, `path`, `names` (of
    tensors and objects, or of files), `size_bytes`.
    """
    if name is None and dest is None:
        refuse("no shard and no destination are named", "Give --name NAME; or DEST for the step.")
    if name is None and part is not None:
        refuse("--range is about one shard", "Name it: --name NAME")
    file = dest or "-"
    if name is not None:
        _check_target(file, name, as_json)
    with ended_by_signal():
        if name is not None:
            _get(client, {"run": run, "step": step, "name": name}, file, part, timeout, as_json)
        else:
            get_step(client, run, step, file, form or "files", trusted, timeout, as_json)


def _get(
    client: Client,
    ids: dict[str, Any],
    file: str,
    part: tuple[int | None, int | None] | None,
    timeout: float,
    as_json: bool,
) -> None:
    """Write a shard, or a part of it, to a file or to standard output."""
    with (
        client.open_shard(
            **ids, mode="rb", timeout_seconds=timeout, restore=part is None
        ) as reader,
        _written(file) as out,
    ):
        start, end = _span(part, reader.size_bytes)
        reader.seek(start)
        bar = progress(as_json)
        for piece in _pieces(reader, bar, f"get {ids['name']}", end - start, end - start):
            out.write(piece)
    size_bytes, digest = reader.size_bytes, reader.digest
    if as_json:
        got = {} if part is None else {"start": start, "end": end}
        print_json({**ids, "size_bytes": size_bytes, "digest": digest, "file": file, **got})
    elif file != "-":
        of_whole = "" if part is None else f" of {shown_size(size_bytes)}"
        echo(f"{file}: {shown_size(end - start)}{of_whole}, {digest}")


def _check_target(file: str, name: str, as_json: bool) -> None:
    """Refuse what no shard can be written to, before anything is fetched."""
    if file == "-" and as_json:
        refuse("--json and the shard cannot share standard output", "Name a file.")
    if file == "-" and sys.stdout.isatty():
        refuse("a shard is binary, and standard output is a terminal", "Name a file, or redirect.")
    out = Path(file)
    if file != "-" and (file.endswith("/") or out.is_dir()):
        refuse(f"{file} is a directory", f"Name the file: {out / Path(name).name}")
    if file != "-" and not out.parent.is_dir():
        refuse(f"there is no directory {out.parent}", "Create that directory first.")


def _span(part: tuple[int | None, int | None] | None, size_bytes: int) -> tuple[int, int]:
    """Return the bytes that ``--range`` names: from the first up to and without the second.

    Raises:
        InvalidRequestError: It names none of the shard's.
    """
    first, last = part or (0, None)
    if first is None:
        start, end = max(0, size_bytes - (last or 0)), size_bytes
    else:
        start, end = first, size_bytes if last is None else min(last + 1, size_bytes)
    if part is not None and start >= end:
        named = "-".join("" if each is None else str(each) for each in part)
        raise InvalidRequestError(
            f"--range {named} names no byte of a shard of {size_bytes} bytes", hint=RANGE_HINT
        )
    return start, end


@contextmanager
def _written(file: str) -> Iterator[BinaryIO]:
    """Yield where to write: see ``whole_file``."""
    from cachetier_client.io.whole_file import whole_file

    if file != "-":
        with whole_file(file) as out:
            yield out
        return
    yield sys.stdout.buffer
    sys.stdout.buffer.flush()


def _pieces(
    source: Any, bar: Any, what: str, total: int | None, left: int = sys.maxsize
) -> Iterator[bytes]:
    """Yield what ``source`` has, ``left`` bytes at most, and show on ``bar`` how far it is."""
    with bar if bar is not None else nullcontext():
        task = None if bar is None else bar.add_task(what, total=total)
        while left and (piece := source.read(min(PIECE_BYTES, left))):
            yield piece
            left -= len(piece)
            if bar is not None:
                bar.advance(task, len(piece))


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
    total = cache(partial(_size_of, client, run, step))
    with bytes_shown(
        as_json, lambda: HowFar(f"get {path_of(run, step)}", written_bytes(dest), total())
    ):
        names = _exported(client, run, step, dest, timeout, to, trusted)
    root = Path(dest)
    size_bytes = sum(path.stat().st_size for path in (root, *root.rglob("*")) if path.is_file())
    document = {"format": to, "path": dest, "names": names, "size_bytes": size_bytes}
    what = counted(len(names), "file" if to == "files" else "item")
    show(as_json, document, f"{dest}: {shown_size(size_bytes)}, {what}, verified")


def _exported(
    client: Client, run: str, step: int, dest: str, timeout: float, to: str, trusted: bool
) -> list[str]:
    """Write a step in one of the formats; return the names in it."""
    if to == "files":
        return _export_files(client, run, step, dest, timeout)
    try:
        from cachetier_client.identity.addresses import address_of_step
        from cachetier_client.identity.step_names import StepName
        from cachetier_client.torch.exports import export_step
    except ImportError:
        refuse(f"--format {to} needs torch", f"{_NEEDS_TORCH}, or --format files.")
    return export_step(
        address_of_step(run, step, StepName()),
        dest,
        to,
        client=client,
        step_name="{step}",
        timeout_seconds=timeout,
        trusted=trusted,
    )


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
        refuse(f"the name {source} has no step in it", "Give it: cachetier put SOURCE RUN STEP")
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
    flags = {"remote": source, "remote_endpoint": endpoint, "cache_dir": options.NOWHERE}
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
            raise InvalidRequestError(
                f"there is no object in {source}", hint="Name a prefix or an object that exists."
            )
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
@options.option(
    "--ranks", type=RANKS, help="Only shards of these ranks: 0-7, or 0,8. Default: all."
)
@options.timeout("1h", "Deadline of the whole command.")
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
        refuse("--ranks and --to exclude each other", "Leave out one of them.")
    chosen = _newest(client, run) if step is None else step
    if to is not None:
        _write(client, run, chosen, to, timeout, as_json)
    else:
        _bring(client, run, chosen, ranks or [], timeout, as_json)


@options.verb()
@options.run_and_newest
@options.timeout("1h", "Deadline of the whole command.")
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
    rest = partial(client.restore_step, run, step, ranks=ranks)
    left = coming = rest(timeout_seconds=0.0)

    def how_far() -> HowFar:
        done = coming.size_bytes - rest(timeout_seconds=0.0).size_bytes
        return HowFar(f"restore {path_of(run, step)}", done, coming.size_bytes)

    if coming.shards:
        with bytes_shown(as_json, how_far):
            left = rest(timeout_seconds=timeout)
    brought = coming.shards - left.shards, coming.size_bytes - left.size_bytes
    if left.shards:
        still = f"{counted(left.shards, 'shard')}, {shown_size(left.size_bytes)}"
        raise DeadlineError(
            f"{still} of {path_of(run, step)} are not restored after {timeout:g} s",
            hint="The restore continues: call it again to wait for the rest.",
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
@options.option("--step-name", help="How the trainer names steps, such as `round-{step}`.")
@options.duration(
    "--quiet-commits", "A step has also ended when its files have not changed for this long."
)
@options.flag("--once", help="Take the saves that have ended, then exit.")
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
            "the number of watchers is not known",
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
