"""Which error an answer of S3 is, and hence the next move.

Tables decide. A code that S3 or a kin of it documents goes first, then the HTTP status. Message
texts are never looked at: stores word them as they like.

Source: docs/drain.md, "Errors".
"""

from __future__ import annotations

from collections.abc import Mapping
from email.utils import parsedate_to_datetime

from cachetier_client.errors import (
    ObjectMissingError,
    PreconditionFailedError,
    RemoteDigestError,
    RemoteError,
    RemoteRefusedError,
    ThrottledError,
    TransientError,
    UploadGoneError,
)

ErrorKind = type[RemoteError]


def kinds_by_name(rows: Mapping[ErrorKind, str]) -> dict[str, ErrorKind]:
    """Turn a table of the names that mean an error into one of the error that a name means."""
    return {name: kind for kind, names in rows.items() for name in names.split()}


_BAD_REQUEST = 400
_OF_ONE_OBJECT = ("EntityTooLarge", "KeyTooLongError", "MetadataTooLarge")

KIND_OF_CODE = kinds_by_name(
    {
        ThrottledError: """
            SlowDown SlowDownRead SlowDownWrite ServiceUnavailable Throttling ThrottlingException
            ThrottledException RequestThrottled RequestThrottledException RequestLimitExceeded
            TooManyRequests TooManyRequestsException BandwidthLimitExceeded ServerBusy
        """,
        # OperationAborted and ConditionalRequestConflict are 409s that ask to repeat the request.
        # What we write is well-formed: a document that is not was damaged on its way.
        TransientError: """
            InternalError InternalFailure RequestTimeout RequestTimeoutException IncompleteBody
            OperationAborted ConditionalRequestConflict MalformedXML
        """,
        RemoteRefusedError: """
            AccessDenied AccountProblem AllAccessDisabled AuthorizationHeaderMalformed ExpiredToken
            IllegalLocationConstraintException InvalidAccessKeyId InvalidBucketName InvalidSecurity
            InvalidToken KMS.DisabledException KMS.KMSInvalidStateException KMS.NotFoundException
            MethodNotAllowed NoSuchBucket NotImplemented NotSignedUp PermanentRedirect
            QuotaExceeded RequestTimeTooSkewed SignatureDoesNotMatch TokenRefreshRequired
            UnauthorizedAccess XMinioStorageFull
        """,
        # About one object: that one is tried again later, and the others go on.
        RemoteError: " ".join(_OF_ONE_OBJECT),
        ObjectMissingError: "NoSuchKey NoSuchVersion NotFound",
        # A part that the store does not know, or knows by another etag, is mended by a new upload.
        UploadGoneError: "NoSuchUpload InvalidPart",
        PreconditionFailedError: "PreconditionFailed",
        RemoteDigestError: """
            BadDigest InvalidDigest InvalidRange
            XAmzContentChecksumMismatch XAmzContentSHA256Mismatch
        """,
    }
)

# Refusals that any other call would have met as well: they tell nothing of the one that was made.
GENERAL_REFUSALS = frozenset(
    kinds_by_name(
        {
            RemoteRefusedError: """
                AccountProblem AllAccessDisabled AuthorizationHeaderMalformed ExpiredToken
                InvalidAccessKeyId InvalidBucketName InvalidSecurity InvalidToken NoSuchBucket
                NotSignedUp PermanentRedirect QuotaExceeded RequestTimeTooSkewed
                SignatureDoesNotMatch TokenRefreshRequired XMinioStorageFull
            """
        }
    )
)

KIND_OF_STATUS: dict[int, ErrorKind] = {
    404: ObjectMissingError,
    408: TransientError,
    409: TransientError,
    412: PreconditionFailedError,
    416: RemoteDigestError,
    425: TransientError,
    429: ThrottledError,
    501: RemoteRefusedError,
    503: ThrottledError,
    507: RemoteRefusedError,
}


def kind_of_answer(code: str, status: int) -> ErrorKind:
    """Return the error that an answer with ``code`` and HTTP ``status`` means."""
    known = KIND_OF_CODE.get(code) or KIND_OF_STATUS.get(status)
    if known is not None:
        return known
    # An unknown code: the server's own trouble may pass, a request it rejects stays rejected. A
    # status below 300 comes with an error that followed it in the body.
    return RemoteRefusedError if 300 <= status < 500 else TransientError


def is_about_one_object(code: str, status: int) -> bool:
    """Return whether an answer refuses the object that it was asked for, and would refuse it again.

    That are the codes that say so, and any that we do not know of a bad request: 403 and kin are
    about who asks. The answer to a HEAD has no code, so it says nothing of the kind.
    """
    if code in _OF_ONE_OBJECT:
        return True
    return status == _BAD_REQUEST and bool(code) and not code.isdigit() and code not in KIND_OF_CODE


def retry_after_seconds(header: str | None, now: float) -> float | None:
    """Read a ``Retry-After`` header: seconds or a date; None where it says nothing usable."""
    if header is None:
        return None
    text = header.strip()
    if text.isascii() and text.isdigit():
        return float(text)
    try:
        return max(0.0, parsedate_to_datetime(text).timestamp() - now)
    except ValueError:
        return None
