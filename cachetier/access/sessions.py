"""Sessions of people's browsers: a link that works once becomes a session, which ends by itself.

Both are in memory, as SHA-256, and end with the service. A session does what the principal may who
asked for its link, and ends with the token that they asked by.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from cachetier.access.audit import Audit
from cachetier.access.principals import Caller
from cachetier.access.tokens import Tokens, hash_of
from cachetier.errors import ForbiddenError, InvalidRequestError, UnauthorizedError

LINK_SECONDS = 60.0
SESSION_SECONDS = 8 * 3600.0
IDLE_SECONDS = 1800.0
EACH_LIMIT = 16  # links, and sessions, of one principal: the longest unused makes place
LINK_ENDED = "this link has been used, or has expired"


class _Secrets:
    """Random secrets, each of which stands for a caller for a time. Thread-safe."""

    def __init__(
        self, lasts_seconds: float, idle_seconds: float, monotonic: Callable[[], float]
    ) -> None:
        self._seconds = lasts_seconds, idle_seconds
        self._monotonic = monotonic
        self._lock = threading.Lock()
        # By hash: the caller, when it was made and last used; what was used last is last.
        self._kept: dict[str, tuple[Caller, float, float]] = {}

    def add(self, caller: Caller) -> str:
        secret, now = secrets.token_urlsafe(32), self._monotonic()
        with self._lock:
            own = [key for key, kept in self._kept.items() if kept[0].principal == caller.principal]
            for key in own[: max(0, len(own) + 1 - EACH_LIMIT)]:
                del self._kept[key]
            self._kept[hash_of(secret)] = caller, now, now
        return secret

    def find(self, secret: str, *, take: bool = False) -> Caller | None:
        """Return for whom ``secret`` stands, unless it has ended; ``take`` ends it."""
        key, now, (lasts_seconds, idle_seconds) = hash_of(secret), self._monotonic(), self._seconds
        with self._lock:
            caller, made_at, used_at = self._kept.pop(key, (None, 0.0, 0.0))
            if now - made_at >= lasts_seconds or now - used_at >= idle_seconds:
                return None
            if caller is not None and not take:
                self._kept[key] = caller, made_at, now
            return caller


class Sessions:
    """The links and sessions of a node. Thread-safe."""

    def __init__(
        self, tokens: Tokens, audit: Audit, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._tokens = tokens
        self._audit = audit
        self._links = _Secrets(LINK_SECONDS, LINK_SECONDS, monotonic)
        self._sessions = _Secrets(SESSION_SECONDS, IDLE_SECONDS, monotonic)

    def create_link(self, caller: Caller, base: str | None) -> dict[str, Any]:
        """Make a link to ``base``, the HTTP door, which signs a browser in as ``caller``.

        Raises:
            ForbiddenError: They are a session, which would never end so.
            InvalidRequestError: There is no such door.
        """
        if caller.session is not None:
            raise ForbiddenError(
                "a browser session cannot create sign-in links", hint="Run `cachetier console`."
            )
        if base is None:
            raise InvalidRequestError("this service has no HTTP door", hint="Set `http`.")
        here = base.replace("//0.0.0.0:", "//127.0.0.1:").replace("//[::]:", "//[::1]:")
        url = f"{here}/session?link={self._links.add(caller)}"
        return {"url": url, "expires_seconds": LINK_SECONDS}

    def offered(self, link: str) -> Caller | None:
        """Return whose session a link would begin; it can be used after that as before."""
        return self._links.find(link)

    def begin(self, link: str, address: str) -> str:
        """Use a link up; return the secret of the session that it begins.

        Raises:
            UnauthorizedError: It has been used, or has expired.
        """
        maker = self._links.find(link, take=True)
        if maker is None:
            refused = UnauthorizedError(LINK_ENDED)
            self._audit.refused("login", refused.code, address=address)
            raise refused
        caller = replace(maker, pid=None, address=address, session=secrets.token_hex(4))
        self._audit.done("login", "ok", caller)
        return self._sessions.add(caller)

    def find(self, secret: str | None, address: str) -> Caller | None:
        """Return whose session ``secret`` is, which came from ``address``, unless it has ended."""
        caller = None if secret is None else self._sessions.find(secret)
        if caller is None or (caller.token is not None and not self._tokens.lives(caller.token)):
            return None
        return replace(caller, address=address)

    def end(self, secret: str) -> None:
        caller = self._sessions.find(secret, take=True)
        if caller is not None:
            self._audit.done("logout", "ok", caller)


def csrf_of(secret: str) -> str:
    """Return what a page of the session knows, and no other page: its cookie is not readable."""
    return hash_of(f"csrf {secret}")
