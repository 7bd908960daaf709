"""An S3 door over objects in memory, and clients of it: honest ones, and one that is rude."""

from __future__ import annotations

import http.client
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

import boto3
from botocore.auth import S3SigV4Auth, S3SigV4QueryAuth
from botocore.awsrequest import AWSRequest
from botocore.config import Config
from botocore.credentials import Credentials

from cachetier.access.access import Access
from cachetier.access.audit import Audit
from cachetier.access.principals import OWNER, Principal, principals_of
from cachetier.access.s3_keys import S3Keys
from cachetier.access.tokens import Tokens
from cachetier.doors.http.limits import RequestLimits
from cachetier.doors.s3.door import LIMITS, S3Door
from cachetier.model.objects import Mount
from tests.fakes.access import TOKEN
from tests.fakes.memory_objects import MemoryObjects
from tests.integration.serving import received, serving

SECONDS = 60.0
MOUNT = Mount("data", "bucket", "train/")
REGION = "us-east-1"


@dataclass(frozen=True)
class Key:
    """A key pair of somebody."""

    id: str
    secret: str


@dataclass(frozen=True)
class S3Answer:
    """What came back."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def code(self) -> str:
        """S3's code of an error."""
        begin, end = self.body.index(b"<Code>") + 6, self.body.index(b"</Code>")
        return self.body[begin:end].decode()


class S3Caller:
    """Signs requests with one key, and lets tests spoil them."""

    def __init__(self, url: str, key: Key) -> None:
        self.url = url
        self.port = int(url.rsplit(":", 1)[1])
        self.key = key

    def client(self, **config: Any) -> Any:
        """Return a boto3 client that tries once."""
        settings: dict[str, Any] = {
            "retries": {"total_max_attempts": 1},
            "s3": {"addressing_style": "path"},
            **config,
        }
        return boto3.client(
            "s3",
            endpoint_url=self.url,
            region_name=REGION,
            aws_access_key_id=self.key.id,
            aws_secret_access_key=self.key.secret,
            config=Config(**settings),
        )

    def signed(
        self, method: str, path: str, body: bytes = b"", headers: Mapping[str, str] | None = None
    ) -> dict[str, str]:
        """Return the headers of a signed request."""
        request = AWSRequest(method, f"{self.url}{path}", dict(headers or {}), body)
        S3SigV4Auth(Credentials(self.key.id, self.key.secret), "s3", REGION).add_auth(request)
        return {**{name: str(value) for name, value in request.headers.items()}}

    def presigned(self, method: str, path: str) -> str:
        """Return a path whose query has a signature too, as ``unsigned`` takes it."""
        request = AWSRequest(method, f"{self.url}{path}")
        signer = S3SigV4QueryAuth(Credentials(self.key.id, self.key.secret), "s3", REGION)
        signer.add_auth(request)
        return str(request.url).removeprefix(self.url)

    def __call__(
        self, method: str, path: str, body: bytes = b"", headers: Mapping[str, str] | None = None
    ) -> S3Answer:
        """Make a signed request."""
        return self.unsigned(method, path, body, self.signed(method, path, body, headers))

    def unsigned(
        self, method: str, path: str, body: bytes = b"", headers: Mapping[str, str] | None = None
    ) -> S3Answer:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=SECONDS)
        try:
            connection.request(method, path, body, dict(headers or {}))
            response = connection.getresponse()
            fields = {name.lower(): value for name, value in response.getheaders()}
            return S3Answer(response.status, fields, response.read())
        finally:
            connection.close()


class DoorServed(S3Caller):
    """A door over a fake; called as its owner."""

    def __init__(self, door: S3Door, objects: MemoryObjects, keys: S3Keys, owner: Key) -> None:
        super().__init__(door.url, owner)
        self.door = door
        self.objects = objects
        self._keys = keys

    def caller(self, principal: str) -> S3Caller:
        """Return somebody else's caller."""
        token, secret = self._keys.create(principal, None)
        return S3Caller(self.url, Key(token.id, secret))


@contextmanager
def door_over(
    directory: Path,
    mounts: Sequence[Mount] = (MOUNT,),
    *,
    principals: Sequence[Principal] = (),
    limits: RequestLimits = LIMITS,
    audit: str = "",
    **fake: Any,
) -> Iterator[DoorServed]:
    """Serve objects in memory at a free port; ``audit`` as the setting."""
    with serving() as served:
        tokens = Tokens(directory / "tokens", {OWNER: TOKEN}, now=lambda: 0.0)
        keys = S3Keys(directory, tokens)
        log = Audit(audit)
        access = Access(principals_of(list(principals), (), None), tokens, log, s3_keys=keys)
        objects = MemoryObjects(mounts, directory, **fake)
        node = replace(served.service.operations, access=access)
        door = S3Door(("127.0.0.1", 0), node, objects, hosts=["s3.test"], limits=limits)
        door.start()
        try:
            token, secret = keys.create(OWNER, None)
            yield DoorServed(door, objects, keys, Key(token.id, secret))
        finally:
            door.stop(1.0)
            log.close()


def path_of(key: str, bucket: str = "bucket") -> str:
    return f"/{bucket}/{quote(key)}"


__all__ = ["MOUNT", "DoorServed", "Key", "S3Answer", "S3Caller", "door_over", "path_of", "received"]
