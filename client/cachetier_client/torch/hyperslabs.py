"""Which bytes of a stored piece are wanted: pure rules for resharding.

A piece of a tensor is stored C-contiguous. What another rank count wants of it is a box inside it:
offsets and lengths in each dimension. In memory a box is a number of runs, all of one length, at
regular distances; neighbours are merged here as far as they touch.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Box:
    """Part of a piece: ``offsets`` and ``lengths`` inside ``sizes``, in elements.

    Raises:
        ValueError: It is not inside.
    """

    sizes: tuple[int, ...]
    offsets: tuple[int, ...]
    lengths: tuple[int, ...]

    def __post_init__(self) -> None:
        if not len(self.sizes) == len(self.offsets) == len(self.lengths):
            raise ValueError(f"{self} has sides of different dimensions")
        for size, offset, length in zip(self.sizes, self.offsets, self.lengths, strict=True):
            if offset < 0 or length < 0 or offset + length > size:
                raise ValueError(f"{self} reaches out of its piece")

    @property
    def elements(self) -> int:
        """How many elements it has."""
        return math.prod(self.lengths)

    @property
    def run_elements(self) -> int:
        """How many elements lie together."""
        return math.prod(self.lengths[self._outer :])

    @property
    def is_one_run(self) -> bool:
        """Whether all its elements lie together."""
        return self.elements in (0, self.run_elements)

    @property
    def _outer(self) -> int:
        """The first dimension from which on all that follow are taken whole."""
        dimension = len(self.sizes) - 1
        while dimension > 0 and self.lengths[dimension] == self.sizes[dimension]:
            dimension -= 1
        return max(dimension, 0)

    def runs(self) -> Iterator[int]:
        """Yield where each run begins in the piece, ascending, in elements."""
        if not self.elements:
            return
        strides = [math.prod(self.sizes[at + 1 :]) for at in range(len(self.sizes))]
        start = sum(map(math.prod, zip(self.offsets, strides, strict=True)))
        outer = [
            range(0, length * stride, stride)
            for length, stride in zip(self.lengths, strides, strict=True)
        ][: self._outer]
        for steps in itertools.product(*outer):
            yield start + sum(steps)


def runs(
    sizes: Sequence[int], offsets: Sequence[int], lengths: Sequence[int], itemsize: int
) -> list[tuple[int, int]]:
    """Return the runs of a box as ``(start, length)`` in bytes of its piece, ascending."""
    box = Box(tuple(sizes), tuple(offsets), tuple(lengths))
    length = box.run_elements * itemsize
    return [(start * itemsize, length) for start in box.runs()]


@dataclass(frozen=True, slots=True)
class Slab:
    """Whole rows of a piece that hold part of a box, and where in the box's target that part goes.

    ``start`` is where they begin in the piece, in elements; ``shape`` is theirs. ``inner`` cuts the
    part out of them, ``target`` is its place.
    """

    start: int
    shape: tuple[int, ...]
    inner: tuple[slice, ...]
    target: tuple[slice, ...]

    @property
    def elements(self) -> int:
        """How many elements have to be read for it."""
        return math.prod(self.shape)


def slabs(box: Box, limit_elements: int) -> Iterator[Slab]:
    """Yield what has to be read to fill a box through a buffer of ``limit_elements``, in order."""
    if not box.elements:
        return
    if not box.sizes:
        yield Slab(0, (), (), ())
        return
    dimension = 0
    while math.prod(box.sizes[dimension + 1 :]) > limit_elements:
        dimension += 1
    at_once = max(1, limit_elements // math.prod(box.sizes[dimension + 1 :]))
    for fixed in itertools.product(*(range(length) for length in box.lengths[:dimension])):
        for first in range(0, box.lengths[dimension], at_once):
            yield _slab(box, fixed, first, min(at_once, box.lengths[dimension] - first))


def _slab(box: Box, fixed: tuple[int, ...], first: int, count: int) -> Slab:
    """Return the slab of ``count`` rows from ``first`` on, the outer dimensions being ``fixed``."""
    dimension = len(fixed)
    corner = (*fixed, first)
    start = 0
    for at, size in enumerate(box.sizes):
        start = start * size + (box.offsets[at] + corner[at] if at <= dimension else 0)
    outer = tuple(slice(at, at + 1) for at in fixed)
    inner = zip(box.offsets[dimension + 1 :], box.lengths[dimension + 1 :], strict=True)
    rest = tuple(slice(offset, offset + length) for offset, length in inner)
    return Slab(
        start=start,
        shape=(1,) * dimension + (count,) + box.sizes[dimension + 1 :],
        inner=(slice(0, 1),) * dimension + (slice(0, count),) + rest,
        target=(*outer, slice(first, first + count)),
    )
