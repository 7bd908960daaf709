"""Answers as a troubled S3 server gives them: made up, or a sound one with a flaw."""

from __future__ import annotations

import base64
import re
from collections.abc import Callable

from cachetier.testing.http_wire import WireHead
from cachetier.testing.troubles import Trouble

_PAGE = b"<html><body><h1>The server behind this one did not answer</h1></body></html>"

# status, reason, code; without a code it is a page for people
_MADE_UP: dict[Trouble, tuple[int, str, str]] = {
    Trouble.SLOW_DOWN: (503, "Slow Down", "SlowDown"),
    Trouble.TOO_MANY_REQUESTS: (429, "Too Many Requests", "TooManyRequests"),
    Trouble.REQUEST_TIMEOUT: (408, "Request Timeout", "RequestTimeout"),
    Trouble.INTERNAL_ERROR: (500, "Internal Server Error", "InternalError"),
    Trouble.BAD_GATEWAY: (502, "Bad Gateway", ""),
    Trouble.GATEWAY_TIMEOUT: (504, "Gateway Timeout", ""),
    Trouble.ACCESS_DENIED: (403, "Forbidden", "AccessDenied"),
    Trouble.EXPIRED_TOKEN: (400, "Bad Request", "ExpiredToken"),
    Trouble.TIME_SKEWED: (403, "Forbidden", "RequestTimeTooSkewed"),
    Trouble.NO_SUCH_BUCKET: (404, "Not Found", "NoSuchBucket"),
    Trouble.NO_SUCH_UPLOAD: (404, "Not Found", "NoSuchUpload"),
    Trouble.ERROR_IN_200: (200, "OK", "InternalError"),
}
MADE_UP = frozenset(_MADE_UP)
THROTTLING = (Trouble.SLOW_DOWN, Trouble.TOO_MANY_REQUESTS)


def made_up(
    trouble: Trouble, method: str, *, closes: bool, retry_after_seconds: float | None
) -> bytes:
    """Return the answer to a request with ``method``; a HEAD gets no body, as from S3."""
    status, reason, code = _MADE_UP[trouble]
    body = _document(code) if code else _PAGE
    if method == "HEAD":
        body = b""
    kind = "application/xml" if code else "text/html"
    lines = [f"HTTP/1.1 {status} {reason}", f"Content-Type: {kind}", f"Content-Length: {len(body)}"]
    if retry_after_seconds is not None and trouble in THROTTLING:
        lines.append(f"Retry-After: {retry_after_seconds:g}")
    if closes:
        lines.append("Connection: close")
    return "\r\n".join([*lines, "", ""]).encode() + body


def _document(code: str) -> bytes:
    return (
        '<?xml version="1.0" encoding="UTF-8"?>'
        f"<Error><Code>{code}</Code><Message>From the fault proxy.</Message></Error>"
    ).encode()


def flawed(trouble: Trouble, head: WireHead, body: bytes) -> bytes | None:
    """Return an answer with the flaw that ``trouble`` means; None where nothing can carry it."""
    if trouble is Trouble.BROKEN_XML:
        half = body[: len(body) // 2]
        return _with_length(head.raw, len(half)) + half if half else None
    change, in_head, in_body = _CHANGES[trouble]
    new_raw, in_raw = in_head.subn(change, _framed(head, body))
    new_body, in_document = in_body.subn(change, body)
    return new_raw + new_body if in_raw or in_document else None


def flawless(head: WireHead, body: bytes) -> bytes:
    """Return the answer as it came, but for its framing."""
    return _framed(head, body) + body


def _framed(head: WireHead, body: bytes) -> bytes:
    return _with_length(head.raw, len(body)) if body else head.raw


def _with_length(raw: bytes, length: int) -> bytes:
    """Return a head for a body of ``length``, however it was framed before."""
    framing = (b"content-length:", b"transfer-encoding:")
    lines = [line for line in raw.split(b"\r\n") if not line.lower().startswith(framing)]
    lines.insert(1, b"Content-Length: %d" % length)
    return b"\r\n".join(lines)


def _other_etag(match: re.Match[bytes]) -> bytes:
    return match[1] + match[2].translate(bytes.maketrans(b"0123456789abcdef", b"123456789abcdef0"))


def _other_checksum(match: re.Match[bytes]) -> bytes:
    value = bytearray(base64.b64decode(match[2]))
    value[0] ^= 1
    return match[1] + base64.b64encode(value)


_CHANGES: dict[
    Trouble, tuple[Callable[[re.Match[bytes]], bytes], re.Pattern[bytes], re.Pattern[bytes]]
] = {
    Trouble.WRONG_ETAG: (
        _other_etag,
        re.compile(rb'(?i)(\r\netag: *"?)([0-9a-f]+)'),
        re.compile(rb"(<ETag>(?:&#34;|&quot;|\")?)([0-9a-f]+)"),
    ),
    Trouble.WRONG_CHECKSUM: (
        _other_checksum,
        re.compile(rb"(?i)(\r\nx-amz-checksum-crc64nvme: *)([0-9a-z+/]{11}=)"),
        re.compile(rb"(<ChecksumCRC64NVME>)([0-9A-Za-z+/]{11}=)"),
    ),
}
