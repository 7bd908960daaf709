"""Where a running S3 server for tests is, and how to get in."""

from __future__ import annotations

import socket
from dataclasses import dataclass, replace

from cachetier.remote.s3.boto_client import Credentials, connect
from cachetier.remote.s3.reconnecting import Renewed
from cachetier.remote.s3.store import S3ObjectStore, Verify
from cachetier.remote.stall_guard import Timeouts

DEFAULT_BUCKET = "cachetier"


@dataclass(frozen=True, slots=True)
class S3Endpoint:
    """An S3 server on loopback, with a bucket to use and credentials that may do everything.

    ``verify`` is what the server can do: ``checksum`` where it keeps and judges CRC-64/NVME.
    ``conditional_writes`` is False where it ignores ``If-None-Match``.
    """

    url: str
    bucket: str
    credentials: Credentials
    verify: Verify
    conditional_writes: bool = True

    def store(
        self,
        *,
        bucket: str | None = None,
        credentials: Credentials | None = None,
        conditional_writes: bool | None = None,
        timeouts: Timeouts | None = None,
    ) -> S3ObjectStore:
        """Return a store on this server; what is not given is the endpoint's own."""
        if conditional_writes is None:
            conditional_writes = self.conditional_writes
        keys = credentials or self.credentials
        return S3ObjectStore(
            bucket or self.bucket,
            Renewed(lambda: connect(endpoint=self.url, credentials=keys, timeouts=timeouts)),
            verify=self.verify,
            conditional_writes=conditional_writes,
            timeouts=timeouts,
        )

    def create_bucket(self, bucket: str) -> None:
        connect(endpoint=self.url, credentials=self.credentials).create_bucket(Bucket=bucket)

    def behind(self, url: str) -> S3Endpoint:
        """Return this server as it is reached through a proxy at ``url``."""
        return replace(self, url=url)

    def environment(self) -> dict[str, str]:
        """Return the variables that let a child process in through the usual AWS chain."""
        return {
            "AWS_ACCESS_KEY_ID": self.credentials.access_key,
            "AWS_SECRET_ACCESS_KEY": self.credentials.secret_key,
            "AWS_DEFAULT_REGION": "us-east-1",
        }


def free_ports(count: int) -> list[int]:
    """Return ports that were free on loopback a moment ago; another process may still be faster."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports
