"""A moto S3 server in this process: starts in a fifth of a second, believes everything.

moto accepts wrong digests, wrong signatures and unknown keys, and keeps no CRC-64/NVME of a
multipart object, hence ``verify = readback``. Integrity and access are for SeaweedFS to judge.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from cachetier.remote.boto_client import Credentials
from cachetier.testing.s3_endpoint import DEFAULT_BUCKET, S3Endpoint


@contextmanager
def moto_server(*, port: int = 0, bucket: str = DEFAULT_BUCKET) -> Iterator[S3Endpoint]:
    """Serve S3 on a free port of loopback, with ``bucket`` there, until the block ends.

    Servers in one process share moto's state.
    """
    from moto.server import ThreadedMotoServer

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
