"""Tensors of every type, layout and subclass, by every writer: bit for bit back, or an error.

A crash of this process would be the failure: a tensor may describe memory that it does not have.
"""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable
from typing import Any, Self

import pytest
import torch
import torch.distributed.checkpoint as dcp
from cachetier_client import Client
from cachetier_client.errors import CachetierClientError, InvalidRequestError
from cachetier_client.torch import CachetierReader, CachetierWriter
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed.checkpoint.api import CheckpointException

from tests.frameworks.test_dcp_values import DTYPES, bits, values

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled:UserWarning")

SEEDS = 40
ROWS, COLUMNS = 64, 48
NAME = "layers.0.weight"


class Wrapper(Tensor):
    """A tensor around another, without memory of its own, as quantizing libraries make them."""

    wrapped: Tensor

    @staticmethod
    def __new__(cls, wrapped: Tensor) -> Self:
        make: Any = Tensor._make_wrapper_subclass
        made: Self = make(cls, wrapped.shape, dtype=wrapped.dtype, device=wrapped.device)
        return made

    def __init__(self, wrapped: Tensor) -> None:
        self.wrapped = wrapped

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Callable[..., Any], _types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        def unwrapped(value: Any) -> Any:
            return value.wrapped if isinstance(value, Wrapper) else value

        changed = {name: unwrapped(value) for name, value in (kwargs or {}).items()}
        return func(*map(unwrapped, args), **changed)


class Tagged(Tensor):
    """A subclass with memory, as ``torch.Tensor.as_subclass`` gives it."""


def fake() -> Tensor:
    with FakeTensorMode():
        return torch.ones(ROWS, COLUMNS)


def half_bytes() -> Tensor:
    scales, zeros = torch.ones(ROWS), torch.zeros(ROWS)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.quantize_per_channel(
            torch.ones(ROWS, COLUMNS), scales, zeros, 0, torch.quint4x2
        )


def freed() -> Tensor:
    tensor = torch.ones(ROWS, COLUMNS)
    tensor.untyped_storage().resize_(0)
    return tensor


LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "contiguous": lambda tensor: tensor,
    "transposed": lambda tensor: tensor.t(),
    "strided": lambda tensor: tensor[::2, 1::3],
    "a view from the middle on": lambda tensor: tensor[7:],
    "expanded": lambda tensor: tensor[:1].expand(ROWS, COLUMNS),
    "empty": lambda tensor: tensor[:0],
    "a number": lambda tensor: tensor[3, 4],
}
KINDS: dict[str, Callable[[Tensor], Tensor]] = {
    "plain": lambda tensor: tensor,
    "a parameter": lambda tensor: torch.nn.Parameter(tensor, requires_grad=False),
    "a subclass": lambda tensor: tensor.as_subclass(Tagged),
    "a wrapper": lambda tensor: Wrapper(tensor.contiguous()),
}
WITHOUT_MEMORY: dict[str, Callable[[], Tensor]] = {
    "a wrapper": lambda: Wrapper(torch.ones(ROWS, COLUMNS)),
    "fake": fake,
    "of half bytes": half_bytes,
    "freed": freed,
    "zeros that nobody wrote": lambda: torch._efficientzerotensor((ROWS, COLUMNS)),
}


def by_put(client: Client, step: int, tensor: Tensor) -> Tensor:
    client.put_shard(tensor, run="run", step=step, name=NAME)
    back = torch.empty_like(tensor.detach(), memory_format=torch.contiguous_format)
    client.get_shard("run", step, NAME, out=back)
    return back


def loaded(client: Client, step: int, tensor: Tensor) -> Tensor:
    state = {NAME: torch.zeros(tensor.shape, dtype=tensor.dtype)}
    dcp.load(state, storage_reader=CachetierReader(f"cachetier://run/{step}", client=client))
    return state[NAME]


def by_dcp(client: Client, step: int, tensor: Tensor) -> Tensor:
    writer = CachetierWriter(f"cachetier://run/{step}", client=client)
    dcp.save({NAME: tensor}, storage_writer=writer)
    return loaded(client, step, tensor)


def by_dcp_behind_training(client: Client, step: int, tensor: Tensor) -> Tensor:
    writer = CachetierWriter(f"cachetier://run/{step}", client=client)
    saved: Any = dcp.async_save({NAME: tensor}, storage_writer=writer)
    saved.result()
    return loaded(client, step, tensor)


WRITERS = {"put_shard": by_put, "dcp.save": by_dcp, "dcp.async_save": by_dcp_behind_training}


@pytest.mark.parametrize("writer", WRITERS)
def test_a_tensor_comes_back_bit_for_bit_or_is_refused_by_its_name(
    client: Client, writer: str
) -> None:
    refusals = list[str]()
    for seed in range(SEEDS):
        drawn = random.Random(f"{writer} {seed}")
        dtype, layout, kind = (drawn.choice([*each]) for each in (DTYPES, LAYOUTS, KINDS))
        tensor = KINDS[kind](LAYOUTS[layout](values(dtype, ROWS, COLUMNS, seed=seed)))
        plain = tensor.wrapped if isinstance(tensor, Wrapper) else tensor.as_subclass(Tensor)
        try:
            back = WRITERS[writer](client, seed + 1, tensor)
        except (CachetierClientError, CheckpointException) as error:
            assert kind in ("a wrapper", "a subclass") or writer == "put_shard", (layout, kind)
            refusals.append(str(error))
        else:
            assert bits(back) == bits(plain), (dtype, layout, kind)
    assert 0 < len(refusals) < SEEDS
    assert all(NAME in refusal for refusal in refusals)


def test_a_tensor_that_has_less_memory_than_it_describes_is_neither_read_nor_written(
    client: Client,
) -> None:
    client.put_shard(bytes(4 * ROWS * COLUMNS), run="run", step=1, name="bytes")

    for kind, make in WITHOUT_MEMORY.items():
        with pytest.raises(InvalidRequestError, match="no such memory of its own"):
            client.put_shard(make(), run="run", step=1, name=kind)
        with pytest.raises(InvalidRequestError, match="no such memory of its own"):
            client.get_shard("run", 1, "bytes", out=make())


def test_a_state_with_such_a_tensor_fails_by_its_name(client: Client) -> None:
    writer = CachetierWriter("cachetier://run/1", client=client)

    for kind in ("a wrapper", "fake", "freed"):
        with pytest.raises(CheckpointException, match=NAME):
            dcp.save({NAME: WITHOUT_MEMORY[kind]()}, storage_writer=writer)
