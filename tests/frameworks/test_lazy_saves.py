"""Lazy saves into a service: through a ring smaller than the state, with DCP and without."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from cachetier_client import Client
from cachetier_client.errors import CachetierClientError, InvalidRequestError
from cachetier_client.torch import CachetierReader, CachetierWriter
from cachetier_client.torch.lazy import LazyStager
from cachetier_client.torch.snapshot import StateChangedError
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.planner import SavePlan
from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType

from tests.frameworks.lazy import SECONDS, FakeDevice, async_save, bits, items_of, leaves

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled:UserWarning")

MEBI = 1 << 20


class Trained:
    """Parameters of some size, changed by AdamW, each element by another amount."""

    def __init__(self, *shapes: tuple[int, ...]) -> None:
        torch.manual_seed(1)
        self.parameters = [torch.nn.Parameter(torch.randn(shape)) for shape in shapes]
        for parameter in self.parameters:
            parameter.grad = torch.randn_like(parameter)
        self.optimizer = torch.optim.AdamW(self.parameters, lr=0.1)
        self.optimizer.step()

    def state(self) -> dict[str, Any]:
        named = {f"p{number}": each for number, each in enumerate(self.parameters)}
        return {"model": named, "optimizer": self.optimizer.state_dict()["state"]}


def all_bits(state: Any) -> dict[str, bytes]:
    return {name: bits(tensor) for name, tensor in leaves(state).items()}


def loaded(client: Client, step: int, state: dict[str, Any]) -> dict[str, bytes]:
    """Load a step over tensors of the state's shapes, and return all bits."""
    into = {name: torch.zeros_like(tensor) for name, tensor in leaves(state).items()}
    dcp.load(into, storage_reader=CachetierReader(f"cachetier://run/{step}", client=client))
    return all_bits(into)


