"""What was put and never sealed is told once: nobody would miss it before it is needed."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
from cachetier_client import Client
from cachetier_client.calls import unsealed

from tests.client.fake_service import FakeService


@pytest.fixture
def told(caplog: pytest.LogCaptureFixture) -> list[str]:
    caplog.set_level(logging.WARNING, unsealed.log.name)
    return _Told(caplog)


class _Told(list[str]):
    def __init__(self, caplog: pytest.LogCaptureFixture) -> None:
        self._caplog = caplog

    def __call__(self) -> list[str]:
        found = [record.getMessage() for record in self._caplog.records]
        self._caplog.clear()
        return found


def put(client: Client, step: int, name: str = "model") -> None:
    client.put_shard(b"weights", run="a-run", step=step, name=name, save_id="one")


def test_shards_that_nobody_sealed_are_told_when_the_client_closes(
    service: FakeService, client: Client, told: _Told
) -> None:
    put(client, 7)
    put(client, 7, "optimizer")
    put(client, 8)
    assert told() == []

    client.close()

    first, second = told()
    assert "2 shards of cachetier://a-run/7 were never sealed by rank 0" in first
    assert "1 shard of cachetier://a-run/8 was never sealed" in second
    assert "docs/fsspec.md" in first


def test_a_step_that_is_left_behind_is_told_when_the_next_one_is_sealed(
    service: FakeService, client: Client, told: _Told
) -> None:
    put(client, 7)
    put(client, 8)
    client.seal("a-run", 8, save_id="one")

    (once,) = told()
    assert "a-run/7 was never sealed" in once
    client.close()
    assert told() == []


def test_what_was_sealed_or_taken_back_is_not_told(
    service: FakeService, client: Client, told: _Told
) -> None:
    put(client, 7)
    client.seal("a-run", 7, save_id="one")
    with client.checkpoint("a-run", 8) as checkpoint:
        checkpoint.put(b"weights", "model")
    with pytest.raises(ValueError, match="no"):
        with client.checkpoint("a-run", 9) as checkpoint:
            checkpoint.put(b"weights", "model")
            raise ValueError("no")

    client.close()
    assert told() == []


def test_at_the_exit_of_the_interpreter_it_is_told_too(
    service: FakeService, client: Client, told: _Told
) -> None:
    put(client, 7)

    unsealed._at_exit()

    assert ["a-run/7" in each for each in told()] == [True]


@pytest.mark.usefixtures("client")
def test_a_folder_named_like_an_address_is_told_of_at_exit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, told: _Told
) -> None:
    """As Lightning's sharded strategies make it, which know local folders alone."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "cachetier:" / "run" / "last.ckpt").mkdir(parents=True)

    unsealed._at_exit()

    assert [f"{tmp_path}/cachetier: is a folder" in each for each in told()] == [True]
