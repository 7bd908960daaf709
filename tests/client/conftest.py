"""A fake service on a socket of its own, and a client that knows where it is."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from cachetier_client import Client
from cachetier_client.fallback.direct import parts
from cachetier_client.identity import save_ids

from tests.client.fake_bucket import FakeBucket
from tests.client.fake_service import FakeService
from tests.client.fakes import FakeClock


@pytest.fixture(autouse=True)
def fresh_identity(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give each test a process of its own, as far as save ids go."""
    monkeypatch.setattr(save_ids, "THIS_PROCESS", save_ids.SaveIdSource())


@pytest.fixture
def service(tmp_path: Path) -> Iterator[FakeService]:
    fake = FakeService(tmp_path / "s").start()
    yield fake
    fake.stop()


@pytest.fixture
def client(service: FakeService) -> Iterator[Client]:
    with Client(service.url, run="a-run") as made:
        yield made


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> FakeBucket:
    """Stand in for the bucket that clients go to while the service is away."""
    fake = FakeBucket()
    monkeypatch.setattr(
        "cachetier_client.fallback.direct.s3.bucket.Requests", lambda _address: fake
    )
    monkeypatch.setattr(parts, "THIS_PROCESS", parts.DirectRankParts())
    monkeypatch.setenv("CACHETIER_REMOTE", "s3://bucket/p")
    return fake


@pytest.fixture
def alone(bucket: FakeBucket, clock: FakeClock, tmp_path: Path) -> Iterator[Client]:
    """A client whose service was never there, and which has a bucket."""
    with Client(f"unix://{tmp_path}/none", run="r", clock=clock) as made:
        yield made
