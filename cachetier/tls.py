"""The certificate of the HTTP door: its files, read again when they change, and what they say."""

from __future__ import annotations

import _ssl
import ssl
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cachetier.errors import ConfigError

OTHERS = 0o007
DAY_SECONDS = 86_400.0
WARN_DAYS = 30
_SHORT = {"commonName": "CN", "organizationName": "O", "organizationalUnitName": "OU"}


@dataclass(frozen=True, slots=True)
class Certificate:
    """The fields of a certificate; ``expires_at`` in UTC seconds."""

    subject: str
    issuer: str
    expires_at: float


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """Paths of PEM files: a chain, its key, and, for mutual TLS, who issues to clients."""

    certificate: Path
    key: Path
    client_ca: Path | None = None

    def read(self) -> tuple[ssl.SSLContext, Certificate]:
        """Return a context of TLS 1.2 and later, and what its certificate says.

        Raises:
            ConfigError: The files cannot be used; says which, and why.
        """
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        at = str(self.key)
        try:
            if self.key.stat().st_mode & OTHERS:
                raise ConfigError(f"others can read the key of `tls`, {at}", hint=f"chmod 600 {at}")
            at = str(self.certificate)
            found = _ssl._test_decode_cert(at)  # type: ignore[attr-defined]  # no other one decodes
            at += f" with {self.key}"
            context.load_cert_chain(self.certificate, self.key, password=lambda: "")
            if self.client_ca is not None:
                at = str(self.client_ca)
                context.load_verify_locations(self.client_ca)
                context.verify_mode = ssl.CERT_REQUIRED
        except (OSError, ValueError) as error:  # those of TLS are an OSError
            reason = getattr(error, "reason", None) or getattr(error, "strerror", None) or error
            hint = "Write PEM files there; `cachetier doctor --only tls` looks at them."
            raise ConfigError(f"TLS cannot use {at}: {reason}", hint=hint) from error
        expires_at = ssl.cert_time_to_seconds(found["notAfter"])
        return context, Certificate(name_of(found["subject"]), name_of(found["issuer"]), expires_at)

    def signature(self) -> object:
        """Return what differs once a file was replaced or written."""
        return [_signature(each) for each in (self.certificate, self.key, self.client_ca) if each]


class Tls:
    """The files as they are in use: a new connection gets what they hold then. Thread-safe.

    Files that are no good change nothing: what was read before stays in use. ``on_read`` is told of
    each time that others were read, with what is wrong with them or None.
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
        self._problem: str | None = None
        self._context, self._certificate = files.read()

    def context(self) -> ssl.SSLContext:
        """Return the context for a new connection."""
        with self._lock:
            signature = self._files.signature()
            if signature != self._signature:
                self._signature, self._problem = signature, None
                try:
                    self._context, self._certificate = self._files.read()
                except ConfigError as error:
                    self._problem = error.message
                self._on_read(self._problem)
            return self._context

    def warnings(self, now: float) -> list[str]:
        """Return what a person should look after, at ``now`` in UTC seconds."""
        self.context()
        found = []
        if self._problem is not None:
            found.append(f"{self._problem}; the certificate that was read before stays in use")
        left_days = (self._certificate.expires_at - now) / DAY_SECONDS
        if left_days < WARN_DAYS:
            when = "has expired" if left_days < 0 else f"expires in {left_days:.0f} days"
            found.append(
                f"the certificate of the HTTP door {when}: renew {self._files.certificate}"
            )
        return found


def name_of(relative_names: Any) -> str:
    """Return a distinguished name as RFC 4514 has it, ``CN=node-7,O=lab``.

    The signs of the form are escaped in values: no name looks like two.
    """
    pairs = [pair for names in reversed(relative_names) for pair in names]
    escaped = str.maketrans({sign: f"\\{sign}" for sign in ',+"\\<>;='})
    return ",".join(f"{_SHORT.get(kind, kind)}={value.translate(escaped)}" for kind, value in pairs)


def _signature(path: Path) -> tuple[int, int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size
