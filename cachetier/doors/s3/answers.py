"""Documents of S3 as answers, those of errors among them."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Union
from xml.sax.saxutils import escape

from cachetier_client.errors import sentence
from starlette.responses import Response

from cachetier.doors.http.problems import CODE_HEADER
from cachetier.doors.s3.errors import STATUS, s3_code_of
from cachetier.errors import CachetierError

MEDIA_TYPE = "application/xml"
LEVEL = "x-cachetier-level"  # how safe an object is, of answers about it
ERROR = "Error"
NAMESPACE = "http://s3.amazonaws.com/doc/2006-03-01/"
# What no document of XML 1.0 can have; clients that have such keys ask for encoding-type=url.
_UNSPEAKABLE = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")

# The fields of a document, in order; what is no text is a record of fields itself.
Fields = list[tuple[str, Union[str, "Fields"]]]  # it names itself

request_id: ContextVar[str] = ContextVar("request_id", default="")  # of the request at hand
resource: ContextVar[str] = ContextVar("resource", default="")  # what it is about


def document(root: str, fields: Fields | str) -> bytes:
    """Return a document of S3."""
    namespace = "" if root == ERROR else f' xmlns="{NAMESPACE}"'  # S3's errors have none
    body = f"<{root}{namespace}>{_content(fields)}</{root}>"
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{body}'.encode()


def xml_answer(
    root: str, fields: Fields | str, headers: Mapping[str, str] | None = None, status: int = 200
) -> Response:
    return Response(document(root, fields), status, dict(headers or {}), MEDIA_TYPE)


def error_answer(error: CachetierError, *, close: bool = False) -> Response:
    """Return the answer for ``error``; ``close`` also ends the connection."""
    about: Fields = [("Resource", resource.get()), ("RequestId", request_id.get())]
    headers = {CODE_HEADER: error.code}
    if close:
        headers["Connection"] = "close"
    if error.retry_after_seconds is not None:
        headers["Retry-After"] = str(math.ceil(error.retry_after_seconds))
    return xml_answer(ERROR, [*error_fields(error), *about], headers, STATUS[s3_code_of(error)])


def error_fields(error: CachetierError) -> Fields:
    """Return what a document says of an error."""
    message = f"{sentence(error.message)} {error.hint}".strip()
    return [("Code", s3_code_of(error)), ("Message", message)]


def iso_date(instant: float) -> str:
    found = datetime.fromtimestamp(instant, UTC)
    return f"{found:%Y-%m-%dT%H:%M:%S}.{found.microsecond // 1000:03}Z"


def _content(found: str | Fields) -> str:
    if isinstance(found, str):
        return _text(found)
    return "".join(f"<{name}>{_content(value)}</{name}>" for name, value in found)


def _text(value: str) -> str:
    return escape(_UNSPEAKABLE.sub("\ufffd", value), {"\r": "&#13;"})
