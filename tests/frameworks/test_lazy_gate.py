"""The gate: a step waits until what it will change is copied, and for nothing else."""

from __future__ import annotations

import copy
import gc
import pickle
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from cachetier_client.errors import InvalidRequestError
from cachetier_client.torch.lazy import LazyStager
from cachetier_client.torch.sending import entered
from cachetier_client.torch.snapshot import (
    SnapshotAbandonedError,
    StagedState,
    StateChangedError,
)
from torch import Tensor

from tests.frameworks.lazy import SECONDS, FakeDevice, LookedAtClock, Save, bits

RING_BYTES = 4 << 20


class Model:
    """Two parameters with gradients, each its optimizer's."""

    def __init__(self) -> None:
        self.first = torch.nn.Parameter(torch.arange(8.0))
        self.second = torch.nn.Parameter(torch.arange(4.0))
        for parameter in (self.first, self.second):
            parameter.grad = torch.ones_like(parameter)
        self.optimizer = torch.optim.SGD([self.first], lr=1.0, momentum=0.5)
        self.other = torch.optim.SGD([self.second], lr=1.0)

    def state(self) -> dict[str, Tensor]:
        return {"first": self.first, "second": self.second}


@pytest.fixture
def model() -> Model:
    return Model()


@pytest.fixture
def clock() -> LookedAtClock:
    return LookedAtClock()


@pytest.fixture
def stager(model: Model, clock: LookedAtClock) -> Iterator[LazyStager]:
    with LazyStager(model.optimizer, model.other, ring_bytes=RING_BYTES, clock=clock) as stager:
        yield stager
    entered()


def in_thread(step: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=step, daemon=True)
    thread.start()
    return thread


def joined(thread: threading.Thread) -> bool:
    thread.join(SECONDS)
    return not thread.is_alive()


def test_a_step_without_a_save_does_not_wait(model: Model, stager: LazyStager) -> None:
    model.optimizer.step()

    assert stager.waits == 0


@pytest.mark.parametrize("which", ["optimizer", "other"])
def test_a_step_waits_until_everything_is_copied(
    model: Model, stager: LazyStager, clock: LookedAtClock, which: str
) -> None:
    before = {name: bits(tensor) for name, tensor in model.state().items()}
    go_on = threading.Event()
    save = Save(stager.stage(model.state()), lambda _name: assert_(go_on.wait(SECONDS)))

    training = in_thread(getattr(model, which).step)
    assert clock.asked.wait(SECONDS)
    assert {name: bits(tensor) for name, tensor in model.state().items()} == before
    go_on.set()

    assert joined(training)
    assert save.result() == before
    assert stager.waits == 1
    assert {name: bits(tensor) for name, tensor in model.state().items()} != before


def test_a_step_after_the_copies_does_not_wait(model: Model, stager: LazyStager) -> None:
    before = bits(model.first)
    save = Save(stager.stage(model.state()))
    save.result()

    model.optimizer.step()
    model.optimizer.step()

    assert save.stored["first"] == before
    assert stager.waits == 0
    stager.wait()


def test_a_step_with_a_closure_waits_too(model: Model, stager: LazyStager) -> None:
    before = bits(model.first)
    save = Save(stager.stage(model.state()))

    model.optimizer.step(lambda: 1.0)

    assert save.result()["first"] == before


def test_an_optimizer_that_steps_in_the_backward_pass_waits_too(
    model: Model, stager: LazyStager
) -> None:
    parameter: Any = model.first
    parameter.register_post_accumulate_grad_hook(lambda _parameter: model.optimizer.step())
    before = bits(model.first)
    save = Save(stager.stage(model.state()))

    parameter.square().sum().backward()

    assert save.result()["first"] == before
    assert bits(model.first) != before


def test_a_step_that_a_scaler_leaves_out_needs_no_gate(model: Model, stager: LazyStager) -> None:
    scaler = torch.amp.GradScaler("cpu")
    loss: Any = scaler.scale(model.first.sum() * float("inf"))
    loss.backward()
    state = stager.stage(model.state())
    scaler.step(model.optimizer)
    scaler.update()

    assert stager.waits == 0
    assert set(Save(state).result()) == {"first", "second"}


