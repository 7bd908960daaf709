"""The seek table of zstd's seekable format, without checksums: where each frame ends.

::

    skippable magic  table size   (frame size, raw size) * frames   frames   0   seekable magic
    4 bytes          4            8 each                            4        1   4

Source: contrib/seekable_format/zstd_seekable_compression_format.md of zstd.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

from cachetier_client.bucket_format.stored import table_bytes
from cachetier_client.io.digests import block_lengths

from cachetier.errors import IntegrityError

_SKIPPABLE_MAGIC = 0x184D2A5E
_SEEKABLE_MAGIC = 0x8F92EAB1
_HEADER = struct.Struct("<II")
_FOOTER = struct.Struct("<IBI")


def encode_table(frame_sizes: Sequence[int], raw_bytes: int) -> bytes:
    """Return the table of the frames that hold ``raw_bytes``, as the skippable frame it is."""
    body = _entries(frame_sizes, raw_bytes) + _FOOTER.pack(len(frame_sizes), 0, _SEEKABLE_MAGIC)
    return _HEADER.pack(_SKIPPABLE_MAGIC, len(body)) + body


def decode_table(table: bytes | bytearray, raw_bytes: int) -> tuple[int, ...]:
    """Return the frame sizes of a table that we wrote for ``raw_bytes``.

    Raises:
        IntegrityError: It is not that table.
    """
    lengths = block_lengths(raw_bytes)
    if len(table) == table_bytes(len(lengths)):
        words = struct.unpack_from(f"<{2 * len(lengths)}I", table, _HEADER.size)
        sizes = words[::2]
        if encode_table(sizes, raw_bytes) == table:
            return sizes
    raise IntegrityError(f"not the seek table of a shard of {raw_bytes} bytes")


def _entries(frame_sizes: Sequence[int], raw_bytes: int) -> bytes:
    pairs = zip(frame_sizes, block_lengths(raw_bytes), strict=True)
    words = [word for pair in pairs for word in pair]
    return struct.pack(f"<{len(words)}I", *words)
