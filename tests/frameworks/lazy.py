"""What lazy saves are tested with: a save in a thread that a test can hold up, and devices too."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from cachetier_client.clock import SystemClock
from cachetier_client.io.buffers import bytes_of
from cachetier_client.io.ring import Ring
from cachetier_client.torch import CachetierWriter
from cachetier_client.torch.devices import Copy, Devices, Passage
from cachetier_client.torch.extents import TRAILER, Item
from cachetier_client.torch.sending import claimant
from cachetier_client.torch.snapshot import StagedState
from torch import Tensor

from tests.frameworks.shard_index import decode_index, index_length

SECONDS = 60.0


def leaves(value: Any, path: str = "") -> dict[str, Tensor]:
    """Return the tensors of a nested state by their dotted paths."""
    if isinstance(value, Tensor):
        return {path: value}
    found: dict[str, Tensor] = {}
    for key, each in value.items():
        found |= leaves(each, f"{path}.{key}".lstrip("."))
    return found


class LookedAtClock(SystemClock):
    """Says when training's thread has begun to wait at the gate: then it asks for the time."""

    def __init__(self) -> None:
        self._tester = threading.get_ident()
        self.asked = threading.Event()

    def monotonic(self) -> float:
        if threading.get_ident() != self._tester:
            self.asked.set()
        return super().monotonic()


class Save:
    """Copies a staged state in a thread of its own, as a writer does, and keeps the bytes.

    Args:
        state: Flat: tensors by name.
        before: Called with each gated tensor's name before it is copied; what it raises ends the
            save.
    """

    def __init__(
        self, state: StagedState, before: Callable[[str], None] = lambda _name: None
    ) -> None:
        self.stored: dict[str, bytes] = {}
        self.error: BaseException | None = None
        self._before = before
        self._thread = threading.Thread(target=self._run, args=(state,), daemon=True)
        self._thread.start()

    def result(self) -> dict[str, bytes]:
        """Wait for the end, and return the bytes by name."""
        self._thread.join(SECONDS)
        assert not self._thread.is_alive()
        if self.error is not None:
            raise self.error
        return self.stored

    def _run(self, state: StagedState) -> None:
        snapshot = state.snapshot
        try:
            for name, tensor in state.items():
                if claimant(tensor) is None:
                    self.stored[name] = bytes(bytes_of(tensor))
                else:
                    self._before(name)
                    self.stored[name] = copied(snapshot.copy_of(tensor), tensor)
            snapshot.all_copied()
            snapshot.check()
        except BaseException as error:
            self.error = error
        snapshot.ended(self.error)


def async_save(state: Any, step: int, writer: CachetierWriter, **options: Any) -> Future[Any]:
    """Begin a save of a step of ``run``."""
    address = f"cachetier://run/{step}"
    saved = dcp.async_save(state, checkpoint_id=address, storage_writer=writer, **options)
    assert isinstance(saved, Future)
    return saved


def copied(copy: Copy, tensor: Tensor) -> bytes:
    into = bytearray(tensor.numel() * tensor.element_size())
    wait = copy(memoryview(into), 0)
    if wait is not None:
        wait()
    return bytes(into)


def bits(tensor: Tensor) -> bytes:
    return bytes(bytes_of(tensor.detach().clone(memory_format=torch.contiguous_format)))


def items_of(shard: memoryview) -> dict[str, tuple[Item, bytes]]:
    """Read a shard by its own index."""
    end = len(shard) - TRAILER.size
    items = decode_index(shard[end - index_length(shard[end:]) : end])
    return {each.name: (each, bytes(shard[each.at : each.at + each.length])) for each in items}


class FakeDevice(Passage, Devices):
    """A device with a stream for copies: what is asked for is copied when somebody waits for it.

    ``hold`` is where a device would wait; this one does what is left.
    """

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.pinned: Ring | None = None
        self._under_way: list[Callable[[], None]] = []
        self._lock = threading.RLock()

    def pin(self, ring: Ring) -> None:
        self.pinned = ring

    def unpin(self) -> None:
        self.pinned = None

    def passage(self) -> Passage:
        return self

    def mark(self) -> None:
        self.calls.append("mark")

    def settle(self) -> None:
        self.calls.append("settle")

    def copy_of(self, tensor: Tensor) -> Copy:
        copy_now = super().copy_of(tensor)

        def copy(into: memoryview, at: int) -> Callable[[], None]:
            done = False

            def finish() -> None:
                nonlocal done
                with self._lock:
                    if not done:
                        done = True
                        copy_now(into, at)

            with self._lock:
                self._under_way.append(finish)
            return finish

        return copy

    def arrive(self) -> None:
        self.calls.append("arrive")
        self._finish()

    def hold(self) -> None:
        self.calls.append("hold")
        self._finish()

    def _finish(self) -> None:
        with self._lock:
            while self._under_way:
                self._under_way.pop()()
