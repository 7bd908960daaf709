"""Read what a request of S3 is about: bucket, key, parameters, in path style or by virtual host.

Names are decoded strictly from the raw bytes, as the client signed them.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from urllib.parse import parse_qsl, unquote_to_bytes

from cachetier_client.identity.names import RESERVED_SEGMENT
from starlette.types import Scope

from cachetier.doors.http.front import address_of
from cachetier.doors.s3.errors import refused
from cachetier.doors.s3.sigv4 import headers_of
from cachetier.model.objects import KEY_LIMIT_BYTES
from cachetier.parsers import host_of

PARAMETERS_LIMIT = 50
LOCALHOST = "localhost"
_OF_AMAZON = "x-amz-"
_OF_SIGNATURE = frozenset(
    f"{_OF_AMAZON}{name}"
    for name in (
        *("algorithm", "credential", "date", "expires", "signedheaders", "signature"),
        *("security-token", "content-sha256"),
    )
)
_DOTS = frozenset({".", ".."})
_ESCAPED_BYTES = 3  # of a byte that is percent-encoded
_NO_ESCAPE = re.compile(rb"%(?![0-9A-Fa-f]{2})")


@dataclass(frozen=True, slots=True)
class S3Request:
    """A request as it was parsed. ``bucket`` and ``key`` are empty where none is named.

    ``headers`` are by their names in lower case; of one that came several times the values stand
    behind each other. ``scope`` is ASGI's own, ``resource`` the path as errors repeat it.
    """

    method: str
    bucket: str
    key: str
    query: Mapping[str, str]
    headers: Mapping[str, str]
    address: str
    scope: Scope = field(repr=False)

    @property
    def resource(self) -> str:
        return f"/{self.bucket}/{self.key}" if self.bucket else "/"

    def number(self, name: str, default: int, least: int, most: int) -> int:
        """Return a parameter that is a whole number; beyond ``most`` it is ``most``."""
        text = self.query.get(name)
        if text is None or text == "":
            return default
        if not (text.isascii() and text.isdigit()) or len(text) > 18 or int(text) < least:
            raise refused("InvalidArgument", f"{name} {ascii(text)[:60]} is no number in its range")
        return min(int(text), most)


def request_of(scope: Scope, hosts: Collection[str]) -> S3Request:
    """Return what ``scope`` asks for; before ``hosts``, and localhost, a bucket may stand.

    Raises:
        CachetierError: InvalidURI, KeyTooLongError.
    """
    headers = headers_of(scope["headers"])
    raw_path: bytes = scope["raw_path"]
    bucket, path = _bucket_before(headers.get("host", ""), hosts), raw_path[1:]
    if not raw_path.startswith(b"/"):
        raise refused("InvalidURI", "the path does not begin with a slash")
    if bucket is None:
        first, _, path = path.partition(b"/")
        bucket = _decoded(first)
    if path and not bucket:
        raise refused("InvalidURI", "a key is named, and no bucket")
    return S3Request(
        method=scope["method"],
        bucket=bucket,
        key=checked_key(_decoded(path)) if path else "",
        query=_query_of(scope["query_string"]),
        headers=headers,
        address=address_of(scope),
        scope=scope,
    )


def with_parameters(request: S3Request) -> S3Request:
    """Return a request whose signature was checked, with the headers that its query stands for.

    A presigned URL carries headers as parameters, as whoever follows it sends none of its own.

    Raises:
        CachetierError: InvalidArgument where header and parameter differ.
    """
    named = {name.lower(): value for name, value in request.query.items()}
    meant = {
        name: value
        for name, value in named.items()
        if name.startswith(_OF_AMAZON) and name not in _OF_SIGNATURE
    }
    for name, value in meant.items():
        if request.headers.get(name, value) != value:
            raise refused("InvalidArgument", f"{name} is one thing as header, another in the URL")
    return replace(request, headers={**request.headers, **meant}) if meant else request


def checked_key(key: str) -> str:
    """Return a key that an object can have.

    Raises:
        CachetierError: KeyTooLongError, InvalidURI, or AccessDenied for a key of ours.
    """
    if len(key.encode("utf-8", "replace")) > KEY_LIMIT_BYTES:
        raise refused("KeyTooLongError", f"a key has up to {KEY_LIMIT_BYTES} bytes")
    if "\0" in key or not _DOTS.isdisjoint(key.split("/")):
        raise refused("InvalidURI", "no key has a NUL, or a segment of dots alone")
    if RESERVED_SEGMENT in key.split("/"):
        raise refused("AccessDenied", f"what lies under {RESERVED_SEGMENT} is the service's own")
    return key


def source_of(text: str) -> tuple[str, str]:
    """Return bucket and key of ``x-amz-copy-source``."""
    path, _, version = text.partition("?")
    if version:
        raise refused("NotImplemented", "objects have no versions that could be copied")
    bucket, slash, key = _decoded(path.encode().removeprefix(b"/")).partition("/")
    if not slash or not key:
        raise refused("InvalidArgument", "x-amz-copy-source names no bucket and key")
    return bucket, checked_key(key)


def _bucket_before(host: str, hosts: Collection[str]) -> str | None:
    """Return the bucket that stands before one of our names, or None."""
    try:
        name = host_of(host)
    except ValueError:
        raise refused("InvalidURI", "the header Host names no host") from None
    for ours in (LOCALHOST, *hosts):
        if name.endswith(f".{ours.lower()}"):
            return name[: -len(ours) - 1]
    return None


def _query_of(query_string: bytes) -> dict[str, str]:
    try:
        pairs = parse_qsl(
            query_string.decode("ascii"),
            keep_blank_values=True,
            errors="strict",
            max_num_fields=PARAMETERS_LIMIT,
        )
    except ValueError:
        raise refused("InvalidURI", "the query string cannot be read") from None
    query = dict(pairs)
    if len(query) != len(pairs):
        raise refused("InvalidArgument", "a parameter is given twice")
    return query


def _decoded(raw: bytes) -> str:
    if len(raw) > _ESCAPED_BYTES * KEY_LIMIT_BYTES:
        raise refused("KeyTooLongError", f"a key has up to {KEY_LIMIT_BYTES} bytes")
    if _NO_ESCAPE.search(raw):
        raise refused("InvalidURI", "a % in the path is not followed by two hexadecimal digits")
    try:
        return unquote_to_bytes(raw).decode()
    except UnicodeDecodeError:
        raise refused("InvalidURI", "the path is not UTF-8") from None
