"""Opens a store anew after it refused us, so that credentials renewed outside are taken up.

The usual AWS chain reads environment, files and metadata services once for each client. Where a
sidecar or a person writes new credentials there, only a new client finds them; nobody restarts the
node for it. A refusal for another reason costs a client now and then, and nothing else.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from cachetier.errors import ConfigError, RemoteRefusedError
from cachetier.remote.base import ObjectStore
from cachetier.remote.wrapped import Answer, Operation, WrappedObjectStore

PAUSE_SECONDS = 5.0  # a client takes a fifth of a second of processor time to make


class RenewedObjectStore(WrappedObjectStore):
    """Forwards to the store that ``open_store`` made last; a refusal makes the next one.

    The refused call fails: whoever made it comes back, as after any refusal.

    Raises:
        ConfigError: The first store cannot be made.
    """

    def __init__(
        self, open_store: Callable[[], ObjectStore], clock: Callable[[], float] = time.monotonic
    ) -> None:
        super().__init__(open_store())
        self._open_store = open_store
        self._clock = clock
        self._lock = threading.Lock()
        self._not_before = clock()

    def _around(
        self, _operation: Operation, _size_bytes: int, call: Callable[[], Answer]
    ) -> Answer:
        used = self._store
        try:
            return call()
        except RemoteRefusedError:
            self._renew(used)
            raise

    def _renew(self, refused: ObjectStore) -> None:
        with self._lock:
            if self._store is not refused or self._clock() < self._not_before:
                return
            self._not_before = self._clock() + PAUSE_SECONDS
            try:
                self._store = self._open_store()
            except ConfigError:
                pass  # half-written files, say: the next refusal looks again
