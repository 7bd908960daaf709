"""Where the clients are sent: the S3 door of a whole node, with SeaweedFS behind it.

``S3CLIENTS_STRAIGHT=1`` sends them to SeaweedFS itself: what a client expects of any S3.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import boto3
import pytest
from botocore.config import Config

from cachetier.remote.s3.boto_client import Credentials
from cachetier.testing.s3_endpoint import S3Endpoint
from tests.integration.serving import node_settings, running

if TYPE_CHECKING:
    from types_boto3_s3 import S3Client

STRAIGHT = "S3CLIENTS_STRAIGHT"
PREFIX = "train/"
LEVEL = "x-cachetier-level"
SECONDS = 60.0


@dataclass(frozen=True)
class Place:
    """What a client is told, and the bucket where its objects must arrive.

    ``environment`` is what ``cachetier s3 env`` prints, and all that a client gets.
    """

    environment: Mapping[str, str]
    bucket: str
    behind: S3Endpoint
    is_door: bool

    @property
    def url(self) -> str:
        return self.environment["AWS_ENDPOINT_URL_S3"]

    @property
    def credentials(self) -> Credentials:
        names = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")
        return Credentials(*(self.environment[name] for name in names))

    def address(self, name: str = "") -> str:
        return f"s3://{self.bucket}/{PREFIX}{name}"

    def boto(self, config: Config | None = None) -> S3Client:
        return _boto(self.url, self.credentials, config)

    def straight(self) -> S3Client:
        """Return a client of the bucket itself."""
        return _boto(self.behind.url, self.behind.credentials)

    def in_bucket(self, name: str) -> bytes:
        found = self.straight().get_object(Bucket=self.bucket, Key=PREFIX + name)
        return found["Body"].read()

    def names_in_bucket(self, below: str) -> list[str]:
        return self._names(self.straight(), below)

    def names_in_listing(self, below: str) -> list[str]:
        """Return the names that the client's side lists."""
        return self._names(self.boto(), below)

    def read(self, name: str) -> bytes:
        return self.boto().get_object(Bucket=self.bucket, Key=PREFIX + name)["Body"].read()

    def assert_arrives(self, contents: Mapping[str, bytes]) -> None:
        """Make sure of objects that were just put: here at once, soon in the bucket, the same.

        The bucket has them under the same keys, byte by byte, and their ETags stay what they were.
        """
        here = self.boto()
        before = {name: self._etag(here, name) for name in contents}
        for name, content in contents.items():
            assert self.read(name) == content, name
        self.wait_until_durable(contents)
        for name, content in contents.items():
            assert self.in_bucket(name) == content, name
            assert self.read(name) == content, name
        assert {name: self._etag(here, name) for name in contents} == before

    def wait_until_durable(self, names: Mapping[str, bytes]) -> None:
        """Return once the door says of all that the bucket has them."""
        client, waiting = self.boto(), list(names) if self.is_door else []
        give_up_at = time.monotonic() + SECONDS
        while waiting:
            assert time.monotonic() < give_up_at, f"not drained: {waiting}"
            head = client.head_object(Bucket=self.bucket, Key=PREFIX + waiting[0])
            if head["ResponseMetadata"]["HTTPHeaders"][LEVEL] == "durable":
                waiting.pop(0)
            else:
                time.sleep(0.05)

    def _names(self, client: S3Client, below: str) -> list[str]:
        pages = client.get_paginator("list_objects_v2")
        found = pages.paginate(Bucket=self.bucket, Prefix=PREFIX + below)
        keys = [each["Key"] for page in found for each in page.get("Contents", ())]
        return [key.removeprefix(PREFIX) for key in keys]

    def _etag(self, client: S3Client, name: str) -> str:
        return client.head_object(Bucket=self.bucket, Key=PREFIX + name)["ETag"]


def _boto(url: str, credentials: Credentials, config: Config | None = None) -> S3Client:
    return boto3.client(
        "s3",
        endpoint_url=url,
        region_name="us-east-1",
        aws_access_key_id=credentials.access_key,
        aws_secret_access_key=credentials.secret_key,
        config=config,
    )


@contextmanager
def door(behind: S3Endpoint, bucket: str, directory: Path) -> Iterator[dict[str, str]]:
    """Run a node with an S3 door; give what ``cachetier s3 env`` prints."""
    with tempfile.TemporaryDirectory(prefix="ct-") as short, pytest.MonkeyPatch.context() as patch:
        settings = {
            **node_settings(directory, behind, f"s3://{bucket}/steps", patch),
            "socket": Path(short) / "s",
            "s3": "127.0.0.1:0",
            "s3_mount": [{"name": "train", "bucket": f"{bucket}/{PREFIX}"}],
        }
        with running(settings) as service:
            yield printed_environment(f"unix://{service.socket}")


def printed_environment(url: str) -> dict[str, str]:
    """Return what ``eval "$(cachetier s3 env)"`` would set."""
    done = subprocess.run(
        [sys.executable, "-m", "cachetier", "s3", "env"],
        env={**os.environ, "CACHETIER_URL": url},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    words = [shlex.split(line, comments=True) for line in done.stdout.splitlines()]
    settings = [word for line in words for word in line if "=" in word]
    return dict(setting.split("=", 1) for setting in settings)
