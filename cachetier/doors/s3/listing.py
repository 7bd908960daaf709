"""Pages of a bucket: its mounts side by side, and nothing else of it.

Mounts have no keys in common, so that all keys of one come before all of the next. A prefix above
mounts shows them as it shows folders.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import quote

from cachetier.doors.s3.answers import Fields, iso_date
from cachetier.doors.s3.errors import refused
from cachetier.doors.s3.requests import S3Request
from cachetier.model.objects import Mount
from cachetier.objects.base import FoundObject, Objects, Page

PAGE_LIMIT = 1000


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which page is asked for."""

    prefix: str
    delimiter: str
    after: str
    limit: int


def page_of(objects: Objects, mounts: Sequence[Mount], wanted: Wanted) -> Page:
    """Return a page of the mounts of one bucket.

    Raises:
        RemoteError: The bucket cannot be asked.
    """
    found: list[FoundObject] = []
    prefixes: list[str] = []
    if wanted.limit == 0:
        return Page((), (), None)
    for mount in sorted(mounts, key=lambda each: each.prefix.encode()):
        left = wanted.limit - len(found) - len(prefixes)
        if left == 0:
            return Page(tuple(found), tuple(prefixes), _last(found, prefixes))
        page = _of_mount(objects, mount, wanted, left)
        found += page.objects
        prefixes += [each for each in page.prefixes if each not in prefixes]
        if page.next_after is not None:
            return Page(tuple(found), tuple(prefixes), page.next_after)
    return Page(tuple(found), tuple(prefixes), None)


def _of_mount(objects: Objects, mount: Mount, wanted: Wanted, limit: int) -> Page:
    prefix, after = wanted.prefix, wanted.after
    if mount.prefix.startswith(prefix):
        folder, mark, _ = mount.prefix[len(prefix) :].partition(wanted.delimiter or "\0")
        if mark:
            name = prefix + folder + mark
            return Page((), (name,) if name > after else (), None)
        prefix = mount.prefix
    elif not prefix.startswith(mount.prefix):
        return Page((), (), None)
    if after > mount.prefix and not after.startswith(mount.prefix):
        return Page((), (), None)  # all of its keys come before
    return objects.list(mount, prefix, wanted.delimiter, after, limit)


def _last(found: Sequence[FoundObject], prefixes: Sequence[str]) -> str:
    return max([each.key for each in found[-1:]] + list(prefixes[-1:]), key=str.encode)


class KeyEncoding:
    """How keys stand in a document: as they are, or encoded if the client asked for that."""

    def __init__(self, request: S3Request) -> None:
        self._kind = request.query.get("encoding-type")
        if self._kind not in (None, "url"):
            raise refused("InvalidArgument", "encoding-type can only be url")

    def __call__(self, text: str) -> str:
        return quote(text, safe="/") if self._kind else text

    @property
    def fields(self) -> Fields:
        return [("EncodingType", self._kind)] if self._kind else []


def first_version(
    request: S3Request, objects: Objects, mounts: Sequence[Mount], owner: str
) -> Fields:
    """Return the document of ListObjects; ``owner`` is everything's."""
    marker = request.query.get("marker", "")
    wanted, encoded = _wanted(request, marker), KeyEncoding(request)
    page = page_of(objects, mounts, wanted)
    fields: Fields = [("Marker", encoded(marker))]
    if page.next_after is not None:
        fields.append(("NextMarker", encoded(page.next_after)))
    return _document(request, wanted, page, encoded, fields, owner)


def second_version(
    request: S3Request, objects: Objects, mounts: Sequence[Mount], owner: str
) -> Fields:
    """Return the document of ListObjectsV2; ``owner`` owns every key, for clients that ask."""
    token, start_after = request.query.get("continuation-token"), request.query.get("start-after")
    if request.query["list-type"] != "2":
        raise refused("InvalidArgument", "list-type can only be 2")
    after = _after_of(token) if token is not None else start_after or ""
    wanted, encoded = _wanted(request, after), KeyEncoding(request)
    page = page_of(objects, mounts, wanted)
    fields: Fields = [("KeyCount", str(len(page.objects) + len(page.prefixes)))]
    if token is not None:
        fields.append(("ContinuationToken", token))
    if start_after is not None:
        fields.append(("StartAfter", encoded(start_after)))
    if page.next_after is not None:
        fields.append(("NextContinuationToken", _token_of(page.next_after)))
    named = owner if request.query.get("fetch-owner", "").lower() == "true" else None
    return _document(request, wanted, page, encoded, fields, named)


def _wanted(request: S3Request, after: str) -> Wanted:
    limit = request.number("max-keys", PAGE_LIMIT, 0, PAGE_LIMIT)
    query = request.query
    return Wanted(query.get("prefix", ""), query.get("delimiter", ""), after, limit)


def _document(
    request: S3Request,
    wanted: Wanted,
    page: Page,
    encoded: KeyEncoding,
    fields: Fields,
    owner: str | None,
) -> Fields:
    document: Fields = [
        ("Name", request.bucket),
        ("Prefix", encoded(wanted.prefix)),
        *fields,
        ("MaxKeys", str(wanted.limit)),
        *([("Delimiter", encoded(wanted.delimiter))] if wanted.delimiter else []),
        *encoded.fields,
        ("IsTruncated", "true" if page.next_after is not None else "false"),
    ]
    document += [("Contents", _entry(found, encoded, owner)) for found in page.objects]
    document += [("CommonPrefixes", [("Prefix", encoded(each))]) for each in page.prefixes]
    return document


def _entry(found: FoundObject, encoded: KeyEncoding, owner: str | None) -> Fields:
    owned: Fields = [] if owner is None else [("Owner", [("ID", owner), ("DisplayName", owner)])]
    return [
        ("Key", encoded(found.key)),
        ("LastModified", iso_date(found.modified_at)),
        ("ETag", f'"{found.etag}"'),
        ("Size", str(found.size_bytes)),
        *owned,
        ("StorageClass", "STANDARD"),
    ]


def _token_of(after: str) -> str:
    return base64.urlsafe_b64encode(after.encode()).decode()


def _after_of(token: str) -> str:
    try:
        return base64.urlsafe_b64decode(token.encode()).decode()
    except (ValueError, binascii.Error):
        raise refused(
            "InvalidArgument", "the continuation token was not made by this service"
        ) from None
