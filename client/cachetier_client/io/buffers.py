"""See a caller's data as plain bytes, without copying them.

Anything C-contiguous will do: bytes, arrays, CPU tensors of any type (bfloat16 too, which has no
buffer protocol). torch and numpy are never imported; a tensor is recognised only where its library
is loaded already.

Scattered pieces are stored as one shard without being joined, block by block. A block inside one
piece is its memory; one that spans several is copied together by whoever writes it. Digests always
come from the pieces themselves.
"""

from __future__ import annotations

import os
import sys
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, BinaryIO, Protocol, TypeAlias

from cachetier_client.bucket_format.stored import ELEMENT_SIZES
from cachetier_client.errors import InvalidRequestError
from cachetier_client.io.aligned import Block, address_of, view_at
from cachetier_client.io.digests import BLOCK_BYTES, digest_of

_SMALL_PIECE_BYTES = 4096
_NUMBERS = frozenset("hHiIlLqQnNefd")
_COMPLEX = frozenset({"Zf", "Zd"})
_CONTIGUOUS_HINT = "Pass data.contiguous() (torch) or numpy.ascontiguousarray(data)."


class _Buffer(Protocol):
    def __buffer__(self, flags: int, /) -> memoryview: ...


class _Array(Protocol):
    @property
    def nbytes(self) -> int: ...


# Memory that is C-contiguous: bytes, a numpy array, a CPU tensor, of which torch's has no buffer.
TensorLike: TypeAlias = _Buffer | _Array
# One shard: memory, several pieces of it one after another, or a file that is read as it is sent.
ShardData: TypeAlias = TensorLike | Sequence[TensorLike] | os.PathLike[str] | BinaryIO


@dataclass(slots=True, eq=False)
class Stretch:
    """Some bytes in a row, in one piece of memory or in several."""

    pieces: Sequence[memoryview]
    size_bytes: int

    def digest(self) -> int:
        """Return the digest of the bytes."""
        digest = 0
        for piece in self.pieces:
            digest = digest_of(piece, digest)
        return digest

    def copy_to(self, block: Block) -> None:
        """Copy the bytes to the beginning of ``block``."""
        if self.size_bytes < len(self.pieces) * _SMALL_PIECE_BYTES:
            block.take(self.joined())  # a second copy costs less than a call for each piece
            return
        at = 0
        for piece in self.pieces:
            block.take(piece, at)
            at += len(piece)

    def joined(self) -> memoryview:
        """Return the bytes in a row: the memory itself if it is one piece, else a copy."""
        return self.pieces[0] if len(self.pieces) == 1 else memoryview(b"".join(self.pieces))


