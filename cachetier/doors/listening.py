"""Bind the addresses of doors. It imports no web framework, so that a start can ask early."""

from __future__ import annotations

import socket

from cachetier.errors import ConfigError


def bound(setting: str, address: tuple[str, int]) -> socket.socket:
    """Return a socket that listens at ``address``.

    Raises:
        ConfigError: It cannot be bound; names ``setting``.
    """
    host, port = address
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
        listener.listen(1024)
    except OSError as error:
        listener.close()
        raise ConfigError(
            f"cannot listen on {setting} {host}:{port}: {error.strerror or error}",
            hint=f"Choose another `{setting}` address, port 0 for a free one, "
            "or an empty one for none.",
        ) from error
    return listener
