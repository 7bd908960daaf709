"""Steps that DCP has saved, written as others read them: DCP, safetensors, ``torch.load``.

Tensors pass in boxes of bounded size, each block held against its digest. Names and types stay.

Source: docs/frameworks.md.
"""

from __future__ import annotations

import dataclasses
import json
import os
import struct
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.distributed.checkpoint._nested_dict import unflatten_state_dict
from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.distributed.checkpoint.metadata import (
    MetadataIndex,
    TensorStorageMetadata,
)

from cachetier_client.client import Client
from cachetier_client.errors import InvalidRequestError, NotFoundError
from cachetier_client.identity.names import checked_name
from cachetier_client.io.buffers import bytes_of
from cachetier_client.step_files import export_files, placed
from cachetier_client.torch import metadata as stored
from cachetier_client.torch.dcp import DCP_SECONDS
from cachetier_client.torch.step_tensors import StepTensors, open_step
from cachetier_client.torch.torch_file import AbsentTensor, write_torch

FILE_BYTES = 5_000_000_000
OBJECTS_NAME = "objects.pt"
_SAFETENSORS = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint64: "U64",
    torch.uint32: "U32",
    torch.uint16: "U16",
    torch.uint8: "U8",
    torch.bool: "BOOL",
    torch.complex64: "C64",
}


def export_step(
    address: str | os.PathLike[str],
    dest: str | os.PathLike[str],
    to: str,
    *,
    client: Client | None = None,
    step_name: str | None = None,
    timeout_seconds: float = DCP_SECONDS,
    trusted: bool = False,
) -> list[str]:
    """Write a step that DCP has saved to ``dest``; return the names of its tensors and objects.

    ``dest`` is there, synced, once this returns; after an error nothing of it is. Memory: at most
    some 128 MiB, its objects, and the largest piece that DCP has pickled (not ``CachetierWriter``).

    Args:
        address: ``cachetier://run/1000``, or a directory of DCP's own.
        dest: What to make: a folder, of ``torch`` a file.
        to: ``dcp``: what ``FileSystemReader`` loads. ``safetensors``: files of at most 5 GB or one
            tensor, with an index, and the objects in ``objects.pt``. ``torch``: what ``torch.load``
            reads, nested as it was saved.
        client, step_name, timeout_seconds: As ``open_step`` takes them.
        trusted: Let pickles of the step run any code.

    Raises:
        NotFoundError: There is no such step, or it is not one of DCP's.
        InvalidRequestError: ``dest`` is there already, or the format cannot hold the step.
        CachetierClientError: It could not be read, verified, in time.
    """
    writers = {"dcp": _write_dcp, "safetensors": _write_safetensors, "torch": _write_nested}
    if to not in writers:
        raise InvalidRequestError(f"to={to!r} is not one of {', '.join(writers)}")
    options: Any = {"step_name": step_name, "timeout_seconds": timeout_seconds, "trusted": trusted}
    try:
        step = open_step(address, client=client, memory_bytes=sys.maxsize, **options)
    except NotFoundError as error:
        if error.name == stored.METADATA_NAME:
            error.hint = f"Look for the step; one without {stored.METADATA_NAME} exports as files."
        raise
    with step, placed(dest, one_file=to == "torch") as path:
        places = (step.metadata.storage_data or {}).values()
        if to == "dcp" and step.place and all(isinstance(each, _StorageInfo) for each in places):
            export_files(*step.place, path, timeout_seconds=timeout_seconds)  # they are DCP's own
        else:
            writers[to](step, path, trusted)
        return step.names()


# --- DCP -----------------------------------------------------------------------------------------


def _write_dcp(step: StepTensors, folder: Path, _trusted: bool) -> None:
    """Write each shard again, as DCP's own writer would; a large piece becomes several."""
    known = step.metadata.storage_data or {}
    described: dict[str, Any] = dict(step.metadata.state_dict_metadata)
    for name, about in _tensors(step):
        described[name] = dataclasses.replace(about, chunks=[])
    shards: dict[str, list[MetadataIndex]] = {}
    for index in sorted(known, key=lambda each: _where(known[each])):
        shards.setdefault(_where(known[index])[0], []).append(index)
    places: dict[MetadataIndex, _StorageInfo] = {}
    for shard, indices in shards.items():
        objects = [each for each in indices if step.info(each.fqn).dtype is None]
        tensors = [each for each in indices if step.info(each.fqn).dtype is not None]
        wanted = ((each.fqn, box) for each in tensors for box in step.boxes(each.fqn, each.offset))
        with (folder / checked_name(shard)).open("xb") as file:
            for (name, box), tensor in step.pieces(wanted):
                at, chunks = file.tell(), described[name].chunks
                torch.save(tensor, file)
                place = MetadataIndex(name, box.offsets, len(chunks))
                places[place] = _StorageInfo(shard, at, file.tell() - at)
                chunks.append(box)
            for index in objects:
                at = file.tell()
                file.write(step.read_bytes(index.fqn).getbuffer())
                places[index] = _StorageInfo(shard, at, file.tell() - at)
    metadata = dataclasses.replace(
        step.metadata, state_dict_metadata=described, storage_data=places
    )
    (folder / stored.METADATA_NAME).write_bytes(stored.dump(metadata))


