"""The small languages of settings; each function raises ValueError for what is none of it."""

from __future__ import annotations

import ipaddress
import json
import re
from typing import Any

from cachetier.sizes import parsed_size


def capacity_of(text: str, filesystem_bytes: int) -> int:
    """Return the bytes of a size, or of a share of a filesystem: ``1.5 TiB``, ``80%``."""
    share = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*%\s*", text)
    if share is None:
        size_bytes = parsed_size(text)
    elif 0 < float(share.group(1)) <= 100:
        size_bytes = int(filesystem_bytes * float(share.group(1)) / 100)
    else:
        raise ValueError(f"{text!r} is not a share above 0% and up to 100%")
    if size_bytes < 1:
        raise ValueError(f"{text!r} leaves no room at all")
    return size_bytes


def address_of(text: str) -> tuple[str, int]:
    """Return (host, port) of ``127.0.0.1:7070`` or ``[::1]:7070``."""
    host, colon, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not colon or not host or not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise ValueError(f"{text!r} is not an address such as '127.0.0.1:7070'")
    return host, int(port)


def is_loopback(host: str) -> bool:
    """Return whether only this machine reaches ``host``."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def remote_of(text: str) -> tuple[str, str]:
    """Return (bucket, prefix) of ``s3://bucket/prefix``; the error says which part is wrong."""
    from cachetier_client import remotes  # as ranks read it who go past the service

    return remotes.remote_of(text)


def url_of(text: str) -> str:
    """Return ``text`` if it is the URL of an S3 server."""
    if not re.match(r"https?://[^/\s]+", text):
        raise ValueError(f"{text!r} is not a URL such as 'http://127.0.0.1:8333'")
    return text


def mode_of(text: str) -> int:
    """Return the file mode that ``0600`` or ``0o600`` writes in octal."""
    if not re.fullmatch(r"(?:0o)?[0-7]{3,4}", text):
        raise ValueError(f"{text!r} is not a file mode such as '0600'")
    return int(text.removeprefix("0o"), 8)


def table_of(text: str) -> Any:
    """Return what ``text`` says in JSON; nothing at all is an empty table."""
    try:
        return json.loads(text or "{}")
    except ValueError:
        raise ValueError(f"""{text!r} is not JSON such as '{{"name": "value"}}'""") from None
