"""pytest fixtures: S3 servers that a whole session shares. Import them into a ``conftest.py``."""

from __future__ import annotations

import shutil
from collections.abc import Iterator

import pytest

from cachetier.testing.moto_server import moto_server
from cachetier.testing.s3_endpoint import S3Endpoint
from cachetier.testing.seaweed import seaweedfs


@pytest.fixture(scope="session")
def moto_s3() -> Iterator[S3Endpoint]:
    """A moto server in this process: quick to start, judges neither digests nor access."""
    with moto_server() as endpoint:
        yield endpoint


@pytest.fixture(scope="session")
def seaweed_s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Endpoint]:
    """A SeaweedFS server: judges digests, conditions and access; its data goes when it ends."""
    data_dir = tmp_path_factory.mktemp("seaweedfs")
    with seaweedfs(data_dir) as endpoint:
        yield endpoint
    shutil.rmtree(data_dir)
