"""A node with an S3 door, and its clients: boto3 as it comes, and bare sockets.

boto3 takes the digests of what it sends, and over plain HTTP its SHA-256 too. Where the door's own
limit is measured that would hide it: there a signed link is all that a client needs to make.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import urlsplit

import boto3
from botocore.config import Config

from benchmarks.node import SERVE, TOKEN, Node, node
from cachetier.remote.s3.boto_client import Credentials
from cachetier.testing.s3_endpoint import S3Endpoint, free_ports

if TYPE_CHECKING:
    from types_boto3_s3 import S3Client

PREFIX = "bench-s3/"
RECEIVE_BYTES = 1 << 20
_LINK_SECONDS = 3600


@dataclass(frozen=True, slots=True)
class DoorNode:
    """A node that was started, and its S3 door as any S3 server."""

    node: Node
    endpoint: S3Endpoint


@contextmanager
def door(
    cache_dir: Path, remote: S3Endpoint | None = None, others: Sequence[str] = ()
) -> Iterator[DoorNode]:
    """Serve ``cache_dir`` behind an S3 door until the block ends; mount buckets ``others`` too.

    Without a remote nobody listens there: what is put stays dirty.
    """
    (port,) = free_ports(1)
    bucket = remote.bucket if remote is not None else "nobody"
    mounts = [{"name": "bench", "bucket": f"{bucket}/{PREFIX}"}]
    mounts += [{"name": other, "bucket": other} for other in others]
    settings = {"s3": f"127.0.0.1:{port}", "s3_mount": json.dumps(mounts)}
    with node(cache_dir, remote=remote, settings=settings) as started:
        made = _environment(started.url)
        credentials = Credentials(made["AWS_ACCESS_KEY_ID"], made["AWS_SECRET_ACCESS_KEY"])
        endpoint = S3Endpoint(made["AWS_ENDPOINT_URL_S3"], bucket, credentials, "checksum")
        yield DoorNode(started, endpoint)


def _environment(url: str) -> dict[str, str]:
    """Return what ``cachetier s3 env`` sets."""
    done = subprocess.run(
        [SERVE[0], "s3", "env", "--json"],
        env={**os.environ, "CACHETIER_URL": url, "CACHETIER_TOKEN": TOKEN},
        stdout=subprocess.PIPE,
        check=True,
    )
    return dict(json.loads(done.stdout)["environment"])


def boto(endpoint: S3Endpoint) -> S3Client:
    """Return boto3's client as a script makes it; its links are signed by version 4, too."""
    return boto3.client(
        "s3",
        endpoint_url=endpoint.url,
        region_name="us-east-1",
        aws_access_key_id=endpoint.credentials.access_key,
        aws_secret_access_key=endpoint.credentials.secret_key,
        config=Config(s3={"addressing_style": "path"}, signature_version="s3v4"),
    )


def signed_link(client: S3Client, operation: str, **parameters: Any) -> str:
    """Return a link that is all a client needs to do one thing."""
    return client.generate_presigned_url(operation, parameters, ExpiresIn=_LINK_SECONDS)


class Answered:
    """A connection whose answer's head has come."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        head = b""
        while b"\r\n\r\n" not in head:
            piece = connection.recv(4096)
            if not piece:
                raise ConnectionError(f"closed behind {head!r}")
            head += piece
        raw, _, self.pending = head.partition(b"\r\n\r\n")
        status, *lines = raw.decode("latin-1").split("\r\n")
        if not status.split(" ")[1].startswith("2"):
            raise RuntimeError(f"{status}: {self.pending[:500]!r}")
        pairs = (line.partition(":") for line in lines)
        self.fields = {name.lower(): text.strip() for name, _, text in pairs}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.connection.close()


def put_to(url: str, body: memoryview) -> str:
    """Send a body by PUT; return the ETag that is answered."""
    connection = _asked(url, "PUT", len(body))
    connection.sendall(body)
    with Answered(connection) as answered:
        return answered.fields["etag"]


def get_from(url: str, buffer: memoryview) -> int:
    """Receive a body by GET, piece by piece into one buffer; return its size."""
    with Answered(_asked(url, "GET", 0)) as answered:
        size_bytes = left = int(answered.fields["content-length"])
        left -= len(answered.pending)
        while left:
            received = answered.connection.recv_into(buffer)
            if not received:
                raise ConnectionError(f"closed {left} bytes before the end")
            left -= received
    return size_bytes


def _asked(url: str, method: str, size_bytes: int) -> socket.socket:
    parts = urlsplit(url)
    connection = socket.create_connection((parts.hostname or "", parts.port or 80), timeout=300)
    lines = [f"{method} {parts.path}?{parts.query} HTTP/1.1", f"Host: {parts.netloc}"]
    lines += [f"Content-Length: {size_bytes}"] if method == "PUT" else []
    connection.sendall("\r\n".join([*lines, "Connection: close", "\r\n"]).encode())
    return connection
