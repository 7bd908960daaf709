"""Decode ``aws-chunked``: a body in chunks, each perhaps signed, and a trailer behind them.

The decoder is fed what the network brings and gives back views of it: no byte of the body is
copied. Chunks are given out before their signature is known, so that memory is bounded whatever a
chunk's size; nothing may be kept of the body before ``end`` has returned.

    <size, hexadecimal>[;chunk-signature=<64 digits>] CRLF <bytes> CRLF ...
    0[;chunk-signature=<64 digits>] CRLF
    [<name>:<value> CRLF ...] [x-amz-trailer-signature:<64 digits> CRLF]
    CRLF
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection
from enum import Enum, auto

from cachetier.doors.s3.errors import refused
from cachetier.doors.s3.sigv4 import ChunkSignatures

LINE_LIMIT_BYTES = 1024
TRAILER_LIMIT_BYTES = 8192
LEAST_SIGNED_BYTES = 8192  # of every chunk but the last: each costs a signature
TRAILER_SIGNATURE = "x-amz-trailer-signature"
_HEAD = re.compile(rb"([0-9A-Fa-f]{1,16})(?:;chunk-signature=([0-9a-f]{64}))?\r")
_FIELD = re.compile(rb"([A-Za-z0-9-]{1,100})[ \t]*:[ \t]*([!-~ \t]*?)[ \t]*")


class _State(Enum):
    HEAD = auto()
    BYTES = auto()
    BEHIND = auto()  # the CRLF that ends a chunk's bytes
    TRAILER = auto()
    ENDED = auto()


class ChunkedBody:
    """The decoder of one body."""

    def __init__(
        self,
        size_bytes: int,
        signatures: ChunkSignatures | None = None,
        *,
        trailers: Collection[str] = (),
        signs_trailer: bool = False,
    ) -> None:
        """Expect ``size_bytes`` once decoded.

        Args:
            size_bytes: What ``x-amz-decoded-content-length`` declares.
            signatures: Check the chunks; None where they have no signatures.
            trailers: Names, in lower case, that ``x-amz-trailer`` declares.
            signs_trailer: Whether the trailer has a signature too.
        """
        self._left_bytes = size_bytes
        self._signatures = signatures
        self._declared = frozenset(trailers)
        self._signs_trailer = signs_trailer
        self._state = _State.HEAD
        self._line = bytearray()  # the begin of one whose end has not come
        self._chunk_bytes = 0  # left of the chunk at hand
        self._signature = ""  # of the chunk at hand
        self._hash = hashlib.sha256()
        self._had_short = False
        self._trailers: dict[str, str] = {}
        self._signed_lines = bytearray()
        self._trailer_signature: str | None = None
        self._trailer_bytes = 0
        self._had_empty_line = False

    def feed(self, data: memoryview) -> list[memoryview]:
        """Decode what has come; return the bytes of the body in it, in order, as views of it.

        Raises:
            CachetierError: IncompleteBody, InvalidChunkSizeError, InvalidRequest,
                MalformedTrailerError, SignatureDoesNotMatch.
        """
        found: list[memoryview] = []
        while data:
            if self._state is _State.BYTES:
                piece, data = data[: self._chunk_bytes], data[self._chunk_bytes :]
                self._take(piece)
                found.append(piece)
                continue
            if self._state is _State.ENDED:
                raise refused("IncompleteBody", "bytes follow the end of the body")
            data = self._read_line(data)
        return found

    def end(self) -> dict[str, str]:
        """Return the trailers, by their names in lower case, once nothing more comes.

        Raises:
            CachetierError: IncompleteBody, or MalformedTrailerError for one that is missing.
        """
        if self._state is not _State.ENDED:
            raise refused("IncompleteBody", "the body ended before its last chunk did")
        missing = self._declared - self._trailers.keys()
        if missing:
            raise refused("MalformedTrailerError", f"the trailer has no {min(missing)[:60]}")
        return self._trailers

    def _read_line(self, data: memoryview) -> memoryview:
        """Take a line, or the begin of one, off ``data``; return the rest."""
        room = LINE_LIMIT_BYTES - len(self._line)
        head = bytes(data[:room])
        index = head.find(b"\n")
        if index < 0:
            if len(head) == room:
                raise refused("InvalidRequest", f"a line has up to {LINE_LIMIT_BYTES} bytes")
            self._line += head
            return data[len(head) :]
        line = bytes(self._line) + head[:index]
        self._line.clear()
        self._take_line(line)
        return data[index + 1 :]

    def _take_line(self, line: bytes) -> None:
        if self._state is _State.HEAD:
            self._begin(line)
        elif self._state is _State.BEHIND:
            if line != b"\r":
                raise refused(
                    "InvalidChunkSizeError", "a chunk does not have the size that it declares"
                )
            self._state = _State.HEAD
        else:
            self._take_trailer(line.removesuffix(b"\r"))

    def _begin(self, line: bytes) -> None:
        match = _HEAD.fullmatch(line)
        if match is None or (match[2] is None) != (self._signatures is None):
            raise refused("InvalidRequest", "a chunk does not begin with its size and signature")
        size_bytes = int(match[1], 16)
        if size_bytes > self._left_bytes:
            raise refused("IncompleteBody", "the chunks are longer than the body is declared to be")
        if size_bytes == 0 and self._left_bytes:
            raise refused(
                "IncompleteBody", "the chunks are shorter than the body is declared to be"
            )
        self._signature = (match[2] or b"").decode()
        if size_bytes == 0:
            self._check_signature()
            self._state = _State.TRAILER
            return
        if self._had_short:
            raise refused(
                "InvalidChunkSizeError",
                f"only the last chunk that is signed may have less than {LEAST_SIGNED_BYTES} bytes",
            )
        self._had_short = self._signatures is not None and size_bytes < LEAST_SIGNED_BYTES
        self._left_bytes -= size_bytes
        self._chunk_bytes, self._state = size_bytes, _State.BYTES

    def _take(self, piece: memoryview) -> None:
        if self._signatures is not None:
            self._hash.update(piece)
        self._chunk_bytes -= len(piece)
        if self._chunk_bytes == 0:
            self._check_signature()
            self._state = _State.BEHIND

    def _check_signature(self) -> None:
        if self._signatures is not None:
            self._signatures.check_chunk(self._hash.hexdigest(), self._signature)
            self._hash = hashlib.sha256()

    def _take_trailer(self, line: bytes) -> None:
        self._trailer_bytes += len(line)
        if self._trailer_bytes > TRAILER_LIMIT_BYTES:
            raise refused(
                "MalformedTrailerError", f"a trailer has up to {TRAILER_LIMIT_BYTES} bytes"
            )
        if not line:
            # Some have an empty line before the signature, too.
            if not self._signs_trailer or self._trailer_signature is not None:
                self._check_trailer()
                self._state = _State.ENDED
            elif self._had_empty_line:
                raise refused("MalformedTrailerError", "the trailer is not signed")
            self._had_empty_line = True
            return
        match = _FIELD.fullmatch(line)
        if match is None or self._trailer_signature is not None:
            raise refused("MalformedTrailerError", "a line of the trailer is no name and value")
        name, value = match[1].decode().lower(), match[2].decode()
        if name == TRAILER_SIGNATURE and self._signs_trailer:
            self._trailer_signature = value
        elif name not in self._declared or name in self._trailers:
            raise refused("MalformedTrailerError", f"x-amz-trailer does not declare {name[:60]}")
        else:
            self._trailers[name] = value
            self._signed_lines += f"{name}:{value}\n".encode()

    def _check_trailer(self) -> None:
        if self._signs_trailer and self._signatures is not None:
            signature = self._trailer_signature or ""
            self._signatures.check_trailer(bytes(self._signed_lines), signature)
