"""Folders of files become parts of steps, in the background too, and steps become folders."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from cachetier_client import (
    Client,
    IntegrityError,
    InvalidRequestError,
    ServiceUnavailableError,
)
from cachetier_client.integrations.folders import (
    FolderPuts,
    fetch_step,
    files_of,
    newest_step,
    put_files,
)

from tests.frameworks.conftest import Node
from tests.integration.serving import running

FILES = {"a.pt": os.urandom(9_000_000), "deep/er/b.json": b"{}", "empty": b""}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, data in FILES.items():
        path = tmp_path / "from" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return tmp_path / "from"


def content(folder: Path) -> dict[str, bytes]:
    return {name: (folder / name).read_bytes() for name in files_of(folder)}


def test_a_folder_comes_back_as_it_was(client: Client, folder: Path, tmp_path: Path) -> None:
    put_files(client.checkpoint("run", 1), folder, files_of(folder), {"more": b"m"}, under="item")

    found = fetch_step(client, "run", 1, tmp_path / "to")

    assert content(found / "item") == FILES
    assert (found / "item/a.pt").stat().st_mode & 0o777 == 0o644
    assert (found / "more").read_bytes() == b"m"


def test_what_is_there_stays_and_what_is_torn_is_replaced(
    client: Client, folder: Path, tmp_path: Path
) -> None:
    put_files(client.checkpoint("run", 1), folder, files_of(folder))
    target = fetch_step(client, "run", 1, tmp_path / "to")
    before = (target / "deep/er/b.json").stat().st_ino
    torn = bytearray(FILES["a.pt"])
    torn[5_000_000] ^= 1  # of the same length
    (target / "a.pt").write_bytes(torn)
    (target / "empty").unlink()

    fetch_step(client, "run", 1, target)

    assert content(target) == FILES
    assert (target / "deep/er/b.json").stat().st_ino == before


def test_a_file_that_is_missing_aborts_the_part(client: Client, folder: Path) -> None:
    with pytest.raises(InvalidRequestError, match="cannot read"):
        put_files(client.checkpoint("run", 1), folder, ["a.pt", "none"])

    assert client.steps("run", "local") == []


def test_a_put_in_the_background_that_fails_is_logged_and_raised_by_the_next(
    node: Node, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with Client(node.url, fallback="fail") as client:
        puts = FolderPuts()
        puts.start(client.checkpoint("run", 1), folder, files_of(folder))
        puts.wait()
        assert [info.step for info in client.steps("run", "local")] == [1]
        node.service.stop()
        puts.start(client.checkpoint("run", 2), folder, files_of(folder))
        with pytest.raises(ServiceUnavailableError):
            puts.start(client.checkpoint("run", 3), folder, files_of(folder))
        puts.wait()  # it was raised once
    assert "step 2 of run run was not put" in caplog.text


def test_a_step_that_is_replaced_while_its_files_come_is_no_mixture(
    client: Client, folder: Path, tmp_path: Path
) -> None:
    put_files(client.checkpoint("run", 1), folder, files_of(folder))

    class Late(Client):
        def step(self, *ids: Any, **options: Any) -> Any:
            found = super().step(*ids, **options)
            (folder / "a.pt").write_bytes(b"another save's")
            put_files(client.checkpoint("run", 1, overwrite=True), folder, files_of(folder))
            return found

    with Late(client.url) as late, pytest.raises(IntegrityError, match="replaced meanwhile"):
        fetch_step(late, "run", 1, tmp_path / "to")

    assert files_of(tmp_path / "to") == []


def test_the_newest_step_is_the_buckets_where_this_node_has_an_older_one(
    node: Node, client: Client, folder: Path
) -> None:
    """As on a node that a job comes back to, after it has trained on elsewhere."""
    put_files(client.checkpoint("run", 1), folder, ["empty"])
    elsewhere = {**node.settings, "cache_dir": node.settings["cache_dir"].parent / "second"}
    elsewhere["socket"] = elsewhere["socket"].with_name("second")
    with running(elsewhere) as service, Client(f"unix://{service.socket}") as other:
        put_files(other.checkpoint("run", 2), folder, ["empty"])
        other.wait("run", 2, "durable", timeout_seconds=60)
        client.put_shard(b"x", run="run", step=3, name="half", rank=0, world_size=2, save_id="s")

        found = newest_step(client, "run")

    assert found is not None and found.step == 2
    assert newest_step(client, "another") is None
