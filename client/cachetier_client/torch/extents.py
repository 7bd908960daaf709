"""How tensors lie in a shard: raw bytes one after another, then an index.

::

    tensor, padding, tensor, ..., objects (as torch.save writes them), index, trailer

``.metadata`` tells where each piece of a tensor is (an ``Extent``). The index at the shard's end
says the same without pickle, so that a shard can be read by itself, with or without cachetier: a
JSON object with ``items``, each with ``name``, ``offsets`` and ``sizes`` (in elements of the whole
tensor), ``dtype`` (``torch.bfloat16``), ``at`` and ``length`` (bytes of this shard) and, for an
object, ``dtype`` null. The trailer is 16 bytes: the index's length, big-endian, and ``CTTENSR1``.

A tensor that fills blocks begins as far into a page as it does in memory, so that its blocks go
from memory to the disk by direct I/O without a copy. Smaller ones begin at a multiple of 64.

Source: docs/torch.md, "What is stored".
"""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import NoReturn

from cachetier_client.errors import InvalidRequestError
from cachetier_client.io.aligned import PAGE_BYTES
from cachetier_client.io.digests import BLOCK_BYTES

MAGIC = b"CTTENSR1"
TRAILER = struct.Struct(">Q8s")
SMALL_ALIGNMENT = 64
ALIGNED_FROM_BYTES = 2 * BLOCK_BYTES


@dataclass(frozen=True, slots=True)
class Extent:
    """Where one piece of a tensor, or one object, lies: what ``.metadata`` says of it."""

    shard: str
    at: int
    length: int

    @property
    def relative_path(self) -> NoReturn:
        """The path that DCP's own readers ask for first: they cannot read this layout.

        Raises:
            InvalidRequestError: Always; says which reader can.
        """
        raise InvalidRequestError(
            "this step was saved by CachetierWriter, whose shards DCP's own reader cannot read",
            hint="Load with dcp.load(..., storage_reader=CachetierReader('cachetier://run/1000')).",
        )


@dataclass(frozen=True, slots=True)
class Item:
    """One piece of a tensor, or an object (``dtype`` is None), as the index lists it."""

    name: str
    offsets: tuple[int, ...]
    sizes: tuple[int, ...]
    dtype: str | None
    at: int
    length: int


def place_after(end: int, length: int, address: int) -> int:
    """Return where ``length`` bytes that lie at ``address`` in memory begin, behind ``end``."""
    if length < ALIGNED_FROM_BYTES:
        return -(-end // SMALL_ALIGNMENT) * SMALL_ALIGNMENT
    return end + (address - end) % PAGE_BYTES


def encode_index(items: Sequence[Item], data_bytes: int) -> bytes:
    """Return index and trailer, padded so that the shard ends at a multiple of 8.

    Args:
        items: What the shard holds.
        data_bytes: How long the shard is without them.
    """
    body = json.dumps({"format": 1, "items": [asdict(item) for item in items]}).encode()
    body += b" " * (-(data_bytes + len(body)) % 8)  # whole elements, for planes
    return body + TRAILER.pack(len(body), MAGIC)
