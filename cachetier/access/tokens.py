"""Bearer tokens: hashed, several, each with an end, revocable, read again when their file changes.

A token is ``ct_<id>_<secret>``. Its file keeps the id, whose it is, and the SHA-256 of the whole;
random secrets of 256 bits need no slower hash. The owner's own token is a file beside it, in clear,
which only the service's user can read.

The key of an S3 client is kept here too, without a hash: see ``s3_keys``.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import json
import logging
import os
import secrets
import stat
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from cachetier.access.principals import OWNER
from cachetier.errors import ConfigError, InvalidRequestError
from cachetier.telemetry import events
from cachetier.telemetry.events import tell

log = logging.getLogger(__name__)

OWNER_FILE = "token"
TOKENS_FILE = "tokens.json"
LEAST_CHARACTERS = 16  # 80 bits of letters and digits, out of reach for guesses
LOOK_SECONDS = 1.0
SIZE_LIMIT_BYTES = 4 << 20
KEYS_LIMIT = 1_000  # of S3 clients, for each principal
PAST_SECONDS = 7 * 86_400.0  # for which a client whose key has ended is told so
_PREFIX = "ct_"


@dataclass(frozen=True, slots=True)
class Token:
    """The stored record of a token; times in UTC seconds, ``expires_at`` None: never.

    ``sha256`` is None of a key of an S3 client, whose secret follows from its id.
    """

    id: str
    principal: str
    sha256: str | None
    created_at: float
    expires_at: float | None = None

    def as_json(self) -> dict[str, Any]:
        """Return what may be shown."""
        shown = asdict(self)
        shown["kind"] = "s3" if shown.pop("sha256") is None else "token"
        return shown

    @property
    def kept_by(self) -> str:
        """The field that tells a file's tokens apart: no hash looks like the id of a key."""
        return self.sha256 or self.id


