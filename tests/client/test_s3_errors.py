"""Every answer of S3 has one meaning, whatever its message says."""

from __future__ import annotations

import pytest
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
from cachetier_client.s3_errors import (
    KIND_OF_CODE,
    KIND_OF_STATUS,
    ErrorKind,
    kind_of_answer,
    retry_after_seconds,
)


@pytest.mark.parametrize(
    ("code", "status", "kind"),
    [
        ("SlowDown", 503, ThrottledError),
        ("ServiceUnavailable", 503, ThrottledError),
        ("TooManyRequests", 429, ThrottledError),
        ("RequestLimitExceeded", 400, ThrottledError),
        ("", 503, ThrottledError),
        ("503", 503, ThrottledError),
        ("InternalError", 500, TransientError),
        ("InternalError", 200, TransientError),  # an error in the body of a success
        ("SomethingNew", 200, TransientError),
        ("", 500, TransientError),
        ("", 502, TransientError),
        ("", 504, TransientError),
        ("RequestTimeout", 400, TransientError),
        ("MalformedXML", 400, TransientError),
        ("KeyTooLongError", 400, RemoteError),
        ("EntityTooLarge", 400, RemoteError),
        ("IncompleteBody", 400, TransientError),
        ("408", 408, TransientError),
        ("ConditionalRequestConflict", 409, TransientError),
        ("OperationAborted", 409, TransientError),
        ("AccessDenied", 403, RemoteRefusedError),
        ("403", 403, RemoteRefusedError),  # HEAD has no body, so boto3 gives the status as code
        ("401", 401, RemoteRefusedError),
        ("NoSuchBucket", 404, RemoteRefusedError),
        ("ExpiredToken", 400, RemoteRefusedError),
        ("InvalidAccessKeyId", 403, RemoteRefusedError),
        ("SignatureDoesNotMatch", 403, RemoteRefusedError),
        ("PermanentRedirect", 301, RemoteRefusedError),
        ("301", 301, RemoteRefusedError),
        ("AuthorizationHeaderMalformed", 400, RemoteRefusedError),
        ("RequestTimeTooSkewed", 403, RemoteRefusedError),
        ("KMS.DisabledException", 400, RemoteRefusedError),
        ("NotImplemented", 501, RemoteRefusedError),
        ("XMinioStorageFull", 507, RemoteRefusedError),
        ("EntityTooSmall", 400, RemoteRefusedError),
        ("SomethingNew", 400, RemoteRefusedError),
        ("NoSuchKey", 404, ObjectMissingError),
        ("404", 404, ObjectMissingError),
        ("NoSuchUpload", 404, UploadGoneError),
        ("InvalidPart", 400, UploadGoneError),
        ("PreconditionFailed", 412, PreconditionFailedError),
        ("412", 412, PreconditionFailedError),
        ("BadDigest", 400, RemoteDigestError),
        ("XAmzContentChecksumMismatch", 400, RemoteDigestError),
        ("InvalidRange", 416, RemoteDigestError),
    ],
)
def test_an_answer_means_one_kind_of_error(code: str, status: int, kind: ErrorKind) -> None:
    assert kind_of_answer(code, status) is kind


def test_a_code_that_is_known_wins_over_the_status() -> None:
    for code, kind in KIND_OF_CODE.items():
        for status in (200, 400, 403, 404, 409, 412, 500, 503):
            assert kind_of_answer(code, status) is kind


def test_every_status_has_a_meaning() -> None:
    for status in range(200, 600):
        expected = KIND_OF_STATUS.get(status)
        found = kind_of_answer("", status)
        assert expected in (None, found)
        assert issubclass(found, RemoteError)


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        (None, None),
        ("7", 7.0),
        (" 120 ", 120.0),
        ("Thu, 01 Jan 1970 00:01:40 GMT", 90.0),
        ("Thu, 01 Jan 1970 00:00:00 GMT", 0.0),  # in the past
        ("soon", None),
        ("-1", None),
        ("", None),
    ],
)
def test_retry_after_is_seconds_or_a_date(header: str | None, seconds: float | None) -> None:
    assert retry_after_seconds(header, now=10.0) == seconds
