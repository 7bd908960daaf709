"""Folders on local disk as steps, and back: each file once, verified, whole or not at all."""

from __future__ import annotations

import logging
import os
import socket
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from cachetier_client import Client
from cachetier_client.errors import (
    BackpressureError,
    CachetierClientError,
    IncompleteError,
    InvalidRequestError,
    NotFoundError,
)
from cachetier_client.integrations.step_folders import (
    FolderSaves,
    load_folder,
    save_folder,
    shares,
)
from cachetier_client.torch import AgreementError
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

from tests.frameworks.conftest import Node
from tests.frameworks.ranks import Failed, Job, run_ranks

pytestmark = pytest.mark.torch


def written(folder: Path) -> dict[str, bytes]:
    files = (path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}


def save(client: Client, address: str, files: dict[str, bytes]) -> None:
    with save_folder(address, client=client) as folder:
        for name, content in files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(content)


@pytest.fixture
def under(tmp_path: Path) -> Path:
    """Return a folder of the test's own: the node's cache lies beside it."""
    folder = tmp_path / "under"
    folder.mkdir()
    return folder


FILES = {"model.bin": b"m" * 9_000_000, "optim/state.bin": b"o" * 10, "empty": b""}

# --- which rank puts which file ------------------------------------------------------------------


def test_a_file_that_all_ranks_see_is_put_by_one() -> None:
    view = [("model", 100), ("optimizer", 60), ("rng_0", 1), ("rng_1", 1)]

    assert shares([view, view]) == [["model"], ["optimizer", "rng_0", "rng_1"]]


def test_a_file_is_put_by_a_rank_that_sees_it() -> None:
    assert shares([[("model", 9), ("rng_0", 1)], [("rng_1", 1)]]) == [["model", "rng_0"], ["rng_1"]]
    assert shares([[("model", 9)], [("model", 9), ("rng_1", 1)], []]) == [["model"], ["rng_1"], []]


# --- one rank ------------------------------------------------------------------------------------


def test_what_is_written_to_a_lent_folder_comes_back(client: Client, under: Path) -> None:
    with save_folder("cachetier://run/10", client=client, scratch=under) as folder:
        (folder / "model.bin").write_bytes(FILES["model.bin"])

    assert list(under.iterdir()) == []
    assert load_folder("cachetier://run/latest", under, client=client) == under / "10"
    assert written(under / "10") == {"model.bin": FILES["model.bin"]}


def test_folders_inside_come_back_and_a_step_is_replaced(client: Client, under: Path) -> None:
    save(client, "cachetier://run/10", {"old": b"old"})
    save(client, "cachetier://run/10", FILES)

    load_folder("cachetier://run/10", under, client=client, folder_name="checkpoint-{step}")

    assert written(under) == {f"checkpoint-10/{name}": data for name, data in FILES.items()}


def test_a_body_that_raises_saves_nothing(client: Client) -> None:
    with pytest.raises(ZeroDivisionError):
        with save_folder("cachetier://run/10", client=client) as folder:
            (folder / "half").write_bytes(b"half")
            raise ZeroDivisionError

    assert client.steps("run") == []


def test_a_body_that_writes_elsewhere_is_an_error(client: Client) -> None:
    with pytest.raises(InvalidRequestError, match="nothing was written"):
        with save_folder("cachetier://run/10", client=client):
            pass


def test_a_file_that_is_written_to_meanwhile_is_refused(client: Client, under: Path) -> None:
    (under / "model.bin").write_bytes(b"before")

    class Late(Client):
        def checkpoint(self, *ids: Any, **options: Any) -> Any:
            part = super().checkpoint(*ids, **options)
            opened = part.open

            def growing(name: str, **options: Any) -> Any:
                stream = opened(name, **options)
                (under / name).write_bytes(b"behind it")
                return stream

            part.open = growing  # type: ignore[method-assign]
            return part

    with Late(client.url) as late:
        saves = FolderSaves("run", client=late)
        saves.begin(under, 10)
        with pytest.raises(CachetierClientError):
            saves.finish()
    assert not any(info.levels for info in client.steps("run"))


def test_what_is_there_with_the_right_bytes_is_not_brought_again(
    client: Client, under: Path, caplog: pytest.LogCaptureFixture
) -> None:
    save(client, "cachetier://run/10", FILES)
    folder = load_folder("cachetier://run/10", under, client=client)
    assert folder is not None
    os.utime(folder / "model.bin", ns=(5, 5))
    (folder / "optim/state.bin").write_bytes(b"x" * 10)
    (folder / "empty").unlink()

    load_folder("cachetier://run/10", under, client=client)

    assert written(folder) == FILES
    assert (folder / "model.bin").stat().st_mtime_ns == 5
    assert "optim/state.bin has other bytes than the step" in caplog.text


def test_what_a_killed_load_has_left_is_used_and_gone(client: Client, under: Path) -> None:
    save(client, "cachetier://run/10", FILES)
    left = under / f".10.{socket.gethostname()}.part"
    left.mkdir()
    (left / ".model.bin.part").write_bytes(b"m")
    (left / "empty").touch()

    load_folder("cachetier://run/10", under, client=client)

    assert [path.name for path in under.iterdir()] == ["10"]
    assert written(under / "10") == FILES