class Tokens:
    """The tokens of a node. Thread-safe."""

    def __init__(
        self,
        path: Path,
        fixed: Mapping[str, str],
        *,
        now: Callable[[], float],
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """Read ``path``, which need not be there; ``fixed`` are more, by their principals."""
        self._path = path
        self._fixed = [Token(name, name, hash_of(secret), 0) for name, secret in fixed.items()]
        self._now = now
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._by_hash: Mapping[str, Token] = {}
        self._stamp: tuple[int, ...] | None = None
        self._unread: str | None = None
        self._looked_at = monotonic()
        self.look()  # or whoever comes during the first look would be nobody

    def find(self, secret: str) -> Token | None:
        """Return the token that ``secret`` is, unless it has ended."""
        hashed = hash_of(secret)
        for each in self._fixed:
            if hmac.compare_digest(hashed, each.kept_by):
                return each
        found = self._known().get(hashed)
        return None if found is None or self._has_ended(found) else found

    def lives(self, token_id: str) -> bool:
        """Return whether the token of this id still opens something."""
        known = [*self._fixed, *self._known().values()]
        return any(each.id == token_id and not self._has_ended(each) for each in known)

    def list(self) -> list[Token]:
        """Return all that are kept, the oldest first; ended ones too."""
        return sorted(self._known(at_once=True).values(), key=lambda each: each.created_at)

    def create(self, principal: str, expires_seconds: float | None) -> tuple[Token, str]:
        """Make a token for ``principal``; return what is kept of it, and itself, shown only now."""
        now, name = self._now(), secrets.token_hex(4)
        secret = f"{_PREFIX}{name}_{secrets.token_urlsafe(32)}"
        expires_at = None if expires_seconds is None else now + expires_seconds
        token = Token(name, principal, hash_of(secret), now, expires_at)
        self._replace(lambda kept: {**kept, token.kept_by: token})
        return token, secret

    def create_key(self, key_id: str, principal: str, expires_seconds: float | None) -> Token:
        """Keep a new key of an S3 client; those that ended a week ago are forgotten.

        Raises:
            InvalidRequestError: The principal has very many already.
        """
        now = self._now()
        expires_at = None if expires_seconds is None else now + expires_seconds
        key = Token(key_id, principal, None, now, expires_at)

        def changed(kept: Mapping[str, Token]) -> Mapping[str, Token]:
            left = {name: each for name, each in kept.items() if not _is_past(each, now)}
            own = [each for each in left.values() if each.sha256 is None]
            if sum(each.principal == principal for each in own) >= KEYS_LIMIT:
                raise InvalidRequestError(
                    f"{principal} has {KEYS_LIMIT} keys already",
                    hint=(
                        "Use one token for all processes of a job; `cachetier token revoke` "
                        "removes old ones."
                    ),
                )
            return {**left, key.kept_by: key}

        self._replace(changed)
        return key

    def key(self, key_id: str) -> tuple[Token, bool] | None:
        """Return the key of an S3 client, and whether it has ended; None: there is none."""
        found = self._known().get(key_id)
        if found is None or found.sha256 is not None:
            return None
        return found, self._has_ended(found)

    def revoke(self, token_id: str) -> None:
        """Forget a token: from the next request on it opens nothing.

        Raises:
            InvalidRequestError: There is not one of this id.
        """
        if all(each.id != token_id for each in self.list()):
            raise InvalidRequestError(
                f"there is no token {token_id[:60]!r}",
                hint="`cachetier token list` shows their ids. The owner's own token is a file: "
                "remove it and start the service again.",
            )
        self._replace(lambda kept: {key: each for key, each in kept.items() if each.id != token_id})

    def _has_ended(self, token: Token) -> bool:
        return token.expires_at is not None and token.expires_at <= self._now()

    def is_due(self) -> bool:
        """Return whether to ``look`` now, at most once a second; the caller then looks."""
        if self._monotonic() - self._looked_at < LOOK_SECONDS:
            return False
        self._looked_at = self._monotonic()
        return True

    def look(self) -> None:
        """Read the file if it has changed; meanwhile others go on with what was read before."""
        with self._lock:
            self._look()

    def _known(self, *, at_once: bool = False) -> Mapping[str, Token]:
        if self.is_due() or at_once:
            self.look()
        return self._by_hash

    def _look(self) -> None:
        """Read the file if it has changed; what cannot be read changes nothing, and is told."""
        try:
            stamp = _stamp(self._path)
            if stamp == self._stamp:
                return
            self._by_hash = {} if stamp is None else _read(self._path)
            self._stamp, self._unread = stamp, None
        except (OSError, ValueError, RecursionError) as error:
            self._unread = str(error)
            tell(log, events.TOKENS_UNREADABLE, path=str(self._path), reason=str(error)[:200])

    def _replace(self, change: Callable[[Mapping[str, Token]], Mapping[str, Token]]) -> None:
        with self._lock:
            self._look()
            if self._unread is not None:  # what is in it would be lost
                raise ConfigError(f"cannot change the tokens in {self._path}: {self._unread}")
            changed = change(self._by_hash)
            write_secret(
                self._path,
                json.dumps({"tokens": [asdict(each) for each in changed.values()]}, indent=1),
            )
            self._by_hash, self._stamp = changed, _stamp(self._path)


def owner_secret(cache_dir: Path) -> str:
    """Return the owner's token, made if there is none yet: ``<cache_dir>/token``, mode 0600.

    Raises:
        ConfigError: The file is no such secret: it can be read by others, or is too short.
    """
    return kept_secret(cache_dir / OWNER_FILE, "token", f"{_PREFIX}{OWNER}_")


def kept_secret(path: Path, what: str, prefix: str = "") -> str:
    """Return the secret that a file keeps, made if there is none yet, mode 0600.

    Args:
        path: The file.
        what: What errors call the secret.
        prefix: What a new one begins with.

    Raises:
        ConfigError: The file is no such secret: it can be read by others, or is too short.
    """
    try:
        secret = _own_text(path).strip()
    except FileNotFoundError:
        secret = f"{prefix}{secrets.token_urlsafe(32)}"
        write_secret(path, f"{secret}\n")
        return secret
    except (OSError, ValueError) as error:
        raise ConfigError(f"cannot use the {what} in {path}: {error}", hint=_REMOVE) from error
    if len(secret) < LEAST_CHARACTERS:
        raise ConfigError(f"the {what} in {path} is too short", hint=_REMOVE)
    return secret


_REMOVE = "Remove the file: the next start makes a new one."


def write_secret(path: Path, text: str) -> None:
    """Write a file that only its owner can read, whole or not at all, and for good."""
    scratch = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    descriptor = os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    try:
        with open(descriptor, "w") as file:
            file.write(text)
            file.flush()
            os.fsync(descriptor)
        scratch.rename(path)
    except BaseException:
        with contextlib.suppress(OSError):
            scratch.unlink()
        raise


def hash_of(secret: str) -> str:
    """Return what is kept of a random secret, and does not tell it."""
    return hashlib.sha256(secret.encode("utf-8", "surrogateescape")).hexdigest()


def _stamp(path: Path) -> tuple[int, ...] | None:
    try:
        found = path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size


def _own_text(path: Path, others_may: int = 0, *, follows: bool = False) -> str:
    """Return what a file says, unless others than the service's user could have written it."""
    flags = os.O_RDONLY | os.O_NONBLOCK | (0 if follows else os.O_NOFOLLOW)
    descriptor = os.open(path, flags)
    with open(descriptor) as file:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode) or found.st_uid not in (os.getuid(), 0):
            raise ValueError("it is not a file of the service's user")
        if found.st_mode & 0o077 & ~others_may:
            raise ValueError("others can read or write it: chmod 600")
        if found.st_size > SIZE_LIMIT_BYTES:
            raise ValueError("it is too large")
        return file.read()


def _read(path: Path) -> Mapping[str, Token]:
    document = json.loads(_own_text(path, others_may=0o044, follows=True))
    if not isinstance(document, dict) or not isinstance(document.get("tokens"), list):
        raise ValueError("it does not have the list `tokens`")  # noqa: TRY004
    return {each.kept_by: each for each in map(_token_of, document["tokens"])}


def _is_past(token: Token, now: float) -> bool:
    """Return whether nobody asks any more for a key that has ended; tokens stay as before."""
    ended = token.expires_at is not None and token.expires_at + PAST_SECONDS <= now
    return ended and token.sha256 is None


def _token_of(entry: object) -> Token:
    if not isinstance(entry, dict) or set(entry) != set(Token.__slots__):
        raise ValueError("an entry is not a token")
    texts = [entry["id"], entry["principal"], entry["sha256"] or ""]
    times = [entry["created_at"], entry["expires_at"]]
    numbers = [each for each in times if each is not None]
    if not all(isinstance(each, str) for each in texts) or not all(
        isinstance(each, int | float) and not isinstance(each, bool) for each in numbers
    ):
        raise ValueError("an entry is not a token")
    return Token(**entry)
