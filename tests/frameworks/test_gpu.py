"""Lazy saves of a state on a GPU; skipped where there is none."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from cachetier_client import Client
from cachetier_client.torch import CachetierReader, CachetierWriter, LazyStager
from torch import Tensor, nn

from tests.frameworks.lazy import SECONDS, async_save, bits, items_of, leaves

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device here"),
    pytest.mark.filterwarnings("ignore:torch.distributed is disabled:UserWarning"),
]

MEBI = 1 << 20


class Trained:
    """A model with batch norm on the device, AdamW, and a batch that keeps the device busy."""

    def __init__(self, width: int, *, fused: bool = False) -> None:
        torch.manual_seed(0)
        blocks = [nn.Sequential(nn.Linear(width, width), nn.BatchNorm1d(width)) for _ in range(3)]
        self.model = nn.Sequential(*blocks).cuda()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.1, fused=fused)
        self._batch = torch.randn(512, width, device="cuda")
        self.step()

    def step(self) -> None:
        self.model(self._batch).square().mean().backward()
        self.optimizer.step()
        self.optimizer.zero_grad()

    def state(self) -> dict[str, Any]:
        moments = self.optimizer.state_dict()["state"]
        return {"model": self.model.state_dict(), "optimizer": moments}


def kept(state: Any) -> dict[str, Tensor]:
    """Return copies where the tensors are; nobody waits for the device."""
    return {name: tensor.detach().clone() for name, tensor in leaves(state).items()}


def equal(some: dict[str, Tensor], others: dict[str, Tensor]) -> bool:
    return some.keys() == others.keys() and all(
        torch.equal(tensor, others[name]) for name, tensor in some.items()
    )


@pytest.mark.parametrize("fused", [False, True])
def test_a_state_on_a_device_is_kept_as_it_was_staged(client: Client, fused: bool) -> None:
    trained = Trained(1536, fused=fused)
    steps = {}
    with LazyStager(trained.optimizer, ring_bytes=16 * MEBI) as stager:
        writer = CachetierWriter(client=client, stager=stager)
        for step in range(4):
            trained.step()
            copies = kept(trained.state())  # on the device, which is still busy with the step
            saved = async_save(trained.state(), step, writer)
            trained.step()
            trained.step()
            saved.result(SECONDS)
            steps[step] = {name: tensor.cpu() for name, tensor in copies.items()}

    assert sum(tensor.nbytes for tensor in steps[0].values()) > 64 * MEBI
    for step, was in steps.items():
        into = {name: torch.zeros_like(tensor) for name, tensor in was.items()}
        dcp.load(into, storage_reader=CachetierReader(f"cachetier://run/{step}", client=client))
        assert equal(into, was)


def test_the_ring_is_pinned_and_the_side_stream_is_kept(client: Client) -> None:
    trained = Trained(256)
    with LazyStager(trained.optimizer, ring_bytes=8 * MEBI) as stager:
        assert torch.frombuffer(stager._ring.memory, dtype=torch.uint8).is_pinned()
        writer = CachetierWriter(client=client, stager=stager)
        held = []
        for step in range(20):
            async_save(trained.state(), step, writer).result(SECONDS)
            trained.step()
            held.append(torch.cuda.memory_allocated())

    assert held[-1] == held[2]


def test_what_is_staged_is_what_the_device_comes_to_not_what_it_is_at(client: Client) -> None:
    trained = Trained(512)
    busy: Any = torch.cuda._sleep
    with LazyStager(trained.optimizer, ring_bytes=8 * MEBI) as stager:
        busy(200_000_000)  # cycles, which the copies have to wait for
        trained.step()
        model = leaves(trained.model.state_dict())
        copies = kept(model)
        save = stager.save(client, "model", model, run="run", step=1, rank=0, world_size=1)
        trained.step()
        save.result(SECONDS)

    items = items_of(client.get_shard("run", 1, "model"))
    assert {name: data for name, (_, data) in items.items()} == {
        name: bits(tensor.cpu()) for name, tensor in copies.items()
    }
