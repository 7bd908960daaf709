"""``cachetier put`` and ``cachetier get``: one shard in, one shard out."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import click
from cachetier_client import InvalidRequestError
from cachetier_client.units import shown_size

from cachetier.cli import options
from cachetier.cli.connection import reach
from cachetier.cli.output import echo, print_json, progress, refuse, show
from cachetier.cli.types import ELEMENT_SIZE, FILE, LEVEL, RANGE, RANGE_HINT

if TYPE_CHECKING:
    from cachetier_client import Client, Receipt

PIECE_BYTES = 4 << 20
_STANDARD_INPUT = ("-", "/dev/stdin", "/dev/fd/0", "/proc/self/fd/0")
_SAFE = {
    "local": "safe on this node",
    "replicated": "safe at a remote",
    "durable": "safe in S3",
}


@options.verb()
@options.argument("file", type=FILE, help="What to put; - for standard input.")
@options.run
@options.step
@options.name
@options.rank
@options.world_size
@options.save_id
@options.overwrite
@options.flag("--seal", help="Then seal the rank's part: the step is complete.")
@options.option(
    "--element-size", type=ELEMENT_SIZE, help="Bytes of one value: 2, 4 or 8; helps compression."
)
@options.option(
    "--ack", type=LEVEL, default="local", help="local; or wait for replicated, durable."
)
@options.timeout("60s")
@options.service
def put(
    file: str,
    run: str,
    step: int,
    name: str,
    rank: int | None,
    world_size: int | None,
    save_id: str,
    overwrite: bool,
    seal: bool,
    element_size: int | None,
    ack: str,
    timeout: float,
    url: str | None,
    as_json: bool,
) -> None:
    """Put a file, or standard input, as one shard; return once it is safe on the node.

    Shards put one by one belong to one save, called `cli` unless --save-id says otherwise. With
    --element-size 2 (bf16) or 4 (fp32) compression can split planes.

    JSON: `run`, `step`, `name`, `save_id`, `size_bytes`, `digest`, `level`, `sealed_ranks`.
    """
    part: dict[str, Any] = {
        "rank": rank,
        "world_size": world_size,
        "save_id": save_id,
        "overwrite": overwrite,
        "timeout_seconds": timeout,
    }
    if sys.stdin is None and file in _STANDARD_INPUT:
        refuse("standard input is closed", "Name a file, or redirect one.")
    with reach(url, patient=True, seconds=timeout) as client:
        ids = {"run": run, "step": step, "name": name}
        given = {**part, "ack": ack, "element_size": element_size}
        receipt = _put(client, file, ids, given, as_json)
        sealed = client.seal(run, step, **part) if seal else ()
        what = f"{shown_size(receipt.size_bytes)}, {receipt.digest}"
        text = f"{run}/{step}/{name}: {what}, {_SAFE[receipt.level]}"
        show(as_json, {**asdict(receipt), "sealed_ranks": list(sealed)}, text)


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
@options.run
@options.step
@options.name
@options.argument("file", type=FILE, default="-", help="Where to; - for standard output.")
@options.option(
    "--range",
    "part",
    type=RANGE,
    help="Only bytes FIRST-LAST, from FIRST- on, or the -COUNT last.",
)
@options.timeout("5min")
@options.service
def get(
    run: str,
    step: int,
    name: str,
    file: str,
    part: tuple[int | None, int | None] | None,
    timeout: float,
    url: str | None,
    as_json: bool,
) -> None:
    """Get one shard, verified, from the nearest copy.

    A range is as in `curl -r`: 0-1023 is the first KiB. Of a shard that is only remote it fetches
    little more than that.

    JSON: `run`, `step`, `name`, `size_bytes`, `digest`, `file`; with --range also `start` and
    `end`, the first byte and the one after the last.
    """
    if file == "-" and as_json:
        refuse("--json and the shard cannot share standard output", "Name a file.")
    if file == "-" and sys.stdout.isatty():
        refuse("a shard is binary, and standard output is a terminal", "Name a file, or redirect.")
    _check_target(file, name)
    with reach(url, patient=True, seconds=timeout) as client:
        with (
            client.open_shard(
                run, step, name, "rb", timeout_seconds=timeout, restore=part is None
            ) as reader,
            _written(file) as target,
        ):
            start, end = _span(part, reader.size_bytes)
            reader.seek(start)
            bar = progress(as_json)
            for piece in _pieces(reader, bar, f"get {name}", end - start, end - start):
                target.write(piece)
        size_bytes, digest = reader.size_bytes, reader.digest
        if as_json:
            ids = {"run": run, "step": step, "name": name}
            got = {} if part is None else {"start": start, "end": end}
            print_json({**ids, "size_bytes": size_bytes, "digest": digest, "file": file, **got})
        elif file != "-":
            of_whole = "" if part is None else f" of {shown_size(size_bytes)}"
            echo(f"{file}: {shown_size(end - start)}{of_whole}, {digest}")


def _check_target(file: str, name: str) -> None:
    """Refuse what no file can be written to, before anything is fetched."""
    target = Path(file)
    if file != "-" and (file.endswith("/") or target.is_dir()):
        refuse(f"{file} is a directory", f"Name the file: {target / Path(name).name}")
    if file != "-" and not target.parent.is_dir():
        refuse(f"there is no directory {target.parent}", "Make it first.")


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
