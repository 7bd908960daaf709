"""A caller's data as bytes."""

from __future__ import annotations

import array
import ctypes
import gc
import sys
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from cachetier_client import Client, InvalidRequestError
from cachetier_client.io.buffers import bytes_of, element_size_of


@pytest.mark.parametrize(
    "data",
    [
        b"abc",
        bytearray(b"abc"),
        array.array("d", [1.0, 2.0]),
        np.arange(6, dtype=np.int32).reshape(2, 3),
        np.float32(3),
        np.zeros((), np.float16),
        np.zeros(3, dtype=[("a", "i4"), ("b", "f8")]),
        np.zeros(3, dtype="datetime64[D]"),
        np.zeros(2, complex),
        np.zeros(0),
        memoryview(b"abcdef")[2:4],
        (ctypes.c_double * 3)(1.0, 2.0, 3.0),
    ],
    ids=lambda data: type(data).__name__,
)
def test_contiguous_memory_is_seen_as_it_is(data: Any) -> None:
    view = bytes_of(data)

    raw = data.tobytes() if hasattr(data, "tobytes") else bytes(data)
    assert (view.format, view.ndim) == ("B", 1)
    assert view == raw


@pytest.mark.torch
@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.bfloat16, torch.float16, torch.bool, torch.complex64]
)
@pytest.mark.parametrize("shape", [(), (0,), (2, 3)])
def test_a_tensor_of_any_type_is_seen_without_a_copy(
    dtype: torch.dtype, shape: tuple[int, ...]
) -> None:
    tensor = torch.nn.Parameter(torch.ones(shape, dtype=dtype), requires_grad=False)

    view = bytes_of(tensor, writable=True)

    assert view.nbytes == tensor.numel() * tensor.element_size()
    if view:
        view[:] = bytes(len(view))
        assert torch.count_nonzero(tensor) == 0


@pytest.mark.torch
def test_a_tensor_goes_out_and_comes_back_into_another(client: Client) -> None:
    tensor = torch.randn(300_000).to(torch.bfloat16)
    client.put_shard(tensor, step=1, name="t")
    back = torch.empty_like(tensor)

    client.get_shard("a-run", 1, "t", out=back)

    assert torch.equal(back, tensor)


def test_a_view_keeps_its_tensor_alive() -> None:
    view = bytes_of(torch.full((1000,), 7, dtype=torch.uint8))

    assert view == b"\x07" * 1000


@pytest.mark.parametrize(
    ("data", "match"),
    [
        (np.arange(6).reshape(2, 3).T, "ascontiguousarray"),
        (np.zeros((4, 4), dtype="datetime64[D]").T[:2], "ascontiguousarray"),
        (np.array([object()]), "Python objects"),
        (torch.ones(2, 3).t(), r"\.contiguous\(\)"),
        (torch.ones(3, device="meta"), r"data\.cpu\(\)"),
        (torch.ones(2, 2).to_sparse(), r"data\.cpu\(\)"),
        (torch.ones(2, dtype=torch.complex64).conj(), "resolve_conj"),
        ("text", r"pathlib\.Path"),
        (5, "no bytes to store"),
        (None, "no bytes to store"),
        ([1, 2], "no bytes to store"),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_what_has_no_bytes_in_one_piece_is_refused_with_the_remedy(data: Any, match: str) -> None:
    with pytest.raises(InvalidRequestError, match=match):
        bytes_of(data)


def test_a_distributed_tensor_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    class Spread:
        def to_local(self) -> None: ...

    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(Tensor=Spread))

    with pytest.raises(InvalidRequestError, match="to_local"):
        bytes_of(Spread())


@pytest.mark.parametrize("data", [b"abc", np.zeros(0), np.frombuffer(b"abcdefgh")])
def test_read_only_memory_is_refused_where_it_is_to_be_written(data: Any) -> None:
    if isinstance(data, np.ndarray):
        data.flags.writeable = False
    with pytest.raises(InvalidRequestError, match="read-only"):
        bytes_of(data, writable=True)


def test_an_array_of_a_type_outside_the_buffer_protocol_is_described_by_itself() -> None:
    days = np.arange(5).astype("datetime64[D]")
    view = bytes_of(days, writable=True)
    view[:8] = (9).to_bytes(8, sys.byteorder)

    assert days[0] == np.datetime64(9, "D")
    days.flags.writeable = False
    with pytest.raises(InvalidRequestError, match="read-only"):
        bytes_of(days, writable=True)


@pytest.mark.torch
@pytest.mark.parametrize(
    ("data", "size_bytes"),
    [
        (np.zeros(3, np.float16), 2),
        (np.zeros((2, 3), np.float32), 4),
        (np.zeros(3, ">i4"), 4),
        (np.zeros(3, np.int64), 8),
        (np.zeros(3, np.complex64), 4),
        (np.zeros(3, complex), 8),
        (np.zeros(3, "datetime64[D]"), 8),
        (array.array("d", [1.0]), 8),
        (torch.zeros(3, dtype=torch.bfloat16), 2),
        (torch.zeros(3, dtype=torch.complex64), 4),
        (torch.zeros(3, dtype=torch.bool), 0),
        (b"bytes", 0),
        (memoryview(b"abcd"), 0),
        (np.zeros(3, np.uint8), 0),
        (np.zeros(3, np.longdouble), 0),
        (np.zeros(3, dtype=[("a", "i4"), ("b", "f4")]), 0),
        (np.zeros(3, "S4"), 0),
        (np.zeros(3, "U1"), 0),
    ],
    ids=lambda value: str(getattr(value, "dtype", type(value).__name__)),
)
def test_values_of_2_4_or_8_bytes_are_known_by_their_type(data: Any, size_bytes: int) -> None:
    assert element_size_of(data) == size_bytes


def test_the_values_of_a_type_outside_the_buffer_protocol_are_known_too() -> None:
    halves = np.zeros(4, np.float16)
    described = {**halves.__array_interface__, "typestr": "<V2", "descr": [("", "<V2")]}
    outside = SimpleNamespace(__array_interface__=described, itemsize=2, nbytes=8)

    assert element_size_of(outside) == 2


@pytest.mark.torch
def test_seeing_the_same_tensors_again_leaves_no_garbage_behind() -> None:
    tensors = [torch.zeros(size) for size in range(1, 50)]

    def left() -> int:
        for tensor in tensors:
            bytes_of(tensor)
        return gc.collect()

    left()
    gc.disable()
    try:
        # Another thread of this process may leave some now and then; what we leave is there always.
        assert min(left() for _ in range(5)) == 0
    finally:
        gc.enable()
