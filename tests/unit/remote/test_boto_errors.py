"""Every answer and every failure below HTTP has one meaning, whatever its message says."""

from __future__ import annotations

import ssl
from typing import Any

import botocore.exceptions
import botocore.parsers
import pytest
import urllib3.exceptions
from cachetier_client.s3_errors import (
    ErrorKind,
)

from cachetier.errors import (
    RemoteRefusedError,
    TransientError,
)
from cachetier.remote.s3.boto_errors import KIND_OF_EXCEPTION, kind_of_exception, translated_errors

WORDS: dict[str, Any] = {"error": "a cause", "endpoint_url": "http://127.0.0.1:1"}


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (botocore.exceptions.EndpointConnectionError(**WORDS), TransientError),
        (botocore.exceptions.ConnectTimeoutError(**WORDS), TransientError),
        (botocore.exceptions.ReadTimeoutError(**WORDS), TransientError),
        (botocore.exceptions.ConnectionClosedError(**WORDS), TransientError),
        (botocore.exceptions.ResponseStreamingError(**WORDS), TransientError),
        (botocore.exceptions.HTTPClientError(**WORDS), TransientError),
        (botocore.exceptions.SSLError(**WORDS), TransientError),
        (botocore.parsers.ResponseParserError(), TransientError),
        (urllib3.exceptions.ProtocolError(), TransientError),
        (ConnectionResetError(), TransientError),
        (TimeoutError(), TransientError),
        (botocore.exceptions.NoCredentialsError(), RemoteRefusedError),
        (botocore.exceptions.ParamValidationError(report="x"), RemoteRefusedError),
        (ValueError(), None),
        (AssertionError(), None),
    ],
    ids=lambda value: getattr(value, "__name__", type(value).__name__),
)
def test_a_failure_below_http_means_one_kind_of_error(
    error: Exception, kind: ErrorKind | None
) -> None:
    assert kind_of_exception(error) is kind


def test_an_untrusted_certificate_is_for_a_person() -> None:
    error = botocore.exceptions.SSLError(**WORDS)
    error.__context__ = urllib3.exceptions.SSLError()
    error.__context__.__context__ = ssl.SSLCertVerificationError()

    assert kind_of_exception(error) is RemoteRefusedError


def test_a_broken_tls_connection_passes() -> None:
    error = botocore.exceptions.SSLError(**WORDS)
    error.__context__ = ssl.SSLEOFError()

    assert kind_of_exception(error) is TransientError


def test_the_table_names_exceptions_that_exist() -> None:
    modules = (botocore.exceptions, botocore.parsers, urllib3.exceptions, ssl)
    builtins = {"OSError"}
    for name in KIND_OF_EXCEPTION:
        assert name in builtins or any(hasattr(module, name) for module in modules), name


@pytest.mark.parametrize(
    ("key", "words"), [("a/b", "head_object a/b: no way"), (None, "head_object: no way")]
)
def test_an_error_names_the_operation_and_the_key_if_there_is_one(
    key: str | None, words: str
) -> None:
    with pytest.raises(TransientError) as caught, translated_errors("head_object", key):
        raise ConnectionResetError("no way")
    assert caught.value.message == words
