"""``dcp.save`` and ``dcp.load`` by ranks: any number of them loads what any other number saved."""

from __future__ import annotations

import os
import signal
import tempfile
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from cachetier_client import Client
from cachetier_client.io.block_file import SystemFiles
from cachetier_client.torch import CachetierReader, CachetierWriter
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.planner import WriteItem
from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType

from tests.frameworks.conftest import Node
from tests.frameworks.ranks import Failed, Job, run_ranks
from tests.frameworks.training import Training, digest_of_state
from tests.integration.serving import running

WIDTH = 1024  # three layers and AdamW: 38 MB, so that a rank's share is several blocks
STEP = "cachetier://run/1"
DEADLINE_SECONDS = 60.0


def save_and_digest() -> dict[str, Any]:
    training = Training(WIDTH)
    for seed in range(2):
        training.step(seed)
    state = training.state()
    expected = digest_of_state(state)
    dcp.save(state, storage_writer=CachetierWriter(STEP))
    return {"digest": expected}


def load_from(urls: list[str]) -> list[dict[str, Any]]:
    """Load the step into a model of other values, by way of one service after another."""
    loaded = []
    for seed, url in enumerate(urls, 1):
        training = Training(WIDTH, seed=seed)
        state, reader = training.state(), CachetierReader(STEP, url=url)
        dcp.load(state, storage_reader=reader)
        training.load(state)
        loaded.append({"digest": digest_of_state(training.state()), "bytes": reader.bytes_read})
        reader.close()
    return loaded


@pytest.mark.slow
def test_what_four_ranks_saved_any_number_loads_here_and_where_nothing_is_cached(
    node: Node, tmp_path: Path
) -> None:
    saved = run_ranks(save_and_digest, 4, environment=node.environment)
    with Client(node.url) as client:
        client.wait("run", 1, "durable")
        whole = client.step("run", 1).size_bytes
    with tempfile.TemporaryDirectory(prefix="ct-") as short:
        elsewhere = {**node.settings, "cache_dir": tmp_path / "cold", "socket": Path(short) / "s"}
        with running(elsewhere) as cold:
            urls = [node.url, f"unix://{cold.socket}"]
            jobs = {count: Job(load_from, count, urls=urls) for count in (2, 1, 3)}
            loaded = {count: job.results() for count, job in jobs.items()}

    assert len({each["digest"] for each in saved}) == 1
    for count, ranks in loaded.items():
        assert {each["digest"] for rank in ranks for each in rank} == {saved[0]["digest"]}
        if count > 1:
            assert all(each["bytes"] < 0.75 * whole for rank in ranks for each in rank)


class FailingFiles(SystemFiles):
    """A disk that is full as long as ``fails``."""

    def __init__(self) -> None:
        self.fails = True
        self.fired = 0

    def pwrite(self, descriptor: int, data: memoryview, offset: int) -> int:
        if self.fails:
            self.fired += 1
            raise OSError(28, "No space left on device")
        return super().pwrite(descriptor, data, offset)


def fail_on_rank_1_then_save_again() -> dict[str, Any]:
    rank, files = dist.get_rank(), FailingFiles()
    files.fails = rank == 1
    client = Client(files=files)
    writer = CachetierWriter(STEP, client=client, timeout_seconds=DEADLINE_SECONDS)
    state = {f"x{rank}": torch.full((3 << 20,), float(rank))}
    told = ""
    try:
        dcp.save(state, storage_writer=writer)
    except CheckpointException as error:
        told = str(error)
    seen = [step.step for step in client.steps("run", "local")]
    dist.barrier()
    files.fails = False
    dcp.save(state, storage_writer=writer)
    loaded = {f"x{rank}": torch.zeros(3 << 20)}
    dcp.load(loaded, storage_reader=CachetierReader(STEP, client=client))
    same = torch.equal(loaded[f"x{rank}"], state[f"x{rank}"])
    return {"told": told, "seen": seen, "same": same, "fired": files.fired}


def test_a_rank_that_fails_is_named_on_all_and_the_step_can_be_saved_again(node: Node) -> None:
    results = run_ranks(fail_on_rank_1_then_save_again, 2, environment=node.environment)

    assert results[1]["fired"] > 0
    for result in results:
        assert "run=run step=1 rank=1 shard=__1_0.distcp" in result["told"]
        assert result["seen"] == []
        assert result["same"]


class Deadly(DefaultSavePlanner):
    """Kills its rank where its data is asked for."""

    def resolve_data(self, write_item: WriteItem) -> Any:
        if dist.get_rank() == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().resolve_data(write_item)


def die_on_rank_1() -> None:
    state = {f"x{dist.get_rank()}": torch.ones(5)}
    dcp.save(state, storage_writer=CachetierWriter(STEP), planner=Deadly())


