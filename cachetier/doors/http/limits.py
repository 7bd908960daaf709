"""The limits of the HTTP door, for one caller and for all together."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RequestLimits:
    """Bounds in bytes, numbers and seconds; tests shorten them.

    Args:
        header_seconds: From the first byte of a connection, or the end of the last answer, to the
        end of a request's
            head; also how long the rest of a refused body is taken, so that its sender gets to read
            why.
        progress_seconds: A body, or an answer's reader, must move on in every span of this length.
        progress_bytes: How far a body, or an answer, must at least move on in it.
        crowded_seconds: While others wait for its place, a large body must move on by
        ``crowded_bytes`` in every span of this length.
        request_seconds: The whole of one request, waits included.
        uploads: Large bodies taken at once; each holds two blocks in memory.
        downloads: Large answers given at once, likewise.
        stranger_bytes: A body of somebody who has not said who they are.
    """

    connections: int = 1024
    requests: int = 256
    strangers: int = 32
    uploads: int = 12
    downloads: int = 6
    head_bytes: int = 16 << 10
    headers: int = 100
    json_bytes: int = 1 << 20
    stranger_bytes: int = 4 << 10
    header_seconds: float = 10.0
    progress_seconds: float = 20.0
    progress_bytes: int = 64 << 10
    crowded_seconds: float = 2.0
    crowded_bytes: int = 1 << 20
    request_seconds: float = 7 * 86_400.0