def test_a_state_larger_than_the_ring_is_kept_as_it_was_staged(client: Client) -> None:
    trained = Trained((5, MEBI), (3, MEBI // 2 + 7), (11,), (3,))
    trained.parameters[1].data = trained.parameters[1].data.clone()
    with LazyStager(trained.optimizer, ring_bytes=16 * MEBI) as stager:
        writer = CachetierWriter(client=client, stager=stager)
        steps = {}
        for step in range(3):
            state = trained.state()
            steps[step] = all_bits(state)
            saved = async_save(
                state,
                step,
                writer,
            )
            trained.optimizer.step()
            saved.result()
        writer.close()

    assert sum(map(len, steps[0].values())) > 64 * MEBI
    for step, was in steps.items():
        assert loaded(client, step, trained.state()) == was
    assert steps[0] != steps[1] != steps[2]


def test_a_stager_may_be_given_to_dcp_instead_of_the_writer(client: Client) -> None:
    trained = Trained((100, 100))
    was = all_bits(trained.state())
    with LazyStager(trained.optimizer, ring_bytes=4 * MEBI) as stager:
        saved = async_save(
            trained.state(),
            1,
            CachetierWriter(client=client),
            async_stager=stager,
        )
        trained.optimizer.step()
        saved.result()

    assert loaded(client, 1, trained.state()) == was


def test_tensors_that_are_not_contiguous_are_kept_too(client: Client) -> None:
    trained = Trained((64, 32, 7, 5), (2000, 1100))
    channels_last, transposed = trained.parameters
    channels_last.data = channels_last.data.contiguous(memory_format=torch.channels_last)
    state = {"image": channels_last, "transposed": transposed.t()}
    was = all_bits(state)
    with LazyStager(trained.optimizer, ring_bytes=8 * MEBI) as stager:
        saved = async_save(
            state,
            1,
            CachetierWriter(client=client, stager=stager),
        )
        trained.optimizer.step()
        saved.result()

    assert loaded(client, 1, state) == was


def test_copies_of_a_device_are_written_when_they_are_there(client: Client) -> None:
    device = FakeDevice()
    trained = Trained((3 * MEBI,), (10,))
    was = all_bits(trained.state())
    with LazyStager(trained.optimizer, ring_bytes=8 * MEBI, devices=device) as stager:
        saved = async_save(
            trained.state(),
            1,
            CachetierWriter(client=client, stager=stager),
        )
        trained.optimizer.step()
        saved.result()

    assert loaded(client, 1, trained.state()) == was
    assert {"mark", "settle", "hold", "arrive"} <= set(device.calls)


class Unhurried(CachetierWriter):
    """Finishes only once training has taken its step."""

    def __init__(self, client: Client, stager: LazyStager) -> None:
        super().__init__(client=client, stager=stager)
        self.stepped = threading.Event()

    def finish(self, metadata: Any, results: Any) -> None:
        assert self.stepped.wait(SECONDS)
        super().finish(metadata, results)


class OfAnotherRank(dcp.DefaultSavePlanner):
    """Leaves every tensor to others, as if they had the same."""

    def create_local_plan(self) -> SavePlan:
        plan = super().create_local_plan()
        return replace(plan, items=[each for each in plan.items if each.tensor_data is None])


@pytest.mark.parametrize("planner", [dcp.DefaultSavePlanner, OfAnotherRank])
def test_the_gate_opens_when_all_is_copied_not_when_it_is_stored(
    client: Client, planner: type[dcp.DefaultSavePlanner]
) -> None:
    trained = Trained((2 * MEBI,))
    with LazyStager(trained.optimizer, ring_bytes=4 * MEBI) as stager:
        writer = Unhurried(client, stager)
        saved = async_save({**trained.state(), "epoch": 3}, 1, writer, planner=planner())
        trained.optimizer.step()
        writer.stepped.set()
        saved.result()


def test_a_background_process_is_refused(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    from torch.distributed.checkpoint import _async_process_executor as process

    trained = Trained((10,))
    monkeypatch.setattr(process, "_CHECKPOINT_PROCESS", Unpicklable())
    with LazyStager(trained.optimizer, ring_bytes=4 * MEBI) as stager:
        saved = async_save(
            trained.state(),
            1,
            CachetierWriter(client=client, stager=stager),
            async_checkpointer_type=AsyncCheckpointerType.PROCESS,
        )
        with pytest.raises(InvalidRequestError, match=r"AsyncCheckpointerType\.THREAD"):
            saved.result()
        trained.optimizer.step()


class Unpicklable:
    """Stands in for the process: sends nothing, but makes what would be sent."""

    def save(self, staged_state_dict: Any, **_options: Any) -> None:
        import pickle

        pickle.dumps(staged_state_dict)


def test_a_change_that_no_gate_held_back_leaves_nothing(client: Client) -> None:
    trained = Trained((MEBI,))
    with LazyStager(trained.optimizer, ring_bytes=4 * MEBI) as stager:
        writer = CachetierWriter(client=client, stager=stager)
        state = writer.stage(trained.state())
        with torch.no_grad():
            trained.parameters[0].mul_(2)
        with pytest.raises(CheckpointException) as failed:
            dcp.save(state, checkpoint_id="cachetier://run/1", storage_writer=writer)
        (error,) = [each[0] for each in failed.value.failures.values()]
        assert isinstance(error, StateChangedError)
        assert "model.p0" in str(error)

    assert not client.steps("run")


def test_tensors_are_saved_without_dcp(client: Client) -> None:
    trained = Trained((700, 1000), (5,))
    first, second = trained.parameters
    running = torch.arange(6.0).reshape(2, 3)
    tensors = {"first": first, "part": second[1:3], "running": running}
    was = all_bits(tensors)
    with LazyStager(trained.optimizer, ring_bytes=4 * MEBI) as stager:
        save = stager.save(client, "model", tensors, run="run", step=5, rank=0, world_size=1)
        running.zero_()
        trained.optimizer.step()
        receipt = save.result(SECONDS)

    shard = client.get_shard("run", 5, "model")
    items = items_of(shard)
    assert receipt.size_bytes == len(shard)
    assert {name: data for name, (_, data) in items.items()} == was
    assert items["running"][0].sizes == (2, 3)
    assert client.step("run", 5).state != "open"


def test_a_checkpoint_takes_lazy_saves_and_is_sealed_by_its_owner(client: Client) -> None:
    trained = Trained((100,), (200,))
    first, second = trained.parameters
    was = all_bits({"first": first, "second": second})
    with LazyStager(trained.optimizer, ring_bytes=4 * MEBI) as stager:
        with client.checkpoint("run", 5, rank=0, world_size=1) as checkpoint:
            saves = [
                stager.save(checkpoint, "a", {"first": first}),
                stager.save(checkpoint, "b", {"second": second}),
            ]
            assert saves[0].copied(SECONDS)
            assert saves[1].copied(SECONDS)
            with torch.no_grad():
                first.zero_()
                second.zero_()
            assert [save.result(SECONDS).name for save in saves] == ["a", "b"]
        assert set(checkpoint.receipts) == {"a", "b"}

    for shard, name in (("a", "first"), ("b", "second")):
        assert items_of(client.get_shard("run", 5, shard))[name][1] == was[name]


def test_a_plain_save_that_fails_keeps_nothing_and_lets_training_go_on(client: Client) -> None:
    trained = Trained((100,))
    (only,) = trained.parameters
    with LazyStager(trained.optimizer, ring_bytes=4 * MEBI) as stager:
        save = stager.save(client, "not/../a name", {"only": only}, run="run", step=5, rank=0)
        trained.optimizer.step()

        assert isinstance(save.exception(SECONDS), CachetierClientError)
        assert not save.copied(SECONDS)
        with pytest.raises(InvalidRequestError, match="step="):
            stager.save(client, "a", {"only": only})
        with pytest.raises(InvalidRequestError, match="dense tensor"):
            stager.save(client, "a", {"only": only.detach().to_sparse()}, step=1)

    assert not client.steps("run")


def test_many_saves_take_no_more_than_one(client: Client) -> None:
    trained = Trained((300, 1000))
    before = set(threading.enumerate())
    with LazyStager(trained.optimizer, ring_bytes=8 * MEBI) as stager:
        writer = CachetierWriter(client=client, stager=stager)
        seen = set()
        for step in range(20):
            async_save(
                trained.state(),
                step,
                writer,
            ).result()
            trained.optimizer.step()
            seen.add((stager._ring.free_blocks, len(stager._unfinished)))
        stager.save(client, "a", {"p": trained.parameters[0]}, run="run", step=99, rank=0).result()

    assert seen == {(2, 1)}
    left = set(threading.enumerate()) - before  # some are the service's
    ours = [each for each in left if each.name.startswith("cachetier-lazy")]
    for thread in ours:
        thread.join(60)  # idle when the stager was closed, and on its way out
    assert not [thread for thread in ours if thread.is_alive()]
    names = [each.name for each in left if each.name.startswith("cachetier") and each.is_alive()]
    assert len(names) <= 3, names  # the client's, for blocks
