"""The S3 door: the application before the node's objects, and the server that serves it."""

from __future__ import annotations

from collections.abc import Collection

from cachetier.doors.http.limits import RequestLimits
from cachetier.doors.http.pools import Pools
from cachetier.doors.http.server import HttpServer
from cachetier.doors.operations import Operations
from cachetier.doors.s3.answers import error_answer
from cachetier.doors.s3.app import Answered, S3App
from cachetier.objects.base import Objects
from cachetier.tls import Tls

HEAD_BYTES = 32 << 10  # a presigned URL has a key of 1 KiB three times over, and 2 KiB of metadata
LIMITS = RequestLimits(head_bytes=HEAD_BYTES)


class S3Door(HttpServer):
    """Serves the node's objects to programs that speak S3."""

    def __init__(
        self,
        address: tuple[str, int],
        operations: Operations,
        objects: Objects,
        *,
        hosts: Collection[str] = (),
        tls: Tls | None = None,
        answered: Answered = lambda _operation, _code: None,
        limits: RequestLimits = LIMITS,
    ) -> None:
        """Prepare the door; before ``hosts``, and localhost, a bucket may stand."""
        self._pools = Pools(patient=limits.requests, wire=limits.uploads)
        app = S3App(operations, objects, self._pools, hosts=hosts, limits=limits, answered=answered)
        super().__init__(
            "s3",
            address,
            app,
            limits=limits,
            failed=operations.failed,
            describe=error_answer,
            tls=tls,
        )

    def stop(self, grace_seconds: float) -> None:
        """Take no new connections; close when those in flight end, or at ``grace_seconds``."""
        super().stop(grace_seconds)
        self._pools.close()
