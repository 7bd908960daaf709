"""Read the index at the end of a shard of tensors, as a reader without cachetier would."""

from __future__ import annotations

import json
from typing import Any

from cachetier_client.errors import IntegrityError
from cachetier_client.torch.extents import MAGIC, TRAILER, Item


def index_length(trailer: bytes | memoryview) -> int:
    """Return how long the index is, from the shard's last 16 bytes.

    Raises:
        IntegrityError: The shard has no index: it was not written by ``CachetierWriter``.
    """
    length, magic = TRAILER.unpack(trailer)
    if magic != MAGIC:
        raise IntegrityError("the shard has no index of tensors at its end")
    return int(length)


def decode_index(body: bytes | memoryview) -> tuple[Item, ...]:
    """Return what an index lists.

    Raises:
        IntegrityError: It is not an index of this format.
    """
    try:
        described: dict[str, Any] = json.loads(bytes(body))
        if described["format"] != 1:
            raise ValueError(f"format {described['format']!r}")
        return tuple(_item(**each) for each in described["items"])
    except (KeyError, TypeError, ValueError) as error:
        raise IntegrityError(f"the shard's index of tensors is damaged: {error}") from error


def _item(
    *, name: str, offsets: list[int], sizes: list[int], dtype: str | None, at: int, length: int
) -> Item:
    return Item(str(name), tuple(offsets), tuple(sizes), dtype, int(at), int(length))
