"""``cachetier put`` and ``cachetier get``: a shard, or a whole step, in and out."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import click
from cachetier_client import InvalidRequestError
from cachetier_client.units import shown_size

from cachetier.cli import options
from cachetier.cli.addresses import path_of, target
from cachetier.cli.connection import reach
from cachetier.cli.output import echo, ended_by_signal, print_json, progress, refuse, show
from cachetier.cli.types import ELEMENT_SIZE, FILE, NAME, RANGE, RANGE_HINT, STEP, one_of

if TYPE_CHECKING:
    from cachetier_client import Client, Receipt

    from cachetier.cli.addresses import StepOrPath

PIECE_BYTES = 4 << 20
SHARD_SECONDS, STEP_SECONDS = 60.0, 300.0
_STANDARD_INPUT = ("-", "/dev/stdin", "/dev/fd/0", "/proc/self/fd/0")
_SAFE = {
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
@options.level("local", "local; or wait for replicated, durable.")
@options.option("--remote-endpoint", help="Of s3://: default as of the service.")
@options.duration("--timeout", "For each call; default 60s, of a whole step 5min.")
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
    from cachetier.cli.transfer import is_remote, put_step, step_in

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
    help="Where to: of a shard default -, standard output; of a step what to make.",
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
        refuse("nothing says which shard, or where to", "Give --name NAME; or DEST for the step.")
    if name is None and part is not None:
        refuse("--range is about one shard", "Name it: --name NAME")
    file = dest or "-"
    if name is not None:
        _check_target(file, name, as_json)
    with ended_by_signal():
        if name is not None:
            _get(client, {"run": run, "step": step, "name": name}, file, part, timeout, as_json)
        else:
            from cachetier.cli.transfer import get_step

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
        refuse(f"there is no directory {out.parent}", "Make it first.")


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
