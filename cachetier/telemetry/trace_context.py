"""The trace context of a request: the span of the caller's own trace, if it brought one.

A door notes it around each request; what happens inside may ask for it. It is the header
``traceparent`` of W3C Trace Context, and the field of that name in a request over the socket.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

FIELD = "traceparent"

_FORM = re.compile(r"(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")
_traceparent: ContextVar[str | None] = ContextVar(FIELD, default=None)


@contextmanager
def called_by(traceparent: object) -> Iterator[None]:
    """Do a request inside that brought ``traceparent``; what is none counts as not sent."""
    sent = isinstance(traceparent, str) and _FORM.fullmatch(traceparent) is not None
    token = _traceparent.set(str(traceparent) if sent else None)
    try:
        yield
    finally:
        _traceparent.reset(token)


def traceparent() -> str | None:
    """Return the caller's span, or None."""
    return _traceparent.get()
