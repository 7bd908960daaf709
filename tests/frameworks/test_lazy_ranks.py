"""Two ranks with FSDP2 and AdamW that go on training while their state is saved lazily."""

from __future__ import annotations

import time
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from cachetier_client.torch import CachetierReader, CachetierWriter
from cachetier_client.torch.lazy import LazyStager
from cachetier_client.torch.snapshot import StateChangedError
from torch.distributed.checkpoint.api import CheckpointException

from tests.frameworks.conftest import Node
from tests.frameworks.lazy import async_save
from tests.frameworks.ranks import run_ranks
from tests.frameworks.training import Training, digest_of_state

SAVES = 4


def trained_and_saved() -> dict[str, Any]:
    """Save after each step, train on at once, and load every step again."""
    training = Training()
    own = dist.new_group(backend="gloo")  # training goes on in the other
    writer_stager = LazyStager(training.optimizer, ring_bytes=4 << 20)
    writer = CachetierWriter(stager=writer_stager)
    was = []
    training.step(0)
    for step in range(SAVES):
        was.append(digest_of_state(training.state()))
        saved = async_save(training.state(), step, writer, process_group=own)
        training.step(step + 1)
        saved.result()
    loaded = []
    for step in range(SAVES):
        state = training.state()
        dcp.load(state, storage_reader=CachetierReader(f"cachetier://run/{step}"))
        training.load(state)
        loaded.append(digest_of_state(training.state()))
    told = ungated(training, writer, own)
    after = digest_of_state(training.state())
    alone = saved_by_rank_0_alone(training, writer, own)
    writer_stager.close()
    return {"was": was, "loaded": loaded, "told": told, "after": after, "alone": alone}


def ungated(training: Training, writer: CachetierWriter, own: dist.ProcessGroup) -> list[str]:
    """Change a parameter of rank 1's before the save; return what this rank is told."""
    state = writer.stage(training.state())
    if dist.get_rank() == 1:
        with torch.no_grad():
            training.model[0][0].weight.mul_(1)  # type: ignore[index]
    try:
        dcp.save(
            state, checkpoint_id="cachetier://run/50", storage_writer=writer, process_group=own
        )
    except CheckpointException as failed:
        causes = {rank: each[0] for rank, each in failed.failures.items()}
        assert all(isinstance(each, StateChangedError) for each in causes.values())
        return [f"{rank}: {each}" for rank, each in causes.items()]
    return []


def saved_by_rank_0_alone(
    training: Training, writer: CachetierWriter, own: dist.ProcessGroup
) -> float:
    """Save what every rank has alike, which rank 0 stores; return how long the next step took."""
    steps = [state["step"] for state in training.optimizer.state.values() if "step" in state]
    state = {f"{number}": step for number, step in enumerate(steps)}
    planner = dcp.DefaultSavePlanner(dedup_save_to_lowest_rank=True)
    saved = async_save(state, 60, writer, process_group=own, planner=planner)
    began = time.monotonic()
    training.step(99)
    took = time.monotonic() - began
    saved.result()
    return took


def test_every_save_holds_the_state_of_its_step_though_training_went_on(node: Node) -> None:
    first, second = run_ranks(trained_and_saved, 2, environment=node.environment)

    assert first["was"] == second["was"]
    assert first["loaded"] == second["loaded"] == first["was"]
    assert len(set(first["was"])) == SAVES
    for told in (first["told"], second["told"]):
        (error,) = told
        assert error.startswith("1: ")
        assert "model.0.0.weight was changed in place" in error
    assert max(first["alone"], second["alone"]) < 60
