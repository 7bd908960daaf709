"""A wrapper that opens the store at the first call, and again once it refuses the credentials.

The usual AWS chain reads environment, files, programs and metadata services when a client is made,
and not again where it found nothing. So a client that cannot be made is a refusal like any other,
and only a new one finds what a sidecar or a person has written since; nobody restarts the node for
it. Credentials that are slow to come, as on a busy node, are no refusal: they may come yet. A
refusal for another reason costs a client now and then, and nothing else.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future

from cachetier.errors import ConfigError, RemoteRefusedError, TransientError
from cachetier.remote.base import ObjectStore
from cachetier.remote.wrapped import Answer, Operation, WrappedObjectStore

PAUSE_SECONDS = 5.0  # a client takes a fifth of a second of processor time to make
PATIENCE_SECONDS = 10.0


class RenewedObjectStore(WrappedObjectStore):
    """Forwards to the store that ``open_store`` made last; a refusal makes the next one.

    The refused call fails: whoever made it comes back, as after any refusal. Thread-safe.
    """

    def __init__(
        self,
        open_store: Callable[[], ObjectStore],
        *,
        keeps_digests: bool,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Open nothing yet.

        Args:
            open_store: Makes a store; a ConfigError is why it cannot, for now.
            keeps_digests: What the stores it makes will say.
            clock: For the pause between two stores.
        """
        self._open_store = open_store
        self._keeps_digests = keeps_digests
        self._clock = clock
        self._lock = threading.Lock()
        self._not_before = clock()
        self._missing: ConfigError | TransientError | None = None
        self._opened = False  # there is a `_store`
        self._opening: Future[ObjectStore] | None = None

    @property
    def keeps_digests(self) -> bool:
        return self._keeps_digests

    def open(self) -> None:
        """Open a store before there is a call; if that cannot be done now, a call does."""
        with self._lock:
            self._open_next()

    def _around(
        self, _operation: Operation, _size_bytes: int, call: Callable[[], Answer]
    ) -> Answer:
        if not self._opened:
            self._open_first()
        used = self._store
        try:
            return call()
        except RemoteRefusedError:
            with self._lock:
                if self._store is used:
                    self._open_next()
            raise

    def _open_first(self) -> None:
        with self._lock:
            if not self._opened:
                self._open_next()
            if not self._opened:
                assert self._missing is not None
                why = self._missing
                kind = TransientError if isinstance(why, TransientError) else RemoteRefusedError
                raise kind(why.message, hint=why.hint) from why

    def _open_next(self) -> None:
        """Replace the store, unless the last attempt was a moment ago; without success it stays."""
        if self._clock() < self._not_before:
            return
        try:
            self._opening = self._opening or alone("remote-open", self._open_store)
            self._store = self._opening.result(PATIENCE_SECONDS)
            self._opened, self._opening = True, None
        except TimeoutError:  # it goes on: two would be no faster
            self._missing = TransientError(
                f"nobody gave us credentials in {PATIENCE_SECONDS:g} s",
                hint="The node is very busy, or the program of the AWS configuration hangs.",
            )
        except ConfigError as error:  # half-written files, say
            self._missing, self._opening = error, None
        except Exception as error:  # no thread left; or botocore stumbles over a program's answer
            self._missing = ConfigError(f"cannot set up the remote: {error!r}")
            self._opening = None
        finally:
            self._not_before = self._clock() + PAUSE_SECONDS


def alone(name: str, call: Callable[[], Answer]) -> Future[Answer]:
    """Begin ``call`` on a thread of its own, which is left to die with the process if it hangs.

    Raises:
        RuntimeError: No thread is left.
    """
    answer = Future[Answer]()

    def calling() -> None:
        try:
            answer.set_result(call())
        except Exception as error:
            answer.set_exception(error)

    threading.Thread(target=calling, name=name, daemon=True).start()
    return answer