class Gathered:
    """The bytes of one shard, in pieces anywhere in memory; they must not change meanwhile.

    Args:
        pieces: Flat views on bytes, in order; empty ones do no harm.
    """

    def __init__(self, pieces: Sequence[memoryview]) -> None:
        self._pieces = [piece for piece in pieces if len(piece)]
        self._starts = []
        end = 0
        for piece in self._pieces:
            self._starts.append(end)
            end += len(piece)
        self._size_bytes = end

    def __len__(self) -> int:
        return self._size_bytes

    @property
    def block_count(self) -> int:
        """How many blocks the shard has."""
        return -(-self._size_bytes // BLOCK_BYTES)

    def block(self, number: int) -> Stretch:
        """Return one block."""
        start = number * BLOCK_BYTES
        end = min(start + BLOCK_BYTES, self._size_bytes)
        first = bisect_right(self._starts, start) - 1
        last = bisect_right(self._starts, end - 1) - 1
        pieces = self._pieces[first : last + 1]
        pieces[-1] = pieces[-1][: end - self._starts[last]]
        pieces[0] = pieces[0][start - self._starts[first] :]
        return Stretch(pieces, end - start)

    def blocks(self) -> Iterator[Stretch]:
        """Return all blocks, in order."""
        return map(self.block, range(self.block_count))

    def digest(self) -> int:
        """Return the digest of the whole shard."""
        return Stretch(self._pieces, self._size_bytes).digest()

    def joined(self) -> memoryview:
        """Return the shard in a row: a copy, unless it is one piece; for small ones."""
        return Stretch(self._pieces, self._size_bytes).joined()


def is_source(data: object) -> bool:
    """Return whether ``data`` is a path or an open file rather than memory."""
    return isinstance(data, os.PathLike) or callable(getattr(data, "read", None))


def bytes_of(data: Any, *, writable: bool = False) -> memoryview:
    """Return the bytes of ``data`` as a flat view on its memory.

    Args:
        data: A C-contiguous buffer or CPU tensor.
        writable: Refuse memory that may not be written.

    Raises:
        InvalidRequestError: Not memory, not contiguous, not on the CPU, or read-only.
    """
    if isinstance(data, str):
        raise InvalidRequestError(
            "a str is not a shard's data", hint="Pass bytes, or pathlib.Path(...) for a file."
        )
    if _is_tensor(data):
        return _bytes_of_tensor(data)
    try:
        view = memoryview(data)
    except (TypeError, ValueError) as error:  # ValueError: an array of a type outside the protocol
        return _bytes_of_array(data, writable, error)
    if not view.c_contiguous:
        raise InvalidRequestError("the data are not contiguous in memory", hint=_CONTIGUOUS_HINT)
    if view.format == "O":
        raise InvalidRequestError(
            "the array holds Python objects, not values", hint="Convert it to a numeric type."
        )
    if writable and view.readonly:
        raise InvalidRequestError("the buffer is read-only", hint="Pass writable memory as out=.")
    if view.nbytes == 0:
        return memoryview(bytearray())
    try:
        return view.cast("B")
    except (TypeError, ValueError):  # a format that cast does not know: take the memory itself
        return view_at(address_of(view), view.nbytes, view)


def gathered(data: Any) -> Gathered:
    """Return ``data``, or the buffers of a list or tuple one after another, as a shard's bytes.

    Raises:
        InvalidRequestError: As ``bytes_of``, or a list that holds something else than memory.
    """
    if not isinstance(data, list | tuple):
        return Gathered([bytes_of(data)])
    pieces = []
    for number, each in enumerate(data):
        if is_source(each):
            raise InvalidRequestError(
                f"buffer {number} of the list is a file, not memory",
                hint="Put a file by itself, or read it first: in a list only memory can be.",
            )
        with named(f"buffer {number} of the list"):
            pieces.append(bytes_of(each))
    return Gathered(pieces)


def element_size_of(data: Any) -> int:
    """Return the size of the values that ``data`` is made of: 2, 4, 8, or 0 for anything else.

    A complex value is two; the buffers of a list must agree. ``data`` is what ``gathered`` takes.
    """
    if isinstance(data, list | tuple):
        sizes = {element_size_of(each) for each in data}
        return sizes.pop() if len(sizes) == 1 else 0
    if _is_tensor(data):
        size_bytes = data.element_size() // (2 if data.is_complex() else 1)
    else:
        try:
            view = memoryview(data)
            kind = (view.format or "B").lstrip("@=<>!")
            size_bytes = view.itemsize if kind in _NUMBERS else 0  # records and strings: unknown
            if kind in _COMPLEX:
                size_bytes = view.itemsize // 2
        except (TypeError, ValueError):  # outside the buffer protocol: ``ml_dtypes.bfloat16``
            described = getattr(data, "__array_interface__", {})
            fields = described.get("descr", [])
            size_bytes = int(data.itemsize) if len(fields) == 1 else 0
    return size_bytes if size_bytes in ELEMENT_SIZES else 0


def _is_tensor(data: object) -> bool:
    torch = sys.modules.get("torch")
    kind = getattr(torch, "Tensor", None)  # half-way through its import torch has none
    return kind is not None and isinstance(data, kind)


def _bytes_of_tensor(tensor: Any) -> memoryview:
    if hasattr(tensor, "to_local"):
        raise InvalidRequestError(
            "a DTensor is spread over ranks", hint="Pass its local part: data.to_local()."
        )
    if tensor.device.type != "cpu" or str(tensor.layout) != "torch.strided":
        raise InvalidRequestError(
            f"the tensor is {tensor.layout} on {tensor.device}",
            hint="Pass a dense tensor in CPU memory: data.cpu().",
        )
    if not tensor.is_contiguous():
        raise InvalidRequestError("the tensor is not contiguous", hint=_CONTIGUOUS_HINT)
    if tensor.is_conj() or tensor.is_neg():
        raise InvalidRequestError(
            "the tensor's memory is not its value (a lazy conjugate or negative)",
            hint="Pass data.resolve_conj().resolve_neg().",
        )
    return view_at(memory_of(tensor), tensor.numel() * tensor.element_size(), tensor)


def memory_of(tensor: Any) -> int:
    """Return the address of a tensor's first element, in memory that has room for all of them.

    A tensor's own description proves nothing: a subclass that wraps other tensors has none of the
    memory that it describes, nor has a FakeTensor, and elements of 4 bits count as bytes.

    Raises:
        InvalidRequestError: It has no memory of its own, or less than it describes.
    """
    try:
        storage = tensor.untyped_storage()
        is_there = storage.device.type == tensor.device.type  # not so of a FakeTensor
        address, room_bytes = (storage.data_ptr(), storage.nbytes()) if is_there else (0, 0)
    except (RuntimeError, NotImplementedError):  # as torch says of a tensor that wraps others
        address, room_bytes = 0, 0
    if not tensor.numel():
        return int(address)
    begin, end = extent_of(tensor)
    if not address or end > room_bytes:
        described = tensor.numel() * tensor.element_size()
        raise InvalidRequestError(
            f"a {type(tensor).__name__} of {tensor.dtype} that describes {described} bytes has "
            "no such memory of its own",
            hint="Pass the tensors that it is made of, or what torch.save makes of it.",
        )
    return int(address) + begin


def extent_of(tensor: Any) -> tuple[int, int]:
    """Return from where to where a tensor that is not empty reaches in its storage, in bytes."""
    steps = zip(tensor.shape, tensor.stride(), strict=True)
    first = int(tensor.storage_offset())
    last = first + sum((int(size) - 1) * int(stride) for size, stride in steps)
    return first * tensor.element_size(), (last + 1) * tensor.element_size()


def check_memory(tensor: Any) -> None:
    """Refuse a tensor that lacks the memory it describes, as far as its device can tell.

    Raises:
        InvalidRequestError: As ``memory_of``.
    """
    if tensor.device.type in ("cpu", "cuda"):
        memory_of(tensor)


@contextmanager
def named(name: str) -> Iterator[None]:
    """Have a refusal of a tensor say which one: ``name``."""
    try:
        yield
    except InvalidRequestError as error:
        error.message = f"{name}: {error.message}"
        raise


def _bytes_of_array(data: Any, writable: bool, error: Exception) -> memoryview:
    """Read numpy's own description, for types such as ``ml_dtypes.bfloat16``."""
    described = getattr(data, "__array_interface__", None)
    if not isinstance(described, dict) or not described.get("data"):
        raise InvalidRequestError(
            f"{type(data).__name__} has no bytes to store: {error}",
            hint="Pass bytes, an array, a CPU tensor, a pathlib.Path or an open file.",
        ) from None
    address, read_only = described["data"]
    if described.get("strides") is not None:
        raise InvalidRequestError("the array is not contiguous", hint=_CONTIGUOUS_HINT)
    if writable and read_only:
        raise InvalidRequestError("the buffer is read-only", hint="Pass writable memory as out=.")
    return view_at(address, int(data.nbytes), data)
