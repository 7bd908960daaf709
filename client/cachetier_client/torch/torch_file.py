"""A file as ``torch.save`` writes it, with tensors that are not in memory.

It is a zip archive: ``data.pkl`` says how the values hang together, and each storage is an entry of
raw bytes that begins at a multiple of 64, so that ``torch.load(mmap=True)`` works too.
"""

from __future__ import annotations

import io
import itertools
import pickle
import struct
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import IO, Any
from zipfile import ZipFile, ZipInfo

import torch
from torch import Tensor

from cachetier_client.io.buffers import bytes_of

_ALIGNMENT = 64
_LOCAL_HEADER_BYTES = 30 + 20  # of a zip entry, with its 64-bit sizes
_PADDING = struct.Struct("<HH")
_PADDING_ID = 0x4246


class AbsentTensor:
    """A tensor that pickles as one of its own, and whose bytes come later, under ``name``."""

    def __init__(self, name: str, dtype: torch.dtype, shape: torch.Size) -> None:
        self.name = name
        like = torch.empty(shape, dtype=dtype, device="meta")
        reduced: Any = torch.empty(0, dtype=dtype).__reduce_ex__(2)  # type: ignore[no-untyped-call]
        self._rebuild, (self.storage, _, _, _, *self._rest) = reduced
        self._layout = 0, tuple(shape), like.stride()
        self.length = like.numel()  # of a storage without a type: bytes
        if isinstance(self.storage, torch.UntypedStorage):
            self.length *= like.element_size()

    def __reduce__(self) -> tuple[Any, ...]:
        return self._rebuild, (self.storage, *self._layout, *self._rest)


class _Pickler(pickle.Pickler):
    """Writes storages as references to entries, as ``torch.load`` expects them."""

    def __init__(self, out: IO[bytes], absent: Iterable[AbsentTensor]) -> None:
        super().__init__(out, protocol=2)  # what weights_only=True reads
        self._absent = {each.storage._cdata: each for each in absent}
        self.entries: dict[int, tuple[str, Any]] = {}  # what to write where, by storage
        self.keys: dict[str, str] = {}  # of absent tensors, by name

    def persistent_id(self, obj: Any) -> tuple[Any, ...] | None:
        typed = isinstance(obj, torch.storage.TypedStorage)
        if not typed and not isinstance(obj, torch.UntypedStorage):
            return None
        kind = getattr(torch, obj._pickle_storage_type()) if typed else torch.UntypedStorage
        key, _ = self.entries.setdefault(obj._cdata, (f"data/{len(self.entries)}", obj))
        absent = self._absent.get(obj._cdata)
        if absent is not None:
            self.keys[absent.name] = key
        length = absent.length if absent else obj._size() if typed else obj.nbytes()
        return "storage", kind, key.removeprefix("data/"), "cpu", length


def write_torch(
    path: Path,
    value: Any,
    absent: Iterable[AbsentTensor] = (),
    pieces: Iterable[tuple[str, Tensor]] = (),
) -> None:
    """Write ``value``; ``pieces`` are the bytes of the ``absent`` in it, one after another."""
    body = io.BytesIO()
    pickler = _Pickler(body, absent)
    pickler.dump(value)
    with ZipFile(path, "x") as archive:
        texts = {"data.pkl": body.getvalue(), "version": b"3\n", ".format_version": b"1"}
        for name, text in {**texts, "byteorder": sys.byteorder.encode()}.items():
            with _entry(archive, name) as file:
                file.write(text)
        for key, storage in pickler.entries.values():
            if key not in pickler.keys.values():
                untyped = getattr(storage, "_untyped_storage", storage)
                with _entry(archive, key) as file:
                    file.write(bytes_of(torch.empty(0, dtype=torch.uint8).set_(untyped)))
        for name, group in itertools.groupby(pieces, key=lambda each: each[0]):
            with _entry(archive, pickler.keys[name]) as file:
                for _, piece in group:
                    file.write(bytes_of(piece))


def _entry(archive: ZipFile, name: str) -> IO[bytes]:
    """Begin an entry whose bytes are aligned."""
    info = ZipInfo(f"archive/{name}")
    begin = archive.start_dir + _LOCAL_HEADER_BYTES + len(info.filename) + _PADDING.size
    padding = -begin % _ALIGNMENT
    info.extra = _PADDING.pack(_PADDING_ID, padding) + bytes(padding)
    return archive.open(info, "w", force_zip64=True)
