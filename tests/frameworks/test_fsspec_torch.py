"""What frameworks do with files, over ``cachetier://``: torch, DCP, torchtitan, Lightning."""

from __future__ import annotations

import os
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from cachetier_client import Client
from safetensors.torch import load as load_safetensors
from safetensors.torch import save as save_safetensors
from torch.distributed.checkpoint._fsspec_filesystem import FsspecReader, FsspecWriter
from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType

from cachetier.testing.s3_endpoint import S3Endpoint
from tests.frameworks.conftest import Node
from tests.frameworks.ranks import Failed, Job, run_ranks
from tests.frameworks.training import Training, digest_of_state
from tests.integration.serving import running
from tests.integration.two_remotes import until

SECONDS = 60.0


# --- in a rank -----------------------------------------------------------------------------------


def counting_syncs() -> list[str]:
    """Count calls of ``os.sync`` from now on: one would sync every file of the machine."""
    calls: list[str] = []
    os.sync = lambda: calls.append("sync")
    return calls


def loaded(address: str, reader: Any = None) -> str:
    other = Training(seed=99)
    state = other.state()
    dcp.load(state, checkpoint_id=address, storage_reader=reader)
    other.load(state)
    return digest_of_state(other.state())


def save_and_load(run: str, steps: int = 2) -> dict[str, Any]:
    """Save by address and by torch's own writer, in the foreground and in the background."""
    calls = counting_syncs()
    training = Training()
    training.step(0)
    saved = digest_of_state(training.state())
    dcp.save(training.state(), checkpoint_id=f"cachetier://{run}/1")
    threads = FsspecWriter(f"cachetier://{run}/2", thread_count=2, sync_files=True)
    dcp.save(training.state(), storage_writer=threads)
    later = dcp.async_save(training.state(), checkpoint_id=f"cachetier://{run}/3")
    assert isinstance(later, Future)
    later.result()
    in_process = dcp.async_save(
        training.state(),
        checkpoint_id=f"cachetier://{run}/4",
        async_checkpointer_type=AsyncCheckpointerType.PROCESS,
    )
    assert isinstance(in_process, Future)
    in_process.result()
    training.step(1)
    dcp.save(training.state(), checkpoint_id=f"cachetier://{run}/1")  # again
    again = digest_of_state(training.state())
    with Client() as client:  # readers see the first until the second is published
        until(lambda: client.step(run, 1).save_id.endswith("-f2"))
    return {
        "syncs": len(calls),
        "saved": saved,
        "again": again,
        "loaded": [
            loaded(f"cachetier://{run}/1"),
            loaded(f"cachetier://{run}/2"),
            loaded(f"cachetier://{run}/3", FsspecReader(f"cachetier://{run}/3")),
            loaded(f"cachetier://{run}/4"),
        ],
    }


def titan(folder: str, keep: int) -> dict[str, Any]:
    """Save and load as torchtitan does: it lists its folder, and removes old steps itself."""
    fs, root = fsspec.core.url_to_fs(folder)
    training = Training()
    for step in (10, 20, 30):
        training.step(step)
        dcp.save(training.state(), checkpoint_id=f"{folder}/step-{step}")
        dist.barrier()
        if dist.get_rank() == 0:
            found = [entry["name"].rsplit("/", 1)[-1] for entry in fs.ls(root, detail=True)]
            steps = sorted(int(name.partition("-")[2]) for name in found)
            for old in steps[:-keep]:
                fs.rm(f"{root}/step-{old}", recursive=True)
        dist.barrier()
    names = [name.rsplit("/", 1)[-1] for name in fs.ls(root, detail=False)]
    whole = [name for name in names if fs.isfile(f"{root}/{name}/.metadata")]
    newest = max(int(name.partition("-")[2]) for name in whole)
    return {
        "steps": whole,
        "same": loaded(f"{folder}/step-{newest}") == digest_of_state(training.state()),
    }


def lightning(folder: str) -> dict[str, Any]:
    """Save as Lightning's sharded strategies do: DCP into a folder, then ``meta.pt`` by rank 0."""
    training = Training()
    fs, path = fsspec.core.url_to_fs(folder)
    fs.makedirs(path, exist_ok=True)
    writer = FsspecWriter(folder, single_file_per_rank=True)
    dcp.save(training.state(), storage_writer=writer)
    if dist.get_rank() == 0:
        with fs.open(f"{path}/meta.pt", "wb") as file:
            torch.save({"epoch": 3}, file)
    dist.barrier()
    with fs.open(f"{path}/meta.pt") as file:
        meta = torch.load(file, weights_only=True)
    return {"meta": meta, "same": loaded(folder) == digest_of_state(training.state())}


def fail_then_save(run: str) -> dict[str, Any]:
    """Save with one rank's file refused, then once more: the same step, in the same processes."""
    training = Training()
    address = f"cachetier://{run}/1"
    state = training.state()
    broken = {**state, "bad": _Unpicklable()} if dist.get_rank() == 1 else {**state, "bad": 1}
    try:
        dcp.save(broken, checkpoint_id=address)
        failed = False
    except dcp.CheckpointException:
        failed = True
    dist.barrier()
    listed = fsspec.core.url_to_fs("cachetier://")[0].exists(f"{run}/1/.metadata")
    dcp.save(training.state(), checkpoint_id=address)
    dist.barrier()
    return {
        "failed": failed,
        "listed": listed,
        "same": loaded(address) == digest_of_state(training.state()),
    }


