"""A moto S3 server in this process: starts in a fifth of a second, believes everything.

moto accepts wrong digests, wrong signatures and unknown keys, and keeps no CRC-64/NVME of a
multipart object, hence ``verify = readback``. Integrity and access are for SeaweedFS to judge.
"""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import cache
from typing import Any

from cachetier.remote.s3.boto_client import Credentials
from cachetier.testing.s3_endpoint import DEFAULT_BUCKET, S3Endpoint

_TURN = threading.RLock()
"""Held by whoever changes what moto has: a request that writes, or ``forget_buckets``."""


@contextmanager
def moto_server(*, port: int = 0, bucket: str = DEFAULT_BUCKET) -> Iterator[S3Endpoint]:
    """Serve S3 on a free port of loopback, with ``bucket`` there, until the block ends.

    Servers in one process share moto's state.
    """
    from moto.server import ThreadedMotoServer

    _write_one_at_a_time()
    logging.getLogger("werkzeug").setLevel(logging.ERROR)  # a line for each request otherwise
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=port, verbose=False)
    server.start()
    try:
        host, bound_port = server.get_host_and_port()
        credentials = Credentials("moto", "moto-believes-anything")
        endpoint = S3Endpoint(f"http://{host}:{bound_port}", bucket, credentials, "readback")
        endpoint.create_bucket(bucket)
        yield endpoint
    finally:
        server.stop()


@cache
def _write_one_at_a_time() -> None:
    """Have moto judge a condition and write in one, as S3 does: else two claims may both win."""
    from moto.s3.responses import S3Response

    def in_turn(answer: Callable[..., Any]) -> Callable[..., Any]:
        def answer_in_turn(self: S3Response, request: Any, full_url: str) -> Any:
            with nullcontext() if request.method in ("GET", "HEAD") else _TURN:
                return answer(self, request, full_url)

        return answer_in_turn

    for name in ("_key_response", "_bucket_response"):
        setattr(S3Response, name, in_turn(getattr(S3Response, name)))


def forget_buckets() -> None:
    """Drop every bucket but the default one, and every object: moto keeps them all in memory."""
    if "moto.s3.models" not in sys.modules:
        return
    from moto.core.model_instances import reset_model_data
    from moto.s3.models import s3_backends

    with _TURN:  # of a node that has just ended, a request may still be worked on
        for backends in list(s3_backends.values()):
            for backend in list(backends.values()):
                kept = [name for name in backend.buckets if name == DEFAULT_BUCKET]
                regions = {name: backend.buckets[name].region_name for name in kept}
                backend.reset()
                for name, region in regions.items():
                    backend.create_bucket(name, region)
        reset_model_data()  # a list of every object ever made
