"""The certificate of the HTTP door: its files, read again when they change, and what they say."""

from __future__ import annotations

import _ssl
import ssl
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cachetier.errors import ConfigError

LOOK_SECONDS = 1.0
OTHERS = 0o007
DAY_SECONDS = 86_400.0
WARN_DAYS = 30
_HINT = "`cachetier doctor --only tls` says what the files hold."

Signature = tuple[tuple[int, int, int] | None, ...]


@dataclass(frozen=True, slots=True)
class Certificate:
    """What a certificate says of itself; ``expires_at`` in UTC seconds."""

    subject: str
    issuer: str
    expires_at: float


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """Paths of PEM files: a chain, its key, and, for mutual TLS, who issues to clients."""

    certificate: Path
    key: Path
    client_ca: Path | None = None

    def described(self) -> Certificate:
        """Return what the first certificate of the chain says.

        Raises:
            ConfigError: It cannot be read.
        """
        try:
            found = _ssl._test_decode_cert(str(self.certificate))  # type: ignore[attr-defined]
        except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
            raise _refused(str(self.certificate), error) from error
        expires_at = ssl.cert_time_to_seconds(found["notAfter"])
        return Certificate(name_of(found["subject"]), name_of(found["issuer"]), expires_at)

    def context(self) -> ssl.SSLContext:
        """Return a context of TLS 1.2 and later that holds what the files hold now.

        Raises:
            ConfigError: They cannot be used; says which, and why.
        """
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        at = str(self.key)
        try:
            if self.key.stat().st_mode & OTHERS:
                raise ConfigError(
                    f"tls_key {self.key} can be read by others", hint=f"chmod 600 {self.key}"
                )
            at = str(self.certificate)
            self.certificate.stat()
            at = f"{self.certificate} with {self.key}"
            context.load_cert_chain(self.certificate, self.key, password=lambda: "")
            if self.client_ca is not None:
                at = str(self.client_ca)
                context.load_verify_locations(self.client_ca)
                context.verify_mode = ssl.CERT_REQUIRED
        except (OSError, ValueError) as error:
            raise _refused(at, error) from error
        return context

    def signature(self) -> Signature:
        """Return what differs once a file was replaced or written."""
        return tuple(_signature(each) for each in (self.certificate, self.key, self.client_ca))


class Tls:
    """The files as they are in use: a new connection gets what they hold then.

    Files that are no good change nothing: what was read before stays in use. ``on_read`` is told of
    each time that others were read, with what is wrong with them or None. For one thread at a time.
    """

    def __init__(self, files: TlsFiles, on_read: Callable[[str | None], None]) -> None:
        """Read the files.

        Raises:
            ConfigError: They cannot be used.
        """
        self._files = files
        self._on_read = on_read
        self._lock = threading.Lock()
        self._signature = files.signature()
        self._context = files.context()
        self._looked_at = time.monotonic()
        self.certificate = files.described()
        self.problem: str | None = None

    def context(self) -> ssl.SSLContext:
        """Return the context for a new connection; looks at the files at most once a second."""
        with self._lock:
            if time.monotonic() - self._looked_at >= LOOK_SECONDS:
                self._look()
            return self._context

    def warnings(self, now: float) -> list[str]:
        """Return what a person should look after, at ``now`` in UTC seconds."""
        self.context()
        found = []
        if self.problem is not None:
            found.append(f"{self.problem}; the certificate that was read before stays in use")
        left_days = (self.certificate.expires_at - now) / DAY_SECONDS
        if left_days < WARN_DAYS:
            when = "has expired" if left_days < 0 else f"expires in {left_days:.0f} days"
            found.append(
                f"the certificate of the HTTP door {when}: renew {self._files.certificate}"
            )
        return found

    def _look(self) -> None:
        self._looked_at = time.monotonic()
        signature = self._files.signature()
        if signature == self._signature:
            return
        self._signature = signature
        try:
            context, certificate = self._files.context(), self._files.described()
        except ConfigError as error:
            self.problem = error.message
        else:
            self._context, self.certificate, self.problem = context, certificate, None
        self._on_read(self.problem)


def name_of(relative_names: Any) -> str:
    """Return a distinguished name as text, ``CN=node-7,O=lab``: the most specific part first."""
    pairs = [pair for names in reversed(relative_names) for pair in names]
    return ",".join(f"{_SHORT.get(kind, kind)}={_escaped(value)}" for kind, value in pairs)


_SHORT = {"commonName": "CN", "organizationName": "O", "organizationalUnitName": "OU"}


def _escaped(value: str) -> str:
    """Return a value in which nothing can be taken for the name's own signs (RFC 4514)."""
    return "".join(f"\\{sign}" if sign in ',+"\\<>;=' else sign for sign in value)


def _signature(path: Path | None) -> tuple[int, int, int] | None:
    try:
        found = path.stat() if path is not None else None
    except OSError:
        return None
    return found and (found.st_ino, found.st_mtime_ns, found.st_size)


def _refused(path: str, error: Exception) -> ConfigError:
    reason = getattr(error, "reason", None) or getattr(error, "strerror", None) or str(error)
    what = "no such file" if isinstance(error, FileNotFoundError) else reason
    return ConfigError(f"TLS cannot use {path}: {what}", hint=_HINT)
