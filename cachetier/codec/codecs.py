"""The codecs: how each turns a block into a frame and back, and a bounded pool of encoders.

A codec is one entry of ``CODECS``, with its name and its elements in ``bucket_format.stored`` and
its setting in ``model.compression``. Every frame that it makes, a stored one too, holds one block
and has at most ``FRAME_LIMIT_BYTES``.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace

from cachetier_client.bucket_format.stored import Codec
from cachetier_client.bucket_format.uploads import ENCODING_HEADER

from cachetier.codec.frames import FrameDecoder, FrameEncoder, encoder_bytes, stored_frame

Encode = Callable[[bytes | memoryview], bytes]
# Gets a frame, the size of its block and the size of its elements.
Decode = Callable[[bytes | memoryview, int, int], bytearray | memoryview]


@dataclass(frozen=True, slots=True)
class FrameCodec:
    """How one codec stores blocks.

    Args:
        encoder: Makes an encoder of a level, for one thread at a time.
        encoder_bytes: The memory that an encoder of a level holds.
        decoder: Makes a decoder, for one thread at a time.
        stored_frame: Makes a frame that holds a block as it is, and that a decoder reads.
        headers: What HTTP clients are told, so that those that know the codec can decode it.
    """

    encoder: Callable[[int], Encode]
    encoder_bytes: Callable[[int], int]
    decoder: Callable[[], Decode]
    stored_frame: Encode
    headers: Mapping[str, str]


_ZSTD = FrameCodec(
    lambda level: FrameEncoder(level).encode,
    encoder_bytes,
    lambda: FrameDecoder().decode,
    stored_frame,
    {ENCODING_HEADER: "zstd"},
)

CODECS: Mapping[Codec, FrameCodec] = {
    Codec.ZSTD: _ZSTD,
    Codec.PLANES: replace(_ZSTD, headers={}),  # nobody else can join planes
}


def content_headers(codec: Codec) -> Mapping[str, str]:
    """Return the headers of an object by ``codec``, raw ones too."""
    return {} if codec is Codec.RAW else CODECS[codec].headers


class Encoders:
    """Lends encoders whose contexts take up to ``limit_bytes`` together. Thread-safe.

    There is at most one for each level and thread. Contexts of high levels are large (64 MiB at
    zstd:15), so an idle one goes when another needs its memory, and a thread that finds none left
    waits. A single one is lent whatever it takes. A thread must not borrow a second.
    """

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._changed = threading.Condition()
        self._idle: list[tuple[tuple[object, int], int, Encode]] = []  # kind, memory, encoder
        self._kept_bytes = 0

    @property
    def kept_bytes(self) -> int:
        """The memory of all contexts, lent or not."""
        return self._kept_bytes

    @contextmanager
    def lend(self, codec: FrameCodec, level: int) -> Iterator[Encode]:
        """Lend an encoder of ``level``; waits until there is memory for it."""
        kind, needed = (codec.encoder, level), codec.encoder_bytes(level)
        encoder = self._take(kind, needed) or codec.encoder(level)
        try:
            yield encoder
        finally:
            with self._changed:
                self._idle.append((kind, needed, encoder))
                self._changed.notify_all()

    def _take(self, kind: tuple[object, int], needed: int) -> Encode | None:
        """Return an idle encoder, or None once there is room for another one."""
        with self._changed:
            while True:
                for number, (known, _, encoder) in enumerate(self._idle):
                    if known == kind:
                        del self._idle[number]
                        return encoder
                while self._idle and self._kept_bytes + needed > self._limit_bytes:
                    self._kept_bytes -= self._idle.pop(0)[1]
                if not self._kept_bytes or self._kept_bytes + needed <= self._limit_bytes:
                    self._kept_bytes += needed
                    return None
                self._changed.wait()
