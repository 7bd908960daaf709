"""How a rank's shard is written: one put of memory as it lies, or a stream; and claimed tensors."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any, cast

import pytest
import torch
from cachetier_client.checkpoints import Checkpoint
from cachetier_client.clock import SystemClock
from cachetier_client.deadline import Deadline
from cachetier_client.errors import DeadlineError, InvalidRequestError
from cachetier_client.io.aligned import address_of
from cachetier_client.io.buffers import bytes_of
from cachetier_client.io.ring import Ring
from cachetier_client.streams.writer import CACHED_BYTES
from cachetier_client.torch import sending
from cachetier_client.torch.devices import Devices, Passage
from cachetier_client.torch.layout import Piece, ShardLayout
from cachetier_client.torch.plans import resolve
from cachetier_client.torch.sending import claim, enter, give_up, send
from cachetier_client.torch.snapshot import Snapshot
from torch import Tensor
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner

from tests.client.fakes import FakeClock

PIECE_BYTES = 1000


class FakeStream(io.BytesIO):
    """A stream that asks for what is written later in small pieces."""

    def write_later(
        self, size_bytes: int, copy: Callable[[memoryview, int], Any], *, at_once: int
    ) -> int:
        assert at_once == CACHED_BYTES  # tensors in memory
        for at in range(0, size_bytes, PIECE_BYTES):
            into = memoryview(bytearray(min(PIECE_BYTES, size_bytes - at)))
            wait = copy(into, at)
            if wait is not None:
                wait()
            self.write(into)
        return size_bytes

    def close(self) -> None:
        """Stay readable."""


class FakeCheckpoint:
    """Keeps what was put, and what was streamed."""

    def __init__(self) -> None:
        self.put_buffers: list[Any] = []
        self.stream: FakeStream | None = None
        self.options: dict[str, Any] = {}

    def put(self, data: list[Any], name: str, **options: Any) -> None:
        self.put_buffers, self.options = data, options

    def open(self, name: str, **options: Any) -> FakeStream:
        self.stream, self.options = FakeStream(), options
        return self.stream

    @property
    def stored(self) -> bytes:
        return self.stream.getvalue() if self.stream else b"".join(map(bytes, self.put_buffers))


class FakeCopier(Snapshot):
    """Copies what it has claimed, and notes the length of each, and what it is told."""

    def __init__(self, fails: bool = False) -> None:
        super().__init__(Ring(1), Passage())
        self.fails = fails
        self.told: list[Any] = []

    def saves_here(self) -> bool:
        return True

    def guards(self, tensor: Tensor) -> bool:
        return False

    def copy_of(self, tensor: Tensor) -> Callable[[memoryview, int], None]:
        def copy(into: memoryview, at: int) -> None:
            if self.fails:
                raise RuntimeError("no copy")
            into[:] = bytes_of(tensor)[at : at + len(into)]
            if at + len(into) == len(bytes_of(tensor)):
                self.copied(tensor)

        return copy

    def copied(self, tensor: Tensor) -> None:
        self.told.append(len(tensor))

    def all_copied(self) -> None:
        self.told.append("all")

    def check(self) -> None:
        self.told.append("check")

    def ended(self, error: BaseException | None) -> None:
        self.told.append(error)


def sent(checkpoint: FakeCheckpoint, pieces: list[Piece]) -> ShardLayout:
    deadline = Deadline(60, SystemClock())
    return send(cast("Checkpoint", checkpoint), "s", pieces, deadline)


def assert_holds(checkpoint: FakeCheckpoint, layout: ShardLayout) -> None:
    stored = checkpoint.stored
    assert len(stored) == layout.size_bytes
    for each in layout.placed:
        content = each.piece.content
        content = content.contiguous() if isinstance(content, Tensor) else content
        assert stored[each.at : each.at + each.piece.length] == bytes(bytes_of(content))


def test_contiguous_tensors_are_one_put_of_the_memory_they_lie_in() -> None:
    large, small = torch.randn(3 << 20), torch.randn(5, 3)
    checkpoint = FakeCheckpoint()
    layout = sent(checkpoint, [Piece("a", (0, 0), small), Piece("b", (0,), large)])

    addresses = [address_of(memoryview(buffer)) for buffer in checkpoint.put_buffers]
    assert {large.data_ptr(), small.data_ptr()} < set(addresses)
    assert checkpoint.options["element_size"] == 4
    assert_holds(checkpoint, layout)


def test_a_tensor_out_of_order_makes_a_stream() -> None:
    turned = torch.arange(3000.0).view(50, 60).t()
    checkpoint = FakeCheckpoint()
    pieces = [Piece("a", (0, 0), turned), Piece("b", (), memoryview(b"object"))]
    layout = sent(checkpoint, pieces)

    assert checkpoint.options["size_bytes"] == layout.size_bytes
    assert_holds(checkpoint, layout)


def test_small_tensors_out_of_order_are_copied_up_to_a_limit() -> None:
    planner = DefaultSavePlanner()
    state = {f"x{i}": torch.zeros(1 << 20, 5, dtype=torch.uint8).t() for i in range(4)}
    planner.set_up_planner(state)
    resolved = resolve(planner.create_local_plan(), planner)
    contents = [cast("Tensor", piece.content) for _, piece in resolved]

    assert [content.is_contiguous() for content in contents] == [True, True, True, False]


def test_claimed_tensors_come_first_and_their_copier_is_told_how_far_it_is() -> None:
    copier, guarded, plain = FakeCopier(), torch.randn(700), torch.randn(3 << 20)
    claim(guarded, copier)
    checkpoint = FakeCheckpoint()
    layout = sent(checkpoint, [Piece("a", (0,), plain), Piece("z", (0,), guarded)])

    assert [each.piece.name for each in layout.placed] == ["z", "a"]
    assert copier.told == [700, "all", "check", None]
    assert checkpoint.options["ring"] is copier.ring
    assert_holds(checkpoint, layout)


def test_a_copier_that_fails_is_told_so() -> None:
    copier, guarded = FakeCopier(fails=True), torch.randn(7)
    claim(guarded, copier)

    with pytest.raises(RuntimeError, match="no copy") as failed:
        sent(FakeCheckpoint(), [Piece("z", (0,), guarded)])

    assert copier.told == [failed.value]


class SlowCopier(FakeCopier):
    """Takes a second for each tensor."""

    def __init__(self, clock: FakeClock) -> None:
        super().__init__()
        self.clock = clock

    def copied(self, tensor: Tensor) -> None:
        super().copied(tensor)
        self.clock.sleep(1)


def test_the_deadline_is_for_all_claimed_tensors_together() -> None:
    clock = FakeClock()
    copier, tensors = SlowCopier(clock), [torch.ones(length) for length in range(1, 10)]
    for tensor in tensors:
        claim(tensor, copier)
    pieces = [Piece(f"x{number}", (0,), tensor) for number, tensor in enumerate(tensors)]

    with pytest.raises(DeadlineError) as failed:
        send(cast("Checkpoint", FakeCheckpoint()), "s", pieces, Deadline(3, clock))

    assert copier.told == [1, 2, 3, failed.value]


def test_who_entered_a_save_without_claims_is_told_that_nothing_is_left_to_copy() -> None:
    copier = FakeCopier()
    enter(copier)
    sent(FakeCheckpoint(), [Piece("a", (0,), torch.ones(3))])
    sent(FakeCheckpoint(), [Piece("a", (0,), torch.ones(3))])
    assert copier.told == ["all", None]

    error = RuntimeError("planning failed")
    enter(copier)
    give_up(error)
    assert copier.told[-1] is error


class Unpinnable(Devices):
    """A driver that refuses to pin memory."""

    def pin(self, ring: Ring) -> None:
        raise InvalidRequestError("no")


def test_a_driver_that_does_not_pin_makes_a_save_slower_and_nothing_else(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sending, "_devices", Unpinnable)

    with sending._eager_ring.__wrapped__() as ring:
        assert ring.free_blocks > 0
