"""The conditions of reads, by RFC 9110: on the ETag first, on the time only where none is."""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import format_datetime, parsedate_to_datetime

from cachetier.doors.s3.errors import refused

COPY_PREFIX = "x-amz-copy-source-"


def unquoted(etag: str) -> str:
    """Return an ETag as a header names it, without its quotes."""
    return etag.strip().removeprefix("W/").strip('"')


def http_date(instant: float) -> str:
    return format_datetime(datetime.fromtimestamp(math.floor(instant), UTC), usegmt=True)


def names(text: str, etag: str) -> bool:
    """Return whether a header's list of ETags names ``etag``."""
    return text.strip() == "*" or etag in [unquoted(each) for each in text.split(",")]


def is_unchanged(
    headers: Mapping[str, str], etag: str, modified_at: float, prefix: str = ""
) -> bool:
    """Return whether a reader has what it asks for: the answer is 304 then.

    Args:
        headers: Of the request; of the source of a copy with ``prefix`` before their names.
        etag: Of the object, without quotes.
        modified_at: When it was put.
        prefix: Empty, or ``COPY_PREFIX``.

    Raises:
        CachetierError: PreconditionFailed.
    """
    match, since = headers.get(f"{prefix}if-match"), headers.get(f"{prefix}if-unmodified-since")
    if match is not None:
        if not names(match, etag):
            raise refused("PreconditionFailed", "If-Match names another ETag")
    elif since is not None and _is_after(modified_at, since):
        raise refused("PreconditionFailed", "the object was modified since")
    none_match = headers.get(f"{prefix}if-none-match")
    if none_match is not None:
        return names(none_match, etag)
    since = headers.get(f"{prefix}if-modified-since")
    return since is not None and _is_before_or_at(modified_at, since)


def _is_after(modified_at: float, text: str) -> bool:
    instant = _instant(text)
    return instant is not None and math.floor(modified_at) > instant


def _is_before_or_at(modified_at: float, text: str) -> bool:
    instant = _instant(text)
    return instant is not None and math.floor(modified_at) <= instant


def _instant(text: str) -> float | None:
    """Return the time that a header says; None, which sets no condition, if it is none."""
    try:
        return parsedate_to_datetime(text).timestamp()
    except (ValueError, TypeError, OverflowError):
        return None
