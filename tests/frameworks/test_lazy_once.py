"""What is staged is stored as it was staged, or not at all, however the state is handed on."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any, cast

import pytest
import torch
import torch.distributed.checkpoint as dcp
from cachetier_client import Client
from cachetier_client.clock import SystemClock
from cachetier_client.deadline import Deadline
from cachetier_client.errors import InvalidRequestError
from cachetier_client.torch import CachetierReader, CachetierWriter, lazy, sending
from cachetier_client.torch.lazy import LazyStager
from cachetier_client.torch.snapshot import Phase, StateChangedError
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.planner import WriteItem

from tests.frameworks.lazy import SECONDS, FakeDevice, Save, async_save, bits, copied
from tests.frameworks.test_lazy_saves import MEBI, Trained, all_bits, loaded

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled:UserWarning")


def why(failed: CheckpointException) -> BaseException:
    ((error, _),) = failed.failures.values()
    return error


def test_a_staged_state_is_saved_once_not_again_when_training_has_gone_on(client: Client) -> None:
    trained = Trained((100,))
    was = all_bits(trained.state())
    with LazyStager(trained.optimizer, ring_bytes=4 * MEBI) as stager:
        writer = CachetierWriter(client=client, stager=stager)
        state = stager.stage(trained.state())
        dcp.save(state, checkpoint_id="cachetier://run/1", storage_writer=writer)
        trained.optimizer.step()
        with pytest.raises(CheckpointException) as failed:
            dcp.save(state, checkpoint_id="cachetier://run/2", storage_writer=writer)

    assert isinstance(why(failed.value), InvalidRequestError)
    assert "once" in str(why(failed.value))
    assert loaded(client, 1, trained.state()) == was
    assert [each.step for each in client.steps("run")] == [1]


def test_parts_of_a_staged_state_are_not_saved_one_after_another(client: Client) -> None:
    trained = Trained((100,))
    with LazyStager(trained.optimizer, ring_bytes=4 * MEBI) as stager:
        writer = CachetierWriter(client=client, stager=stager)
        state = stager.stage(trained.state())
        dcp.save(state["model"], checkpoint_id="cachetier://run/1", storage_writer=writer)
        trained.optimizer.step()  # the gate is open: a save has said that all is copied
        with pytest.raises(CheckpointException) as failed:
            dcp.save(state["optimizer"], checkpoint_id="cachetier://run/2", storage_writer=writer)

    assert "once" in str(why(failed.value))


class Viewing(dcp.DefaultSavePlanner):
    """Hands out views of the tensors, as planners that reshape do."""

    def resolve_data(self, write_item: WriteItem) -> Any:
        found = super().resolve_data(write_item)
        return found.view_as(found) if isinstance(found, Tensor) else found


def test_views_that_a_planner_makes_are_held_back_by_the_gate_too(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    stepped, put = threading.Event(), sending._put

    def put_late(*arguments: Any) -> None:
        stepped.wait(SECONDS)
        put(*arguments)

    monkeypatch.setattr(sending, "_put", put_late)
    trained = Trained((100,))
    was = all_bits(trained.state())
    with LazyStager(trained.optimizer, ring_bytes=4 * MEBI) as stager:
        writer = CachetierWriter(client=client, stager=stager)
        saved = async_save(trained.state(), 1, writer, planner=Viewing())
        trained.optimizer.step()
        stepped.set()
        saved.result()

    assert loaded(client, 1, trained.state()) == was


def test_a_thread_that_has_only_looked_at_a_state_says_nothing_of_its_save(client: Client) -> None:
    trained = Trained((100,))
    was = all_bits(trained.state())
    with LazyStager(trained.optimizer, ring_bytes=4 * MEBI) as stager:
        state = stager.stage({f"p{number}": each for number, each in enumerate(trained.parameters)})
        assert list(state) == ["p0"]
        looked = threading.Event()

        def copy_slowly(_name: str) -> None:
            assert looked.wait(SECONDS)

        with ThreadPoolExecutor(1) as pool:
            save = Save(state, copy_slowly)
            while state.snapshot._saver is threading.current_thread():
                pass
            dcp.save(
                {"other": torch.ones(3)},
                checkpoint_id="cachetier://run/9",
                storage_writer=CachetierWriter(client=client),
            )
            assert state.snapshot.phase is Phase.COPYING
            step = pool.submit(trained.optimizer.step)
            looked.set()
            step.result(SECONDS)

    assert save.result()["p0"] == was["model.p0"]


def test_a_save_given_up_that_never_came_to_its_shard_is_over_when_its_thread_is() -> None:
    trained = Trained((100,))
    stager = LazyStager(trained.optimizer, ring_bytes=4 * MEBI, gate_seconds=0.0)
    state = stager.stage(trained.state())
    trained.optimizer.step()
    failing = threading.Thread(target=lambda: list(state.items()))
    failing.start()
    failing.join(SECONDS)

    assert state.snapshot.wait_over(Deadline(SECONDS, SystemClock()))
    assert state.snapshot.is_over
    with pytest.raises(Exception, match="did not end"):
        stager.close()


def test_a_save_given_up_that_nobody_begins_is_over_when_its_state_is_gone() -> None:
    trained = Trained((100,))
    stager = LazyStager(trained.optimizer, ring_bytes=4 * MEBI, gate_seconds=0.0)
    state = stager.stage(trained.state())
    snapshot = state.snapshot
    trained.optimizer.step()
    del state

    assert snapshot.is_over
    with pytest.raises(Exception, match="did not end"):
        stager.close()


def test_a_part_that_is_taken_out_of_a_state_is_there() -> None:
    device = FakeDevice()
    trained = Trained((100,))
    with LazyStager(trained.optimizer, ring_bytes=4 * MEBI, devices=device) as stager:
        for take in (
            lambda state: state["mean"],
            lambda state: state.get("mean"),
            lambda state: [*state.values()],
            lambda state: {**state},
        ):
            device.calls.clear()
            take(stager.stage({"mean": torch.ones(2)}))
            assert device.calls == ["mark", "settle"]


def test_what_only_lies_beside_a_parameter_is_copied_at_once() -> None:
    flat = torch.zeros(16)
    norm = torch.nn.BatchNorm1d(8)
    norm.weight.data = flat[:8]
    norm.running_mean = flat[8:]
    optimizer = torch.optim.SGD(norm.parameters(), lr=0.1)
    before = bits(norm.running_mean)
    with LazyStager(optimizer, ring_bytes=4 * MEBI) as stager:
        state = stager.stage({"mean": norm.running_mean, "weight": norm.weight, "flat": flat})
        norm(torch.randn(4, 8))
        stored = Save(state).result()

    assert bits(norm.running_mean) != before
    assert stored["mean"] == before
    assert stored["flat"] == bits(torch.zeros(16))


def test_tensors_of_inference_mode_may_be_named_as_unchanging() -> None:
    with torch.inference_mode():
        frozen = torch.ones(5)
    trained = Trained((3,))
    with LazyStager(trained.optimizer, also=[frozen], ring_bytes=4 * MEBI) as stager:
        assert Save(stager.stage({"frozen": frozen})).result() == {"frozen": bits(frozen)}


def test_a_load_over_the_state_while_it_is_saved_fails_the_save(client: Client) -> None:
    trained = Trained((100, 100))
    state = {"p0": trained.parameters[0]}
    older = CachetierWriter(client=client)
    dcp.save(state, checkpoint_id="cachetier://run/1", storage_writer=older)
    was = bits(trained.parameters[0])
    trained.optimizer.step()

    def load(_name: str) -> None:
        dcp.load(state, storage_reader=CachetierReader("cachetier://run/1", client=client))

    with LazyStager(trained.optimizer, ring_bytes=4 * MEBI) as stager:
        save = Save(stager.stage(state), load)
        with pytest.raises(StateChangedError, match="p0"):
            save.result()

    assert bits(trained.parameters[0]) == was


class Unasked:
    """A client that gives out parts nobody looks at."""

    def checkpoint(self, *_: Any, **__: Any) -> None: ...


def test_a_save_that_waits_for_its_remote_holds_up_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    durable, target = threading.Event(), cast("Client", Unasked())

    def store(_part: Any, name: str, state: Any, _deadline: Any, *, seals: bool) -> Any:
        assert seals
        for _, tensor in state.items():  # which says that this thread saves
            copied(state.snapshot.copy_of(tensor), tensor)
        state.snapshot.all_copied()
        state.snapshot.ended(None)
        assert name != "first" or durable.wait(SECONDS)
        return name

    monkeypatch.setattr(lazy, "store", store)
    trained = Trained((100,))
    with LazyStager(trained.optimizer, ring_bytes=4 * MEBI, gate_seconds=3.0) as stager:
        tensors = {"only": trained.parameters[0]}
        saves = [stager.save(target, name, tensors, step=1) for name in ("first", "second")]
        trained.optimizer.step()
        late = saves[1].exception(SECONDS)
        durable.set()
        assert late is None
        assert saves[0].exception(SECONDS) is None


def test_closing_waits_no_longer_than_the_gate(monkeypatch: pytest.MonkeyPatch) -> None:
    durable, target = threading.Event(), cast("Client", Unasked())

    def store(_part: Any, _name: str, state: Any, _deadline: Any, **_: Any) -> Any:
        state.snapshot.all_copied()
        state.snapshot.ended(None)
        return durable.wait(SECONDS)

    monkeypatch.setattr(lazy, "store", store)
    trained = Trained((100,))
    stager = LazyStager(trained.optimizer, ring_bytes=4 * MEBI, gate_seconds=0.2)
    save = stager.save(target, "slow", {"only": trained.parameters[0]}, step=1)
    stager.close()
    assert not save.done()
    durable.set()
    assert save.exception(SECONDS) is None