def test_a_rank_that_is_killed_ends_the_save_of_the_others_in_time(node: Node) -> None:
    first, second = Job(die_on_rank_1, 2, environment=node.environment).results(DEADLINE_SECONDS)

    assert isinstance(first, Failed)
    assert first.kind != "exit"
    assert second == Failed("exit", f"code {-signal.SIGKILL}")
    with Client(node.url) as client:
        assert client.steps("run", "local") == []
        assert client.step("run", 1).state == "open"


def save_aside(process: bool) -> dict[str, Any]:
    """Change everything as soon as ``async_save`` returns, twice; load what was saved."""
    kind = AsyncCheckpointerType.PROCESS if process else AsyncCheckpointerType.THREAD
    group = dist.new_group(backend="gloo")
    training, writer, steps = Training(64), CachetierWriter(), []
    for step in (1, 2):
        training.step(step)
        state = training.state()
        steps.append(digest_of_state(state))
        saving = dcp.async_save(
            state,
            checkpoint_id=f"cachetier://run/{step}",
            storage_writer=writer,
            async_checkpointer_type=kind,
            process_group=group,
        )
        with torch.no_grad():
            for parameter in training.model.parameters():
                parameter.zero_()
        assert not isinstance(saving, dcp.state_dict_saver.AsyncSaveResponse)
        saving.result(60)
        durable = writer.durable(saving).result(60)
        assert durable.level == "durable"
        training = Training(64, seed=step)
    loaded = []
    for step in (1, 2):
        state = Training(64, seed=9).state()
        dcp.load(state, storage_reader=CachetierReader(f"cachetier://run/{step}"))
        loaded.append(digest_of_state(state))
    writer.close()
    return {"saved": steps, "loaded": loaded}


@pytest.mark.parametrize("process", [False, True], ids=["thread", "process"])
def test_a_save_aside_stores_what_was_there_when_it_was_called(node: Node, process: bool) -> None:
    results = run_ranks(save_aside, 2, environment=node.environment, process=process)

    assert results[0] == results[1]
    assert results[0]["saved"] == results[0]["loaded"]


def save_with_cached_plans() -> list[bool]:
    """Save one step again and again with a planner that keeps its plans; rank 1's changes once."""
    rank, same = dist.get_rank(), []
    writer, reader = CachetierWriter(STEP), CachetierReader(STEP)
    for turn in range(4):
        extra = {"extra": torch.ones(2)} if rank == turn == 1 else {}
        state = {f"x{rank}": torch.full((4,), float(turn)), **extra}
        planner = DefaultSavePlanner(enable_plan_caching=True)
        dcp.save(state, storage_writer=writer, planner=planner)
        loaded = {f"x{rank}": torch.zeros(4)}
        dcp.load(loaded, storage_reader=reader)
        same.append(torch.equal(loaded[f"x{rank}"], state[f"x{rank}"]))
    return same


def test_a_planner_that_keeps_its_plans_does_not_mix_saves(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CACHETIER_URL", node.url)

    assert run_ranks(save_with_cached_plans, 2) == [[True] * 4] * 2


def save_in_groups_and_without_collectives() -> dict[str, Any]:
    """Ranks 1 and 2 save as a group of their own; then all three without asking one another."""
    rank = dist.get_rank()
    pair = dist.new_group([1, 2], backend="gloo")
    state = {"mine": {f"x{rank}": torch.full((4,), float(rank))}}
    if rank:
        dcp.save(state, storage_writer=CachetierWriter("cachetier://run/5"), process_group=pair)
    dcp.save(state, storage_writer=CachetierWriter("cachetier://run/6"), use_collectives=False)
    loaded = []
    for step, takes_part in ((5, rank > 0), (6, True)):
        if takes_part:
            found = {"mine": {f"x{rank}": torch.zeros(4)}}
            group = pair if step == 5 else None
            reader = CachetierReader(f"cachetier://run/{step}")
            dcp.load(found, storage_reader=reader, process_group=group)
            loaded.append(found["mine"][f"x{rank}"].tolist() == [rank] * 4)
    dist.barrier()
    with Client() as client:
        steps = {step.step: step.world_size for step in client.steps("run", "local")}
    return {"loaded": loaded, "steps": steps}


def test_part_of_the_ranks_can_save_and_ranks_can_save_without_collectives(node: Node) -> None:
    results = run_ranks(save_in_groups_and_without_collectives, 3, environment=node.environment)

    for rank, result in enumerate(results):
        assert result["loaded"] == [True] * (2 if rank else 1)
        assert result["steps"] == {"5": 2, "6": 3}
