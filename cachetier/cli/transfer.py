"""``cachetier export`` and ``cachetier import``: steps out of cachetier, and others' into it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import asdict
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer
from cachetier_client.units import counted, shown_size

from cachetier.cli.bars import HowFar, bytes_shown, written_bytes
from cachetier.cli.output import (
    SPAN,
    AsJson,
    Url,
    echo,
    ended_by_signal,
    print_json,
    reach,
    refuse,
    reported,
    show,
)
from cachetier.cli.shards import Overwrite, Run
from cachetier.cli.steps import RunArgument, StepArgument
from cachetier.parsers import remote_of

if TYPE_CHECKING:
    from cachetier_client import Client
    from cachetier_client.step_files import SourceFile

    from cachetier.remote.base import ObjectStore

Timeout = Annotated[float, typer.Option(metavar=SPAN, min=0.0, help="For each call.")]
FORMATS = ("dcp", "safetensors", "torch", "files")
_NEEDS_TORCH = "Install the client's extra `torch` here, as docs/install.md says"
Export: TypeAlias = "Callable[[Client, str, int, str, float], list[str]]"
_SOURCE_HINT = (
    "Correct the address of the source, or --remote-endpoint; credentials are those of the AWS "
    "configuration here. Nothing was saved."
)
_NOWHERE = "/nonexistent"  # `cache_dir` must be set, and is not looked at


def export(
    run: RunArgument,
    step: StepArgument,
    dest: Annotated[str, typer.Argument(help="What to make: a folder, of torch a file.")],
    to: Annotated[str, typer.Option("--to", help="dcp, safetensors, torch or files.")],
    trusted: Annotated[
        bool, typer.Option("--trusted", help="Let objects of the step run code as they are read.")
    ] = False,
    timeout: Timeout = 300.0,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Write a step as others read it, verified, in bounded memory; DEST appears whole or not.

    dcp: a folder that torch.distributed.checkpoint loads. safetensors: its tensors, by name, and
    beside them objects.pt. torch: one file for torch.load. files: each shard as it was put; the
    only one for steps that DCP has not saved, and the only one that needs no torch here.

    JSON: `format`, `path`, `names` (of tensors and objects, or of files), `size_bytes`.
    """
    if to not in FORMATS:
        refuse(f"--to {to!r} is none of {', '.join(FORMATS)}", "Choose one.", as_json=as_json)
    with reported(as_json), ended_by_signal(), reach(url, seconds=timeout) as client:
        export = _export_of(to, trusted, as_json)
        total = cache(partial(_size_of, client, run, step))
        with bytes_shown(
            as_json, lambda: HowFar(f"export {run}/{step}", written_bytes(dest), total())
        ):
            names = export(client, run, step, dest, timeout)
        root = Path(dest)
        size_bytes = sum(path.stat().st_size for path in (root, *root.rglob("*")) if path.is_file())
    document = {"format": to, "path": dest, "names": names, "size_bytes": size_bytes}
    what = counted(len(names), "file" if to == "files" else "item")
    show(as_json, document, f"{dest}: {shown_size(size_bytes)}, {what}, verified")


def _export_of(to: str, trusted: bool, as_json: bool) -> Export:
    """Return what writes a step in one of the formats."""
    if to == "files":
        return _export_files
    try:
        from cachetier_client.identity.addresses import address_of_step
        from cachetier_client.identity.step_names import StepName
        from cachetier_client.torch.exports import export_step
    except ImportError:
        refuse(f"--to {to} needs torch", f"{_NEEDS_TORCH}, or --to files.", as_json=as_json)

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
    from cachetier_client import NotFoundError

    try:
        return client.step(run, step).size_bytes
    except NotFoundError:
        return None


