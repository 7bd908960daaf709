"""A catalog that its disk does not give back: whoever asks learns that, and what to do about it."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
from cachetier_client import Client

from tests.integration.serving import Served, serving
from tests.integration.test_cli import run


@pytest.fixture
def blinded(tmp_path: Path) -> Iterator[Served]:
    """Yield a service under whose feet everything behind the first page was overwritten."""
    with serving(tmp_path / "cache") as served:
        with Client(served.unix_url) as client:
            for step in range(300):
                client.put_shard(b"x" * 3000, run=f"r{step % 7}", step=step, name="w")
        store = served.service.store
        store._committer.run(lambda sql: None)
        store._committer._connection.wal_checkpoint(mode=3)
        path = tmp_path / "cache/catalog.db"
        with path.open("r+b") as file:
            file.seek(4096)
            file.write(b"\xff" * (path.stat().st_size - 4096))
        yield served


@pytest.mark.parametrize("verb", ["status", "ls"])
def test_a_verb_says_that_the_catalog_cannot_be_read_and_where_to_read_on(
    verb: str, blinded: Served
) -> None:
    outcome = run(blinded, verb, "--json")

    assert outcome.code == 1
    assert outcome.json["error"]["code"] == "catalog_damaged"
    assert outcome.err.splitlines() == [
        "Error: The catalog cannot be read: database disk image is malformed.",
        "Next: Keep the cache directory as it is and read docs/recovery.md before starting again.",
    ]


def test_the_log_says_it_whoever_asked(blinded: Served, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.ERROR, "cachetier"):
        answer = blinded.call("GET", "/v1/status")

    assert (answer.status, answer.code) == (500, "catalog_damaged")
    assert {record.getMessage() for record in caplog.records} == {
        "the catalog cannot be read: database disk image is malformed"
    }
