"""The conditions of reads, by RFC 9110: on the ETag first, on the time only where none is.

Those of deletions are S3's own: all that are given must hold.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from email.utils import format_datetime, parsedate_to_datetime

from cachetier.doors.s3.errors import refused
from cachetier.local.catalog.objects import KeyCondition

MATCH, MATCH_SIZE = "if-match", "x-amz-if-match-size"
MATCH_TIME = "x-amz-if-match-last-modified-time"
COPY_PREFIX = "x-amz-copy-source-"
_SIZE_DIGITS = 18


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


def of_deletion(wanted: Mapping[str, str]) -> KeyCondition:
    """Return what must hold of an object to be deleted, by the names of headers.

    Raises:
        CachetierError: InvalidArgument: a size or a time is none.
    """
    match, size, text = (wanted.get(name) for name in (MATCH, MATCH_SIZE, MATCH_TIME))
    at = None if text is None else _instant(text)
    with suppress(ValueError, OverflowError):  # some clients write documents with other times
        at = datetime.fromisoformat(text or "").timestamp() if at is None else at
    if text is not None and at is None:
        raise refused("InvalidArgument", f"{text[:60]!a} is no time that an object was put at")
    if size is not None and not (size.isascii() and size.isdecimal() and len(size) <= _SIZE_DIGITS):
        raise refused("InvalidArgument", f"{size[:60]!a} is no size of an object")
    etag = None if match is None else unquoted(match)
    return KeyCondition(False, etag, None if size is None else int(size), at)


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