def test_a_load_that_fails_leaves_nothing(client: Client, under: Path) -> None:
    client.put_shard(b"x", run="run", step=10, name="half", rank=0, world_size=2, save_id="s")

    assert load_folder("cachetier://run/latest", under, client=client) is None
    with pytest.raises(IncompleteError):
        load_folder("cachetier://run/10", under, client=client)
    with pytest.raises(NotFoundError):
        load_folder("cachetier://run/11", under, client=client)
    assert list(under.iterdir()) == []


def test_a_folder_named_like_an_address_is_noticed(
    client: Client, under: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.chdir(under)
    os.makedirs("cachetier://run/10")
    caplog.set_level(logging.WARNING)

    FolderSaves("run", client=client)

    assert f"{under}/cachetier: is a folder" in caplog.text


# --- several -------------------------------------------------------------------------------------


def saved_and_loaded(under: str) -> list[str]:
    rank = dist.get_rank()
    with save_folder("cachetier://run/10") as folder:
        (folder / "both").write_bytes(b"both")
        (folder / f"rank-{rank}").write_bytes(b"%d" % rank)
    loaded = load_folder("cachetier://run/latest", under)
    assert loaded is not None
    return sorted(written(loaded))


def sharded_by_dcp(under: str) -> list[float]:
    """Save as FSDP does with sharded state: DCP's own writer, on all ranks."""
    mesh, whole = init_device_mesh("cpu", (2,)), torch.arange(20.0).view(10, 2)
    state: dict[str, Any] = {"w": distribute_tensor(whole, mesh, [Shard(0)])}
    with save_folder("cachetier://run/10") as folder:
        dcp.save(state, storage_writer=dcp.FileSystemWriter(folder / "model_0"))
    state["w"] = distribute_tensor(torch.zeros(10, 2), mesh, [Shard(0)])
    loaded = load_folder("cachetier://run/latest", under)
    assert loaded is not None
    dcp.load(state, storage_reader=dcp.FileSystemReader(loaded / "model_0"))
    return list(state["w"].to_local().flatten().tolist())


def saved_by_one(under: str) -> list[str]:
    if dist.get_rank() == 1:
        with save_folder("cachetier://run/10", alone=True) as folder:
            (folder / "model").write_bytes(b"model")
    loaded = load_folder("cachetier://run/10", under) if _all_there() else None
    assert loaded is not None
    return sorted(written(loaded))


def _all_there() -> bool:
    dist.barrier()
    return True


def failing_on_rank_1() -> None:
    with save_folder("cachetier://run/10") as folder:
        (folder / "model").write_bytes(b"model")
        if dist.get_rank() == 1:
            raise ValueError("rank 1 will not")


def failing_behind_rank_1(under: str) -> None:
    folder = Path(under) / str(dist.get_rank())
    folder.mkdir()
    (folder / "bad" if dist.get_rank() else folder / "good").write_bytes(b"x")

    class Full(Client):
        def checkpoint(self, *ids: Any, **options: Any) -> Any:
            if dist.get_rank() == 1:
                raise BackpressureError("no room")
            return super().checkpoint(*ids, **options)

    with Full() as client:
        saves = FolderSaves("run", client=client)
        assert saves.begin(folder, 10)
        saves.begin(folder, 20)


def test_what_fails_behind_training_is_raised_on_all_ranks(node: Node, under: Path) -> None:
    job = Job(failing_behind_rank_1, 2, environment=node.environment, under=str(under))

    for told in job.results():
        assert isinstance(told, Failed) and told.kind == AgreementError.__name__
        assert "rank 1" in told.message and "no room" in told.message
    with Client(node.url) as client:
        assert not any(info.levels for info in client.steps("run"))


def test_ranks_with_folders_of_their_own_make_one_step(node: Node, under: Path) -> None:
    told = run_ranks(saved_and_loaded, 2, environment=node.environment, under=str(under))

    assert told == [["both", "rank-0", "rank-1"]] * 2
    with Client(node.url) as client:
        by_name = {shard.name: shard.rank for shard in client.step("run", 10).shards}
    assert by_name["rank-0"] == 0 and by_name["rank-1"] == 1
    assert [path.name for path in under.iterdir()] == ["10"]


def test_what_dcp_writes_on_each_rank_is_one_step(node: Node, under: Path) -> None:
    told = run_ranks(sharded_by_dcp, 2, environment=node.environment, under=str(under))

    assert told == [[float(each) for each in range(10)], [float(each) for each in range(10, 20)]]
    names = {path.name for path in (under / "10" / "model_0").iterdir()}
    assert names == {".metadata", "__0_0.distcp", "__1_0.distcp"}


def test_one_rank_saves_for_all(node: Node, under: Path) -> None:
    told = run_ranks(saved_by_one, 2, environment=node.environment, under=str(under))

    assert told == [["model"]] * 2


def test_a_rank_that_fails_ends_the_save_of_all(node: Node) -> None:
    told = Job(failing_on_rank_1, 2, environment=node.environment).results()

    assert [each.kind for each in told if isinstance(each, Failed)] == [
        AgreementError.__name__,
        "ValueError",
    ]
    with Client(node.url) as client:
        assert client.steps("run") == []
