"""S3's code and status for each error: clients decide by both whether to try again."""

from __future__ import annotations

from cachetier.doors.http.problems import BodyCutShortError, RangeError, SlowBodyError
from cachetier.errors import (
    CachetierError,
    DigestMismatchError,
    EndedKeyError,
    FencedError,
    ForbiddenError,
    InvalidRequestError,
    NotFoundError,
    RemoteError,
    SizeMismatchError,
    StagedIOError,
    UnknownKeyError,
    WaitError,
    WrongSignatureError,
)

INTERNAL = "InternalError"
SLOW_DOWN = "SlowDown"

# Every code that the door answers with: a finite list, fit for a label.
STATUS = {
    "AccessDenied": 403,
    "AuthorizationHeaderMalformed": 400,
    "AuthorizationQueryParametersError": 400,
    "BadDigest": 400,
    "BucketAlreadyOwnedByYou": 409,
    "EntityTooLarge": 400,
    "EntityTooSmall": 400,
    "ExpiredToken": 400,
    "IncompleteBody": 400,
    INTERNAL: 500,
    "InvalidAccessKeyId": 403,
    "InvalidArgument": 400,
    "InvalidChunkSizeError": 403,
    "InvalidDigest": 400,
    "InvalidPart": 400,
    "InvalidPartNumber": 416,
    "InvalidPartOrder": 400,
    "InvalidRange": 416,
    "InvalidRequest": 400,
    "InvalidURI": 400,
    "KeyTooLongError": 400,
    "MalformedTrailerError": 400,
    "MalformedXML": 400,
    "MetadataTooLarge": 400,
    "MissingContentLength": 411,
    "NoSuchBucket": 404,
    "NoSuchKey": 404,
    "NoSuchUpload": 404,
    "NotImplemented": 501,
    "PreconditionFailed": 412,
    "RequestTimeTooSkewed": 403,
    "RequestTimeout": 400,
    "ServiceUnavailable": 503,
    "SignatureDoesNotMatch": 403,
    SLOW_DOWN: 503,
    "XAmzContentSHA256Mismatch": 400,
}
# Of the service's own errors the first that fits.
_CODES: tuple[tuple[type[CachetierError], str], ...] = (
    (UnknownKeyError, "InvalidAccessKeyId"),
    (WrongSignatureError, "SignatureDoesNotMatch"),
    (EndedKeyError, "ExpiredToken"),
    (ForbiddenError, "AccessDenied"),
    (SlowBodyError, "RequestTimeout"),
    (BodyCutShortError, "IncompleteBody"),
    (RangeError, "InvalidRange"),
    (DigestMismatchError, "BadDigest"),
    (SizeMismatchError, "IncompleteBody"),
    (RemoteError, "ServiceUnavailable"),
    (WaitError, SLOW_DOWN),
    (FencedError, SLOW_DOWN),
    (StagedIOError, SLOW_DOWN),
    (NotFoundError, "NoSuchKey"),
    (InvalidRequestError, "InvalidRequest"),
)


class S3RefusedError(InvalidRequestError):
    """A request that S3 has a name for what is wrong with it."""

    code = "s3_refused"
    hint = "See docs/s3.md for what the door takes."

    def __init__(self, s3_code: str, message: str) -> None:
        super().__init__(message)
        self.s3_code = s3_code
        self.http_status = STATUS[s3_code]


def refused(s3_code: str, message: str) -> S3RefusedError:
    """Return the error that S3 calls ``s3_code``."""
    return S3RefusedError(s3_code, message)


def s3_code_of(error: CachetierError) -> str:
    """Return what S3 calls an error of the service."""
    named = getattr(error, "s3_code", None)
    if named in STATUS:
        return str(named)
    return next((code for kind, code in _CODES if isinstance(error, kind)), INTERNAL)
