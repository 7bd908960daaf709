"""``cachetier put`` and ``cachetier get``: one shard in, one shard out."""

from __future__ import annotations

import os
import re
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO, Literal, cast, get_args

import typer
from cachetier_client.units import shown_size

from cachetier.cli.bars import progress
from cachetier.cli.output import (
    SPAN,
    AsJson,
    Url,
    echo,
    print_json,
    reach,
    refuse,
    reported,
    show,
)
from cachetier.nearest import nearest

if TYPE_CHECKING:
    from cachetier_client import Client, Receipt

LevelName = Literal["local", "replicated", "durable"]

LEVELS: tuple[str, ...] = get_args(LevelName)
PIECE_BYTES = 4 << 20
DEFAULT_SAVE_ID = "cli"
_RANGE = re.compile(r"(\d*)-(\d*)", re.ASCII)
_RANGE_HINT = "Give FIRST-LAST, both included and counted from 0; FIRST-; or -COUNT."
_STANDARD_INPUT = ("-", "/dev/stdin", "/dev/fd/0", "/proc/self/fd/0")
_SAFE = {
    "local": "safe on this node",
    "replicated": "safe at a remote",
    "durable": "safe in S3",
}

Run = Annotated[
    str, typer.Option("--run", envvar="CACHETIER_RUN", help="The training run.", show_envvar=True)
]
Step = Annotated[int, typer.Option("--step", help="The training step.")]
Name = Annotated[str, typer.Option("--name", help="The shard's name in the step.")]
SaveId = Annotated[
    str,
    typer.Option("--save-id", envvar="CACHETIER_SAVE_ID", help="Equal for all shards of a save."),
]
Rank = Annotated[int | None, typer.Option("--rank", help="Default: the environment's.")]
WorldSize = Annotated[int | None, typer.Option("--world-size", help="Default: the environment's.")]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace a step that is published.")]


def chosen_level(word: str, option: str, as_json: bool) -> LevelName:
    """Return ``word`` if it is a level; else end with the nearest that is one."""
    if word not in LEVELS:
        meant = nearest(word, LEVELS)
        hint = f"Did you mean {meant}?" if meant else "Choose one of them."
        known = f"{', '.join(LEVELS[:-1])} and {LEVELS[-1]}"
        refuse(f"--{option} {word!r} is none of {known}", hint, as_json=as_json)
    return cast("LevelName", word)


def put(
    file: Annotated[str, typer.Argument(help="What to put; - for standard input.")],
    run: Run,
    step: Step,
    name: Name,
    rank: Rank = None,
    world_size: WorldSize = None,
    save_id: SaveId = DEFAULT_SAVE_ID,
    overwrite: Overwrite = False,
    seal: Annotated[
        bool, typer.Option("--seal", help="Then seal the rank's part: the step is complete.")
    ] = False,
    element_size: Annotated[
        int | None,
        typer.Option("--element-size", help="Bytes of one value: 2, 4 or 8; helps compression."),
    ] = None,
    ack: Annotated[
        str, typer.Option("--ack", help="local; or wait for replicated, durable.")
    ] = "local",
    timeout: Annotated[
        float, typer.Option("--timeout", metavar=SPAN, min=0.0, help="For each call.")
    ] = 60.0,
    url: Url = None,
    as_json: AsJson = False,
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
        refuse("standard input is closed", "Name a file, or redirect one.", as_json=as_json)
    with reported(as_json), reach(url, patient=True, seconds=timeout) as client:
        level = chosen_level(ack, "ack", as_json)
        options = {**part, "ack": level, "element_size": element_size}
        receipt = _put(client, file, {"run": run, "step": step, "name": name}, options, as_json)
        sealed = client.seal(run, step, **part) if seal else ()
        what = f"{shown_size(receipt.size_bytes)}, {receipt.digest}"
        text = f"{run}/{step}/{name}: {what}, {_SAFE[receipt.level]}"
        show(as_json, {**asdict(receipt), "sealed_ranks": list(sealed)}, text)


def _put(
    client: Client, file: str, ids: dict[str, Any], options: dict[str, Any], as_json: bool
) -> Receipt:
    """Stream what has no length, or somebody watching; leave a plain file to the fast path."""
    bar = progress(as_json)
    if file != "-" and bar is None:
        return client.put_shard(Path(file), **ids, **options)
    with _opened(file) as source, client.open_shard(**ids, mode="wb", **options) as writer:
        about = os.fstat(source.fileno()) if file != "-" else None
        total = about.st_size if about and stat.S_ISREG(about.st_mode) else None
        for piece in _pieces(source, bar, f"put {ids['name']}", total):
            writer.write(piece)
    assert writer.receipt is not None
    return writer.receipt


def get(
    run: Run,
    step: Step,
    name: Name,
    file: Annotated[str, typer.Argument(help="Where to; - for standard output.")] = "-",
    part: Annotated[
        str | None,
        typer.Option("--range", help="Only bytes FIRST-LAST, from FIRST- on, or the -COUNT last."),
    ] = None,
    timeout: Annotated[
        float, typer.Option("--timeout", metavar=SPAN, min=0.0, help="For each call.")
    ] = 300.0,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Get one shard, verified, from the nearest copy.

    A range is as in `curl -r`: 0-1023 is the first KiB. Of a shard that is only remote it fetches
    little more than that.

    JSON: `run`, `step`, `name`, `size_bytes`, `digest`, `file`; with --range also `start` and
    `end`, the first byte and the one after the last.
    """
    if file == "-" and as_json:
        refuse("--json and the shard cannot share standard output", "Name a file.", as_json=True)
    if file == "-" and sys.stdout.isatty():
        refuse("a shard is binary, and standard output is a terminal", "Name a file, or redirect.")
    _check_span(part, as_json)
    _check_target(file, name, as_json)
    with reported(as_json), reach(url, patient=True, seconds=timeout) as client:
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


def _check_span(part: str | None, as_json: bool) -> None:
    if part is not None and not (part.strip("-") and _RANGE.fullmatch(part)):
        refuse(f"--range {part!r} is no range of bytes", _RANGE_HINT, as_json=as_json)


def _check_target(file: str, name: str, as_json: bool) -> None:
    """Refuse what no file can be written to, before anything is fetched."""
    target = Path(file)
    if file != "-" and (file.endswith("/") or target.is_dir()):
        hint = f"Name the file: {target / Path(name).name}"
        refuse(f"{file} is a directory", hint, as_json=as_json)
    if file != "-" and not target.parent.is_dir():
        refuse(f"there is no directory {target.parent}", "Make it first.", as_json=as_json)


def _span(part: str | None, size_bytes: int) -> tuple[int, int]:
    """Return the bytes that ``--range`` names: from the first up to and without the second.

    Raises:
        InvalidRequestError: It names none of the shard's.
    """
    if part is None:
        return 0, size_bytes
    match = _RANGE.fullmatch(part)
    first, last = match.groups() if match is not None else ("", "")
    if first:
        start, end = int(first), min(int(last) + 1, size_bytes) if last else size_bytes
    else:
        start, end = max(0, size_bytes - int(last or 0)), size_bytes
    if start >= end:
        from cachetier_client import InvalidRequestError

        raise InvalidRequestError(
            f"--range {part} names no byte of a shard of {size_bytes} bytes",
            hint=_RANGE_HINT,
        )
    return start, end


@contextmanager
def _opened(file: str) -> Iterator[BinaryIO]:
    if file == "-":
        yield sys.stdin.buffer
    else:
        with open(file, "rb") as source:
            yield source


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
