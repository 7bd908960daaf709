"""One block as one zstd frame, and back.

What is decoded may come from a place that others can write: a frame says how much it decodes to
before anything is allocated, and gets no byte more.
"""

from __future__ import annotations

import zstandard

from cachetier.errors import IntegrityError
from cachetier.model.shard import BLOCK_BYTES

_MAGIC = b"\x28\xb5\x2f\xfd"
# A frame of one block needs no more: its window ends with the block.
_WINDOW_LIMIT_BYTES = BLOCK_BYTES


def encoder_bytes(level: int) -> int:
    """Return the memory that an encoder of ``level`` holds."""
    return int(_parameters(level).estimated_compression_context_size())


class FrameEncoder:
    """Turns blocks into frames, one at a time: not to be shared by threads."""

    def __init__(self, level: int) -> None:
        self._compressor = zstandard.ZstdCompressor(compression_params=_parameters(level))

    def encode(self, block: bytes | memoryview) -> bytes:
        """Return ``block`` as one frame; other threads go on meanwhile."""
        return self._compressor.compress(block)


class FrameDecoder:
    """Turns frames into blocks, one at a time: not to be shared by threads."""

    def __init__(self) -> None:
        self._decompressor = zstandard.ZstdDecompressor(max_window_size=_WINDOW_LIMIT_BYTES)

    def decode(self, frame: bytes | memoryview, raw_bytes: int) -> bytes:
        """Return the ``raw_bytes`` that ``frame`` holds; other threads go on meanwhile.

        Raises:
            IntegrityError: It is not exactly one plain frame of so many bytes, or is damaged.
        """
        try:
            _check_header(frame, raw_bytes)
            return self._decompressor.decompress(
                frame, read_across_frames=False, allow_extra_data=False
            )
        except zstandard.ZstdError as error:
            raise IntegrityError(f"not a sound zstd frame: {error}") from None


def _parameters(level: int) -> zstandard.ZstdCompressionParameters:
    return zstandard.ZstdCompressionParameters.from_level(
        level,
        source_size=BLOCK_BYTES,
        write_content_size=True,
        write_checksum=True,  # so that `zstd -t` says something
        write_dict_id=False,
    )


def _check_header(frame: bytes | memoryview, raw_bytes: int) -> None:
    if raw_bytes > BLOCK_BYTES or bytes(frame[:4]) != _MAGIC:
        raise IntegrityError("not a zstd frame of one block")
    header = zstandard.get_frame_parameters(frame)
    if header.content_size != raw_bytes:
        raise IntegrityError(f"a frame for {raw_bytes} bytes declares {header.content_size}")
    if header.dict_id or header.window_size > _WINDOW_LIMIT_BYTES:
        raise IntegrityError("a frame needs a dictionary, or more memory than its block")
