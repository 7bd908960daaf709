"""What all tests of crashes share."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

import pytest

from cachetier.local.catalog import connection
from cachetier.testing.s3_endpoint import S3Endpoint
from cachetier.testing.s3proxy import S3Proxy
from tests.stateful.unsynced import unsynced


@pytest.fixture
def vfs() -> Iterator[str]:
    with unsynced() as name:
        yield name


@pytest.fixture(scope="package", autouse=True)
def _sums_of_frames_are_remembered() -> Iterator[None]:
    """Thousands of restarts from images of one life sum the same frames, in Python."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(connection, "_checksum", lru_cache(maxsize=4096)(connection._checksum))
        yield


@pytest.fixture(scope="module")
def slow_s3(seaweed_s3: S3Endpoint) -> Iterator[S3Endpoint]:
    """SeaweedFS as far away as S3: 35 ms for each request keep shards dirty for a while."""
    with S3Proxy(seaweed_s3.url, latency_seconds=0.035) as proxy:
        yield seaweed_s3.behind(proxy.url)
