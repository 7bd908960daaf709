"""The layout of a shard before it is written: pieces in order, each with its place.

Large tensors come first, then small ones, then tiny ones, then objects, each by name, so that equal
states lie equally. What is tiny lies together because all ranks may need it, whatever their number:
they then need not read a block of every other tensor for it. See ``extents`` for the format.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from torch import Tensor

from cachetier_client.io.aligned import PAGE_BYTES
from cachetier_client.io.buffers import element_size_of
from cachetier_client.torch.extents import (
    ALIGNED_FROM_BYTES,
    Item,
    encode_index,
    place_after,
)

_HINTED_SHARE = 0.9
_TINY_BYTES = 65536
_ZEROS = memoryview(bytes(PAGE_BYTES))


@dataclass(frozen=True, slots=True)
class Piece:
    """One piece of a tensor, or an object, that is to be stored.

    ``content`` is the tensor itself, on whatever device, or the object's bytes.
    """

    name: str
    offsets: tuple[int, ...]
    content: Tensor | memoryview

    @property
    def length(self) -> int:
        """Its bytes."""
        if isinstance(self.content, Tensor):
            return self.content.numel() * self.content.element_size()
        return len(self.content)

    @property
    def address(self) -> int:
        """Where it lies in memory, as far as that matters: a page's start if it is copied."""
        content = self.content
        if isinstance(content, Tensor) and content.device.type == "cpu" and content.is_contiguous():
            return content.data_ptr()
        return 0

    def item_at(self, at: int) -> Item:
        """Return what the index says of it."""
        if isinstance(self.content, Tensor):
            sizes, dtype = tuple(self.content.shape), str(self.content.dtype)
            return Item(self.name, self.offsets, sizes, dtype, at, self.length)
        return Item(self.name, (), (), None, at, self.length)


@dataclass(frozen=True, slots=True)
class Placed:
    """A piece, where it begins, and the zeros before it."""

    piece: Piece
    at: int
    padding: memoryview = field(repr=False)


@dataclass(frozen=True, slots=True)
class ShardLayout:
    """A whole shard: ``placed`` one after another, then ``index``."""

    placed: tuple[Placed, ...]
    index: bytes
    size_bytes: int
    element_size: int | None


def lay_out(pieces: Iterable[Piece], first: frozenset[str] = frozenset()) -> ShardLayout:
    """Return how pieces lie in their shard; the pieces named in ``first`` come first."""
    placed: list[Placed] = []
    end = 0
    for piece in sorted(pieces, key=lambda piece: _order(piece, first)):
        at = place_after(end, piece.length, piece.address)
        placed.append(Placed(piece, at, _ZEROS[: at - end]))
        end = at + piece.length
    index = encode_index([each.piece.item_at(each.at) for each in placed], end)
    elements = _element_size([each.piece for each in placed])
    return ShardLayout(tuple(placed), index, end + len(index), elements)


def _order(piece: Piece, first: frozenset[str]) -> tuple[bool, int, str, tuple[int, ...]]:
    if not isinstance(piece.content, Tensor):
        return True, 3, piece.name, ()
    size_class = (piece.length < ALIGNED_FROM_BYTES) + (piece.length < _TINY_BYTES)
    return piece.name not in first, size_class, piece.name, piece.offsets


def _element_size(pieces: Sequence[Piece]) -> int | None:
    """Return the size of the values that nearly all bytes are made of; None if there is none."""
    counts: Counter[int] = Counter()
    for piece in pieces:
        tensor = isinstance(piece.content, Tensor)
        counts[element_size_of(piece.content) if tensor else 0] += piece.length
    total = counts.total()
    size_bytes, share = counts.most_common(1)[0] if total else (0, 0)
    return size_bytes if size_bytes and share >= _HINTED_SHARE * total else None
