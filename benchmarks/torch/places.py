"""Where each save goes, and how it is taken away again."""

from __future__ import annotations

import itertools
import shutil
from pathlib import Path
from typing import Self

from cachetier_client import Client

from benchmarks.scratch import settle
from benchmarks.torch.names import OURS, OURS_ASYNC, OURS_LAZY

RUN = "torch"


class Places:
    """A place of its own for each save: a directory, or a step."""

    def __init__(self, directory: Path, client: Client) -> None:
        self._directory = directory
        self._client = client
        self._numbers = itertools.count(1)

    def next_for(self, mode: str) -> Place:
        number = next(self._numbers)
        if mode in (OURS, OURS_ASYNC, OURS_LAZY):
            return Place(self, f"cachetier://{RUN}/{number}", number)
        return Place(self, str(self._directory / f"save-{number}"), None)

    def clear(self, place: Place) -> None:
        if place.step is not None:
            self._client.delete_step(RUN, place.step)
        else:
            shutil.rmtree(place.where)
        settle()


class Place:
    """One place; what was saved there is deleted, and the deletion written out, at the end."""

    def __init__(self, places: Places, where: str, step: int | None) -> None:
        self.where = where
        self.step = step
        self._places = places

    def __enter__(self) -> Self:
        settle()
        return self

    def __exit__(self, *failed: object) -> None:
        if failed[0] is None:
            self._places.clear(self)

    def __str__(self) -> str:
        return self.where
