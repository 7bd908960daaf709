"""Turn botocore's and the network's errors into ours: which one an answer is, hence the next move.

An answer is judged as ``cachetier_client.s3_errors`` says, a failure below HTTP by the class of the
exception.
"""

from __future__ import annotations

import textwrap
import time
from collections.abc import Iterator
from contextlib import contextmanager

from botocore.exceptions import ClientError
from cachetier_client.s3_errors import (
    ErrorKind,
    kind_of_answer,
    kinds_by_name,
    retry_after_seconds,
)

from cachetier.errors import RemoteError, RemoteRefusedError, TransientError

MESSAGE_CHARACTERS = 500

# botocore's and urllib3's exceptions by name, as some are of certain versions only. The nearest
# base class that is listed decides.
KIND_OF_EXCEPTION = kinds_by_name(
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
    """Turn botocore's and the network's errors inside into ours."""
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


def kind_of_exception(error: BaseException) -> ErrorKind | None:
    """Return the error that a failure below HTTP means; None when it is not the remote's."""
    for base in type(error).__mro__:
        if base.__name__ == "SSLError" and error.__context__ is not None:
            # A broken connection and an untrusted certificate differ only in what lies underneath.
            return kind_of_exception(error.__context__)
        if base.__name__ in KIND_OF_EXCEPTION:
            return KIND_OF_EXCEPTION[base.__name__]
    return None


def in_a_line(error: Exception) -> str:
    """Return what ``error`` says; some repeat all that a program has printed."""
    return textwrap.shorten(str(error), MESSAGE_CHARACTERS, placeholder=" ...")
