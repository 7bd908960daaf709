"""The order of streams and events on CUDA devices, told by stand-ins for both."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from cachetier_client.errors import InvalidRequestError
from cachetier_client.io.ring import Ring
from cachetier_client.torch import devices
from cachetier_client.torch.devices import CudaDevices, Devices
from torch import Tensor

from tests.frameworks.lazy import bits


class OnDevice(Tensor):
    """A tensor that says it is on a CUDA device."""

    is_cuda = True


class FakeCuda:
    """Streams and events that write down what is asked of them, in order."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self.stream = Stream(self, "training")
        self.registered: list[tuple[int, int]] = []
        self.refusal = 0
        self._events = 0

    def install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(torch.cuda, "Stream", lambda device: Stream(self, "side"))
        monkeypatch.setattr(torch.cuda, "Event", self._event)
        monkeypatch.setattr(torch.cuda, "current_stream", lambda device: self.stream)
        monkeypatch.setattr(torch.cuda, "stream", self._using)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
        monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: device.index == 0)
        monkeypatch.setattr(torch.cuda, "cudart", lambda: self)
        monkeypatch.setattr(devices, "pinned_like", lambda tensor: torch.empty(tensor.shape))

    def cudaHostRegister(self, address: int, size_bytes: int, flags: int) -> int:  # noqa: N802
        if not self.refusal:
            self.registered.append((address, size_bytes))
        return self.refusal or flags

    def cudaHostUnregister(self, address: int) -> int:  # noqa: N802
        self.registered = [each for each in self.registered if each[0] != address]
        return 0

    def _event(self, *, blocking: bool) -> Event:
        assert blocking  # who waits must not burn a core that training needs
        self._events += 1
        return Event(self, self._events)

    @contextmanager
    def _using(self, stream: Stream) -> Iterator[None]:
        self.log.append(f"on {stream.name}")
        yield


class Stream:
    def __init__(self, cuda: FakeCuda, name: str) -> None:
        self._cuda = cuda
        self.name = name

    def wait_event(self, event: Event) -> None:
        self._cuda.log.append(f"{self.name} waits for {event.number}")

    def synchronize(self) -> None:
        self._cuda.log.append(f"wait for {self.name}")


class Event:
    def __init__(self, cuda: FakeCuda, number: int) -> None:
        self._cuda = cuda
        self.number = number

    def record(self, stream: Stream) -> None:
        self._cuda.log.append(f"{self.number} on {stream.name}")

    def synchronize(self) -> None:
        self._cuda.log.append(f"wait for {self.number}")


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> FakeCuda:
    fake = FakeCuda()
    fake.install(monkeypatch)
    return fake


def on_device(values: Tensor) -> Any:
    tensor = values.as_subclass(OnDevice)
    assert tensor.is_cuda
    return tensor


def test_copies_come_after_what_training_had_enqueued_and_before_what_it_does_next(
    cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(OnDevice, "device", torch.device("cuda", 0))
    passage = CudaDevices().passage()
    tensor, running = on_device(torch.arange(8.0)), on_device(torch.arange(2.0))
    into = bytearray(32)

    early = passage.early(running)
    passage.mark()
    passage.settle()
    copy = passage.copy_of(tensor)
    waits = [copy(memoryview(into)[:16], 0), copy(memoryview(into)[16:], 16)]
    passage.hold()
    for wait in waits:
        assert wait is not None
        wait()
    passage.arrive()

    assert cuda.log == [
        "1 on training",  # the early copy
        "2 on training",  # the mark
        "wait for 1",
        "side waits for 2",
        "on side",
        "3 on side",
        "on side",
        "4 on side",
        "training waits for 4",
        "wait for 3",
        "wait for 4",
        "wait for 4",
    ]
    assert bytes(into) == bits(torch.arange(8.0))
    assert torch.equal(early, torch.arange(2.0))


def test_tensors_of_the_host_are_copied_at_once_beside_a_device(cuda: FakeCuda) -> None:
    passage = CudaDevices().passage()
    into = bytearray(8)
    tensor = torch.ones(2)

    assert passage.copy_of(tensor)(memoryview(into), 0) is None
    early = passage.early(tensor)
    tensor.zero_()

    assert bytes(into) == bits(torch.ones(2))
    assert torch.equal(early, torch.ones(2))
    assert not cuda.log


def test_the_ring_is_pinned_until_nothing_copies_into_it(cuda: FakeCuda) -> None:
    lasting = CudaDevices()
    with Ring(1 << 22) as ring:
        lasting.pin(ring)
        assert cuda.registered == [(ring.address, 1 << 22)]
        lasting.side(torch.device("cuda", 0))
        lasting.unpin()
        lasting.unpin()

    assert cuda.log == ["wait for side"]
    assert not cuda.registered


def test_memory_that_cannot_be_pinned_is_an_error_that_says_what_to_do(cuda: FakeCuda) -> None:
    cuda.refusal = 2
    with Ring(1 << 22) as ring, pytest.raises(InvalidRequestError, match="smaller ring_bytes"):
        CudaDevices().pin(ring)


def test_without_cuda_devices_there_is_nothing_to_pin(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)

    assert type(devices.devices()) is Devices
