"""Translate boto3's errors into ours, by the tables of ``classify``."""

from __future__ import annotations

import textwrap
import time
from collections.abc import Iterator
from contextlib import contextmanager

from botocore.exceptions import ClientError

from cachetier.errors import RemoteError
from cachetier.remote import classify

MESSAGE_CHARACTERS = 500


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
        kind = classify.kind_of_answer(code, status)
        text = f"{what}: {message} ({code}, {status})"
        raised = kind(text, key=key, remote_code=code, remote_status=status or None)
        header = meta.get("HTTPHeaders", {}).get("retry-after")
        raised.retry_after_seconds = classify.retry_after_seconds(header, time.time())
        raise raised from error
    except RemoteError:
        raise
    except Exception as error:
        below_http = classify.kind_of_exception(error)
        if below_http is None:
            raise
        raise below_http(f"{what}: {in_a_line(error)}", key=key) from error


def in_a_line(error: Exception) -> str:
    """Return what ``error`` says; some repeat all that a program has printed."""
    return textwrap.shorten(str(error), MESSAGE_CHARACTERS, placeholder=" ...")
