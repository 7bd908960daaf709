"""An event loop whose time passes only while nobody has anything to do: waits take none."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

Result = TypeVar("Result")


class _Selector(selectors.SelectSelector):
    now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        self.now += timeout or 0.0
        return super().select(0)


class FakeTimeLoop(asyncio.SelectorEventLoop):
    """For coroutines that wait for timers and for each other, not for threads or sockets."""

    def __init__(self) -> None:
        self.selector = _Selector()
        super().__init__(self.selector)

    def time(self) -> float:
        return self.selector.now


def run(coroutine: Coroutine[Any, Any, Result]) -> Result:
    """Run to its end, at once."""
    with asyncio.Runner(loop_factory=FakeTimeLoop) as runner:
        return runner.run(coroutine)
