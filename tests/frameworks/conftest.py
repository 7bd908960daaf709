"""A node that ranks save to: a whole service with its drain, over moto."""

from __future__ import annotations

import tempfile
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from cachetier_client import Client, default_client

from cachetier.service.service import Service
from cachetier.testing.s3_endpoint import S3Endpoint
from tests.integration.serving import node_settings, running


@dataclass(frozen=True)
class Node:
    """A running service, and what its clients are told of it."""

    service: Service
    settings: dict[str, Any]

    @property
    def url(self) -> str:
        return f"unix://{self.service.socket}"

    @property
    def environment(self) -> dict[str, str]:
        return {"CACHETIER_URL": self.url}


@pytest.fixture
def node(moto_s3: S3Endpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Node]:
    """Run one node; its cache is under ``tmp_path``, its bucket of its own."""
    with tempfile.TemporaryDirectory(prefix="ct-") as short:
        bucket = f"ranks-{uuid.uuid4().hex[:12]}"
        moto_s3.create_bucket(bucket)
        settings = node_settings(tmp_path, moto_s3, f"s3://{bucket}/p", monkeypatch)
        settings["socket"] = Path(short) / "s"
        with running(settings) as service:
            yield Node(service, settings)
            default_client().close()  # the next test's is another node's


@pytest.fixture
def client(node: Node) -> Iterator[Client]:
    """Open a client of the node."""
    with Client(node.url) as opened:
        yield opened
