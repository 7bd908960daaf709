"""What the file system asks of the bucket, and what it can do while that is away."""

from __future__ import annotations

import time
from collections import Counter
from typing import Any

import pytest
from cachetier_client import Client
from cachetier_client.errors import RemoteError
from cachetier_client.filesystem.filesystem import CachetierFileSystem

from cachetier.errors import RemoteUnavailableError
from cachetier.remote.bucket import Bucket
from cachetier.restore.knowledge import FRESH_SECONDS, Knowledge
from tests.frameworks.test_fsspec_commits import fs, put

__all__ = ["fs"]


def published(fs: CachetierFileSystem, client: Client, steps: range) -> None:
    for step in steps:
        with fs.transaction:
            put(fs, f"run/{step}/a")
            put(fs, f"run/{step}/b")
    for step in steps:
        client.wait("run", step, "durable", timeout_seconds=60)


class Asked(Counter[str]):
    """Counts requests by the method that makes them; ``of`` are the steps asked about."""

    def __init__(self) -> None:
        super().__init__()
        self.of: set[int] = set()

    def clear(self) -> None:
        super().clear()
        self.of.clear()


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Asked:
    """Count what the service asks the bucket for on behalf of a caller."""
    counts = Asked()

    def counted(name: str, real: Any) -> Any:
        def call(*args: Any) -> Any:
            counts[name] += 1
            if name == "manifest":
                counts.of.add(args[2])
            return real(*args)

        return call

    for name in ("manifest", "steps", "branches"):
        monkeypatch.setattr(Bucket, name, counted(name, getattr(Bucket, name)))
    monkeypatch.setattr(Knowledge, "sweep", lambda _self: None)  # by itself, at any time
    return counts


def test_one_folder_or_file_asks_for_no_other_steps(
    fs: CachetierFileSystem, client: Client, asked: Asked
) -> None:
    published(fs, client, range(1, 9))
    for call in (fs.ls, fs.exists, fs.isdir):
        asked.clear()
        call("run/5")
        assert asked.of <= {5} and asked["steps"] == 0  # whether it is published still
    asked.clear()
    assert not fs.exists("run/9/.metadata")
    assert asked["manifest"] <= 2 and asked.of == {9} and asked["steps"] == 0


def test_a_walk_asks_once_what_there_is(
    fs: CachetierFileSystem, client: Client, asked: Asked
) -> None:
    began_at = time.monotonic()
    published(fs, client, range(1, 9))
    asked.clear()

    assert len(fs.find("run")) == 16
    # What is known is asked again once it is old, as on a machine where saves take so long.
    times = 1 + int((time.monotonic() - began_at) / FRESH_SECONDS)
    assert 1 <= asked["steps"] <= times and 1 <= asked["branches"] <= times
    assert 8 <= asked["manifest"] <= 8 * times


def test_what_is_here_is_read_and_listed_while_the_bucket_is_away(
    fs: CachetierFileSystem, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    published(fs, client, range(7, 8))

    def away(*_: object) -> Any:
        raise RemoteUnavailableError("away")

    for name in ("manifest", "steps", "branches"):
        monkeypatch.setattr(Bucket, name, away)

    assert fs.find("run") == ["run/7/a", "run/7/b"]
    assert fs.cat("run/7/a") == b"1" and fs.exists("run/7/b")
    for path in ("run/8", "run/7/c", "other"):
        with pytest.raises(RemoteError):  # nobody can tell that it is not there
            fs.exists(path)