def _where(place: Any) -> tuple[str, int]:
    if isinstance(place, _StorageInfo):
        return place.relative_path, place.offset
    return place.shard, place.at


# --- safetensors ---------------------------------------------------------------------------------


def _write_safetensors(step: StepTensors, folder: Path, trusted: bool) -> None:
    files: list[list[str]] = [[]]
    room = FILE_BYTES
    for name, about in _tensors(step):
        if about.properties.dtype not in _SAFETENSORS:
            raise InvalidRequestError(
                f"{name} is of {about.properties.dtype}, which safetensors does not have",
                hint="Export to dcp or torch.",
            )
        size_bytes = about.size.numel() * about.properties.dtype.itemsize
        if files[-1] and size_bytes > room:
            files.append([])
            room = FILE_BYTES
        files[-1].append(name)
        room -= size_bytes
    paths = [f"model-{at:05}-of-{len(files):05}.safetensors" for at in range(1, len(files) + 1)]
    if len(files) == 1:
        paths = ["model.safetensors"]
    planned = list(zip(paths, files, strict=True))
    total = sum(_write_tensors(step, folder / path, names) for path, names in planned)
    if len(files) > 1:
        places = {name: path for path, names in planned for name in names}
        index = {"metadata": {"total_size": total}, "weight_map": places}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=2))
    objects = _objects(step, trusted)
    if objects:
        write_torch(folder / OBJECTS_NAME, objects)


def _write_tensors(step: StepTensors, path: Path, names: list[str]) -> int:
    """Write one file: the header's length, the header, all bytes; return how many of these."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    described = dict(_tensors(step))
    for name in names:
        about = described[name]
        begin, end = end, end + about.size.numel() * about.properties.dtype.itemsize
        header[name] = {
            "dtype": _SAFETENSORS[about.properties.dtype],
            "shape": list(about.size),
            "data_offsets": [begin, end],
        }
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("xb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for _, piece in _bytes_in_order(step, names):
            file.write(bytes_of(piece))
    return end


# --- torch ---------------------------------------------------------------------------------------


def _write_nested(step: StepTensors, path: Path, trusted: bool) -> None:
    absent = [
        AbsentTensor(name, about.properties.dtype, about.size) for name, about in _tensors(step)
    ]
    flat = {**{each.name: each for each in absent}, **_objects(step, trusted)}
    paths = step.metadata.planner_data
    nests = isinstance(paths, dict) and paths.keys() >= flat.keys()
    value = unflatten_state_dict(flat, paths) if nests else flat
    write_torch(path, value, absent, _bytes_in_order(step, [each.name for each in absent]))


def _objects(step: StepTensors, trusted: bool) -> dict[str, Any]:
    """Return what is no tensor, by name."""
    try:
        objects = (name for name in step.names() if step.info(name).dtype is None)
        return {name: step.read(name, weights_only=not trusted) for name in objects}
    except InvalidRequestError as error:
        error.hint = "If you trust its author, pass trusted=True; or export to dcp."
        raise


def _tensors(step: StepTensors) -> list[tuple[str, TensorStorageMetadata]]:
    """Return the tensors, those of large values first, so that all of them are aligned."""
    described = step.metadata.state_dict_metadata.items()
    found = [(name, about) for name, about in described if isinstance(about, TensorStorageMetadata)]
    return sorted(found, key=lambda each: (-each[1].properties.dtype.itemsize, each[0]))


def _bytes_in_order(step: StepTensors, names: list[str]) -> Iterator[tuple[str, Tensor]]:
    wanted = ((name, box) for name in names for box in step.boxes(name))
    for (name, _), piece in step.pieces(wanted):
        yield name, piece
