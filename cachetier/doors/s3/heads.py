"""The headers of a put that are kept with the object."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from email.utils import format_datetime

from cachetier.doors.s3.errors import refused
from cachetier.model.objects import CONTENT_HEADERS, OUR_METADATA, Head

METADATA_LIMIT_BYTES = 2048 - 320  # S3's own, less what the entries of ours take
CONTENT_LIMIT_BYTES = 4096  # S3 takes 8 KiB of headers, the signature and metadata among them
_META = "x-amz-meta-"
_CHUNKED = "aws-chunked"
_DATES = ("%a, %d %b %Y %H:%M:%S GMT", "%A, %d-%b-%y %H:%M:%S GMT", "%a %b %d %H:%M:%S %Y")


def head_of(headers: Mapping[str, str], checksums: Mapping[str, str] | None = None) -> Head:
    """Return what a put says of its object.

    Whatever a bucket would refuse later is refused here: then it would hold up all that follows.

    Raises:
        CachetierError: MetadataTooLarge, a name that is ours, a date that is none, or characters
            that no header has.
    """
    kept = {name: headers[name] for name in CONTENT_HEADERS if name in headers}
    if "expires" in kept:
        kept["expires"] = _date(kept["expires"])
    encodings = [each.strip() for each in kept.pop("content-encoding", "").split(",")]
    if encoding := ", ".join(each for each in encodings if each not in ("", _CHUNKED)):
        kept["content-encoding"] = encoding
    metadata = {
        name.removeprefix(_META): value for name, value in headers.items() if name.startswith(_META)
    }
    _check_size("metadata has", metadata, METADATA_LIMIT_BYTES)
    _check_size("content headers have", kept, CONTENT_LIMIT_BYTES)
    for name, value in (*kept.items(), *metadata.items()):
        if not (name + value).isascii() or not value.isprintable():
            raise refused("InvalidArgument", f"{name!a} is not of printable ASCII characters")
    if any(name.startswith(OUR_METADATA) for name in metadata):
        raise refused(
            "InvalidArgument", f"metadata that begins with {OUR_METADATA} is the service's own"
        )
    return Head(kept, metadata, dict(checksums or {}))


def _check_size(what: str, fields: Mapping[str, str], limit_bytes: int) -> None:
    if sum(len(name) + len(value) for name, value in fields.items()) > limit_bytes:
        raise refused("MetadataTooLarge", f"{what} up to {limit_bytes} bytes")


def _date(expires: str) -> str:
    """Return a date in the one form that every store takes, of the three that HTTP has.

    SeaweedFS, for one, refuses objects with another, which would then wait here for a person.

    Raises:
        CachetierError: InvalidArgument: it has none of them.
    """
    for form in _DATES:
        with suppress(ValueError, OverflowError):
            found = datetime.strptime(expires, form).replace(tzinfo=UTC)
            return format_datetime(found, usegmt=True)
    raise refused("InvalidArgument", "Expires is no date such as HTTP has")
