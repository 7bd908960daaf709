"""Turn boto3's and the network's errors into ours: which error an answer is, hence the next move.

Tables decide. A code that S3 or a kin of it documents goes first, then the HTTP status; a failure
below HTTP is judged by the class of the exception. Message texts are never looked at: stores word
them as they like.
"""

from __future__ import annotations

import textwrap
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from email.utils import parsedate_to_datetime

from botocore.exceptions import ClientError

from cachetier.errors import (
    ObjectMissingError,
    PreconditionFailedError,
    RemoteDigestError,
    RemoteError,
    RemoteRefusedError,
    ThrottledError,
    TransientError,
    UploadGoneError,
)

MESSAGE_CHARACTERS = 500

ErrorKind = type[RemoteError]


def _table(rows: Mapping[ErrorKind, str]) -> dict[str, ErrorKind]:
    return {name: kind for kind, names in rows.items() for name in names.split()}


KIND_OF_CODE = _table(
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
            InvalidToken KMS.DisabledException KMS.NotFoundException MethodNotAllowed NoSuchBucket
            NotImplemented NotSignedUp PermanentRedirect QuotaExceeded RequestTimeTooSkewed
            SignatureDoesNotMatch TokenRefreshRequired UnauthorizedAccess XMinioStorageFull
        """,
        # About one object: that one is tried again later, and the others go on.
        RemoteError: """
            EntityTooLarge KeyTooLongError MetadataTooLarge
        """,
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
    _table(
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

# botocore's and urllib3's exceptions by name, as some are of certain versions only. The nearest
# base class that is listed decides.
KIND_OF_EXCEPTION = _table(
    {
        RemoteRefusedError: """
            CredentialRetrievalError EndpointProviderError InvalidRegionError LoginError
            NoAuthTokenError NoCredentialsError NoRegionError PartialCredentialsError
            ProfileNotFound SSOError SSLCertVerificationError TokenRetrievalError BotoCoreError
        """,
        TransientError: """
            ConnectionError EndpointConnectionError HTTPClientError IncompleteReadError
            ResponseParserError HTTPError OSError
        """,
    }
)


@contextmanager
def translated_errors(operation: str, key: str | None) -> Iterator[None]:
    """Turn boto3's and the network's errors inside into ours."""
    what = f"{operation} {key}" if key else operation
    try:
        yield
    except ClientError as error:
        answer = error.response
        code = answer.get("Error", {}).get("Code", "")
        message = answer.get("Error", {}).get("Message", "")
        meta = answer.get("ResponseMetadata", {})
        status = meta.get("HTTPStatusCode", 0)
        kind = kind_of_answer(code, status)
        text = f"{what}: {message} ({code}, {status})"
        raised = kind(text, key=key, remote_code=code, remote_status=status or None)
        header = meta.get("HTTPHeaders", {}).get("retry-after")
        raised.retry_after_seconds = retry_after_seconds(header, time.time())
        raise raised from error
    except RemoteError:
        raise
    except Exception as error:
        below_http = kind_of_exception(error)
        if below_http is None:
            raise
        raise below_http(f"{what}: {in_a_line(error)}", key=key) from error


def kind_of_answer(code: str, status: int) -> ErrorKind:
    """Return the error that an answer with ``code`` and HTTP ``status`` means."""
    known = KIND_OF_CODE.get(code) or KIND_OF_STATUS.get(status)
    if known is not None:
        return known
    # An unknown code: the server's own trouble may pass, a request it rejects stays rejected. A
    # status below 300 comes with an error that followed it in the body.
    return RemoteRefusedError if 300 <= status < 500 else TransientError


def kind_of_exception(error: BaseException) -> ErrorKind | None:
    """Return the error that a failure below HTTP means; None when it is not the remote's."""
    for base in type(error).__mro__:
        if base.__name__ == "SSLError" and error.__context__ is not None:
            # A broken connection and an untrusted certificate differ only in what lies underneath.
            return kind_of_exception(error.__context__)
        if base.__name__ in KIND_OF_EXCEPTION:
            return KIND_OF_EXCEPTION[base.__name__]
    return None


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


def in_a_line(error: Exception) -> str:
    """Return what ``error`` says; some repeat all that a program has printed."""
    return textwrap.shorten(str(error), MESSAGE_CHARACTERS, placeholder=" ...")
