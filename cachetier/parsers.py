"""The small languages of settings; each function raises ValueError for any other text."""

from __future__ import annotations

import ipaddress
import json
import re
from functools import lru_cache
from typing import Any
from urllib.parse import urlsplit

from cachetier_client.units import parsed_size

_ADDRESS = re.compile(r"(?:\[([\w.:%]+)\]|([\w.-]+)):(\d{1,5})", re.ASCII)
_HOST = re.compile(r"(?:\[([\w:.%]+)\]|([\w.-]+))(?::\d{1,5})?", re.ASCII)
_LAST_PORT = 65535


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
    match = _ADDRESS.fullmatch(text)
    if match is None or int(match[3]) > _LAST_PORT:
        raise ValueError(f"{text!r} is not an address such as '127.0.0.1:7070' or '[::1]:7070'")
    return match[1] or match[2], int(match[3])


def host_of(text: str) -> str:
    """Return the name or the address of ``node7``, ``node7:7070`` or ``[::1]:7070``, lower case."""
    match = _HOST.fullmatch(text)
    if match is None:
        raise ValueError(f"{ascii(text)[:100]} is not a host such as 'node7' or 'node7:7070'")
    return (match[1] or match[2]).lower()


@lru_cache(maxsize=1024)
def network_of(address: str) -> str:
    """Return what one machine cannot change of its address: it has a whole loopback, or /64."""
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if found.is_loopback:
        return "loopback"
    if found.version == 4:
        return address
    return str(ipaddress.ip_network((found, 64), strict=False))


def is_loopback(host: str) -> bool:
    """Return whether only this machine reaches ``host``."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def why_not_open(address: tuple[str, int], *, is_private: bool, door: str = "http") -> str | None:
    """Return why a door must not be at ``address``, or None.

    ``is_private``: nobody reads along, or somebody said that this is fine.
    """
    host, port = address
    if is_loopback(host) or is_private:
        return None
    what = "objects" if door == "s3" else "tokens"  # a key of the S3 door signs, and stays
    return (
        f"{door} {host}:{port} is open to other machines, and {what} would cross the network in "
        f"clear text: set `tls`, or, where the network is private, `{door}` to 'http://{host}:{port}'"
    )


def url_of(text: str) -> str:
    """Return ``text`` if it is the URL of an S3 server, and shows no secret."""
    from cachetier_client.identity import remote_url

    shown = remote_url.without_secret(text)
    if shown != text:
        raise ValueError(f"{shown!r} has credentials in it, which come from the AWS chain alone")
    if not _is_server(text):
        raise ValueError(f"{text!r} is not a URL such as 'http://127.0.0.1:8333'")
    return text


def _is_server(url: str) -> bool:
    if not re.fullmatch(r"https?://[!-~]+", url):
        return False
    try:
        parts = urlsplit(url)
        return bool(parts.hostname) and parts.port != 0 and not parts.query and not parts.fragment
    except ValueError:  # no such port, or half an IPv6 address
        return False


def table_of(text: str) -> Any:
    """Return what ``text`` says in JSON; nothing at all is an empty table."""
    twice: list[str] = []

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        names = [name for name, _ in pairs]
        twice.extend(name for name in names if names.count(name) > 1)
        return dict(pairs)

    try:
        found = json.loads(text or "{}", object_pairs_hook=once)
    except (ValueError, RecursionError):
        raise ValueError(f"""{text!r} is not JSON such as '{{"name": "value"}}'""") from None
    if twice:
        raise ValueError(f"{twice[0]!r} appears twice")
    return found
