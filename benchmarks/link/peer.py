"""One upload or download by a library: ``peer.py boto3|crt ENDPOINT BUCKET THREADS put|get FILES``.

Prints the seconds, and processor seconds, from the first call until the last file is through; the
start of the process and the import of the library are not counted. ``get`` of the CRT client goes
to a file as well.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import SplitResult, urlsplit

PART_BYTES = 8 << 20  # the default of both

Move = Callable[[Path], object]


def main(library: str, endpoint: str, bucket: str, number: str, verb: str, *files: str) -> None:
    threads = int(number)
    paths = [Path(each) for each in files]
    make = {"boto3": _boto3, "crt": _crt}[library]
    move = make(endpoint, bucket, max(1, threads // len(paths)), verb)
    began, cpu = time.perf_counter(), time.process_time()
    with ThreadPoolExecutor(len(paths)) as pool:
        list(pool.map(move, paths))
    print(time.perf_counter() - began, time.process_time() - cpu, flush=True)


def _boto3(endpoint: str, bucket: str, threads: int, verb: str) -> Move:
    import boto3
    from boto3.s3.transfer import TransferConfig
    from botocore.config import Config

    client: Any = boto3.client(
        "s3",
        endpoint_url=endpoint,
        config=Config(
            max_pool_connections=320,
            request_checksum_calculation="when_required",
            response_checksum_validation="when_required",
        ),
    )
    how = TransferConfig(max_concurrency=threads)
    if verb == "put":
        return lambda path: client.upload_file(str(path), bucket, path.name, Config=how)
    return lambda path: client.download_file(bucket, path.name, str(path), Config=how)


def _crt(endpoint: str, bucket: str, _threads: int, verb: str) -> Move:
    from awscrt.auth import AwsCredentialsProvider
    from awscrt.http import HttpHeaders, HttpRequest
    from awscrt.io import (
        ClientBootstrap,
        DefaultHostResolver,
        EventLoopGroup,
    )
    from awscrt.s3 import S3Client, S3RequestType

    parts = urlsplit(endpoint)
    group = EventLoopGroup()
    client = S3Client(
        bootstrap=ClientBootstrap(group, DefaultHostResolver(group)),
        region="us-east-1",
        credential_provider=AwsCredentialsProvider.new_static("nobody", "nobody"),
        **_tls(parts),
        part_size=PART_BYTES,
        throughput_target_gbps=100,
    )

    def move(path: Path) -> None:
        headers = [("host", parts.netloc)]
        if verb == "put":
            headers.append(("content-length", str(path.stat().st_size)))
        method, kind = ("PUT", "PUT_OBJECT") if verb == "put" else ("GET", "GET_OBJECT")
        request = HttpRequest(method, f"/{bucket}/{path.name}", HttpHeaders(headers))
        where = {"send_filepath" if verb == "put" else "recv_filepath": str(path)}
        client.make_request(
            request=request, type=S3RequestType[kind], **where
        ).finished_future.result()

    return move


def _tls(address: SplitResult) -> dict[str, Any]:
    from awscrt.io import ClientTlsContext, TlsContextOptions
    from awscrt.s3 import S3RequestTlsMode

    if address.scheme == "http":
        return {"tls_mode": S3RequestTlsMode.DISABLED}
    trusted = TlsContextOptions()
    trusted.override_default_trust_store_from_path(None, os.environ["REQUESTS_CA_BUNDLE"])
    options = ClientTlsContext(trusted).new_connection_options()
    options.set_server_name(address.hostname or "")
    return {"tls_mode": S3RequestTlsMode.ENABLED, "tls_connection_options": options}


if __name__ == "__main__":
    main(*sys.argv[1:])
