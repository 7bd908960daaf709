"""What a save costs a rank in memory: little beside the state, and no more from save to save."""

from __future__ import annotations

import gc
import tracemalloc
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from cachetier_client.torch import CachetierReader, CachetierWriter

from tests.frameworks.conftest import Node
from tests.frameworks.ranks import run_ranks

MEBI = 1 << 20
STATE_BYTES = 640 * MEBI
EXTRA_BYTES = 64 * MEBI
GROWTH_BYTES_PER_SAVE = MEBI // 8


def memory(field: str) -> int:
    """A line of this process's status, in bytes: VmRSS now, or VmHWM, the most since ``forget``."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field):
            return int(line.split()[1]) * 1024
    raise AssertionError(field)


def forget() -> None:
    Path("/proc/self/clear_refs").write_text("5")


def save_much() -> dict[str, int]:
    warnings.simplefilter("ignore", UserWarning)
    pieces = [torch.ones(40 * MEBI // 4) for _ in range(STATE_BYTES // (40 * MEBI))]
    wide = torch.ones(80 * MEBI // 4, 2)  # out of order, it goes through a stream
    states: dict[str, Any] = {"plain": {"p": pieces}, "streamed": {"w": wide.t()}}
    peaks = {}
    writer = CachetierWriter()
    dcp.save({"x": torch.ones(4)}, checkpoint_id="cachetier://run/1", storage_writer=writer)
    for step, (kind, state) in enumerate(states.items(), 2):
        forget()
        before = memory("VmRSS")
        address = f"cachetier://run/{step}"
        dcp.save(state, checkpoint_id=address, storage_writer=writer)
        peaks[kind] = memory("VmHWM") - before
        forget()
        before = memory("VmRSS")
        dcp.load(state, checkpoint_id=address, storage_reader=CachetierReader())
        peaks[f"{kind} load"] = memory("VmHWM") - before
    return peaks


def test_a_save_takes_little_memory_beside_the_state(node: Node) -> None:
    (peaks,) = run_ranks(save_much, 1, environment=node.environment, gloo=False)

    assert len(peaks) == 4
    assert all(extra <= EXTRA_BYTES for extra in peaks.values()), peaks


def save_often() -> dict[str, Any]:
    """Save in turns by both ways; without the collector, as training often does."""
    warnings.simplefilter("ignore", UserWarning)
    state = {f"p{i}": torch.ones(50_000 + i) for i in range(40)} | {"columns": torch.ones(9, 8).t()}
    writer = CachetierWriter()
    gc.disable()

    def save(step: int) -> None:
        address = f"cachetier://run/{step}"
        dcp.save(state, checkpoint_id=address, storage_writer=writer)
        address = f"cachetier://run/{step + 1000}"
        saving: Any = dcp.async_save(state, checkpoint_id=address, storage_writer=writer)
        saving.result()

    for step in range(10):
        save(step)
    gc.collect()
    tracemalloc.start()
    first, resident = tracemalloc.get_traced_memory()[0], memory("VmRSS")
    for step in range(10, 60):
        save(step)
    grown = memory("VmRSS") - resident
    gc.collect()
    traced = tracemalloc.get_traced_memory()[0] - first
    writer.close()
    return {"traced": traced, "resident": grown}


@pytest.mark.soak
@pytest.mark.slow
def test_nothing_grows_over_fifty_saves(node: Node) -> None:
    (grown,) = run_ranks(save_often, 1, environment=node.environment, gloo=False)

    assert grown["resident"] / 50 <= GROWTH_BYTES_PER_SAVE, grown
    assert grown["traced"] / 50 <= GROWTH_BYTES_PER_SAVE // 8, grown