def test_the_next_state_waits_for_the_copies_of_the_one_before(
    model: Model, stager: LazyStager, clock: LookedAtClock
) -> None:
    go_on = threading.Event()
    first = Save(stager.stage(model.state()), lambda _name: assert_(go_on.wait(SECONDS)))
    staged: list[Save] = []

    training = in_thread(lambda: staged.append(Save(stager.stage(model.state()))))
    assert clock.asked.wait(SECONDS)
    assert not staged
    go_on.set()

    assert joined(training)
    model.optimizer.step()
    assert first.result() == staged[0].result()


def test_training_goes_on_when_the_copies_take_too_long(model: Model) -> None:
    stager = LazyStager(model.optimizer, ring_bytes=RING_BYTES, gate_seconds=0.0)
    go_on = threading.Event()
    before = bits(model.first)
    save = Save(stager.stage(model.state()), lambda _name: assert_(go_on.wait(SECONDS)))

    model.optimizer.step()
    go_on.set()

    assert bits(model.first) != before
    with pytest.raises(SnapshotAbandonedError, match="gate_seconds"):
        save.result()
    stager.close()


def test_copies_that_end_after_training_went_on_are_not_kept(model: Model) -> None:
    stager = LazyStager(model.optimizer, ring_bytes=RING_BYTES, gate_seconds=0.0)
    state = stager.stage({"first": model.first})
    copy_first = state.snapshot.copy_of(state["first"])

    copy_first(memoryview(bytearray(32)), 0)
    model.optimizer.step()

    with pytest.raises(SnapshotAbandonedError):
        state.snapshot.all_copied()
    with pytest.raises(SnapshotAbandonedError):
        copy_first(memoryview(bytearray(32)), 0)
    state.snapshot.ended(None)
    stager.close()


def test_a_save_given_up_that_nobody_was_told_of_is_told_by_the_next_call(model: Model) -> None:
    stager = LazyStager(model.optimizer, ring_bytes=RING_BYTES, gate_seconds=0.0)
    state = stager.stage(model.state())

    model.optimizer.step()

    with pytest.raises(SnapshotAbandonedError):
        stager.wait()
    stager.wait()
    del state
    stager.close()


def test_a_save_given_up_holds_on_to_nothing(model: Model) -> None:
    held: list[weakref.ref[StagedState]] = []
    with LazyStager(model.optimizer, ring_bytes=RING_BYTES, gate_seconds=0.0) as stager:
        for _ in range(3):
            state = stager.stage(model.state())
            held.append(weakref.ref(state))
            model.optimizer.step()
            with pytest.raises(SnapshotAbandonedError):
                Save(state).result()
            del state

    gc.collect()
    assert [each() for each in held] == [None, None, None]


def test_a_save_that_fails_lets_training_go_on(
    model: Model, stager: LazyStager, clock: LookedAtClock
) -> None:
    def fail(_name: str) -> None:
        assert clock.asked.wait(SECONDS)
        raise OSError("the disk is gone")

    save = Save(stager.stage(model.state()), fail)

    assert joined(in_thread(model.optimizer.step))

    with pytest.raises(OSError, match="the disk is gone"):
        save.result()
    stager.wait()


def test_a_save_whose_thread_ends_early_lets_training_go_on(
    model: Model, stager: LazyStager
) -> None:
    state = stager.stage(model.state())
    assert joined(in_thread(lambda: list(state.items())))

    model.optimizer.step()

    with pytest.raises(InvalidRequestError, match="given up"):
        Save(state).result()


def test_a_state_that_nobody_saves_lets_training_go_on(model: Model, stager: LazyStager) -> None:
    state = stager.stage(model.state())

    del state
    model.optimizer.step()

    assert stager.waits == 0


@pytest.mark.parametrize("leave", [pickle.dumps, copy.copy, copy.deepcopy])
def test_a_staged_state_does_not_leave_its_process(
    model: Model, stager: LazyStager, leave: Callable[[object], object]
) -> None:
    state = stager.stage(model.state())

    with pytest.raises(InvalidRequestError, match=r"AsyncCheckpointerType\.THREAD"):
        leave(state)

    model.optimizer.step()
    assert stager.waits == 0


