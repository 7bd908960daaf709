"""One node for the tests of each client."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator

import pytest

from cachetier.testing.s3_endpoint import S3Endpoint
from tests.integration.s3clients.place import STRAIGHT, Place, door


@pytest.fixture(scope="module")
def place(seaweed_s3: S3Endpoint, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """Serve one node for the tests of a client, with a bucket of its own."""
    bucket = f"clients-{uuid.uuid4().hex[:12]}"
    seaweed_s3.create_bucket(bucket)
    if STRAIGHT in os.environ:
        environment = {**seaweed_s3.environment(), "AWS_ENDPOINT_URL_S3": seaweed_s3.url}
        yield Place(environment, bucket, seaweed_s3, is_door=False)
        return
    with door(seaweed_s3, bucket, tmp_path_factory.mktemp("node")) as environment:
        yield Place(environment, bucket, seaweed_s3, is_door=True)
