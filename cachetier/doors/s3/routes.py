"""The table of operations that the door offers; what is not in it is answered NotImplemented."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from cachetier.doors.s3.conditions import MATCH_SIZE, MATCH_TIME
from cachetier.doors.s3.errors import refused
from cachetier.doors.s3.requests import S3Request
from cachetier.model.objects import CONTENT_HEADERS

SERVICE, BUCKET, OBJECT = "service", "bucket", "object"
COPY_SOURCE = "x-amz-copy-source"
PRESIGNED = "x-"  # parameters of signatures, and what SDKs say of themselves (``x-id``)

_OVERRIDES = frozenset(f"response-{name}" for name in CONTENT_HEADERS)
# Headers that ask for what this door has not; a value that changes nothing is taken.
NOT_OFFERED = {
    "x-amz-acl": {"private", "bucket-owner-full-control"},
    "x-amz-storage-class": {"STANDARD"},
    "x-amz-tagging-directive": {"COPY"},
}
_NOT_OFFERED_PREFIXES = (
    "x-amz-grant-",
    "x-amz-server-side-encryption",
    "x-amz-copy-source-server-side-encryption",
    "x-amz-object-lock-",
    "x-amz-website-",
    "x-amz-tagging",
    "x-amz-write-offset",
    "x-amz-expected-bucket-owner",
    "x-amz-source-expected-bucket-owner",
)
# The conditions that an operation knows; with any other it would act as if there was none.
_OF_READS = {"if-match", "if-none-match", "if-modified-since", "if-unmodified-since"}
_OF_PUTS = {"if-match", "if-none-match"}
_OF_DELETIONS = {"if-match", MATCH_SIZE, MATCH_TIME}
_CONDITIONS = {
    **dict.fromkeys(("GetObject", "HeadObject"), _OF_READS),
    **dict.fromkeys(("PutObject", "CopyObject", "CompleteMultipartUpload"), _OF_PUTS),
    "DeleteObject": _OF_DELETIONS,
}
_EVERY_CONDITION = {*_OF_READS, *_OF_DELETIONS, "x-amz-if-match-initiated-time"}


@dataclass(frozen=True, slots=True)
class Route:
    """An operation, as S3 calls it.

    Attributes:
        about: What its path names.
        right: What of ``access.roles`` it needs.
        marks: Parameters that make the request this one.
        takes: Parameters that it understands beside them.
        copies: Whether it names a source to copy from.
    """

    name: str
    method: str
    about: str
    right: str
    marks: frozenset[str] = frozenset()
    takes: frozenset[str] = frozenset()
    copies: bool = False


def _route(
    name: str,
    what: str,
    right: str,
    marks: Iterable[str] = (),
    takes: Iterable[str] = (),
    *,
    copies: bool = False,
) -> Route:
    method, about = what.split()
    return Route(name, method, about, right, frozenset(marks), frozenset(takes), copies)


_PART = ("partNumber", "uploadId")
_PAGES = ("prefix", "delimiter", "max-keys", "encoding-type", "fetch-owner")
ROUTES = (
    _route("ListBuckets", "GET service", "s3_buckets"),
    _route("HeadBucket", "HEAD bucket", "s3_list"),
    _route("CreateBucket", "PUT bucket", "s3_list"),
    _route("GetBucketLocation", "GET bucket", "s3_list", ["location"]),
    _route("ListObjects", "GET bucket", "s3_list", takes=[*_PAGES, "marker"]),
    _route(
        "ListObjectsV2",
        "GET bucket",
        "s3_list",
        ["list-type"],
        [*_PAGES, "continuation-token", "start-after"],
    ),
    _route(
        "ListMultipartUploads",
        "GET bucket",
        "s3_list",
        ["uploads"],
        ["prefix", "delimiter", "max-uploads", "encoding-type", "key-marker", "upload-id-marker"],
    ),
    _route("DeleteObjects", "POST bucket", "s3_delete_objects", ["delete"]),
    _route("GetObject", "GET object", "s3_get", takes=[*_OVERRIDES, "partNumber"]),
    _route("HeadObject", "HEAD object", "s3_head", takes=[*_OVERRIDES, "partNumber"]),
    _route("PutObject", "PUT object", "s3_put"),
    _route("CopyObject", "PUT object", "s3_put", copies=True),
    _route("DeleteObject", "DELETE object", "s3_delete"),
    _route("CreateMultipartUpload", "POST object", "s3_upload", ["uploads"]),
    _route("UploadPart", "PUT object", "s3_upload", _PART),
    _route("UploadPartCopy", "PUT object", "s3_upload", _PART, copies=True),
    _route("CompleteMultipartUpload", "POST object", "s3_put", ["uploadId"]),
    _route("AbortMultipartUpload", "DELETE object", "s3_upload", ["uploadId"]),
    _route(
        "ListParts",
        "GET object",
        "s3_upload",
        ["uploadId"],
        ["max-parts", "part-number-marker", "encoding-type"],
    ),
)


def route_of(request: S3Request) -> Route:
    """Return which operation a request is.

    Raises:
        CachetierError: NotImplemented: none that is offered, or with something that is not.
    """
    about = OBJECT if request.key else BUCKET if request.bucket else SERVICE
    asked = {name for name in request.query if not name.lower().startswith(PRESIGNED)}
    copies = COPY_SOURCE in request.headers
    for route in ROUTES:
        fits = (route.method, route.about, route.copies) == (request.method, about, copies)
        if fits and route.marks <= asked and asked <= route.marks | route.takes:
            _refuse_extras(request, _CONDITIONS.get(route.name, set()))
            return route
    what = f"{request.method} of a {about}" if about != SERVICE else request.method
    named = f" with {', '.join(sorted(asked))[:200]}" if asked else ""
    raise refused("NotImplemented", f"this door does not offer {what}{named}")


def _refuse_extras(request: S3Request, conditions: Collection[str]) -> None:
    for name, value in request.headers.items():
        if name in _EVERY_CONDITION and name not in conditions:
            raise refused("NotImplemented", f"{name} is no condition of this operation here")
        if name in NOT_OFFERED:
            if value not in NOT_OFFERED[name]:
                raise refused("NotImplemented", f"this door does not offer {name}: {value[:60]}")
        elif name.startswith(_NOT_OFFERED_PREFIXES):
            raise refused("NotImplemented", f"this door does not offer {name}")
