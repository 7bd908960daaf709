"""What the demo trains on: the source files of Python's own standard library, as bytes."""

from __future__ import annotations

import sysconfig
from pathlib import Path

import torch
from torch import Tensor


def standard_library() -> Tensor:
    """Return the top-level modules of the standard library, one after the other, as ``uint8``."""
    folder = Path(sysconfig.get_paths()["stdlib"])
    source = b"".join(path.read_bytes() for path in sorted(folder.glob("*.py")))
    return torch.frombuffer(bytearray(source), dtype=torch.uint8)


class Windows:
    """This rank's windows of a text, in an order shuffled anew in each epoch.

    The order follows from ``seed`` and ``epoch`` alone, so two numbers say where training is.
    """

    def __init__(self, text: Tensor, *, length: int, rank: int, world_size: int, seed: int) -> None:
        self._text = text
        self._length = length
        self._rank = rank
        self._world_size = world_size
        self._seed = seed
        self.go_to(epoch=0, taken=0)

    def go_to(self, *, epoch: int, taken: int) -> None:
        """Go on as if ``taken`` windows of ``epoch`` had been taken already, by all ranks."""
        self.epoch = epoch
        self.taken = taken
        shuffled = torch.Generator().manual_seed(self._seed + epoch)
        count = (len(self._text) - 1) // self._length
        self._order = torch.randperm(count, generator=shuffled)

    def next_batch(self, rows: int) -> tuple[Tensor, Tensor]:
        """Return ``rows`` windows for this rank, and the bytes that follow each of theirs."""
        if self.taken + rows * self._world_size > len(self._order):
            self.go_to(epoch=self.epoch + 1, taken=0)
        first = self.taken + rows * self._rank
        self.taken += rows * self._world_size
        starts = self._order[first : first + rows] * self._length
        spans = starts[:, None] + torch.arange(self._length + 1)
        windows = self._text[spans].long()
        return windows[:, :-1], windows[:, 1:]