class _Unpicklable:
    def __reduce__(self) -> Any:
        raise ValueError("this rank's state cannot be written")


def save_on_two_nodes(run: str, urls: list[str]) -> str:
    os.environ["CACHETIER_URL"] = urls[dist.get_rank()]
    training = Training()
    dcp.save(training.state(), checkpoint_id=f"cachetier://{run}/1")
    with Client() as client:
        client.wait(run, 1, "durable", timeout_seconds=SECONDS)
    return digest_of_state(training.state())


# --- over one node -------------------------------------------------------------------------------


def test_dcp_saves_and_loads_by_address(node: Node) -> None:
    results = run_ranks(save_and_load, 2, environment=node.environment, run="run")

    for told in results:
        assert told["syncs"] == 0
        assert told["loaded"] == [told["again"], *[told["saved"]] * 3]
    with Client(node.url) as client:
        for step in (1, 2, 3, 4):
            client.wait("run", step, "durable", timeout_seconds=SECONDS)
            view = client.step("run", step)
            assert (view.world_size, view.ranks) == (2, (0, 1))
            assert {shard.rank for shard in view.shards} == {0, 1}


def test_torchtitan_finds_its_steps_and_removes_old_ones(node: Node) -> None:
    environment = {**node.environment, "CACHETIER_STEP_NAME": "step-{step}"}

    results = run_ranks(titan, 2, environment=environment, folder="cachetier://titan", keep=2)

    assert results == [{"steps": ["step-20", "step-30"], "same": True}] * 2


def test_lightning_ends_its_save_with_another_file(node: Node) -> None:
    environment = {**node.environment, "CACHETIER_COMMIT_ON": "meta.pt"}

    results = run_ranks(lightning, 2, environment=environment, folder="cachetier://bolt/5")

    assert results == [{"meta": {"epoch": 3}, "same": True}] * 2
    with Client(node.url) as client:
        client.wait("bolt", 5, "durable", timeout_seconds=SECONDS)


def test_a_failed_save_leaves_no_step_and_the_next_one_works(node: Node) -> None:
    results = run_ranks(fail_then_save, 2, environment=node.environment, run="run")

    assert results == [{"failed": True, "listed": False, "same": True}] * 2
    with Client(node.url) as client:
        client.wait("run", 1, "durable", timeout_seconds=SECONDS)


def test_ranks_on_two_nodes_publish_one_step(
    node: Node, tmp_path: Path, moto_s3: S3Endpoint
) -> None:
    second = {**node.settings, "cache_dir": tmp_path / "second"}
    second["socket"] = node.settings["socket"].with_name("second")
    with running(second) as service:
        urls = [node.url, f"unix://{service.socket}"]
        environment = {"LOCAL_WORLD_SIZE": "1"}
        job = Job(save_on_two_nodes, 2, environment=environment, run="far", urls=urls)
        results = job.results()

        assert not [each for each in results if isinstance(each, Failed)], results
        for url in urls:
            with Client(url) as client:
                view = client.latest("far", "durable")
                assert view is not None and (view.step, view.world_size) == (1, 2)
                assert client.step("far", 1).shard_count == 3
            fs = fsspec.filesystem("cachetier", service_url=url)
            assert fs.isfile("far/1/.metadata") and len(fs.find("far/1")) == 3
            fs.client.close()


# --- in one process ------------------------------------------------------------------------------


def test_torch_saves_and_loads_one_file(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    state: dict[str, Any] = {"weight": torch.arange(3_000_000, dtype=torch.float32), "step": 7}
    address, options = "cachetier://single/7/model.pt", {"service_url": node.url}
    monkeypatch.setenv("CACHETIER_COMMIT_ON", "*.pt")

    with fsspec.open(address, "wb", **options) as file:
        torch.save(state, file)
    with fsspec.open(address, "rb", **options) as file:
        found = torch.load(file, weights_only=True)

    assert torch.equal(found["weight"], state["weight"]) and found["step"] == 7
    fs = fsspec.core.url_to_fs(address, **options)[0]
    assert fs.ls("single", detail=False) == ["single/7"]
    fs.client.close()


def test_safetensors_and_numpy_write_files(node: Node) -> None:
    fs = fsspec.filesystem("cachetier", service_url=node.url)
    tensors = {"a": torch.arange(10), "b": torch.ones(3, 4)}
    array = np.arange(1_000_000, dtype=np.int64)
    with fs.transaction:
        with fs.open("run/7/model.safetensors", "wb") as file:
            file.write(save_safetensors(tensors))
        with fs.open("run/7/array.npy", "wb") as file:
            np.save(file, array)

    found = load_safetensors(fs.cat("run/7/model.safetensors"))
    assert {name: value.tolist() for name, value in found.items()} == {
        name: value.tolist() for name, value in tensors.items()
    }
    with fs.open("run/7/array.npy") as file:
        assert np.array_equal(np.load(file), array)
    fs.client.close()
