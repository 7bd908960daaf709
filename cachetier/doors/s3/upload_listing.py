"""Pages of the uploads that are not complete: by key and id, with common prefixes among them."""

from __future__ import annotations

from collections.abc import Iterable

from cachetier.doors.s3.answers import Fields, iso_date
from cachetier.doors.s3.listing import PAGE_LIMIT, KeyEncoding
from cachetier.doors.s3.requests import S3Request
from cachetier.doors.s3.wholes import begun_with
from cachetier.objects.base import OpenUpload

_Place = tuple[str, str]  # key and id of an upload; or a common prefix, and no id


def page_of_uploads(request: S3Request, uploads: Iterable[OpenUpload]) -> Fields:
    """Return the document of ListMultipartUploads.

    Args:
        request: Which page is asked for.
        uploads: All whose keys begin with its prefix, in any order.
    """
    query, encoded = request.query, KeyEncoding(request)
    prefix, delimiter = query.get("prefix", ""), query.get("delimiter", "")
    key_marker = query.get("key-marker", "")
    id_marker = query.get("upload-id-marker", "") if key_marker else ""  # as S3 has it
    limit = request.number("max-uploads", PAGE_LIMIT, 0, PAGE_LIMIT)
    entries = dict(_entry_of(upload, prefix, delimiter) for upload in uploads)
    left = sorted(place for place in entries if _is_behind(place, key_marker, id_marker))
    page = left[:limit]
    last = page[-1:] if len(left) > limit else []
    found: Fields = []
    for place in page:
        upload = entries[place]
        if upload is None:
            found.append(("CommonPrefixes", [("Prefix", encoded(place[0]))]))
        else:
            found.append(("Upload", _upload(upload, encoded)))
    return [
        ("Bucket", request.bucket),
        ("KeyMarker", encoded(key_marker)),
        ("UploadIdMarker", id_marker),
        *(("NextKeyMarker", encoded(key)) for key, _ in last),
        *(("NextUploadIdMarker", upload_id) for _, upload_id in last),
        ("Prefix", encoded(prefix)),
        *([("Delimiter", encoded(delimiter))] if delimiter else []),
        ("MaxUploads", str(limit)),
        *encoded.fields,
        ("IsTruncated", "true" if last else "false"),
        *found,
    ]


def initiator_of(upload: OpenUpload) -> Fields:
    """Return who began an upload, as documents name them."""
    owner: Fields = [("ID", upload.owner), ("DisplayName", upload.owner)]
    return [("Initiator", owner), ("Owner", owner), ("StorageClass", "STANDARD")]


def checksum_of(upload: OpenUpload) -> Fields:
    """Return what the checksum of an upload shall be, if it was begun with one."""
    algorithm, kind = begun_with(upload.head)
    return [("ChecksumAlgorithm", algorithm), ("ChecksumType", kind)] if algorithm and kind else []


def _entry_of(upload: OpenUpload, prefix: str, delimiter: str) -> tuple[_Place, OpenUpload | None]:
    folder, mark, _ = upload.key[len(prefix) :].partition(delimiter or "\0")  # no key has a NUL
    if mark:
        return (prefix + folder + mark, ""), None
    return (upload.key, upload.upload_id), upload


def _is_behind(place: _Place, key: str, upload_id: str) -> bool:
    """Return whether a place comes behind a marker; without an id that means all of its key."""
    return place[0] > key or (place[0] == key and "" < upload_id < place[1])


def _upload(upload: OpenUpload, encoded: KeyEncoding) -> Fields:
    return [
        ("Key", encoded(upload.key)),
        ("UploadId", upload.upload_id),
        *initiator_of(upload),
        ("Initiated", iso_date(upload.begun_at)),
        *checksum_of(upload),
    ]
