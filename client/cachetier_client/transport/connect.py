"""Choose the door of the service from its URL, and introduce the client there."""

from __future__ import annotations

import os
import re
import secrets
from urllib.parse import SplitResult, urlsplit

from cachetier_client.identity.remote_url import without_secret
from cachetier_client.io.block_file import BlockFiles
from cachetier_client.io.workers import Workers
from cachetier_client.transport import wire
from cachetier_client.transport.base import Transport
from cachetier_client.transport.connection import SERVICE_UID_VARIABLE, SOCKET_PATH_LIMIT_BYTES
from cachetier_client.transport.unix import UnixTransport
from cachetier_client.transport.wire import Header

VERSION = "0.1.0"  # as in pyproject.toml: asking the installed files takes 10 ms
DEFAULT_URL = "unix:///run/cachetier/cachetier.sock"
_PORTS = {"http": 80, "https": 443}


def greeting(now: float) -> Header:
    """Return what a client says of itself; incidents from ``now`` on concern it."""
    return {
        "protocol": wire.PROTOCOL,
        "client": f"cachetier-client/{VERSION}",
        "client_id": secrets.token_hex(8),
        "since": now,
    }


def transport_for(
    url: str, hello: Header, *, workers: Workers, token: str = "", files: BlockFiles | None = None
) -> Transport:
    """Return the transport for ``unix:///path``, ``http://host:port`` or ``https://host:port``.

    Nothing is connected yet.

    Raises:
        ValueError: Another kind of address, or a file of TLS that cannot be used.
    """
    parts = urlsplit(url)
    if parts.scheme == "unix":
        return UnixTransport(_socket_path(url), hello, workers, files, uid=_service_uid())
    if parts.scheme in _PORTS and parts.hostname and parts.username is None:
        from cachetier_client.transport.http import HttpTransport
        from cachetier_client.transport.tls import context_of_environment

        return HttpTransport(
            parts.hostname,
            _port(parts),
            prefix=parts.path.rstrip("/"),
            token=token,
            client_id=str(hello["client_id"]),
            tls=context_of_environment() if parts.scheme == "https" else None,
        )
    raise ValueError(f"{without_secret(url)!r} is no address of a service: {_meant(url)}")


def _service_uid() -> int | None:
    text = os.environ.get(SERVICE_UID_VARIABLE, "")
    if text and not text.isdecimal():
        raise ValueError(f"{SERVICE_UID_VARIABLE}={text!r} is no user id")
    return int(text) if text else None


def _port(parts: SplitResult) -> int:
    try:
        port = _PORTS[parts.scheme] if parts.port is None else parts.port
    except ValueError:
        port = 0
    if not port:
        raise ValueError(
            f"{parts.geturl()!r} needs a port from 1 to 65535: {parts.scheme}://host:port"
        )
    return port


def _meant(url: str) -> str:
    """Return what to write instead of an address that is none."""
    scheme, mark, rest = url.partition("://")
    if url.startswith("/"):
        return f"did you mean {f'unix://{url}'!r}?"
    if scheme in _PORTS and "@" in rest:
        return "a token goes into CACHETIER_TOKEN"
    host = rest if mark else url
    if re.fullmatch(r"[A-Za-z0-9.-]+:\d+/?", host):
        return f"did you mean {f'http://{host}'!r}?"
    return "use unix:///path/to/cachetier.sock or http://host:port, or https"


def _socket_path(url: str) -> str:
    path = url.removeprefix("unix:").removeprefix("//")
    if not path.startswith("/"):
        raise ValueError(f"{url!r} needs an absolute path: unix:///path/to/cachetier.sock")
    if len(os.fsencode(path)) > SOCKET_PATH_LIMIT_BYTES:
        raise ValueError(
            f"the socket's path {path!r} is longer than {SOCKET_PATH_LIMIT_BYTES} bytes, which "
            "no socket can have: choose a shorter `socket` for the service"
        )
    return path
