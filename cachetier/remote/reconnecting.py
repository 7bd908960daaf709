"""A client that is made at the first call, and again once the store refuses the credentials.

The usual AWS chain reads environment, files, programs and metadata services when a client is made,
and not again where it found nothing. So a client that cannot be made is a refusal like any other,
and only a new one finds what a sidecar or a person has written since; nobody restarts the node for
it. Credentials that are slow to come, as on a busy node, are no refusal: they may come yet. A
refusal for another reason costs a client now and then, and nothing else: more seldom where others
get answers by the same one, whose connections go with it.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Generic, TypeVar

from cachetier.errors import ClientPendingError, ConfigError, RemoteRefusedError
from cachetier.remote.base import ObjectStore
from cachetier.remote.wrapped import Answer, Operation, WrappedObjectStore

PAUSE_SECONDS = 5.0  # a client takes a fifth of a second of processor time to make
IN_USE_PAUSE_SECONDS = 60.0
PATIENCE_SECONDS = 10.0


Client = TypeVar("Client")


class Renewed(Generic[Client]):
    """The client that was made last, for all who use it; a refusal makes the next one. Thread-safe.

    ``make`` makes one; a ConfigError is why it cannot, for now.
    """

    def __init__(
        self, make: Callable[[], Client], clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Make nothing yet; ``clock`` is for the pause between two clients."""
        self._make = make
        self._clock = clock
        self._lock = threading.Lock()
        self._made: Client | None = None
        self._answers = False  # of the present one
        self._next_at = clock()
        self._renewed_at = -math.inf
        self._missing: ConfigError | ClientPendingError | None = None
        self._making: Future[Client] | None = None

    def open(self) -> None:
        """Make a client before there is a call; if that cannot be done now, a call does."""
        with self._lock:
            self._make_next()

    def current(self) -> Client:
        """Return the client.

        Raises:
            RemoteRefusedError: None can be made, for now.
            ClientPendingError: Its credentials are slow to come.
        """
        made = self._made
        if made is not None:
            return made
        with self._lock:
            made = self._made if self._made is not None else self._make_next()
            if made is None:
                assert self._missing is not None
                why = self._missing
                pending = isinstance(why, ClientPendingError)
                kind = ClientPendingError if pending else RemoteRefusedError
                raise kind(why.message, hint=why.hint) from why
            return made

    def answered(self, used: Client) -> None:
        """Hear that a call by ``used`` has succeeded."""
        self._answers = self._answers or used is self._made

    def refused(self, used: Client) -> None:
        """Hear that a call by ``used`` was refused: make the next one, if it is time."""
        with self._lock:
            rests = self._answers and self._clock() < self._renewed_at + IN_USE_PAUSE_SECONDS
            if used is self._made and not rests and self._make_next() is not None:
                self._answers, self._renewed_at = False, self._clock()

    def _make_next(self) -> Client | None:
        """Make the next client and return it; None if that fails, or did a moment ago."""
        if self._clock() < self._next_at:
            return None
        try:
            self._making = self._making or alone("remote-open", self._make)
            self._made = self._making.result(PATIENCE_SECONDS)
            self._making = None
            return self._made
        except TimeoutError:  # it goes on: two would be no faster
            self._missing = ClientPendingError(
                f"no client is made in {PATIENCE_SECONDS:g} s: "
                "the node is busy, or credentials are slow to come"
            )
        except ConfigError as error:  # half-written files, say
            self._missing, self._making = error, None
        except Exception as error:  # no thread left; or botocore stumbles over a program's answer
            self._missing = ConfigError(f"cannot set up the remote: {error!r}")
            self._making = None
        finally:
            self._next_at = self._clock() + PAUSE_SECONDS
        return None


class RenewedObjectStore(WrappedObjectStore, Generic[Client]):
    """A store by the client of the moment.

    A refused call fails: whoever made it comes back, as after any refusal. Thread-safe.
    """

    def __init__(
        self,
        clients: Renewed[Client],
        store_by: Callable[[Client], ObjectStore],
        *,
        keeps_digests: bool,
    ) -> None:
        """Ask for no client yet; ``store_by`` makes stores which say ``keeps_digests``."""
        self._clients = clients
        self._store_by = store_by
        self._keeps_digests = keeps_digests
        self._client: Client | None = None  # of `_store`

    @property
    def keeps_digests(self) -> bool:
        return self._keeps_digests

    def _around(
        self, _operation: Operation, _size_bytes: int, call: Callable[[], Answer]
    ) -> Answer:
        client = self._clients.current()
        if client is not self._client:
            self._store = self._store_by(client)
            self._client = client
        try:
            answer = call()
        except RemoteRefusedError:
            self._clients.refused(client)
            raise
        self._clients.answered(client)
        return answer


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
