"""The span of the caller's own trace, which calls made inside of it bring along.

A client sends it with each request, a door of the service notes it around each: what happens inside
may ask for it. It is the header ``traceparent`` of W3C Trace Context, and the field of that name in
a request over the socket.

The service makes it the parent of the checkpoint's trace, if it traces (docs/logs.md, "Traces").
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
def traced(traceparent: str) -> Iterator[None]:
    """Have the calls inside, on this thread, say that they belong to a span of the caller's.

    Args:
        traceparent: The span, as W3C Trace Context writes it; OpenTelemetry's ``inject`` gives it.

    Raises:
        ValueError: It is none.
    """
    if _FORM.fullmatch(traceparent) is None:
        raise ValueError(f"{traceparent!r} is no traceparent, like 00-<32 hex>-<16 hex>-01")
    with called_by(traceparent):
        yield


@contextmanager
def called_by(traceparent: object) -> Iterator[None]:
    """Do inside what belongs to a span of the caller's; what is no span counts as none."""
    is_span = isinstance(traceparent, str) and _FORM.fullmatch(traceparent) is not None
    token = _traceparent.set(str(traceparent) if is_span else None)
    try:
        yield
    finally:
        _traceparent.reset(token)


def brought_along() -> dict[str, str]:
    """Return what a request or an event says of its caller: nothing, unless the caller said so."""
    traceparent = _traceparent.get()
    return {} if traceparent is None else {FIELD: traceparent}
