"""Resharding's rules against slicing a tensor: any box of any piece, as runs and through slabs."""

from __future__ import annotations

import pytest
import torch
from cachetier_client.torch.hyperslabs import Box, runs, slabs
from hypothesis import given, settings
from hypothesis import strategies as st


@st.composite
def boxes(draw: st.DrawFn) -> Box:
    sizes, offsets, lengths = [], [], []
    for _ in range(draw(st.integers(0, 4))):
        size = draw(st.integers(0, 5))
        offset = draw(st.integers(0, size))
        sizes.append(size)
        offsets.append(offset)
        lengths.append(draw(st.integers(0, size - offset)))
    return Box(tuple(sizes), tuple(offsets), tuple(lengths))


def wanted_of(box: Box) -> tuple[torch.Tensor, torch.Tensor]:
    """A piece whose values are its places, and the box of it."""
    whole = torch.arange(int(torch.tensor(box.sizes).prod())).view(box.sizes)
    cut = tuple(
        slice(offset, offset + length)
        for offset, length in zip(box.offsets, box.lengths, strict=True)
    )
    return whole, whole[cut]


@given(boxes())
@settings(max_examples=300, deadline=None)
def test_runs_are_the_box_in_order(box: Box) -> None:
    _, wanted = wanted_of(box)
    found = runs(box.sizes, box.offsets, box.lengths, 1)

    assert [at for start, length in found for at in range(start, start + length)] == (
        wanted.flatten().tolist()
    )
    assert box.is_one_run is (len(found) < 2)


@given(boxes(), st.integers(1, 30))
@settings(max_examples=300, deadline=None)
def test_slabs_fill_the_box_through_a_bounded_buffer(box: Box, limit: int) -> None:
    whole, wanted = wanted_of(box)
    target = torch.full(box.lengths, -1)
    for slab in slabs(box, limit):
        assert slab.elements <= limit
        rows = whole.flatten()[slab.start : slab.start + slab.elements].view(slab.shape)
        target[slab.target] = rows[slab.inner]

    assert torch.equal(target, wanted)


def test_whole_rows_of_a_piece_are_one_run() -> None:
    assert runs((10, 4), (3, 0), (2, 4), 2) == [(24, 16)]


def test_columns_of_a_piece_are_a_run_for_each_row() -> None:
    assert runs((3, 4), (0, 1), (3, 2), 4) == [(4, 8), (20, 8), (36, 8)]


@pytest.mark.parametrize("box", [((2,), (1,), (2,)), ((2,), (-1,), (1,)), ((2, 2), (0,), (1,))])
def test_a_box_outside_its_piece_is_refused(box: tuple[tuple[int, ...], ...]) -> None:
    with pytest.raises(ValueError, match="Box"):
        Box(*box)
