"""The recent history of a node for its charts: one ring of samples for all viewers."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from cachetier.status.rates import Node, Rates, Status

LOOK_SECONDS = 1.0
SAMPLES_KEPT = 900
RESTING_SECONDS = 5.0  # between looks that nobody asked for
WATCHED_SECONDS = 1800.0


@dataclass(frozen=True, slots=True)
class NodeLook:
    """The node at one instant; ``at`` is UTC seconds."""

    at: float
    status: Status
    rates: Rates

    def sample(self) -> list[float | None]:
        """Return what the charts draw: instant, acknowledged and drained a second, backlog."""
        rates = self.rates
        return [round(self.at, 1), rates.put, rates.drained, self.status["dirty_bytes"]]


class History:
    """Looks at the node, at most once a second however many watch. For one event loop.

    The look goes on by itself for a while after the last watcher left, so that who comes back, or
    reloads, finds the charts filled.
    """

    def __init__(
        self,
        ask: Callable[[], Awaitable[Status]],
        now: Callable[[], float],
        monotonic: Callable[[], float],
    ) -> None:
        self._ask = ask
        self._now = now
        self._monotonic = monotonic
        self._node = Node("")
        self._lock = asyncio.Lock()
        self.latest: NodeLook | None = None
        self._looked_at = -LOOK_SECONDS
        self._wanted_at = 0.0
        self._watch: asyncio.Task[None] | None = None
        self._samples: deque[list[float | None]] = deque(maxlen=SAMPLES_KEPT)

    async def look(self) -> NodeLook:
        """Return the node as it is now, or was up to a second ago."""
        self._wanted_at = self._monotonic()
        if self._watch is None or self._watch.done():
            self._watch = asyncio.get_running_loop().create_task(self._go_on())
        return await self._fresh(LOOK_SECONDS)

    def columns(self) -> list[list[float | None]]:
        """Return the samples of the last minutes, figure by figure."""
        return [list(column) for column in zip(*self._samples, strict=True)] or [[], [], [], []]

    async def _fresh(self, seconds: float) -> NodeLook:
        async with self._lock:
            latest = self.latest
            if latest is None or self._monotonic() - self._looked_at >= seconds:
                status = await self._ask()
                self._node.answered(status)
                self._looked_at = self._monotonic()
                latest = self.latest = NodeLook(self._now(), status, self._node.rates())
                self._samples.append(latest.sample())
            return latest

    async def _go_on(self) -> None:
        while self._monotonic() - self._wanted_at < WATCHED_SECONDS:
            await asyncio.sleep(RESTING_SECONDS)
            try:
                await self._fresh(RESTING_SECONDS)
            except Exception:  # whoever looks next hears of it
                continue