def import_(
    source: Annotated[str, typer.Argument(help="A folder, a file, or s3://bucket/prefix.")],
    run: Run,
    step: Annotated[
        int | None, typer.Option("--step", help="Default: as SOURCE's name says: step-1000.")
    ] = None,
    overwrite: Overwrite = False,
    remote_endpoint: Annotated[
        str | None, typer.Option("--remote-endpoint", help="Of s3://: default as of the service.")
    ] = None,
    timeout: Timeout = 300.0,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Save files of others as a step: each becomes a shard of its name, safe on the node.

    A folder that DCP has saved can then be loaded from cachetier://RUN/STEP. It is checked first
    against its .metadata, where torch is there to read it. Where S3 has the CRC-64/NVME of an
    object, it is compared. How S3 is reached is read where `cachetier serve` reads it.

    JSON: `run`, `step`, `shards`: each a receipt as of `cachetier put`.
    """
    from cachetier_client.identity.step_names import find_step

    if step is None:
        in_name = find_step([source.rstrip("/").rpartition("/")[2]])
        if in_name is None:
            refuse(f"no step is in the name of {source}", "Give it: --step STEP", as_json=as_json)
        step = in_name.step
    with reported(as_json), ended_by_signal(), reach(url, patient=True, seconds=timeout) as client:
        from cachetier_client.step_files import files_of, import_files

        is_remote = re.match(r"\w+:/", source) is not None  # of s3://, or what was meant by it
        files = _objects_of(source, remote_endpoint) if is_remote else files_of(source)
        _check(files)
        receipts = import_files(
            client, files, run, step, overwrite=overwrite, timeout_seconds=timeout
        )
    size_bytes = sum(receipt.size_bytes for receipt in receipts.values())
    if as_json:
        shards = [asdict(receipt) for receipt in receipts.values()]
        print_json({"run": run, "step": step, "shards": shards})
    else:
        what = f"{counted(len(receipts), 'shard')}, {shown_size(size_bytes)}"
        echo(f"{run}/{step}: {what}, safe on this node")


def _check(files: list[SourceFile]) -> None:
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


# --- objects of a bucket -------------------------------------------------------------------------


def _objects_of(source: str, endpoint: str | None) -> list[SourceFile]:
    """Return the objects under a prefix, or the one of that key."""
    from cachetier_client.errors import RemoteError

    from cachetier.config.remotes import remote_settings
    from cachetier.config.settings import load
    from cachetier.doctor.refusals import reason_of
    from cachetier.remote.factory import open_remote

    remote_of(source)  # here nobody gave it by --remote
    flags = {"remote": source, "remote_endpoint": endpoint, "cache_dir": _NOWHERE}
    where = remote_settings(load(flags))
    store = open_remote(where).objects
    prefix = f"{where.prefix}/" if where.prefix else ""
    try:
        return _found(store, source, where.prefix, prefix)
    except RemoteError as error:
        reason, _ = reason_of(error, where)
        raise type(error)(f"cannot read {source}: {reason}", hint=_SOURCE_HINT) from error


def _found(store: ObjectStore, source: str, key_or_prefix: str, prefix: str) -> list[SourceFile]:
    from cachetier_client import InvalidRequestError
    from cachetier_client.io import digests
    from cachetier_client.step_files import SourceFile

    keys = [key for key in store.list(prefix).keys if not key.endswith("/")]
    if not keys and key_or_prefix:
        keys, prefix = [key_or_prefix], key_or_prefix.rpartition("/")[0] + "/"
    found = []
    for key in keys:
        info = store.head(key)
        if info is None:
            raise InvalidRequestError(f"there is no object in {source}", hint="Look for another.")
        found.append(
            SourceFile(
                key.removeprefix(prefix),
                info.size_bytes,
                partial(_read, store, key, info.etag, info.size_bytes),
                None if info.digest is None else digests.to_hex(info.digest),
            )
        )
    return found


def _read(store: ObjectStore, key: str, etag: str, size_bytes: int) -> Iterator[memoryview]:
    from cachetier_client import IntegrityError
    from cachetier_client.step_files import PIECE_BYTES

    memory = memoryview(bytearray(min(PIECE_BYTES, size_bytes)))
    for start in range(0, size_bytes, PIECE_BYTES):
        piece = memory[: min(PIECE_BYTES, size_bytes - start)]
        store.read_into(key, start, piece)
        yield piece
    after = store.head(key)
    if after is None or after.etag != etag:
        raise IntegrityError(f"{key} changed while it was read", hint="Import it once it is done.")