def test_a_change_that_no_gate_held_back_fails_the_save(model: Model, stager: LazyStager) -> None:
    def change(name: str) -> None:
        if name == "second":
            with torch.no_grad():
                model.first.add_(1)

    save = Save(stager.stage(model.state()), change)

    with pytest.raises(StateChangedError, match=r"first was changed in place.*stager\.wait"):
        save.result()


def test_a_change_through_a_view_or_the_state_of_an_optimizer_is_seen(
    model: Model, stager: LazyStager
) -> None:
    model.optimizer.step()
    moment = model.optimizer.state[model.first]["momentum_buffer"]
    for change in (moment, model.first.detach()[2:]):
        save = Save(stager.stage({"all": model.first, "moment": moment}), zeroing(change))
        with pytest.raises(StateChangedError):
            save.result()


def test_a_change_after_the_save_but_before_the_gate_is_told_by_the_next_call(
    model: Model, stager: LazyStager
) -> None:
    Save(stager.stage(model.state())).result()

    with torch.no_grad():
        model.second.add_(1)
    model.optimizer.step()

    with pytest.raises(StateChangedError, match="second"):
        stager.wait()


def test_after_a_wait_the_state_may_be_changed_by_hand(model: Model, stager: LazyStager) -> None:
    before = bits(model.first)
    changed = threading.Event()
    state = stager.stage(model.state())
    save = Save(state)
    stager.wait()
    with torch.no_grad():
        model.first.zero_()
    changed.set()

    assert save.result()["first"] == before


def test_training_waits_only_until_the_copies_of_a_device_are_enqueued(model: Model) -> None:
    device = FakeDevice()
    stager = LazyStager(model.optimizer, ring_bytes=RING_BYTES, devices=device)
    assert device.pinned is not None
    before = bits(model.first)
    state = stager.stage({"first": model.first})
    into = bytearray(len(before))
    wait = state.snapshot.copy_of(state["first"])(memoryview(into), 0)
    state.snapshot.all_copied()

    model.optimizer.step()
    assert device.calls == ["mark", "settle", "hold"]
    assert wait is not None
    wait()
    state.snapshot.check()
    state.snapshot.ended(None)

    assert bytes(into) == before != bits(model.first)
    assert stager.waits == 0
    stager.close()
    assert device.pinned is None


def test_a_forked_child_does_not_wait_for_its_parents_save(
    model: Model, stager: LazyStager, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = stager.stage(model.state())
    with monkeypatch.context() as child:
        child.setattr("os.getpid", lambda: 1)
        model.optimizer.step()

    assert stager.waits == 0
    with pytest.raises(StateChangedError):  # as this is no child
        Save(state).result()


def test_a_closed_stager_leaves_the_optimizer_alone(model: Model) -> None:
    with LazyStager(model.optimizer, ring_bytes=RING_BYTES) as stager:
        assert model.optimizer._optimizer_step_pre_hooks
    stager.close()

    assert not model.optimizer._optimizer_step_pre_hooks
    with pytest.raises(InvalidRequestError, match="closed"):
        stager.stage(model.state())


def test_only_what_has_a_hook_before_its_step_is_an_optimizer() -> None:
    with pytest.raises(InvalidRequestError, match="no hook before its step"):
        LazyStager(object())  # type: ignore[arg-type]


class Wrapping(torch.optim.Optimizer):
    """An optimizer in name, as wrappers are: it steps another one."""

    def __init__(self, wrapped: torch.optim.Optimizer) -> None:
        self.wrapped = wrapped

    def step(self, closure: Any = None) -> Any:
        return self.wrapped.step(closure)


def test_an_optimizer_that_wraps_another_is_refused_by_name(model: Model) -> None:
    with pytest.raises(InvalidRequestError, match=r"a Wrapping has no hook.*pass the other"):
        LazyStager(Wrapping(model.optimizer))


def zeroing(tensor: Tensor) -> Callable[[str], None]:
    def zero(_name: str) -> None:
        tensor.zero_()

    return zero


def assert_(fact: bool) -> None:
    assert fact
