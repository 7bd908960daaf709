"""The keys of S3 clients: an id that is kept, and a secret that follows from it and a master key.

A signature can only be checked by who has the secret, so a hash of it would not do. It is derived
each time instead: who reads the file of tokens learns no secret, and who takes the master key
(``<cache_dir>/s3-master-key``, mode 0600) has the service's own user already. Each node has a
master key of its own.

Source: docs/s3.md, "Keys".
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from cachetier.access.tokens import Token, Tokens, kept_secret

MASTER_FILE = "s3-master-key"
ID_LIMIT_CHARACTERS = 128  # as of AWS's own
_ID_PREFIX = "CTS3"
_ID_BYTES = 10  # 16 characters, and 20 with the prefix, as AWS's have


@dataclass(frozen=True, slots=True)
class SignedKey:
    """A key that there is, and what became of it; ``is_signed``: by its secret."""

    id: str
    principal: str
    has_ended: bool
    is_signed: bool


class S3Keys:
    """The keys of a node. Thread-safe."""

    def __init__(self, cache_dir: Path, tokens: Tokens) -> None:
        """Keep ids among ``tokens``; the first start makes the master key.

        Raises:
            ConfigError: The file of the master key is none: others can read it, or it is too short.
        """
        self._master = kept_secret(cache_dir / MASTER_FILE, "master key").encode()
        self._tokens = tokens

    def create(self, principal: str, expires_seconds: float | None) -> tuple[Token, str]:
        """Make a key for ``principal``; return what is kept of it, and its secret.

        Raises:
            InvalidRequestError: The principal has very many already.
        """
        key_id = _ID_PREFIX + base64.b32encode(secrets.token_bytes(_ID_BYTES)).decode()
        key = self._tokens.create_key(key_id, principal, expires_seconds)
        return key, self._secret_of(key_id)

    def find(self, key_id: str, is_signed_by: Callable[[str], bool]) -> SignedKey | None:
        """Return the key of an id, None if there is none; ``is_signed_by`` is asked in any case."""
        is_signed = is_signed_by(self._secret_of(key_id[:ID_LIMIT_CHARACTERS]))
        found = self._tokens.key(key_id)
        if found is None:
            return None
        key, has_ended = found
        return SignedKey(key.id, key.principal, has_ended, is_signed)

    def _secret_of(self, key_id: str) -> str:
        text = f"secret of {key_id}".encode("utf-8", "surrogateescape")
        derived = hmac.digest(self._master, text, hashlib.sha256)
        return base64.urlsafe_b64encode(derived).decode().rstrip("=")
