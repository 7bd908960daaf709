"""A fake service on a socket of its own, and a client that knows where it is."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from cachetier_client import Client, saves

from tests.client.fake_service import FakeService


@pytest.fixture(autouse=True)
def fresh_identity(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give each test a process of its own, as far as save ids go."""
    monkeypatch.setattr(saves, "THIS_PROCESS", saves.SaveIds())


@pytest.fixture
def service(tmp_path: Path) -> Iterator[FakeService]:
    fake = FakeService(tmp_path / "s").start()
    yield fake
    fake.stop()


@pytest.fixture
def client(service: FakeService) -> Iterator[Client]:
    with Client(service.url, run="a-run") as made:
        yield made
