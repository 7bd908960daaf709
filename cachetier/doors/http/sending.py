"""An answer on its way, as the places for large ones see it; see ``slots``."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable

from starlette.types import Message, Scope, Send

from cachetier.doors.http.front import CONNECTION


class SentAnswer:
    """An answer on its way: ``moved_bytes`` are those that its reader took; ``begun``: some."""

    def __init__(self, scope: Scope, send: Send) -> None:
        connection = scope.get("extensions", {}).get(CONNECTION, {})
        self._unsent_bytes: Callable[[], int] = connection.get("unsent_bytes", lambda: 0)
        self._send = send
        self._sent_bytes = 0
        self._excused_at = -math.inf
        self.begun = False

    @property
    def moved_bytes(self) -> int:
        return self._sent_bytes - self._unsent_bytes()

    def waits_for_peer(self, since: float) -> bool:
        return self._unsent_bytes() > 0 and self._excused_at <= since

    async def __call__(self, message: Message) -> None:
        if not self._unsent_bytes():  # the reader waited for us
            self._excused_at = asyncio.get_running_loop().time()
        self._sent_bytes += len(message.get("body", b""))
        self.begun = True
        await self._send(message)
