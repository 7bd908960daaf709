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
from cachetier.remote.bounded_calls import alone

PAUSE_SECONDS = 5.0  # a client takes a fifth of a second of processor time to make
IN_USE_PAUSE_SECONDS = 60.0
PATIENCE_SECONDS = 10.0

Client = TypeVar("Client")
Answer = TypeVar("Answer")


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

    def call(self, send: Callable[[Client], Answer]) -> Answer:
        """Return the answer of ``send`` by the client of the moment; raises as ``current``.

        A refused call fails: its caller comes back, as after any refusal.
        """
        client = self.current()
        try:
            answer = send(client)
        except RemoteRefusedError:
            self._refused(client)
            raise
        self._answers = self._answers or client is self._made
        return answer

    def _refused(self, used: Client) -> None:
        """Make the next client after a refusal of ``used``, if it is time."""
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
