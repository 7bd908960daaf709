"""Encode one block as one zstd frame, and decode it.

What is decoded may come from a place that others can write: a frame says how much it decodes to
before anything is allocated, and gets no byte more.
"""

from __future__ import annotations

import struct

import zstandard
from cachetier_client.io.digests import BLOCK_BYTES

from cachetier.codec import planes
from cachetier.errors import IntegrityError

_MAGIC = b"\x28\xb5\x2f\xfd"
# A frame of one block needs no more: its window ends with the block.
_WINDOW_LIMIT_BYTES = BLOCK_BYTES
# Of a frame that only stores: one segment, four bytes of size, no checksum, no dictionary.
_STORED_HEADER = struct.Struct("<4sBI")
_ONE_SEGMENT_SIZED = 0b1010_0000
_CHUNK_BYTES = 128 << 10  # zstd's limit for what it calls a block
_HAS_CHECKSUM = 0b100
_REPEATED = 1  # the kind of zstd's blocks that hold one byte, however long they decode to


def encoder_bytes(level: int) -> int:
    """Return the memory that an encoder of ``level`` holds."""
    return int(_parameters(level).estimated_compression_context_size())


def stored_frame(block: bytes | memoryview) -> bytes:
    """Return ``block`` as a frame that holds it as it is: any decoder reads it, and no CPU goes."""
    view = memoryview(block).cast("B")
    pieces: list[bytes | memoryview] = [_STORED_HEADER.pack(_MAGIC, _ONE_SEGMENT_SIZED, len(view))]
    for at in range(0, max(1, len(view)), _CHUNK_BYTES):
        chunk = view[at : at + _CHUNK_BYTES]
        is_last = at + _CHUNK_BYTES >= len(view)
        pieces += [(len(chunk) << 3 | is_last).to_bytes(3, "little"), chunk]
    return b"".join(pieces)


class FrameEncoder:
    """Turns blocks into frames, one at a time: not to be shared by threads."""

    def __init__(self, level: int) -> None:
        self._compressor = zstandard.ZstdCompressor(compression_params=_parameters(level))

    def encode(self, block: bytes | memoryview) -> bytes:
        """Return ``block`` as one frame; other threads go on meanwhile."""
        return self._compressor.compress(block)


class FrameDecoder:
    """Turns frames into blocks, one at a time: not to be shared by threads.

    It decodes into the same memory each time: to allocate a block costs half of what it takes to
    decode one.
    """

    def __init__(self) -> None:
        self._decompressor = zstandard.ZstdDecompressor(max_window_size=_WINDOW_LIMIT_BYTES)
        self._block = bytearray()

    def decode(
        self, frame: bytes | memoryview, raw_bytes: int, element_size: int = 0
    ) -> bytearray | memoryview:
        """Return the ``raw_bytes`` that ``frame`` holds, until the next call.

        With an ``element_size`` it holds them split into planes, which are joined. Other threads go
        on meanwhile.

        Raises:
            IntegrityError: It is not exactly one plain frame of so many bytes, or is damaged.
        """
        try:
            _check_header(frame, raw_bytes)
            block = self._decoded(frame, raw_bytes)
        except zstandard.ZstdError as error:
            raise IntegrityError(f"not a sound zstd frame: {error}") from None
        return planes.join(block, element_size) if element_size else block

    def _decoded(self, frame: bytes | memoryview, raw_bytes: int) -> memoryview:
        """Decode all of ``frame``, whose header was checked."""
        if _end_of(frame) != len(frame):
            raise IntegrityError("not exactly one whole zstd frame")
        if len(self._block) < raw_bytes:
            self._block = bytearray(raw_bytes)
        block = memoryview(self._block)[:raw_bytes]
        done = 0
        with self._decompressor.stream_reader(frame, read_across_frames=False) as reader:
            while done < raw_bytes and (count := reader.readinto(block[done:])):
                done += count
            if done != raw_bytes or reader.read(1):
                raise IntegrityError("a zstd frame holds another size than it declares")
        return block


def _parameters(level: int) -> zstandard.ZstdCompressionParameters:
    return zstandard.ZstdCompressionParameters.from_level(
        level,
        source_size=BLOCK_BYTES,
        write_content_size=True,
        write_checksum=True,  # so that `zstd -t` says something
        write_dict_id=False,
    )


def _end_of(frame: bytes | memoryview) -> int:
    """Return where a frame ends that begins like one, by the sizes that its own blocks tell.

    Past the end of ``frame`` where they run out of it.
    """
    at, is_last = int(zstandard.frame_header_size(frame)), False
    while not is_last and at < len(frame):
        block_header = int.from_bytes(frame[at : at + 3], "little")
        is_last = bool(block_header & 1)
        at += 3 + (1 if (block_header >> 1) & 3 == _REPEATED else block_header >> 3)
    checksum_bytes = 4 if frame[4] & _HAS_CHECKSUM else 0
    return at + checksum_bytes if is_last else len(frame) + 1


def _check_header(frame: bytes | memoryview, raw_bytes: int) -> None:
    if raw_bytes > BLOCK_BYTES or bytes(frame[:4]) != _MAGIC:
        raise IntegrityError("not a zstd frame of one block")
    header = zstandard.get_frame_parameters(frame)
    if header.content_size != raw_bytes:
        raise IntegrityError(f"a frame for {raw_bytes} bytes declares {header.content_size}")
    if header.dict_id or header.window_size > _WINDOW_LIMIT_BYTES:
        raise IntegrityError("a frame needs a dictionary, or more memory than its block")
