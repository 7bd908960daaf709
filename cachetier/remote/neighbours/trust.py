"""How the nodes of a cluster know each other: by a token, or by certificates of one CA."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from cachetier_client.transport.tls import context_of_environment

from cachetier.errors import ConfigError
from cachetier.tls import TlsFiles

LEAST_TOKEN_CHARACTERS = 32


@dataclass(frozen=True, slots=True)
class Trust:
    """How nodes know each other: by a token, or certificates of one CA.

    ``tls`` is the door's, ``context`` returns that of a new connection to a peer.
    """

    token: str = ""
    tls: TlsFiles | None = None
    context: Callable[[], ssl.SSLContext] | None = None


def trust_of(path: Path, files: TlsFiles | None) -> Trust:
    """Read ``peers.trust``; raises ConfigError."""
    try:
        text = path.read_text(encoding="ascii").strip()
        if "-----BEGIN CERTIFICATE-----" not in text:
            if len(text) < LEAST_TOKEN_CHARACTERS or not text.isprintable():
                hint = f"openssl rand -hex 32 > {path}, and the same file on every node"
                raise ConfigError(
                    f"`peers.trust` {path} has no token and no certificate", hint=hint
                )
            if files is None:
                return Trust(text)
            own = TlsFiles(files.certificate, files.key)
            of_environment = context_of_environment()
            return Trust(text, own, lambda: of_environment)
        if files is None:
            raise ConfigError("`peers.trust` is a certificate: set `tls` as well")
        own = TlsFiles(files.certificate, files.key, path)
        contexts = _contexts(own)
    except (OSError, ValueError) as error:
        raise ConfigError(f"`peers.trust` {path} cannot be used: {error}") from error
    return Trust("", own, contexts)


def _contexts(files: TlsFiles) -> Callable[[], ssl.SSLContext]:
    """Return what gives a new connection its context, read again when ``files`` change.

    Files that are no good change nothing: the door tells of them.
    """

    def read() -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=files.client_ca)
        context.load_cert_chain(files.certificate, files.key, password=lambda: "")
        return context

    signature, context = files.signature(), read()

    def current() -> ssl.SSLContext:
        nonlocal signature, context
        if (now := files.signature()) != signature:
            signature = now
            with suppress(OSError, ValueError):
                context = read()
        return context

    return current
