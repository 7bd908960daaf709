"""Which tensors of a state the gate holds training back from, and what is kept of the others.

What optimizers change (their parameters and their state) stays where it is: it is copied later,
while training goes on, and the gate sees to it that it is not changed before. All else, such as
the running means of batch norm, may change at any time, so it is copied at once.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from cachetier_client.errors import InvalidRequestError
from cachetier_client.io.buffers import extent_of
from cachetier_client.torch.devices import Passage
from cachetier_client.torch.snapshot import Snapshot

_UNCHANGEABLE = frozenset({int, float, complex, bool, str, bytes, type(None)})
_PLAIN = (Tensor, torch.nn.Parameter)


class Gated:
    """The tensors that are changed only behind the gate, found by the memory that they lie in.

    Args:
        optimizers: What they change is gated.
        also: Tensors that nothing changes while a save copies them.
    """

    def __init__(self, optimizers: Iterable[torch.optim.Optimizer], also: Iterable[Tensor]) -> None:
        self._by_memory: dict[int, dict[tuple[int, int], list[Tensor]]] = {}
        with torch.no_grad():
            for tensor in also:
                self._add(tensor)
            for optimizer in optimizers:
                for group in optimizer.param_groups:
                    for parameter in group["params"]:
                        self._add(parameter)
                for tensor in tensors_in(optimizer.state):
                    self._add(tensor)

    def owners_of(self, local: Tensor) -> list[Tensor] | None:
        """Return the gated tensors that a tensor lies in; None if it is not gated."""
        memory = _memory_of(local)
        found = self._by_memory.get(memory) if memory else None  # of what is empty, it is 0
        if found is None:
            return None
        start, end = extent = extent_of(local)
        if extent in found:
            return found[extent]
        around = [each for (first, last), each in found.items() if first <= start and end <= last]
        return [tensor for each in around for tensor in each] or None

    def _add(self, tensor: Tensor) -> None:
        local = local_of(tensor)
        if local is not None:
            by_extent = self._by_memory.setdefault(_memory_of(local), {})
            found = by_extent.setdefault(extent_of(local), [])
            found += [tensor] if tensor is local else [tensor, local]


def staged(value: Any, gated: Gated, snapshot: Snapshot, passage: Passage) -> Any:
    """Return a state that training does not change but behind the gate.

    Args:
        value: Nested mappings and lists with tensors and other values in them.
        gated: What the gate holds training back from.
        snapshot: Claims gated tensors, and watches them.
        passage: Copies the others.

    Raises:
        InvalidRequestError: Something in it cannot be copied.
    """
    with torch.no_grad():
        return _Staging(gated, snapshot, passage).of(value, ())


class _Staging:
    """One walk through a state."""

    def __init__(self, gated: Gated, snapshot: Snapshot, passage: Passage) -> None:
        self._gated = gated
        self._snapshot = snapshot
        self._passage = passage

    def of(self, value: Any, path: tuple[object, ...]) -> Any:
        if isinstance(value, Tensor):
            return self._tensor(value, path)
        if isinstance(value, Mapping):
            return {key: self.of(each, (*path, key)) for key, each in value.items()}
        if type(value) is list:
            return [self.of(each, (*path, number)) for number, each in enumerate(value)]
        if type(value) in _UNCHANGEABLE:
            return value
        try:
            return copy.deepcopy(value)
        except Exception as error:
            raise InvalidRequestError(
                f"{_named(path)}, a {type(value).__name__}, cannot be copied: {error}",
                hint="Leave it out of the state, or save what it is made of instead.",
            ) from error

    def _tensor(self, tensor: Tensor, path: tuple[object, ...]) -> Tensor:
        local = local_of(tensor)
        if local is None:
            if hasattr(tensor, "local_shards"):
                raise InvalidRequestError(
                    f"{_named(path)} is a ShardedTensor, which is not staged lazily",
                    hint="Shard with fully_shard (FSDP2), or save without LazyStager.",
                )
            return tensor.detach().clone()
        owners = self._gated.owners_of(local)
        if owners is None:
            return around(tensor, self._passage.early(local))
        alias = local.detach()
        own = (tensor,) if tensor is local else (tensor, local)
        self._snapshot.watch(path, (*own, *owners))
        self._snapshot.guard(alias)
        return around(tensor, alias)


def local_of(tensor: Tensor) -> Tensor | None:
    """Return this rank's own part of a tensor; None if its memory is not a plain tensor's.

    Call it without gradients: else the part of a DTensor is a view with a version of its own.
    """
    if type(tensor) is DTensor:
        tensor = tensor.to_local()
    is_plain = type(tensor) in _PLAIN and tensor.layout is torch.strided
    return tensor if is_plain and (tensor.is_cpu or tensor.is_cuda) else None


def around(tensor: Tensor, local: Tensor) -> Tensor:
    """Return ``local`` as this rank's part of a tensor that is spread like ``tensor``."""
    if not isinstance(tensor, DTensor):
        return local
    rebuild: Any = DTensor
    rebuilt: Tensor = rebuild(local, tensor._spec, requires_grad=False)
    return rebuilt


def _memory_of(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def tensors_in(value: Any) -> Iterator[Tensor]:
    """Yield the tensors of a state, however deep."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, Mapping):
        for each in value.values():
            yield from tensors_in(each)
    elif isinstance(value, list | tuple):
        for each in value:
            yield from tensors_in(each)


def _named(path: tuple[object, ...]) -> str:
    return ".".join(map(str, path)) or "the state"
