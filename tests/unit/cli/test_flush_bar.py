"""The bar of a flush shows what was dirty at its beginning, and is not any more."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, cast

import pytest
from cachetier_client import Client

from cachetier.cli import steps
from cachetier.cli.output import HowFar


class Node:
    """A service whose drain goes on: each of ``dirty`` is what it has at a look."""

    def __init__(self, *dirty: int) -> None:
        self.dirty = iter(dirty)

    def status(self, **_options: Any) -> dict[str, Any]:
        return {"dirty_bytes": next(self.dirty)}


@pytest.mark.parametrize("is_seen", [True, False])
def test_a_flush_is_shown_where_somebody_sees_it(
    is_seen: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[HowFar] = []

    def bytes_shown(_as_json: bool, how_far: Callable[[], HowFar]) -> AbstractContextManager[None]:
        looks.extend((how_far(), how_far()))
        return nullcontext()

    monkeypatch.setattr(steps, "is_seen", lambda _as_json: is_seen)
    monkeypatch.setattr(steps, "bytes_shown", bytes_shown)
    with steps._dirty_bytes_shown(cast("Client", Node(7, 4, 0)), 60.0, False):
        assert looks == [HowFar("flush", 3, 7), HowFar("flush", 7, 7)] * is_seen
