"""What nginx with nothing set does to S3, and that each setting of ours is needed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from awscrt.checksums import crc64nvme

from cachetier.errors import RemoteRefusedError
from cachetier.testing.s3_endpoint import S3Endpoint
from cachetier.testing.seaweed import seaweedfs
from tests.stores.servers import HOST_KEPT, nginx_before

MIB = bytes(1 << 20)


@pytest.fixture(scope="module")
def behind(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Endpoint]:
    with seaweedfs(tmp_path_factory.mktemp("behind")) as endpoint:
        yield endpoint


def test_another_host_than_was_signed_is_refused(behind: S3Endpoint, tmp_path: Path) -> None:
    with nginx_before(behind, tmp_path, settings="") as front:
        with pytest.raises(RemoteRefusedError, match="403"):
            front.store().check()


def test_a_body_above_its_limit_is_refused(behind: S3Endpoint, tmp_path: Path) -> None:
    with nginx_before(behind, tmp_path, settings=HOST_KEPT) as front:
        store = front.store()
        store.put("least", MIB, digest=crc64nvme(MIB))
        with pytest.raises(RemoteRefusedError, match="Request Entity Too Large"):
            store.put("more", MIB + b"x", digest=crc64nvme(MIB + b"x"))
