"""Real nodes with an S3 door, each behind a proxy that looks at what is about to become visible."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import boto3
from botocore.config import Config
from botocore.exceptions import ClientError
from cachetier_client import Client

from cachetier.remote.s3.boto_client import Credentials
from cachetier.testing.http_wire import WireHead
from cachetier.testing.s3_endpoint import S3Endpoint, free_ports
from cachetier.testing.s3proxy import S3Proxy
from cachetier.testing.troubles import Trouble, Troubles
from tests.integration.fallbacks import Node

PREFIX = "train/"
FIRST = "bytes=0-99"
NUMBER = "x-amz-meta-number"
# What programs do of themselves where a service is being started again.
PATIENT = Config(retries={"mode": "standard", "total_max_attempts": 30}, read_timeout=60)

Look = Callable[[str, str, str | None], None]  # (method, key, number) that is about to be visible


class Looking(Troubles):
    """Calls ``look`` before a request is passed on that makes something visible."""

    def __init__(self, look: Look) -> None:
        super().__init__()
        self._look = look
        self.broken: list[BaseException] = []
        self.shown = 0

    def strike(self, request: WireHead) -> Trouble | None:
        parts = urlsplit(request.first[1])
        key = unquote(parts.path).lstrip("/").partition("/")[2]
        of_upload = "uploadId" in parts.query
        is_visible = request.method == "POST" if of_upload else request.method in ("PUT", "DELETE")
        if is_visible and key.startswith(PREFIX) and ".cachetier/" not in key:
            self.shown += 1
            try:
                self._look(request.method, key, request.fields.get(NUMBER))
            except BaseException as error:
                self.broken.append(error)
        return super().strike(request)


class OrderedNode:
    """A service of its own with an S3 door, whose bucket lies behind ``proxy``."""

    def __init__(
        self, name: str, scratch: Path, endpoint: S3Endpoint, bucket: str, look: Look, order: str
    ) -> None:
        self.looking = Looking(look)
        self.proxy = S3Proxy(endpoint.url, troubles=self.looking)
        self.proxy.start()
        (port,) = free_ports(1)
        mount = {"name": "train", "bucket": f"{bucket}/{PREFIX}", "order": order}
        self.bucket, self.url = bucket, f"http://127.0.0.1:{port}"
        self.node = Node(
            scratch,
            name,
            {
                **endpoint.environment(),
                "CACHETIER_REMOTE": f"s3://{bucket}/steps",
                "CACHETIER_REMOTE_ENDPOINT": self.proxy.url,
                "CACHETIER_REMOTE_ASSUME": ",".join(
                    [endpoint.verify, *["unconditional"] * (not endpoint.conditional_writes)]
                ),
                "CACHETIER_S3": f"127.0.0.1:{port}",
                "CACHETIER_S3_MOUNT": json.dumps([mount]),
            },
        )
        self.node.start()
        with self.client() as client:
            made = client.create_s3_key(expires_seconds=None)
        self._key = Credentials(made["id"], made["secret"])

    def client(self) -> Client:
        return Client(f"unix://{self.node.socket}", fallback="fail")

    def status(self) -> dict[str, Any]:
        with self.client() as client:
            return client.status()

    def s3(self) -> Any:
        return boto(self.url, self._key)

    def put(self, name: str, body: bytes, **more: Any) -> str:
        """Put an object and return which order its answer promises."""
        done = self.s3().put_object(Bucket=self.bucket, Key=PREFIX + name, Body=body, **more)
        return str(done["ResponseMetadata"]["HTTPHeaders"]["x-cachetier-order"])

    def kill(self) -> None:
        self.node.kill()

    def close(self) -> None:
        self.node.close()
        self.proxy.__exit__()


class Straight:
    """The bucket itself, past all nodes."""

    def __init__(self, endpoint: S3Endpoint, bucket: str) -> None:
        self._endpoint, self._bucket = endpoint, bucket
        self._local = threading.local()

    def get(self, name: str) -> bytes | None:
        """Return the first bytes of an object; None where there is none."""
        if not hasattr(self._local, "client"):
            self._local.client = boto(self._endpoint.url, self._endpoint.credentials)
        try:
            found = self._local.client.get_object(
                Bucket=self._bucket, Key=PREFIX + name, Range=FIRST
            )
        except ClientError as error:
            if error.response["Error"]["Code"] != "NoSuchKey":
                raise
            return None
        return bytes(found["Body"].read())


def boto(url: str, key: Credentials) -> Any:
    return boto3.session.Session().client(
        "s3",
        endpoint_url=url,
        region_name="us-east-1",
        aws_access_key_id=key.access_key,
        aws_secret_access_key=key.secret_key,
        config=PATIENT,
    )
