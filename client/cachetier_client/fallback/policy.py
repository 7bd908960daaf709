"""The fallback policy of a client: ``wait``, ``fail`` or ``s3`` while its service is away."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Literal, get_args

from cachetier_client.clock import Clock
from cachetier_client.io.workers import Workers
from cachetier_client.transport.base import LastingTransport, Transport
from cachetier_client.transport.retrying import RetryingTransport
from cachetier_client.units import parsed_span

if TYPE_CHECKING:
    from cachetier_client.fallback.direct.remote import RemoteAddress

Fallback = Literal["s3", "wait", "fail"]


def lasting_transport(
    single: Transport, fallback: str | None, clock: Clock, workers: Workers
) -> LastingTransport:
    """Return what makes the calls of a client.

    Args:
        single: Makes single attempts.
        fallback: What was passed; default ``CACHETIER_FALLBACK``, then ``s3`` as soon as a remote
            is known, by ``CACHETIER_REMOTE`` or from the service, and ``wait`` until then.
        clock: Times the waits.
        workers: Threads to upload with.

    Raises:
        ValueError: A fallback, a span or a remote that is none.
    """
    if os.environ.get("CACHETIER_FALLBACK_AFTER"):
        raise ValueError("CACHETIER_FALLBACK_AFTER is a part of CACHETIER_FALLBACK now: s3:20s")
    text = os.environ.get("CACHETIER_FALLBACK") or "s3"
    usual, _, after = text.partition(":")
    if usual not in get_args(Fallback) or (after and usual != "s3"):
        raise ValueError(
            f"CACHETIER_FALLBACK={text!r} is not one of 's3', 's3:20s', 'wait', 'fail'"
        )
    chosen = fallback or usual
    if chosen not in get_args(Fallback):
        raise ValueError(f"fallback={chosen!r} is not one of 's3', 'wait' and 'fail'")
    if chosen == "wait" or chosen == "fail":
        return RetryingTransport(single, clock, gives_up=chosen == "fail")
    # Imported by those who may need the way past the service: it takes as long as all the rest.
    from cachetier_client.fallback.direct.remote import first_of, from_environment, from_hello
    from cachetier_client.fallback.transport import AFTER_SECONDS, FallbackTransport

    named = from_environment(os.environ)

    def remote() -> RemoteAddress | None:
        return first_of(named, from_hello(getattr(single, "remote", None)))

    try:
        after_seconds = parsed_span(after) if after else AFTER_SECONDS
    except ValueError as error:
        raise ValueError(f"CACHETIER_FALLBACK={text!r}: {error}") from None
    return FallbackTransport(single, remote, clock, workers, after_seconds)
