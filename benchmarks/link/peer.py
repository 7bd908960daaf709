"""One upload or download by a library: ``peer.py LIBRARY ENDPOINT BUCKET THREADS put|get FILES``.

Prints the seconds, and processor seconds, from the first call until the last file is through; the
start of the process and the import of the library are not counted. Downloads go to files, but for
``sockets``, which moves bytes between the sink and memory and leaves files without content.
"""

from __future__ import annotations

import os
import ssl
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import SplitResult, urlsplit

from benchmarks.link import ranged

PART_BYTES = 8 << 20  # the default of both

Move = Callable[[Path], object]


def main(library: str, endpoint: str, bucket: str, number: str, verb: str, *files: str) -> None:
    threads = int(number)
    paths = [Path(each) for each in files]
    makes: dict[str, Callable[[str, str, int, str], Move]] = {
        "boto3": _boto3,
        "crt": _crt,
        "obstore": _obstore,
        "multistorageclient": _multi_storage_client,
        "sockets": partial(_sockets, paths),
    }
    move = makes[library](endpoint, bucket, max(1, threads // len(paths)), verb)
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


def _obstore(endpoint: str, bucket: str, _threads: int, verb: str) -> Move:
    from obstore.store import S3Store

    store: Any = S3Store(
        bucket,
        endpoint=endpoint,
        region="us-east-1",
        access_key_id="nobody",
        secret_access_key="nobody",
        virtual_hosted_style_request=False,
        client_options={"allow_http": True, "allow_invalid_certificates": True},
    )

    def get(path: Path) -> None:
        with path.open("wb") as file:
            for chunk in store.get(path.name).stream(min_chunk_size=PART_BYTES):
                file.write(chunk)

    return get if verb == "get" else lambda path: store.put(path.name, path)


def _multi_storage_client(endpoint: str, bucket: str, _threads: int, verb: str) -> Move:
    from multistorageclient import StorageClient, StorageClientConfig

    options = {"base_path": bucket, "region_name": "us-east-1", "endpoint_url": endpoint}
    profile = {"storage_provider": {"type": "s3", "options": options}}
    config = StorageClientConfig.from_dict({"profiles": {"sink": profile}}, profile="sink")
    client: Any = StorageClient(config)
    if verb == "put":
        return lambda path: client.upload_file(path.name, str(path))
    return lambda path: client.download_file(path.name, str(path))


def _sockets(paths: list[Path], endpoint: str, bucket: str, _threads: int, verb: str) -> Move:
    """One connection a file."""
    address = urlsplit(endpoint)
    tls = None
    if address.scheme == "https":
        tls = ssl.create_default_context(cafile=os.environ["REQUESTS_CA_BUNDLE"])
    sink = ranged.Server(address.hostname or "", address.port or 0, tls)
    if verb == "put":
        bodies = {path: path.read_bytes() for path in paths}
        return lambda path: ranged.write(sink, f"/{bucket}/{path.name}", bodies[path])
    memory = {path: bytearray(ranged.size_of(sink, f"/{bucket}/{path.name}")) for path in paths}

    def get(path: Path) -> None:
        ranged.read(sink, f"/{bucket}/{path.name}", memoryview(memory[path]), 1)
        path.touch()
        os.truncate(path, len(memory[path]))

    return get


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
