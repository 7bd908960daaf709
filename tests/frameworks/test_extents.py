"""How tensors lie in a shard: places, order, the index at the end, and the hint for compression."""

from __future__ import annotations

import itertools

import pytest
import torch
from cachetier_client.errors import IntegrityError
from cachetier_client.torch.extents import (
    TRAILER,
    Item,
    encode_index,
    place_after,
)
from cachetier_client.torch.layout import Piece, ShardLayout, lay_out

from tests.frameworks.shard_index import decode_index, index_length

LARGE_ELEMENTS = (9 << 20) // 4


def piece(name: str, tensor: torch.Tensor, *offsets: int) -> Piece:
    return Piece(name, offsets or (0,) * tensor.dim(), tensor)


def bytes_in(layout: ShardLayout) -> bytes:
    """The shard that a layout stands for."""
    from cachetier_client.io.buffers import bytes_of

    pieces = [
        bytes(part)
        for each in layout.placed
        for part in (each.padding, bytes_of(each.piece.content))
    ]
    return b"".join([*pieces, layout.index])


def test_a_small_tensor_begins_at_a_multiple_of_64() -> None:
    assert [place_after(end, 100, address=7) for end in (0, 1, 64, 65)] == [0, 64, 64, 128]


def test_a_large_tensor_begins_as_far_into_a_page_as_in_memory() -> None:
    for end, address in itertools.product((0, 1, 5000), (0, 64, 4095)):
        at = place_after(end, 9 << 20, address)

        assert at % 4096 == address % 4096
        assert end <= at < end + 4096


def test_tensors_come_by_size_and_then_objects_each_by_name() -> None:
    large = torch.zeros(LARGE_ELEMENTS)
    layout = lay_out(
        [
            Piece("a", (), memoryview(b"object")),
            piece("c", torch.ones(3), 3),
            piece("c", torch.ones(3), 0),
            piece("b", torch.ones(2)),
            piece("z", large),
            piece("y", torch.zeros(100_000)),
        ]
    )

    names = [(each.piece.name, each.piece.offsets) for each in layout.placed]
    assert names == [("z", (0,)), ("y", (0,)), ("b", (0,)), ("c", (0,)), ("c", (3,)), ("a", ())]


def test_tensors_named_first_come_before_all_others() -> None:
    layout = lay_out(
        [piece("z", torch.zeros(LARGE_ELEMENTS)), piece("b", torch.ones(2))], frozenset("b")
    )

    assert [each.piece.name for each in layout.placed] == ["b", "z"]


def test_the_index_tells_all_that_is_needed_to_read_a_shard_without_the_metadata() -> None:
    value = torch.arange(6, dtype=torch.bfloat16).view(2, 3)
    shard = bytes_in(lay_out([piece("w", value, 4, 0), Piece("n", (), memoryview(b"seven"))]))

    length = index_length(shard[-TRAILER.size :])
    tensor, thing = decode_index(shard[-TRAILER.size - length : -TRAILER.size])

    assert (tensor.name, tensor.offsets, tensor.sizes) == ("w", (4, 0), (2, 3))
    raw = bytearray(shard[tensor.at : tensor.at + tensor.length])
    dtype = getattr(torch, str(tensor.dtype).removeprefix("torch."))
    assert torch.equal(torch.frombuffer(raw, dtype=dtype).view(tensor.sizes), value)
    assert thing.dtype is None
    assert shard[thing.at : thing.at + thing.length] == b"seven"


def test_the_shard_is_whole_elements_of_any_size() -> None:
    for length in range(1, 20):
        layout = lay_out([Piece("n", (), memoryview(bytes(length)))])

        assert layout.size_bytes % 8 == 0
        assert layout.size_bytes == len(bytes_in(layout))


def test_the_hint_is_the_size_of_the_values_that_nine_tenths_of_the_bytes_are() -> None:
    half, whole = torch.zeros(9100, dtype=torch.bfloat16), torch.zeros(450)

    assert lay_out([piece("h", half), piece("w", whole)]).element_size == 2
    assert lay_out([piece("h", half[:8000]), piece("w", whole)]).element_size is None
    assert lay_out([piece("b", torch.zeros(100, dtype=torch.uint8))]).element_size is None
    assert lay_out([]).element_size is None


def test_what_is_no_index_is_refused() -> None:
    with pytest.raises(IntegrityError, match="no index"):
        index_length(bytes(16))
    for body in (b"{}", b"[", b'{"format": 2, "items": []}', b'{"format": 1, "items": [{"a": 1}]}'):
        with pytest.raises(IntegrityError, match="damaged"):
            decode_index(body)
    index = encode_index([Item("n", (), (), None, 0, 5)], 5)
    assert decode_index(index[: -TRAILER.size]) == (Item("n", (), (), None, 0, 5),)
