"""What a lazy stager leaves where it is, and what it copies at once."""

from __future__ import annotations

import gc
import threading
from collections import OrderedDict
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from cachetier_client.errors import InvalidRequestError
from cachetier_client.torch import sending
from cachetier_client.torch.lazy import LazyStager
from torch import Tensor, nn

from tests.frameworks.lazy import Save, bits

RING_BYTES = 4 << 20


class Net(nn.Module):
    """A model with batch norm and an embedding tied to its head."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Linear(8, 8, bias=False)
        self.norm = nn.BatchNorm1d(8)
        self.head = nn.Linear(8, 8, bias=False)
        self.head.weight = self.embedding.weight
        self.frozen = nn.Parameter(torch.ones(8), requires_grad=False)

    def forward(self, batch: Tensor) -> Tensor:
        out: Tensor = self.head(self.norm(self.embedding(batch))) + self.frozen
        return out


@pytest.fixture
def net() -> Net:
    torch.manual_seed(0)
    return Net()


@pytest.fixture
def optimizer(net: Net) -> torch.optim.Optimizer:
    trained = [parameter for parameter in net.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=torch.tensor(0.1), foreach=False)
    train(net, optimizer)
    return optimizer


@pytest.fixture
def stager(optimizer: torch.optim.Optimizer) -> Iterator[LazyStager]:
    with LazyStager(optimizer, ring_bytes=RING_BYTES) as stager:
        yield stager


def train(net: Net, optimizer: torch.optim.Optimizer) -> None:
    optimizer.zero_grad()
    net(torch.randn(4, 8)).square().mean().backward()
    optimizer.step()


def memory_of(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def test_what_the_optimizer_changes_stays_where_it_is(
    net: Net, optimizer: torch.optim.Optimizer, stager: LazyStager
) -> None:
    state = stager.stage({"model": net.state_dict(), "optimizer": optimizer.state_dict()})

    for name in ("embedding.weight", "head.weight", "norm.weight", "norm.bias"):
        staged = state["model"][name]
        assert memory_of(staged) == memory_of(net.state_dict()[name])
        assert not staged.requires_grad
    for number, moments in optimizer.state_dict()["state"].items():
        for name in ("exp_avg", "exp_avg_sq", "step"):
            staged = state["optimizer"]["state"][number][name]
            assert memory_of(staged) == memory_of(moments[name])


def test_what_training_changes_at_any_time_is_copied_at_once(
    net: Net, optimizer: torch.optim.Optimizer, stager: LazyStager
) -> None:
    before = {name: bits(tensor) for name, tensor in net.state_dict().items()}
    lr = optimizer.param_groups[0]["lr"]
    state = stager.stage({"model": net.state_dict(), "lr": lr})

    net(torch.randn(4, 8))
    lr.mul_(0.5)

    model = state["model"]
    assert bits(model["norm.running_mean"]) == before["norm.running_mean"]
    assert bits(net.state_dict()["norm.running_mean"]) != before["norm.running_mean"]
    assert int(model["norm.num_batches_tracked"]) == 1
    assert float(state["lr"]) == pytest.approx(0.1)
    assert memory_of(model["frozen"]) != memory_of(net.frozen)


def test_a_part_of_a_gated_tensor_is_gated_too(
    net: Net, optimizer: torch.optim.Optimizer, stager: LazyStager
) -> None:
    before = bits(net.embedding.weight[2:4].t())
    save = Save(stager.stage({"rows": net.embedding.weight[2:4].t()}))

    train(net, optimizer)

    assert save.result() == {"rows": before}


def test_tensors_that_nothing_changes_need_no_copy_if_one_says_so(
    net: Net, optimizer: torch.optim.Optimizer
) -> None:
    with LazyStager(optimizer, also=[net.frozen], ring_bytes=RING_BYTES) as stager:
        assert memory_of(stager.stage({"frozen": net.frozen})["frozen"]) == memory_of(net.frozen)


def test_containers_and_other_values_are_copied(stager: LazyStager) -> None:
    inner: dict[str, Any] = OrderedDict(epoch=3, history=[1, {"loss": 0.5}], shape=(1, [2]))
    inner["kept"] = {4}
    state = stager.stage({"a": inner, "none": None})
    inner["history"][1]["loss"] = 9.0
    inner["history"].append(2)
    inner["shape"][1].append(3)
    inner["kept"].clear()

    assert state == {
        "a": {"epoch": 3, "history": [1, {"loss": 0.5}], "shape": (1, [2]), "kept": {4}},
        "none": None,
    }


def test_tensors_in_lists_are_staged_and_those_in_tuples_copied(
    net: Net, stager: LazyStager
) -> None:
    weight = net.embedding.weight.detach()
    state = stager.stage({"list": [weight], "tuple": (weight,)})

    assert memory_of(state["list"][0]) == memory_of(weight)
    assert memory_of(state["tuple"][0]) != memory_of(weight)


def test_empty_tensors_and_those_without_plain_memory_are_copied(stager: LazyStager) -> None:
    sparse = torch.eye(3).to_sparse()
    state = stager.stage({"empty": torch.empty(0, 3), "sparse": sparse})

    assert state["empty"].shape == (0, 3)
    assert state["sparse"] is not sparse
    assert torch.equal(state["sparse"].to_dense(), torch.eye(3))


@pytest.mark.parametrize(
    "value", [threading.Lock(), (each for each in [1])], ids=["lock", "generator"]
)
def test_what_cannot_be_copied_is_named(stager: LazyStager, value: Any) -> None:
    with pytest.raises(InvalidRequestError, match=r"loop\.1\.thing, a \w+, cannot be copied"):
        stager.stage({"loop": [0, {"thing": value}]})

    stager.wait()
    assert stager.waits == 0


def test_states_do_not_pile_up(
    net: Net, optimizer: torch.optim.Optimizer, stager: LazyStager
) -> None:
    gc.collect()  # what other tests have left
    before = len(sending._claims)
    for _ in range(5):
        Save(stager.stage(net.state_dict())).result()
        train(net, optimizer)

    assert len(sending._claims) == before
    assert len(stager._unfinished) == 1
    assert stager._snapshot is None
