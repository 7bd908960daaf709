"""An object store of which a write is late, lost or refused, once, when a test says so."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from cachetier_client.bucket_format.uploads import ObjectInfo
from cachetier_client.clock import Clock

from cachetier.errors import RemoteError, TransientError
from cachetier.remote.base import Body
from cachetier.remote.wrapped import Answer, Operation, WrappedObjectStore
from tests.fakes.memory_store import MemoryObjectStore, bytes_of

WRITES: tuple[Operation, ...] = ("put", "complete_upload")


class LateStore(WrappedObjectStore):
    """The next write that makes an object meets what was planned for it; ``deliver`` ends a wait.

    A write that is held fails for its caller, and is judged by the store when it arrives: its
    condition, or whether its upload is there still.
    """

    def __init__(self, clock: Clock | None = None) -> None:
        self.objects = MemoryObjectStore(minimum_part_bytes=1, clock=clock)
        super().__init__(self.objects)
        self._late: list[Callable[[], object]] = []
        self._plan = ""
        self._of: tuple[Operation, ...] = WRITES
        self._refusal: type[RemoteError] = TransientError
        self.delivered = 0
        self.struck: Counter[str] = Counter()  # which plans met their write

    def hold(self, *operations: Operation) -> None:
        """Hold the next write back, or that of ``operations``: its caller hears that it failed."""
        self._plan, self._of = "hold", operations or WRITES

    def lose(self) -> None:
        """Lose the next write, and say that it was done: with what, nobody should believe."""
        self._plan, self._of = "lose", WRITES

    def refuse(self, error: type[RemoteError]) -> None:
        """Refuse the next write."""
        self._plan, self._of, self._refusal = "refuse", WRITES, error

    def mend(self) -> None:
        """Forget what was planned."""
        self._plan = ""

    def deliver(self) -> None:
        """Let all writes arrive that were held."""
        late, self._late = self._late, []
        for write in late:
            with suppress(RemoteError):
                write()
                self.delivered += 1

    def put(self, key: str, body: Body, **kwargs: Any) -> ObjectInfo:
        if self._plan == "lose" and key.endswith(".json"):
            return self.objects.put(key, body, **kwargs)  # documents are believed to be there
        return super().put(key, bytes_of(body), **kwargs)  # its buffer is used again

    def _around(self, operation: Operation, size: int, call: Callable[[], Answer], /) -> Answer:
        plan = self._plan if operation in self._of else ""
        if plan:
            self._plan = ""
            self.struck[plan] += 1
        if plan == "hold":
            self._late.append(call)
            raise TransientError(f"planned: {operation} is late")
        if plan == "refuse":
            raise self._refusal(f"planned: {operation} is refused")
        if plan == "lose":
            return ObjectInfo("forged", size, '"forged"', None)  # type: ignore[return-value]
        return call()
