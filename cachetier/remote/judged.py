"""What boto3 raises, as errors of ours: the tables are in ``classify``."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from botocore.exceptions import ClientError

from cachetier.errors import RemoteError
from cachetier.remote import classify


@contextmanager
def judged(operation: str, key: str | None) -> Iterator[None]:
    """Turn boto3's and the network's errors inside into ours."""
    what = f"{operation} {key}" if key else operation
    try:
        yield
    except ClientError as error:
        answer = error.response
        code = answer.get("Error", {}).get("Code", "")
        said = answer.get("Error", {}).get("Message", "")
        meta = answer.get("ResponseMetadata", {})
        status = meta.get("HTTPStatusCode", 0)
        kind = classify.kind_of_answer(code, status)
        raised = kind(f"{what}: {said} ({code}, {status})", key=key, remote_code=code)
        header = meta.get("HTTPHeaders", {}).get("retry-after")
        raised.retry_after_seconds = classify.retry_after_seconds(header, time.time())
        raise raised from error
    except RemoteError:
        raise
    except Exception as error:
        below_http = classify.kind_of_exception(error)
        if below_http is None:
            raise
        raise below_http(f"{what}: {error}", key=key) from error
