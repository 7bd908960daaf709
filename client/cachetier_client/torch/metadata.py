"""The step's ``.metadata``: DCP's own pickle, read without running what it may hold.

A pickle can name any function and have it called. This one is read from shared storage, so only
the classes that a checkpoint's metadata is made of are allowed. Whoever saved with a planner that
adds classes of its own, and trusts the storage, says ``trusted=True``.

Source: docs/torch.md, "What is stored".
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Mapping
from typing import Any

import torch
from torch.distributed.checkpoint.metadata import Metadata, StorageMeta

from cachetier_client.errors import IntegrityError
from cachetier_client.torch.extents import Extent

METADATA_NAME = ".metadata"
VERSION = "1.0.0"  # of DCP's format, see torch.distributed.checkpoint.filesystem

_CHECKPOINT = "torch.distributed.checkpoint"
_ALLOWED = frozenset(
    {
        (f"{_CHECKPOINT}.metadata", name)
        for name in (
            "BytesStorageMetadata",
            "ChunkStorageMetadata",
            "Metadata",
            "MetadataIndex",
            "StorageMeta",
            "TensorProperties",
            "TensorStorageMetadata",
            "_MEM_FORMAT_ENCODING",
        )
    }
    | {
        (f"{_CHECKPOINT}.filesystem", "_StorageInfo"),
        ("cachetier_client.torch.extents", "Extent"),
        ("torch", "Size"),
        ("torch.serialization", "_get_layout"),
        ("collections", "OrderedDict"),
        ("builtins", "complex"),
        ("builtins", "set"),
        ("builtins", "frozenset"),
        ("builtins", "slice"),
    }
    | {
        (module, kind)
        for module in ("pathlib", "pathlib._local")
        for kind in ("PosixPath", "PurePosixPath")
    }
)
# Where an earlier torch had them, and what they are called today.
_BEFORE = "torch.distributed._shard.sharded_tensor.metadata"
_RENAMED = {
    (_BEFORE, "TensorProperties"): "TensorProperties",
    (_BEFORE, "MEM_FORMAT_ENCODING"): "_MEM_FORMAT_ENCODING",
}


def rank_metadata_name(rank: int) -> str:
    """Return what a rank's own metadata is called, where ranks saved without collectives."""
    return f"__{rank}{METADATA_NAME}"


def dump(metadata: Metadata) -> bytes:
    """Return metadata as it is stored."""
    return pickle.dumps(metadata, protocol=4)


def load(data: bytes | memoryview, *, trusted: bool = False) -> Metadata:
    """Return stored metadata.

    Args:
        data: The ``.metadata`` shard.
        trusted: Allow any class, and so any code: only for storage that nobody else can write.

    Raises:
        IntegrityError: It is no metadata, or holds a class that is not allowed.
    """
    kind = pickle.Unpickler if trusted else _Restricted
    try:
        found = kind(io.BytesIO(data)).load()
    except IntegrityError:
        raise
    except Exception as error:  # a damaged pickle raises anything
        raise IntegrityError(f"{METADATA_NAME} is not a checkpoint's metadata: {error}") from error
    if not isinstance(found, Metadata):
        raise IntegrityError(f"{METADATA_NAME} holds {type(found).__name__}, not metadata")
    if getattr(found, "storage_meta", None) is None:
        found.storage_meta = StorageMeta()
    return found


def check_files(metadata: Metadata, sizes: Mapping[str, int]) -> None:
    """Check that all that metadata tells of lies within files of these sizes.

    Raises:
        IntegrityError: It does not; names what is missing, and where.
    """
    for index, place in (metadata.storage_data or {}).items():
        name, at = (
            (place.shard, place.at)
            if isinstance(place, Extent)
            else (place.relative_path, place.offset)
        )
        if sizes.get(name, -1) < at + place.length:
            raise IntegrityError(
                f"{name} lacks {index.fqn}, of which {METADATA_NAME} tells",
                hint="Import a checkpoint that is whole.",
            )


class _Restricted(pickle.Unpickler):
    """Finds the classes of a checkpoint's metadata and no other."""

    def find_class(self, module: str, name: str, /) -> Any:
        if (module, name) in _RENAMED:
            module, name = f"{_CHECKPOINT}.metadata", _RENAMED[module, name]
        if (module, name) in _ALLOWED:
            return super().find_class(module, name)
        if module == "torch" and isinstance(getattr(torch, name, None), torch.dtype):
            return getattr(torch, name)
        raise IntegrityError(
            f"{METADATA_NAME} asks for {module}.{name}, which no checkpoint's metadata needs",
            hint="If a planner of yours put it there and nobody else can write to the storage, "
            "read with CachetierReader(..., trusted=True). Else restore another step.",
        )
